"""What the memory contains: prefixes, slots, passes; and in runs of each stem an engine whose contents go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driven import RIGHT

from conformance.driver import lockstep
from conformance.driver.forward import Pools, forward, reads
from conformance.driver.lockstep import CONFORMS, INVARIANT, Finding, LockStep
from conformance.driver.protocol import Json, Key
from conformance.driver.shadow import EMPTY, FULL, READS_OWN, STATES, SWA, PrefixNumbers, Shadow
from conformance.driver.trace import Trace
from conformance.engines import registry, toy
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.stems.fault import Fault
from conformance.stems.lock_ref.contents import NodeContents, along
from conformance.stems.lock_ref.protocol import NodePart, NodeSnapshot
from conformance.stems.mamba_slots import faults as mamba_slots
from conformance.stems.requests.request import MARK, RunRequest, token
from conformance.stems.stem_registry import STEMS, start
from conformance.traces.harm_found import Harm
from conformance.traces.outcome import Break, Outcome, outcome

OURS = registry.load("ours").makers
SHOWS: dict[str, Json] = json.loads(Path(__file__).with_name("content_traces.json").read_text(encoding="utf-8"))
ROWS: Json = {"page_size": 2, "size": 4, "rows": 3, "need_sort": False}
CACHE: Json = {
    "page_size": 1, "size": 9, "size_swa": 9, "size_mamba": 4, "window": 2, "rows": 3, "sessions": 2,
    "need_sort": False, "tree": "unified", "components": ["full", "swa"],
}  # fmt: skip
STATEFUL: Json = {**CACHE, "components": ["full", "mamba"], "buffered": False, "doubled": False, "lazy": False}
TREE: Json = {
    "page_size": 2, "size": 6, "size_swa": 6, "size_mamba": 4, "window": 4, "kind": "unified",
    "components": ["full", "swa", "mamba"],
}  # fmt: skip
SLOTS: Json = {
    "size": 6, "requests": 3, "sessions": 2, "tree": "unified", "buffered": True, "doubled": False, "lazy": False,
}  # fmt: skip
HOST: Json = {
    **{"slots": 3, "keys": 3, "parts": 2, "requests": 2},
    **{"policy": "lru", "threshold": 1, "events": False},
}
SCHEDULER: Json = {
    **{"block_size": 2, "blocks": 6, "layers": [{"kind": "full"}], "caching": True, "batch": 8, "requests": 2},
    **{"drafts": 0, "eagle": False, "steps_in_flight": 1, "threshold": 0, "policy": "fcfs", "max_length": 8},
    "events": False,
}
BLOCKS: Json = {"blocks": 4, "rows": 3, "indices": 3, "groups": 1, "caching": True}


# Texts.


def test_two_prefixes_have_one_number_if_their_tokens_and_marks_are_equal() -> None:
    texts = PrefixNumbers()
    one, other = texts.prefixes([1, 2, 3]), texts.prefixes([1, 2, 4])
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert len({EMPTY, *one, *other}) == 5
    assert texts.prefixes([3], one[1]) == one[2:]
    assert texts.prefixes([2, 1])[1] != one[1]


def test_a_mark_distinguishes_texts_of_equal_tokens() -> None:
    texts = PrefixNumbers()
    plain, lora, salt = ([token(n, 0, mark) for n in range(2)] for mark in (0, 1, 2))
    assert [t % MARK for t in lora] == [t % MARK for t in salt] == plain
    numbers = [{*texts.prefixes(tokens)} for tokens in (plain, lora, salt)]
    assert len(set.union(*numbers)) == 6, "no prefix of one is a prefix of another"
    assert RunRequest(0, lora, 0, mark=1).next() == [token(2, 0, 1)]


# The shadow.


def test_a_slot_holds_what_was_written_last() -> None:
    shadow = Shadow()
    shadow.begin(1)
    shadow.write(FULL, [1, 2], [10, 11], "request 0")
    shadow.begin(2)
    shadow.write(FULL, [2], [20], "request 1")
    assert shadow.read(FULL, [1], [10], "request 0") is None
    assert shadow.read(FULL, [2], [20], "request 0") is None
    wrong = shadow.read(FULL, [1, 2], [10, 11], "request 0")
    assert wrong is not None
    assert (wrong.writer, wrong.slot, wrong.token, wrong.written, wrong.step) == ("request 1", 2, 1, 2, 2)
    assert wrong.reads == "request 1's tokens"
    assert str(wrong) == (
        "request 0 reads request 1's tokens in step 2: token 1 of its text should be in slot 2 of the full pool, which "
        "request 1 wrote in step 2"
    )
    assert shadow.read(SWA, [2], [20], "request 1") is not None, "another pool"


@pytest.mark.parametrize(
    ("pool", "slot", "reads"),
    [
        (FULL, 0, "nothing"),
        (FULL, 5, "a slot that nobody has written"),
        (FULL, 1, "another token of its own"),
        (STATES, 1, "a state of its own after other tokens"),
    ],
)
def test_what_is_wrong_is_said_in_words(pool: str, slot: int, reads: str) -> None:
    shadow = Shadow()
    shadow.write(pool, [1], [10], "request 0")
    wrong = shadow.read(pool, [slot], [11], "request 0", 3)
    assert wrong is not None
    assert wrong.reads == reads
    assert str(wrong).startswith(f"request 0 reads {reads} in step 0: ")
    assert "token 3 " in str(wrong)


def test_padding_keeps_nothing_and_a_copy_copies_what_is_there() -> None:
    shadow = Shadow()
    shadow.write(STATES, [0, 1], [9, 10], "request 0")
    assert shadow.holds(STATES, 0) is None
    shadow.copy(STATES, 1, 2)
    assert shadow.read(STATES, [2], [10], "request 1") is None
    shadow.copy(STATES, 7, 2)
    assert shadow.holds(STATES, 2) is None, "nobody has written slot 7"


def test_an_operation_keeps_what_it_read_first() -> None:
    shadow = Shadow()
    shadow.begin(4)
    shadow.note(None)
    assert shadow.wrong is None
    first, second = (shadow.read(FULL, [slot], [1], "request 0") for slot in (1, 2))
    shadow.note(first)
    shadow.note(second)
    assert shadow.wrong is first
    shadow.begin(5)
    assert shadow.wrong is None


# Forward passes.


def test_a_pass_writes_its_slots_and_reads_all_before_them() -> None:
    shadow, pools = Shadow(), Pools()
    assert forward(shadow, "request 0", [1, 2, 3], [4, 5, 6], 0, 3, pools) is None
    assert forward(shadow, "request 0", [1, 2, 3, 7], [4, 5, 6, 7], 3, 4, pools) is None
    wrong = forward(shadow, "request 1", [1, 2, 8], [4, 6, 8], 2, 3, pools)
    assert wrong is not None
    assert (wrong.slot, wrong.token) == (6, 1)


def test_a_pass_that_writes_two_tokens_into_one_slot_reads_the_wrong_one() -> None:
    wrong = forward(Shadow(), "request 0", [1, 2], [4, 4], 0, 2, Pools())
    assert wrong is not None
    assert (wrong.slot, wrong.token) == (4, 0)


def test_a_pass_reads_its_window_in_the_swa_pool_and_nothing_before_it() -> None:
    shadow = Shadow()
    mapped = Pools([0, 11, 12, 13, 14], window=2)
    assert forward(shadow, "request 0", [1, 2, 3, 4], [1, 2, 3, 4], 0, 4, mapped) is None
    evicted = Pools([0, 0, 0, 13, 14, 15], window=2)
    assert reads(shadow, "request 0", [1, 2, 3, 4], [1, 2, 3, 4], 4, evicted) is None
    wider = reads(shadow, "request 0", [1, 2, 3, 4], [1, 2, 3, 4], 4, evicted._replace(window=3))
    assert wider is not None
    assert (wider.pool, wider.slot, wider.token) == (SWA, 0, 1)
    swapped = reads(shadow, "request 0", [1, 2, 3, 4], [1, 2, 3, 4], 4, Pools([0, 0, 0, 14, 13], window=2))
    assert swapped is not None
    assert (swapped.pool, swapped.slot, swapped.token) == (SWA, 14, 2)


def test_slots_outside_the_mapping_are_mapped_to_nothing() -> None:
    assert Pools([0, 5]).swa([-1, 0, 1, 2]) == [0, 0, 5, 0]
    assert Pools().swa([1]) == [0]


def test_a_page_in_which_a_path_leaves_a_node_is_not_on_the_path() -> None:
    def node(number: int, parent: int, key: list[int], slots: list[int]) -> NodeSnapshot:
        return NodeSnapshot(number, parent, key, {"full": NodePart(slots, 0), "mamba": NodePart([number], 0)})

    nodes = {
        (1, 2): node(1, 0, [1, 2], [2, 3]),
        (1, 2, 3, 4): node(2, 1, [3, 4], [4, 5]),
        (1, 2, 3, 9): node(3, 1, [3, 9], [6, 7]),
    }
    assert along(nodes, [1, 2, 3, 9], "full", 2) == {0: 2, 1: 3, 2: 6, 3: 7}
    assert along(nodes, [1, 2, 3, 9], "mamba", 2) == {1: 1, 3: 3}
    assert along(nodes, [1, 2], "swa", 2) == {}


def tree(**slots: list[int] | None) -> dict[Key, NodeSnapshot]:
    """The nodes [1, 2] and [7, 8], both with the full slots 2 and 3, and with these SWA slots."""
    keys = {"one": (1, 2), "other": (7, 8)}
    return {
        keys[name]: NodeSnapshot(1, 0, list(keys[name]), {"full": NodePart([2, 3], 0), "swa": NodePart(given, 0)})
        for name, given in slots.items()
    }


@pytest.mark.parametrize(
    ("now", "protected", "is_written"),
    [
        (tree(one=[9, 10], other=None), 0, True),  # the other node was evicted, and its slots are the row's now
        (tree(one=[9, 10]), 0, True),
        (tree(one=[9, 10], other=[9, 10]), 0, False),  # the other node still has them
        (tree(one=[9, 10], other=None), 2, False),  # the row has no slots here
        (tree(one=[6, 5], other=[9, 10]), 0, True),  # evicted, and given to the row in another order
    ],
)
def test_an_insert_writes_a_slot_that_a_node_has_lost_to_its_row(
    now: dict[Key, NodeSnapshot], protected: int, is_written: bool
) -> None:
    """An insert that evicts the part of a held node, and of another one, to make room, and brings both to life."""
    contents = NodeContents(Shadow(), window=2, page_size=1)
    before = tree(one=[5, 6], other=[9, 10])
    for key in before:
        contents.inserted("the request of insert 1", key, 0, [2, 3], {}, {key: before[key]})
    contents.inserted("the request of insert 2", (1, 2), protected, [20, 21][protected:], before, now)
    slot = (now[1, 2].parts["swa"].slots or [])[0]
    (text, *_) = contents.shadow.texts.prefixes((1, 2))
    assert (contents.shadow.read(SWA, [slot], [text], "handle 1") is None) is is_written


# Runs.


def changed(lock: LockStep, change: Callable[[Any], Any]) -> None:
    """From now on each snapshot is changed so before the run sees it."""
    run: Any = lock.run
    read = run.snapshot

    def snapshot() -> Any:
        return change(read())

    run.snapshot = snapshot


def test_a_run_of_each_stem_has_a_shadow_that_counts_its_operations() -> None:
    for stem, config in CONFIGS.items():
        lock = start(stem, RIGHT[stem], config)
        lock.do(**FIRST[stem])
        assert lock.run.shadow.step == 1, stem
        assert lock.run.shadow.wrong is None, stem
        assert start(stem, RIGHT[stem], config).run.shadow.step == 0, "a fresh run has a fresh shadow"


CONFIGS: dict[str, Json] = {
    "allocator": ROWS,
    "swa_mapping": {**ROWS, "size_swa": 4},
    "lock_ref": TREE,
    "session_trim": CACHE,
    "mamba_slots": SLOTS,
    "cache": CACHE,
    "block_pool": BLOCKS,
    "block_cache": SCHEDULER,
    "host_tier": HOST,
}
FIRST: dict[str, Json] = {
    "allocator": {"op": "extend", "rows": [0], "more": [3]},
    "swa_mapping": {"op": "extend", "rows": [0], "more": [3]},
    "lock_ref": {"op": "insert", "tokens": [1, 2, 3, 4]},
    "session_trim": {"op": "admit", "request": 0, "more": 3},
    "mamba_slots": {"op": "match", "request": 0, "tokens": [1]},
    "cache": {"op": "admit", "request": 0, "more": 3},
    "block_pool": {"op": "admit", "row": 1, "text": [1, 2], "to": 2},
    "block_cache": {"op": "add", "request": 1, "tokens": [1, 2], "outputs": 1},
    "host_tier": {"op": "begin", "request": 1, "keys": [1, 2]},
}


class HandsOutAgain(toy.ToyAllocator):
    """An allocator that hands out the pages of the first row again, and counts as if it had handed out others."""

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Says that the new slots are those of page 1 on."""
        slots = super().extend(before, after, last)
        return slots and list(range(self.page_size, self.page_size + len(slots)))


