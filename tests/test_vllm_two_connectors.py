"""vLLM's ``MultiConnector`` under its scheduler: KV cache from other servers beside host memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from block_runs import BASE
from test_vllm_runs import answer
from two_connectors_edits import ADDED, BUGS, HARMLESS

from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.connectors import Connectors
from conformance.stems.block_cache.protocol import RequestLoad, Transfers, WorkerEnds, exchanges, has_own_connector
from conformance.traces.outcome import outcome

NEWEST = RELEASES[-1]
QUICK = ("first_is_always_chosen", "sends_are_not_waited_for", "each_loads_what_it_found")  # the others in `make soak`
MISSED = ("other_sees_no_blocks", "unready_is_not_waited_for", "sleeps_over_copies")  # see ADR 75
FOUND = """
    import two_connectors_edits
    two_connectors_edits.main(sys.argv[1], sys.argv[2:])
"""


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    answered: dict[str, str | None] = answer(NEWEST, FOUND, *names)
    return answered


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in {**BUGS, **ADDED} if bug not in MISSED])
def test_a_planted_bug_of_two_connectors_is_found(bug: str) -> None:
    assert found(bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_of_two_connectors_shows_nothing(edit: str) -> None:
    assert found(edit) == {edit: None}


class Half:
    """One of two connectors: a load of request 1 begins. It writes down which copies are done."""

    half = SimpleNamespace(names_failures=True)

    def __init__(self, *loads: RequestLoad) -> None:
        self.loads = list(loads)
        self.told: list[tuple[Any, ...]] = []
        self.forgotten: list[tuple[Any, ...]] = []

    def begun(self) -> dict[int, RequestLoad]:
        return {1: self.loads.pop()} if self.loads else {}

    def answer(self, *said: Any) -> str:
        self.told.append(said)
        return "answer"

    def forgets(self, *done: Any) -> None:
        self.forgotten.append(done)


SERVER, HOST = RequestLoad(0, 8, ((1, 2),), has=8), RequestLoad(0, 4, ((1,),), 7, ((3, 1),))


def both(servers: Half, host: Half) -> Connectors:
    made: Any = Connectors
    connectors: Connectors = made(4, servers=servers, host=host, told=lambda metadata: metadata)
    return connectors


def test_only_a_load_from_host_memory_is_told_as_a_copy() -> None:
    servers, host = Half(SERVER), Half()
    connectors = both(servers, host)
    assert connectors.begun() == ({1: SERVER}, ())
    (done,) = connectors.done(Transfers({1: 0}, failed=(1,), stored=(5,)), 1)
    assert (done.received, done.failed, done.lost, done.told) == (["1"], ["1"], (), (None, "answer"))
    assert host.told == host.forgotten == [([], (5,))]
    host.loads.append(HOST)
    connectors.begun()
    connectors.done(Transfers({1: 4}), 1)
    assert host.told[1:] == host.forgotten[1:] == [([1], ())]


def test_each_rank_tells_of_a_copy_by_itself() -> None:
    """A copy is forgotten once the last one has told. Ranks behind the last worker of a run tell what it tells."""
    host = Half(HOST)
    connectors = both(Half(), host)
    connectors.begun()
    first = connectors.done(Transfers({}, workers=(WorkerEnds({1: 4}), WorkerEnds({}, (), (5,)))), 3)
    assert [one.received for one in first] == [["1"], [], []]
    assert (host.told, host.forgotten) == ([([1], ()), ([], (5,)), ([], (5,))], [([], ())])
    connectors.done(Transfers({1: 4}, workers=(WorkerEnds({}), WorkerEnds({1: 4}))), 2)
    assert (host.told[3:], host.forgotten[1:]) == ([([], ()), ([1], ())], [([1], ())])


def test_two_loads_of_one_request_are_told() -> None:
    loads, twice = both(Half(SERVER), Half(HOST)).begun()
    assert (loads, twice) == ({1: SERVER}, (1,))


def test_blocks_that_both_keep_are_no_verdict() -> None:
    with pytest.raises(EngineError, match="both connectors keep the blocks"):
        both(Half(), Half()).launched(SimpleNamespace(extra_async_saves={"1": 1}))


def test_requests_are_of_two_kinds_where_an_own_connector_decides() -> None:
    alone: Json = {**BASE, "transfers": True}
    beside: Json = {**alone, "host": {}, "servers": True}
    assert [exchanges(alone), has_own_connector(alone)] == [True, False]
    assert not exchanges({**alone, "host": {}})
    assert has_own_connector(beside)
    assert not has_own_connector({**beside, "transfers": False})


@pytest.mark.parametrize("again", [False, True])
def test_a_second_load_of_a_request_is_refused_by_the_law(again: bool) -> None:
    config = {**BASE, "transfers": True}
    steps: list[Json] = [
        {"op": "add", "request": 1, "tokens": [1, 2, 3, 4, 5], "outputs": 1, "fork": 0, "elsewhere": 5},
        {"op": "schedule"},
    ]

    def make(config: Json) -> Any:
        engine = registry.load("ours").makers["block_cache"](config)
        schedule = engine.schedule
        engine.schedule = lambda: replace(step := schedule(), twice=tuple(step.loads) if again else ())
        return engine

    broken = outcome(Trace("block_cache", config, steps), make).breaks
    assert [found.law for found in broken] == (["load"] if again else [])
