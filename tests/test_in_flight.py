"""Work in flight: a transfer owns its blocks until its own end event, and a pass until its step is done.

On the law, on schedulers that give blocks away too early, and on schedulers that may do what they do.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.driver.lockstep import PROMISE, Finding, LockStep
from conformance.driver.protocol import EngineError, Json
from conformance.engines.ours.block_cache import block_cache as ours
from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.download import WHEELS
from conformance.stems.block_cache.faults import FreesUnderASend, FreesUnderAStep
from conformance.stems.stem_registry import start
from conformance.telling.tell import tell
from impl.block_cache import Scheduler
from proofs.explore import along, paths
from proofs.registry import hints_of
from spec import block_cache as law
from spec import block_pool, in_flight
from spec.block_cache import BlockCacheState
from spec.block_drain import DRAIN, at_rest
from spec.finite import Seq, Set
from spec.in_flight import flying
from spec.lengths import Length

HINTS = hints_of("block_cache")
CITED = re.compile(r"``Scheduler\.(\w+)``")
NONE, ONE = Length(0, 0), Length(1, 0)
ENDED = "each transfer into or out of the row has ended"
UNUSED = "no pass in flight and no other transfer uses a block that the transfer writes"


def empty(blocks: int = 2) -> BlockCacheState:
    """Blocks of two tokens, two rows, and room for three jobs."""
    return law.initial(block_pool.initial(blocks, rows=2, indices=2), [2], [None], [False], jobs=3)


def after(st: BlockCacheState, *calls: tuple[Any, ...]) -> BlockCacheState:
    for name, *arguments in calls:
        step = HINTS.stem.transitions[name](st, *arguments)
        assert step.granted, (name, step.broken())
        assert not HINTS.stem.broken(step.then), name
        st = step.then
    return st


def refused(st: BlockCacheState, name: str, *arguments: Any) -> list[str]:
    return HINTS.stem.transitions[name](st, *arguments).broken()


def with_blocks(row: int, *blocks: int) -> list[tuple[Any, ...]]:
    """A request comes and gets these blocks."""
    return [("admit", row, 0, 0, Seq([])), ("allocate", row, Length(len(blocks), 0), 0, Seq(blocks))]


# The law.


def test_a_row_that_a_transfer_still_writes_cannot_be_finished() -> None:
    """The review's example: admit, allocate, load, keep, finish."""
    st = after(empty(), *with_blocks(1, 1), ("load", 1, 1), ("keep", 1))
    assert refused(st, "finish", 1) == [ENDED]
    assert refused(st, "allocate", 2, ONE, 0, Seq([1]))
    assert after(st, ("reset", False)) == st
    done = after(st, ("end", 1), ("finish", 1), ("reset", True))
    assert done.pool.available == 2


@pytest.mark.parametrize("order", [*itertools.permutations((1, 2, 3))])
def test_ends_come_in_any_order(order: tuple[int, ...]) -> None:
    """Two transfers out of a row that runs on, and a pass of it; only then may the row end."""
    begun = (("compute", 1, ONE, Set()), ("send", 1, 1), ("launch", 1, 2, 0), ("send", 1, 3), ("keep", 1))
    st = after(empty(), *with_blocks(1, 1), *begun)
    for number, job in enumerate(order):
        reads_on = {1, 3} - set(order[:number])
        assert bool(refused(st, "finish", 1)) == bool(reads_on)
        st = after(st, ("end", job))
    assert not flying(st.flight).items()
    assert after(st, ("finish", 1)).pool.available == 2


def test_a_block_under_a_pass_may_go_to_a_later_pass_and_not_to_a_transfer() -> None:
    """What one stream orders is lawful; a transfer is ordered behind nothing (vLLM pull request 45357)."""
    st = after(empty(1), *with_blocks(1, 1), ("launch", 1, 1, 0), ("finish", 1), *with_blocks(2, 1))
    after(st, ("launch", 2, 2, 0), ("compute", 2, ONE, Set([1])), ("end", 1), ("end", 2))
    assert refused(st, "load", 2, 2) == [UNUSED]
    after(st, ("end", 1), ("load", 2, 2))


def test_a_transfer_that_has_failed_lets_its_row_go_on() -> None:
    st = after(empty(), *with_blocks(1, 1), ("load", 1, 2))
    assert refused(st, "end", 2) == ["no row waits for the job"]
    assert refused(st, "loaded", 1, 1, ONE, Set()) == ["the job is the transfer into the row"]
    st = after(st, ("loaded", 1, 2, NONE, Set()))
    assert (st.phase(1), st.whole(1)) == (law.RUNS, 0)
    after(st, ("load", 1, 2), ("loaded", 1, 2, ONE, Set([1])), ("finish", 1))


def test_what_a_transfer_reads_is_not_given_up_by_a_window() -> None:
    st = law.initial(block_pool.initial(2, rows=2, indices=2), [2], [1], [False], jobs=2)
    st = after(st, *with_blocks(1, 1, 2), ("compute", 1, Length(1, 1), Set([1])), ("send", 1, 1))
    assert refused(st, "slide", 1, 1, Set([1])) == ["no transfer of the row reads a block that it gives up"]
    after(st, ("end", 1), ("slide", 1, 1, Set([1])))


