"""Runs of ``block_cache``: schedulers that stand still or end a request too early are found, lawful ones are not, and a
picture shows requests that have no blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from driven import Variant

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.stems.block_cache.follow import without_withdrawn
from conformance.stems.block_cache.jobs import first_state
from conformance.stems.block_cache.protocol import NEW, RUNNING, Launched, Move, RequestPass
from conformance.stems.block_cache.run import ABORT, ENDS, PROGRESS, STILL
from conformance.stems.block_cache.worker import Workers
from conformance.stems.stem_registry import start
from conformance.telling.tell import tell

STEM = "block_cache"
OURS = registry.load("ours").makers[STEM]
CONFIG: Json = {
    **{"block_size": 4, "blocks": 4, "layers": [{"kind": "full"}], "caching": True, "batch": 16, "requests": 2},
    **{"drafts": 0, "eagle": False, "steps_in_flight": 1, "threshold": 0, "policy": "fcfs", "max_length": 16},
    **{"events": False},
}
ADD: Json = {"op": "add", "request": 1, "tokens": [1, 2, 3], "outputs": 2}


def asleep(config: Json) -> Any:
    """A scheduler that computes nothing."""
    return Variant(OURS(config), schedule=lambda: Launched({}))


def ending(more: int) -> Any:
    """Makes schedulers in which a request ends after ``more`` tokens more than it was asked for."""

    def make(config: Json) -> Any:
        engine = OURS(config)

        def add(request: int, tokens: Sequence[int], outputs: int, *others: Any) -> None:
            engine.add(request, tokens, outputs + more, *others)

        return Variant(engine, add=add)

    return make


def after(make: Any, *steps: Json, **config: Any) -> LockStep:
    lock = start(STEM, make, CONFIG | config)
    for step in steps:
        lock.do(**step)
    return lock


def test_a_scheduler_that_stands_still_is_found() -> None:
    lock = after(asleep, ADD, *[{"op": "schedule"}] * (STILL - 1))
    with pytest.raises(Finding) as found:
        lock.do(op="schedule")
    assert (found.value.law, "request 1 waits, 4 of 4 blocks are free" in found.value.detail) == (PROGRESS, True)


def test_a_scheduler_may_stand_still_where_nobody_waits_or_the_pool_is_too_small_for_a_request() -> None:
    steps = [{"op": "schedule"}] * (STILL + 1)
    after(asleep, *steps)
    after(asleep, ADD, *steps, blocks=3)  # a request may have 16 tokens: four blocks


def test_whatever_happens_between_them_empty_steps_do_not_count_together() -> None:
    steps = [{"op": "schedule"}] * (STILL - 1)
    after(asleep, ADD, *steps, ADD | {"request": 2}, *steps, {"op": "abort", "request": 1}, *steps)


@pytest.mark.parametrize(("more", "words"), [(-1, "has ended with 4 of 5"), (1, "has not ended with 5 of 5")])
def test_a_request_that_ends_too_early_or_too_late_is_found(more: int, words: str) -> None:
    steps: list[Json] = [{"op": "schedule"}, {"op": "complete"}] * 2
    assert after(ending(0), ADD, *steps).run.seen.requests == {}
    with pytest.raises(Finding) as found:
        after(ending(more), ADD, *steps)
    assert (found.value.law, words in found.value.detail) == (ENDS, True), found.value


@pytest.mark.parametrize("steps", [[], [{"op": "schedule"}]])
def test_a_request_that_stays_after_its_abort_is_found(steps: list[Json]) -> None:
    with pytest.raises(Finding) as found:
        after(lambda config: Variant(OURS(config), abort=lambda _: None), ADD, *steps, {"op": "abort", "request": 1})
    assert (found.value.law, found.value.detail) == (ABORT, "request 1 was aborted")


def test_a_picture_shows_a_request_that_waits_without_blocks() -> None:
    told = tell(Trace(STEM, CONFIG, [ADD, *[{"op": "schedule"}] * STILL]), asleep)
    request = told[-1].picture["panels"][0]["items"][0]
    assert (request["name"], request["facts"]["status"]) == ("request 1", "waiting")
    assert told[0].picture["before"] != told[0].picture["panels"]
    assert told[-1].picture["law"][0] == told[-1].picture["panels"][0]


def test_a_hash_that_its_call_takes_back_is_none_unless_a_request_got_the_block_meanwhile() -> None:
    def move(kind: str, *blocks: int) -> Move:
        return Move(kind, blocks, 1, 0)

    cache, evict = move("cache", 1, 2), move("evict", 2)
    assert without_withdrawn([cache, evict]) == [move("cache", 1, 0), evict]
    for between in (move("touch", 2), move("get", 2)):
        assert without_withdrawn([cache, between, evict]) == [cache, between, evict]
    assert without_withdrawn([evict, cache]) == [evict, cache]


# The workers.

TEXT = tuple(range(9))
FIRST = RequestPass(0, 8, 0, False, NEW, ((1, 2),), TEXT)
SECOND = RequestPass(8, 1, 0, True, NEW, ((1, 2, 3),), TEXT)  # it has found the first two blocks


@pytest.mark.parametrize(("kind", "wrong"), [("mamba", [2]), ("full", [])])
def test_of_what_a_step_computes_it_can_read_tokens_and_no_states(kind: str, wrong: list[int]) -> None:
    """The second request finds blocks that the first one computes. In the next step it may go on from them."""
    config = {"block_size": 4, "layers": [{"kind": kind}], "caching": True}
    for steps, misread in (([{1: FIRST, 2: SECOND}], wrong), ([{1: FIRST}, {2: SECOND}], [])):
        workers = Workers(config)
        for request in (1, 2):
            workers.comes(request, 0)
        for step in steps:
            workers.launched(Launched(step))
        found = [workers.completed({2: [9]}, (1, 2)) for _ in steps]
        assert [each.request for each in found if each is not None] == misread


def test_a_request_that_is_called_new_again_keeps_what_steps_in_flight_compute() -> None:
    """It was preempted with a step in flight that goes on where an earlier one ended."""
    workers = Workers({"block_size": 4, "layers": [{"kind": "full"}], "caching": True})
    workers.comes(1, 0)
    workers.launched(Launched({1: FIRST}))
    assert workers.completed({}, (1,)) is None
    workers.launched(Launched({1: RequestPass(8, 1, 0, True, RUNNING, ((3,),))}))
    workers.launched(Launched({1: RequestPass(0, 9, 0, True, NEW, ((4, 5, 6),), TEXT)}))
    assert workers.completed({1: [9]}, (1,)) is None
    assert workers.completed({1: [9]}, (1,)) is None


def test_a_pass_uses_the_states_from_the_one_on_that_it_goes_on_from() -> None:
    """A state at place p is that after the tokens up to the end of block p, or of a part of it."""
    state: Any = SimpleNamespace(block_size=lambda _: 4, first=lambda row: row)
    assert [first_state(state, 0, start) for start in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 1, 1, 2]
    assert first_state(state, 1, 1) == 1