def only_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """No law of ownership is judged, so that what was read shows."""
    monkeypatch.setattr(lockstep.LockStep, "_laws", lambda *_: None)
    monkeypatch.setattr(lockstep, "against_lines", lambda *_: [])
    monkeypatch.setattr(lockstep.Law, "_must_hold", lambda *_: None)


def test_a_page_that_is_handed_out_twice_is_harm_beside_the_law_that_breaks() -> None:
    lock = start("allocator", lambda config: HandsOutAgain(config["size"], config["page_size"]), ROWS)
    lock.do("extend", rows=[0], more=[2])
    with pytest.raises(Finding) as caught:
        lock.do("extend", rows=[1, 0], more=[2, 1])
    assert caught.value.law != READS_OWN, "the law of ownership says the cause"
    assert caught.value.harm is not None
    assert (caught.value.harm.reader, caught.value.harm.reads, caught.value.harm.step) == ("row 0", "row 1's tokens", 2)
    shown = Break.of(caught.value, 2)
    assert shown.harm == Harm.of(caught.value.harm).as_json()
    assert Outcome.from_json(Outcome((shown,)).as_json()) == Outcome((shown,))


def test_rows_read_the_swa_slots_to_which_their_slots_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = start("swa_mapping", OURS["swa_mapping"], CONFIGS["swa_mapping"])
    lock.do("extend", rows=[0, 1], more=[2, 2])
    only_contents(monkeypatch)

    def swap(seen: Any) -> Any:
        mapping = list(seen.mapping)
        mapping[2:4], mapping[4:6] = mapping[4:6], mapping[2:4]
        return replace(seen, mapping=mapping)

    changed(lock, swap)
    with pytest.raises(Finding) as caught:
        lock.do("decode", rows=[0])
    assert caught.value.law == READS_OWN
    assert "reads row 1's tokens in step 2: token 0 of its text should be in slot" in caught.value.detail
    assert "of the SWA pool" in caught.value.detail