def states() -> Iterator[BlockCacheState]:
    """Lawful states: the first that calls lead to, and those on the way to transfers."""
    transitions = HINTS.stem.transitions
    yield from (way[-1].after for way in itertools.islice(paths(HINTS, transitions), 1000))
    for route in ("admit allocate load keep", "admit_and_load keep", "admit allocate compute send launch keep"):
        ways = along(HINTS, route, "end", transitions)
        yield from (way[-1].after for way in itertools.islice(ways, 200))


def test_every_state_comes_to_rest_and_then_every_block_is_free() -> None:
    made: set[str] = set()
    for first in states():
        st = first
        while not at_rest(st):
            calls = ((d, m) for d in DRAIN.descents for m in d.members(st).items() if d.when(st, m))  # type: ignore[misc]
            descent, member = next(calls)
            st = after(st, (descent.transition.__name__, *descent.arguments(st, member)))
            made.add(descent.name)
        assert st.pool.available == st.pool.blocks.size
    assert made == {descent.name for descent in DRAIN.descents}


@pytest.mark.engine
def test_what_the_law_cites_is_in_the_newest_release() -> None:
    """Each law of what is in flight names the function of vLLM that asks for it."""
    try:
        text = (WHEELS.release(RELEASES[-1]) / "vllm/v1/core/sched/scheduler.py").read_text("utf-8")
    except EngineError as error:
        pytest.skip(str(error))
    cited = {name for one in (law, in_flight) for name in CITED.findall(inspect.getsource(one))}
    assert len(cited) > 3
    assert {name for name in cited if f"def {name}(" not in text} == set()


# Schedulers.

CONFIG: Json = {
    **{"block_size": 4, "blocks": 2, "layers": [{"kind": "full"}], "caching": False, "batch": 8, "requests": 2},
    **{"drafts": 0, "eagle": False, "steps_in_flight": 2, "threshold": 0, "policy": "fcfs", "max_length": 12},
    **{"events": False, "transfers": True},
}
SCHEDULE, COMPLETE = {"op": "schedule"}, {"op": "complete"}
COMES: Json = {"op": "add", "request": 1, "tokens": [1], "outputs": 1}
ABORTED: Json = {"op": "abort", "request": 1}
LOADED: Json = {"op": "add", "request": 2, "tokens": [*range(1000, 1008)], "outputs": 1, "elsewhere": 8}
SENT: Json = {"op": "add", "request": 1, "tokens": [1], "outputs": 1, "sends": True}


def driven(kind: type[Scheduler], *steps: Json, **config: Any) -> LockStep:
    lock = start("block_cache", lambda made: ours(made, kind=kind), CONFIG | config)
    for step in steps:
        lock.do(**step)
    return lock


def test_a_block_that_a_step_still_writes_does_not_get_a_transfer() -> None:
    steps = [COMES, LOADED, SCHEDULE, ABORTED]
    with pytest.raises(Finding) as found:
        driven(FreesUnderAStep, *steps, SCHEDULE)
    assert (found.value.law, found.value.kind, UNUSED in found.value.detail) == ("admit_and_load", PROMISE, True)
    driven(FreesUnderAStep, *steps, COMPLETE, SCHEDULE)
    driven(Scheduler, *steps, SCHEDULE, COMPLETE, SCHEDULE)


def test_a_block_that_a_step_still_writes_may_be_computed_by_a_later_step() -> None:
    """Without transfers a scheduler gives blocks back at once, as vLLM's does: no false verdict."""
    later = {"op": "add", "request": 2, "tokens": [*range(1000, 1008)], "outputs": 1}
    steps = [COMES, later, SCHEDULE, ABORTED, SCHEDULE, COMPLETE, COMPLETE, SCHEDULE, COMPLETE]
    driven(FreesUnderAStep, *steps, transfers=False, batch=1)
    driven(FreesUnderAStep, *steps, batch=1)


def test_a_block_that_another_server_still_reads_is_not_given_back() -> None:
    steps = [SENT, SCHEDULE]
    with pytest.raises(Finding) as found:
        driven(FreesUnderASend, *steps, COMPLETE)
    assert (found.value.law, found.value.kind, ENDED in found.value.detail) == ("finish", PROMISE, True)
    lock = driven(Scheduler, *steps, COMPLETE, {"op": "sent", "request": 1}, SCHEDULE, COMPLETE, {"op": "audit"})
    assert not flying(lock.law.state.flight).items()


def test_a_picture_shows_what_is_in_flight() -> None:
    lock = driven(Scheduler, LOADED, COMES, SCHEDULE, blocks=3)
    told = tell(lock.trace, ours)
    (panel,) = [one for one in told[-1].picture["panels"] if one["kind"] == "jobs"]
    facts = [(one["facts"]["what"], one["facts"]["begun for"]) for one in panel["items"]]
    assert sorted(facts) == [("a forward pass", "row of request 1"), ("a transfer that writes", "row of request 2")]
