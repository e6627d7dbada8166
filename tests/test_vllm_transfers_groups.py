"""Transfers between servers of vLLM, of models with windows, states and several groups of layers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from block_runs import BASE
from driven import sampled
from test_vllm_runs import answer
from transfers_groups_edits import BUGS, HARMLESS

from conformance.engines import registry
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.server_connector import TAKEN_AWAY, ServerConnector, ServerHalf
from conformance.engines.vllm.server_workers import Lists
from conformance.engines.vllm.settings import Setup, nothing
from conformance.engines.vllm.transfers import TransferParams
from conformance.stems.block_cache.protocol import Launched, RequestLoad
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.block_cache.worker import Workers

NEWEST = RELEASES[-1]
QUICK = ("freed_while_read",)  # the others in `make soak`
FOUND = """
    import transfers_groups_edits
    transfers_groups_edits.main(sys.argv[1], sys.argv[2:])
"""
FULL, WINDOW, STATES = {"kind": "full"}, {"kind": "window", "window": 6}, {"kind": "mamba"}


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    answered: dict[str, str | None] = answer(NEWEST, FOUND, *names)
    return answered


@pytest.mark.engine
def test_a_planted_bug_in_a_transfer_of_several_groups_is_found() -> None:
    assert all(found(*QUICK).values())


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in QUICK])
def test_another_planted_bug_is_found(bug: str) -> None:
    assert found(bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_shows_nothing(edit: str) -> None:
    assert found(edit) == {edit: None}


class Real:
    """The scheduler's half of a connector: it loads all that is elsewhere into the blocks that a test gives.
    ``shortens``: it takes away the last token of a prompt that is computed for another server.
    """

    def __init__(self, shortens: bool) -> None:
        self.shortens = shortens
        self.local: dict[str, Any] = {}
        self.remote: list[list[int]] = []

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        if request.kv_transfer_params["do_remote_prefill"]:
            return request.tokens - computed, True
        request.num_prompt_tokens -= int(self.shortens and request.num_prompt_tokens > 1)
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, more: int) -> None:
        del more
        self.local[request.request_id] = blocks
        self.remote = request.kv_transfer_params["remote_block_ids"]

    def build_connector_meta(self, output: Any) -> Any:
        del output
        told = {
            name: SimpleNamespace(local_block_ids=blocks, remote=SimpleNamespace(block_ids=self.remote))
            for name, blocks in self.local.items()
        }
        return SimpleNamespace(reqs_to_recv=told)

    def request_finished(self, request: Any, blocks: Any) -> tuple[bool, dict[str, Any]]:
        return True, {"remote_block_ids": blocks, "remote_num_tokens": request.num_tokens - 1}


def from_the_end(local: Lists, remote: Lists) -> tuple[Lists, Lists]:
    """Pairs as the workers do it where the reader's list is not longer."""
    return local, [theirs[len(theirs) - len(mine) :] for mine, theirs in zip(local, remote, strict=True)]


def made(*layers: Any, both_ways: bool = False, drafts: int = 0, shortens: bool = False) -> ServerConnector:
    shortens = shortens or STATES in layers
    setup = Setup(4, 20, True, 8, 3, 40, layers=layers, transfers=True, both_ways=both_ways, drafts=drafts)
    return ServerConnector(ServerHalf(Real(shortens), list, nothing, nothing, from_the_end, {}, True), setup)


def loaded(connector: ServerConnector, tokens: int, lists: list[list[int]]) -> RequestLoad:
    """The load of a prompt of so many tokens into these blocks."""
    _, params = connector.comes(1, range(tokens), TransferParams(elsewhere=tokens))
    request = SimpleNamespace(request_id="1", tokens=tokens, kv_transfer_params=params)
    more, _ = connector.get_num_new_matched_tokens(request, 0)
    assert more is not None
    connector.update_state_after_alloc(request, lists, more)
    connector.build_connector_meta(None)
    return connector.begun()[1]


def test_a_block_is_written_at_the_place_of_the_block_with_which_it_is_paired() -> None:
    load = loaded(made(FULL, WINDOW), 10, [[1, 2, 3], [4, 5]])
    assert load.tables == ((1, 2, 3), (0, 4, 5))
    load = loaded(made(FULL, WINDOW), 10, [[2, 3], [9, 4, 5]])
    assert load.tables == ((0, 2, 3), (0, 4, 5))  # the other server has nothing before its window


PAIRED = """
    layers, cases = map(json.loads, sys.argv[2:])
    try:
        engine = makers["block_cache"]({**runs.BASE, "layers": layers, "transfers": True})
    except Unsupported:
        print('"refused"')
        sys.exit()
    answers = []
    for local, remote in cases:
        try:
            pairs = engine._connectors.servers.half.pairs(local, remote)
            answers.append([[[*each] for each in lists] for lists in pairs])
        except AssertionError:
            answers.append("stops")
    print(json.dumps(answers))
"""
SAID = """
    engine = makers["block_cache"]({**runs.BASE, "layers": json.loads(sys.argv[2]), "transfers": True})
    connector = engine._connectors.servers
    said = [connector.supports_divergent_local_hybrid_hits, connector.requires_kv_delivery]
    groups = connector.half.answers.get("get_loaded_kv_cache_group_ids", lambda _: None)(None)
    waits = [connector.has_pending_block_frees(), connector.has_pending_push_work()]
    print(json.dumps([*said, groups, *waits, connector.register_finished_partial_tail(None, None, None)]))
"""
SAME, HIT, LONGER = [[[8, 9], [7]], [[1, 2], [3]]], [[[9], [7]], [[1, 2], [3]]], [[[8, 9, 6], [7]], [[1, 2], [3]]]


