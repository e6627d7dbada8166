"""What the scheduler of a server wastes is a latent finding: small trees, events of a server, edits of a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, driven
from test_economy import law_of, told
from test_sglang_server import DRIVE, NORMAL, asks, config, sent, turn
from test_sglang_server_states import CROWD, LAZY, tracking
from test_sglang_server_states import config as stateful

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json, Key
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.mamba_slots.protocol import SlotNames
from conformance.stems.server.economy import GIVES, HIT, STATES, ServerEconomy, longest, room_of

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
SHAPE: Json = {"page_size": 2, "window": 4, "components": ["full"]}


def path(*parts: tuple[int, str], text: list[int] = TEXT) -> dict[Key, NodeSnapshot]:
    """Nodes on the path of a text. Each has so many tokens; ``w``: slots of the window; ``s``: a state; ``h``: its full
    slots are on the host alone.
    """
    found, at = {}, 0
    for number, (tokens, has) in enumerate(parts, start=1):
        slots, key = [*range(at + 2, at + 2 + tokens)], Key(text[: at + tokens])
        sides = {
            "full": NodePart(None if "h" in has else slots, 0),
            "swa": NodePart(slots if "w" in has else None, 0),
            "mamba": NodePart([number] if "s" in has else None, 0),
        }
        found[key] = NodeSnapshot(number, number - 1, list(key[at:]), sides)
        at += tokens
    return found


def only(nodes: dict[Key, NodeSnapshot], *sides: str) -> dict[Key, NodeSnapshot]:
    """The nodes of a tree that has these components."""
    return {
        key: NodeSnapshot(one.id, one.parent, one.key, {side: one.parts[side] for side in sides})
        for key, one in nodes.items()
    }


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (TEXT, 8),
        (TEXT[:8], 6),  # the last token is computed in any case, and a page is found as a whole
        (TEXT[:6], 4),
        ([1, 2, 3, 4, 5, 9, 9, 9], 4),  # inside the second node
        ([1, 2, 9, 9], 2),
        ([9, 9, 9, 9], 0),
        ([1], 0),
    ],
)
def test_a_hit_ends_at_any_page_of_a_node(text: list[int], tokens: int) -> None:
    assert longest(only(path((4, ""), (4, "")), "full"), text, 2, None) == tokens


def test_the_tree_branches() -> None:
    other = [1, 2, 3, 4, 9, 9, 9, 9, 9]
    nodes = only({**path((4, ""), (4, ""), text=other), **path((4, ""), (2, ""), (2, ""))}, "full")
    assert longest(nodes, TEXT, 2, None) == 8
    assert longest(nodes, other, 2, None) == 8


def test_what_is_on_the_host_alone_is_no_hit() -> None:
    assert longest(only(path((4, ""), (4, "h")), "full"), TEXT, 2, None) == 4


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([(2, "w"), (2, "w"), (4, "w")], 8),
        ([(2, "w"), (2, ""), (4, "w")], 8),  # the window of four tokens before the ninth
        ([(2, "w"), (4, ""), (2, "w")], 2),  # near the root the window is shorter
        ([(2, ""), (4, "w"), (2, "")], 6),
        ([(4, ""), (4, "")], 0),
    ],
)
def test_a_hit_has_its_window(parts: list[tuple[int, str]], tokens: int) -> None:
    assert longest(only(path(*parts), "full", "swa"), TEXT, 2, 4) == tokens


@pytest.mark.parametrize(
    ("parts", "text", "tokens"),
    [
        ([(4, "s"), (4, "s")], TEXT, 8),
        ([(4, "s"), (4, "")], TEXT, 4),
        ([(4, "s"), (4, "s")], TEXT[:8], 4),  # the state of a node is the one at its end
        ([(4, ""), (4, "")], TEXT, 0),
    ],
)
def test_a_hit_has_its_state(parts: list[tuple[int, str]], text: list[int], tokens: int) -> None:
    assert longest(only(path(*parts), "full", "mamba"), text, 2, None) == tokens


def economy(finds: bool = True, wasted: bool = True, **more: Any) -> ServerEconomy:
    return ServerEconomy(law_of([None], [False]), SHAPE | more, finds, wasted)


def test_a_hit_that_is_cut_short_is_told() -> None:
    one, nodes = economy(), only(path((4, ""), (4, "")), "full")
    one.matched(1, TEXT, nodes)
    one.begins(1, 8)
    one.begins(2, 0)  # it was not looked for
    assert told(one.law) == []
    one.matched(1, TEXT, {})
    one.matched(1, TEXT, nodes)  # the last match counts
    one.begins(1, 6)
    assert told(one.law) == [HIT]
    assert "goes on after 6 tokens, and the tree has 8 for it" in one.law.latents[0].detail


def test_a_server_that_must_find_nothing_wastes_nothing() -> None:
    one = economy(finds=False)
    one.matched(1, TEXT, only(path((4, "")), "full"))
    one.begins(1, 0)
    assert told(one.law) == []


def tree(free: int, evictable: int) -> LockRefSnapshot:
    return LockRefSnapshot([], {"full": evictable}, {"full": 0}, {"full": [*range(free)], "swa": []})


def test_room_is_what_is_free_and_what_can_be_evicted() -> None:
    assert room_of(tree(2, 6), 2) == 10


@pytest.mark.parametrize(
    ("after", "alone", "laws"),
    [
        ([tree(1, 2), tree(1, 2)], 1, [GIVES]),
        ([tree(1, 2), tree(2, 2)], 1, [GIVES]),  # the second one gives its page back, and the first one does not
        ([tree(2, 2), tree(3, 2)], 1, []),
        ([tree(1, 4), tree(4, 0)], 1, []),  # what can be evicted is as good as free
        ([tree(1, 2), tree(1, 2)], 0, []),  # the tree had all that they had, and others hold it
    ],
)
def test_retractions_that_do_not_give_back_what_they_take_are_told(
    after: list[LockRefSnapshot], alone: int, laws: list[str]
) -> None:
    one = economy()
    one.happens("poll", tree(1, 2))
    for request, seen in enumerate(after):
        one.happens("left", seen)
        one.retracts(request, alone)
    one.happens("evicted", after[-1])
    assert told(one.law) == []
    one.happens("decoded", tree(0, 2))
    assert told(one.law) == laws
    one.happens("poll", tree(0, 0))
    assert told(one.law) == laws


def test_a_request_that_leaves_is_not_retracted() -> None:
    one = economy()
    for kind in ("poll", "left", "poll"):
        one.happens(kind, tree(1, 2))
    assert told(one.law) == []


def test_a_request_that_waits_holds_no_state() -> None:
    one = economy()
    one.waits([1, 2], {1: SlotNames(), 3: SlotNames((4, 0, 0))})
    assert told(one.law) == []
    one.waits([3], {3: SlotNames((4, 0, 0))})
    assert told(one.law) == [STATES]


def test_a_second_track_that_comes_and_goes_is_held_while_a_pass_writes_a_track() -> None:
    both, one = {1: SlotNames((2, 3, 4)), 2: SlotNames((5, 6, 0))}, economy(lazy=True)
    one.launched([1], [1, 2], both)
    one.launched([], [1, 2], both)  # the pass before it is in flight
    assert told(one.law) == []
    one.resulted()
    one.launched([], [2], both)  # the other one is a turn of a session
    assert told(one.law) == []
    one.launched([], [1, 2], both)
    assert told(one.law) == [STATES]
    always = economy(lazy=False)
    always.launched([], [1, 2], both)
    assert told(always.law) == []


def test_a_recording_does_not_tell_of_waste() -> None:
    one = economy(wasted=False)
    one.waits([3], {3: SlotNames((4, 0, 0))})
    assert told(one.law) == []


def test_waste_ends_a_strict_run() -> None:
    one = economy()
    one.law.strict = True
    with pytest.raises(Finding, match=STATES):
        one.waits([3], {3: SlotNames((4, 0, 0))})


BATCH, SERVER = "sglang.srt.managers.schedule_batch", "sglang.srt.managers.scheduler"
RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor"
LATE = """
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    def late(batch, retract=ScheduleBatch.retract_decode):
        batch.token_to_kv_pool_allocator.free_group_begin()
        found = retract(batch)
        batch.token_to_kv_pool_allocator.free_group_end()
        return found
    ScheduleBatch.retract_decode = late