def test_a_row_whose_swa_slots_are_gone_does_not_read_them() -> None:
    lock = start("swa_mapping", OURS["swa_mapping"], CONFIGS["swa_mapping"])
    lock.do("extend", rows=[0], more=[4])
    lock.do("evict", row=0, first=0, last=1)
    lock.do("backup")
    lock.do("decode", rows=[0])
    lock.do("restore")
    lock.do("decode", rows=[0])
    lock.do("hand_over", row=0, to=1, first=1, last=2)
    lock.do("trim", row=1, tokens=2)
    lock.do("extend", rows=[0, 1], more=[1, 1])


def test_who_holds_a_node_reads_its_swa_slots_and_its_state() -> None:
    for part, pool in (("swa", SWA), ("mamba", STATES)):
        lock = start("lock_ref", OURS["lock_ref"], TREE)
        lock.do("insert", tokens=[1, 2, 3, 4])
        lock.do("insert", tokens=[1, 2, 7, 8])
        lock.do("acquire", handle=1, tokens=[1, 2, 7, 8])

        def swap(seen: Any, part: str = part) -> Any:
            leaves = [seen.nodes[1, 2, 3, 4], seen.nodes[1, 2, 7, 8]]
            slots = [leaf.parts[part].slots for leaf in leaves]
            given = {
                leaf.id: replace(leaf, parts={**leaf.parts, part: replace(leaf.parts[part], slots=other)})
                for leaf, other in zip(leaves, reversed(slots), strict=True)
            }
            shown = replace(seen.tree, nodes=[given.get(node.id, node) for node in seen.tree.nodes])
            return seen._replace(tree=shown, nodes={key: given.get(node.id, node) for key, node in seen.nodes.items()})

        changed(lock, swap)
        with pytest.raises(Finding) as caught:
            lock.do("match", tokens=[9, 9])
        assert caught.value.law == READS_OWN
        assert caught.value.detail.startswith("handle 1 reads the request of insert 1's tokens in step 4: ")
        assert f"of the {pool} pool" in caught.value.detail


