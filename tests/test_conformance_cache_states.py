"""The whole cache in lock-step, with states beside its rows."""

from __future__ import annotations

from typing import Any

import pytest
from test_conformance_cache import done, named, started

from conformance.cache import CacheRun
from conformance.mamba_rules import LAZY, NO_BUFFER, ONE, TWO

KINDS = {"two": TWO, "lazy": LAZY, "one": ONE, "none": NO_BUFFER}


def stateful(kind: str = "two", **config: Any) -> CacheRun:
    """A run with states."""
    buffer = dict(zip(("buffered", "doubled", "lazy"), KINDS[kind], strict=True))
    return started(components=["full", "swa", "mamba"], size_mamba=9, **buffer, **config)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_goes_on_from_a_copy_of_a_nodes_state(kind: str) -> None:
    run = stateful(kind)
    run.do("admit", request=0, more=4)
    run.do("finish", request=0)
    run.do("admit", request=1, more=6)
    assert done(run)["state_match"] == 1
    run.do("finish", request=1)
    run.do("evict", states=4)
    run.do("end")
    assert run.state.states.available == 9


def test_a_session_keeps_its_states_with_its_row() -> None:
    run = stateful()
    run.do("admit", request=0, more=5, session=1)
    run.do("finish", request=0)
    run.do("admit", request=1, more=3, session=1)
    assert (done(run)["state_save"], done(run)["state_restore"]) == (1, 1)
    run.do("retract", request=1)
    run.do("cancel", request=1)
    run.do("close", session=1)
    run.do("end")


def test_a_state_that_left_with_the_node_below_is_evicted_once() -> None:
    """The upper node was used later than the one below it, has lost its window, and still has a state."""
    buffer = {"buffered": False, "doubled": False, "lazy": False, "size_mamba": 4}
    run = started(components=["full", "swa", "mamba"], page_size=1, size=4, size_swa=3, window=1, **buffer)
    run.do("admit", request=0, more=1, fork=1)
    run.do("admit", request=1, more=3, fork=1)
    run.do("finish", request=0, sent=0)
    run.do("admit", request=0, more=1, fork=1)
    run.do("abort", request=1)
    run.do("evict", states=3)
    assert not run.tree.at
    run.do("end")


def test_a_lazy_buffer_gets_its_second_slot_around_a_boundary() -> None:
    run = stateful("lazy")
    run.do("admit", request=0, more=5)
    run.do("boundary", request=0)
    run.do("settle", request=0)
    assert done(run)["state_second"] == done(run)["state_give_second"] == 1


def test_a_state_that_leaks_is_named() -> None:
    run = stateful()
    run.do("admit", request=0, more=4)
    pool = run.subject.engine.carried.states.mamba_allocator
    assert pool.alloc(1) is not None
    named(run, "states.no_leak")


def test_a_row_that_shows_another_state_is_named() -> None:
    run = stateful()
    run.do("admit", request=0, more=4)
    run.subject.engine.carried.states.req_index_to_mamba_index_mapping[1] = 9
    named(run, "row_says_what_is_owned")


def test_a_state_that_is_evicted_under_its_holder_is_named() -> None:
    run = stateful()
    run.do("admit", request=0, more=5)
    engine = run.subject.engine
    node = engine.handles[0].node
    engine.tree.entries[node].state, engine.locks.mamba[node] = None, 0
    named(run, "state_evict")