@pytest.mark.engine
@pytest.mark.parametrize("release", sampled(RELEASES[:3:-1], 4))
def test_the_workers_of_a_release_pair_the_lists_of_two_servers(release: str) -> None:
    """A block too many of the reader stops its workers, or stays unwritten where the model has states."""
    paired = [SAME, [[[9], [7]], [[2], [3]]]]
    windows = answer(release, PAIRED, json.dumps([FULL, WINDOW]), json.dumps([SAME, HIT, LONGER]))
    assert windows == [*paired, "stops"]
    states = answer(release, PAIRED, json.dumps([FULL, STATES]), json.dumps([SAME, HIT, LONGER]))
    old = release in RELEASES[: RELEASES.index("0.27.1")]
    assert states == ("refused" if old else [*paired, [[[8, 9], [7]], [[1, 2], [3]]]])


@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "said"),
    [("0.22.1", [False, False, None]), ("0.27.1", [False, True, None]), (NEWEST, [True, True, [0, 1]])],
)
def test_the_connector_of_a_release_says_of_itself_what_its_own_class_says(release: str, said: list[Any]) -> None:
    assert answer(release, SAID, json.dumps([FULL, WINDOW])) == [*said, False, False, False]


def test_who_answers_gets_the_state_before_the_last_token() -> None:
    load = loaded(made(FULL, STATES, drafts=1), 9, [[1, 2], [4, 5]])
    assert (load.has, load.tables[1]) == (8, (0, 4, 5))
    assert loaded(made(FULL, STATES), 1, [[1], [2]]).has == 1


def test_where_a_prompt_is_made_shorter_for_windows_the_other_server_has_a_token_less() -> None:
    connector = made(FULL, WINDOW, shortens=True)
    load = loaded(connector, 9, [[1, 2], [4, 5]])
    assert (load.has, load.tables) == (8, ((1, 2), (4, 5)))  # the window of the ninth token begins in the first block
    tokens, _ = connector.comes(1, (7, 8), TransferParams(sends=True))
    assert tokens == (7, 8, TAKEN_AWAY)


def test_what_a_client_sends() -> None:
    assert made(FULL, STATES).comes(1, (7, 8), TransferParams()) == ((7, 8), None)
    tokens, params = made(FULL, STATES).comes(1, (7, 8), TransferParams(sends=True))
    assert tokens == (7, 8, TAKEN_AWAY)
    assert params == {"do_remote_prefill": False, "do_remote_decode": True}
    tokens, params = made(FULL, WINDOW).comes(1, (7, 8), TransferParams(elsewhere=1))
    assert (tokens, params) == ((7, 8), None)
    _, params = made(FULL, WINDOW, both_ways=True).comes(1, (7, 8), TransferParams(elsewhere=1))
    assert params is not None
    assert params["remote_num_tokens"] == 1


def test_another_server_reads_into_the_blocks_of_its_own_window() -> None:
    connector = made(FULL, WINDOW)
    request = SimpleNamespace(
        request_id="1", num_tokens=11, num_prompt_tokens=10, kv_transfer_params={"do_remote_decode": True}
    )
    connector.request_finished_all_groups(request, [[1, 2, 3], [5, 6]])
    assert (connector.ended(), connector.read()) == ({1: ((1, 2, 3), (0, 5, 6))}, {1: 10})
    request.kv_transfer_params["do_remote_decode"] = False
    request.num_tokens = 14
    connector.request_finished_all_groups(request, [[1, 2, 3, 4], [7, 5, 6]])
    assert (connector.ended(), connector.read()) == ({1: ((1, 2, 3, 4), (0, 0, 5, 6))}, {1: 13})


def workers(*layers: Any) -> Workers:
    made = Workers({"block_size": 4, "layers": list(layers), "caching": True, "transfers": True})
    made.comes(1, 0)
    return made


def test_another_server_reads_the_window_and_the_state_of_its_text() -> None:
    text = tuple(range(10, 20))
    has = workers(WINDOW, STATES)
    has.received(1, RequestLoad(0, 10, ((0, 2, 3), (0, 0, 4)), has=10), text, 10)
    assert has.sent(1, ((0, 2, 3), (0, 0, 4)), text) is None
    without = has.sent(1, ((0, 0, 3), (0, 0, 4)), text)
    assert without is not None
    assert (without.token, without.group) == (5, 0)
    state = has.sent(1, ((0, 2, 3), (0, 4, 0)), text)
    assert state is not None
    assert (state.token, state.is_state) == (10, True)


def test_a_state_comes_with_the_whole_transfer_and_is_of_the_other_server() -> None:
    text = tuple(range(10, 20))
    part = workers(FULL, STATES)
    part.received(1, RequestLoad(0, 9, ((1, 2, 3), (0, 0, 4)), has=9), text, 8)
    misread = part.sent(1, ((1, 2), (0, 0)), text[:8])
    assert misread is not None
    assert misread.is_state
    shorter = workers(FULL, STATES)
    shorter.received(1, RequestLoad(0, 10, ((1, 2, 3), (0, 0, 4)), has=9), text, 10)
    assert shorter.sent(1, ((1, 2, 3), (0, 0, 4)), text[:9]) is None
    assert shorter.sent(1, ((1, 2, 3), (0, 0, 4)), text) is not None


def test_what_does_not_come_of_a_transfer_is_counted_in_blocks_of_its_groups() -> None:
    config = {**BASE, "layers": [{**FULL, "block_size": 8}], "transfers": True}  # where no group says it: 4 tokens
    run = BlockCacheRun(registry.load("ours").makers["block_cache"](config), config)
    run.workers.comes(7, 0)
    run.exchange.launched(Launched({}, loads={7: RequestLoad(0, 16, ((1, 2),))}), {7: range(16)})
    run.exchange.arrives(7, 1)
    assert run.exchange.completed().received == {7: 8}