def begun(config: Json, stem: str = "cache") -> LockStep:
    """Request 0 has computed five tokens; request 1 has computed three others."""
    lock = start(stem, RIGHT[stem], config)
    lock.do("admit", request=0, more=2, fork=0)
    lock.do("decode", requests=[0])
    lock.do("admit", request=1, more=2, fork=1)
    return lock


def test_a_request_reads_the_slots_that_its_row_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = begun(CACHE, "session_trim")
    only_contents(monkeypatch)

    def swap(seen: Any) -> Any:
        one, other = seen.requests[0], seen.requests[1]
        mixed = [other.slots[0], *one.slots[1:]]
        return replace(seen, requests={0: replace(one, slots=mixed), 1: other})

    changed(lock, swap)
    monkeypatch.setattr(lock.run, "judge", lambda: None)
    monkeypatch.setattr(lock.run, "beyond_state", list)
    lock.do("decode", requests=[1])
    with pytest.raises(Finding) as caught:
        lock.do("decode", requests=[0])
    assert (caught.value.law, caught.value.kind) == (READS_OWN, INVARIANT)
    assert caught.value.detail.startswith("request 0 reads request 1's tokens in step 5: token 0 of its text")


def test_a_draft_is_nobodys_until_it_is_verified() -> None:
    lock = begun(CACHE)
    lock.do("reserve", request=0, more=2)
    slots = lock.run.seen.rows.requests[0].slots
    passes = lock.run.calls.passes  # type: ignore[attr-defined]
    known = lock.run.calls.requests[0]  # type: ignore[attr-defined]
    texts = passes.shadow.texts.prefixes(known.text + known.next(2))
    holds = [passes.shadow.holds(FULL, slot).prefix for slot in slots]
    assert holds[:3] == texts[:3]
    assert not {*holds[3:]} & {*texts}
    lock.do("commit", request=0, count=1)
    holds = [passes.shadow.holds(FULL, slot).prefix for slot in slots]
    assert holds[:4] == texts[:4]
    assert holds[4] not in texts
    assert passes.computed == {0: 4, 1: 2}