"""


def edited(*edit: str) -> str:
    """Code that makes an edit of the release."""
    makes = f"from host_memory_edits import Edit, made; edit = made(Edit(*{edit!r})); edit.__enter__()"
    return f"sys.path.insert(1, {str(Path(__file__).parent)!r}); {makes}"


AGAIN = [asks(0, 5, 2), turn(20), asks(1, 5, 2), turn(20)]
SHORT_OF_MEMORY = [asks(0, 4, 8), asks(1, 4, 8, fork=0), asks(2, 4, 8, fork=1), turn(60)]
LIMIT = "self._compute_max_prefix_len(input_len)"
REJECTED = 'if req.kv.holds_mamba and not getattr(req, "session", None):'
SECOND = "if not req.kv.mamba_ping_pong_empty[other_idx]:"
WASTE: dict[str, tuple[str, Json, list[Json], str]] = {
    "a hit leaves its last token out": (
        *(
            edited(BATCH, "Req.init_next_round_input", LIMIT, f"{LIMIT} - 1"),
            config(NORMAL, model="full"),
            AGAIN,
            HIT,
        ),
    ),
    "what was retracted is free later": (
        *(LATE, config(NORMAL, "--schedule-conservativeness", "0.01", model="full"), SHORT_OF_MEMORY, GIVES),
    ),
    "a request that waits keeps a copy": (
        *(edited(SERVER, "Scheduler._get_new_batch_prefill_raw", REJECTED, "if False:"), stateful(), CROWD, STATES),
    ),
    "a second track stays": (
        edited(RESULTS, "SchedulerBatchResultProcessor.mamba_lazy_post_decode_at_boundary", SECOND, "if False:"),
        *(tracking(*LAZY), [asks(0, 3, 12), turn(20)], STATES),
    ),
}


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("name", WASTE)
def test_waste_of_a_release_is_found_where_it_is_planted(name: str) -> None:
    plant, server, steps, law = WASTE[name]
    (before,), (after,) = (sent((server, steps), plant=code) for code in ("", plant))
    assert not {"law", "error", "refused"} & before.keys(), before
    assert after.get("law") == law, after


@pytest.mark.engine
def test_a_short_hit_of_a_server_with_host_memory_is_found() -> None:
    server = config(NORMAL, "--enable-hierarchical-cache", model="full")
    script, runs = DRIVE.replace('"server"', '"host_server"'), json.dumps([(server, AGAIN)])
    plant = edited(BATCH, "Req.init_next_round_input", LIMIT, f"{LIMIT} - 1")
    (before,), (after,) = (driven(NEWEST, script.replace("PLANT", code), runs) for code in ("", plant))
    assert not {"law", "error", "refused"} & before.keys(), before
    assert after.get("law") == HIT, after