def test_an_interrupted_step_writes_nothing() -> None:
    lock = begun(CACHE)
    before = dict(lock.run.shadow._held[FULL])
    lock.do("interrupted_decode", requests=[0])
    lock.do("interrupted_admit", request=2, more=1, fork=2)
    assert lock.run.shadow._held[FULL] == before


def test_what_is_computed_elsewhere_is_written_and_has_swa_slots_in_its_tail_alone() -> None:
    lock = start("cache", OURS["cache"], {**CACHE, "window": 1})
    lock.do("admit_tail", request=0, more=4)
    full, swa = (len(lock.run.shadow._held[pool]) for pool in (FULL, SWA))
    assert (full, swa < full, swa > 0) == (4, True, True)
    lock.do("decode", requests=[0])


def test_a_number_that_another_request_had_before_tells_since_when() -> None:
    lock = begun(CACHE)
    passes = lock.run.calls.passes  # type: ignore[attr-defined]
    lock.do("retract", request=0)
    lock.do("admit", request=0)
    assert passes.name(0) == "request 0", "it is the same request"
    lock.do("finish", request=0)
    lock.do("admit", request=0, more=1)
    assert passes.name(0) == "request 0 (since step 7)"


def test_an_engine_that_does_not_show_its_copies_is_taken_to_copy_what_it_should() -> None:
    for shown in (True, False):
        lock = start("cache", FAULTS["node_without_copy"].make, STATEFUL)
        if not shown:
            lock.run.engine.copied = None
        lock.do("admit", request=0, more=1, fork=0)
        if shown:
            with pytest.raises(Finding):
                lock.do("admit", request=1, more=2, fork=0)
        else:
            lock.do("admit", request=1, more=2, fork=0)


# Faults in which every count is right.

FAULT: dict[str, Fault] = {fault.name: fault for fault in mamba_slots.SEEN_BY_THE_SHADOW}


@pytest.mark.parametrize("name", FAULT)
def test_each_fault_of_contents_is_found(name: str) -> None:
    fault = FAULT[name]
    for seed in (None, 1, 2, 3, 4, 5):
        found = check(fault.stem, fault.make, Search(examples=200, seed=seed))
        if found.verdict != CONFORMS:
            break
    assert found.law == READS_OWN
    assert found.trace is not None
    assert len(found.trace.steps) <= 9
    assert found.harm is not None
    assert found.harm["step"] == len(found.trace.steps)


@pytest.mark.parametrize("name", FAULT)
def test_each_kept_run_of_a_fault_shows_it_and_holds_on_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULT[name]
    trace = Trace(fault.stem, SHOWS[name]["config"], SHOWS[name]["steps"])
    (shown,) = outcome(trace, fault.make).breaks
    assert (shown.law, shown.step) == (READS_OWN, len(trace.steps))
    assert outcome(trace, RIGHT[fault.stem]).breaks == ()
    monkeypatch.setattr(LockStep, "_contents", lambda _: None)
    assert all(b.kind == lockstep.ANSWER for b in outcome(trace, fault.make).breaks), "no law of ownership says it"


def test_stems_are_all_here() -> None:
    assert {*CONFIGS} == {*FIRST} == {*STEMS}
