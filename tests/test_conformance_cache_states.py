"""The whole cache in lock-step, with states beside its rows."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import pytest
from driven import done, found
from test_conformance_cache import engine_of, run_of, started

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json
from conformance.engines.ours.cache import cache
from conformance.stems.mamba_slots.rules import LAZY, NO_BUFFER, ONE, TWO
from impl.session_trim import RequestRows
from spec.mamba_slots_state import ABSENT, OWN

STATEFUL = ["full", "swa", "mamba"]
KINDS = {"two": TWO, "lazy": LAZY, "one": ONE, "none": NO_BUFFER}


def stateful(kind: str = "two", **config: Any) -> LockStep:
    """A run with states."""
    buffer: Json = dict(zip(("buffered", "doubled", "lazy"), KINDS[kind], strict=True))
    return started(components=["full", "swa", "mamba"], size_mamba=9, **buffer, **config)


def states_of(lock: LockStep) -> Any:
    """The states of our cache."""
    return engine_of(lock).mamba.states


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_goes_on_from_a_copy_of_a_nodes_state(kind: str) -> None:
    lock = stateful(kind)
    lock.do("admit", request=0, more=4)
    lock.do("finish", request=0)
    lock.do("admit", request=1, more=6)
    assert done(lock)["state_match"] == 1
    lock.do("finish", request=1)
    lock.do("evict", states=4)
    lock.do("quiesce")
    assert run_of(lock).law.state.states.available == 9


def test_a_session_keeps_its_states_with_its_row() -> None:
    lock = stateful()
    lock.do("admit", request=0, more=5, session=1)
    lock.do("finish", request=0)
    lock.do("admit", request=1, more=3, session=1)
    assert (done(lock)["state_save"], done(lock)["state_restore"]) == (1, 1)
    lock.do("retract", request=1)
    lock.do("cancel", request=1)
    lock.do("close", session=1)
    lock.do("quiesce")


class GivesUpRows(RequestRows):
    """A turn that would cut its session's row to nothing, or below its state, begins anew."""

    def begins_anew(self, session: Hashable, given: int) -> bool:
        """Says which rows are of no use to an input of so many tokens."""
        row = self.slot.get(session)
        return row is not None and (given == 1 or int(self.committed[row]) >= given)


def saved_without_answer(components: list[str], tokens: int) -> LockStep:
    """A session whose turn had no answer, in a cache that gives rows up."""
    states: Json = {"buffered": False, "doubled": False, "lazy": False, "size_mamba": 9}
    lock = started(partial(cache, rows=GivesUpRows), components=components, **states)
    lock.do("admit", request=0, more=tokens, session=1, unknown=True)
    lock.do("finish", request=0)
    return lock


@pytest.mark.parametrize(("components", "tokens"), [(["full"], 1), (STATEFUL, 1), (STATEFUL, 3)])
def test_a_row_of_no_use_may_be_given_up(components: list[str], tokens: int) -> None:
    """A turn without a new token, after one without an answer: the row would be cut to nothing, or below its state."""
    lock = saved_without_answer(components, tokens)
    lock.do("look", request=1, more=0, session=1)
    assert [lock.law.counts[name, "done"] for name in ("close", "restore")] == [1, 0]
    lock.do("admit", request=1)
    lock.do("finish", request=1)
    lock.do("quiesce")


def test_a_row_that_can_be_cut_is_not_given_up() -> None:
    with pytest.raises(Finding, match="has lost its row"):
        saved_without_answer(["full"], 3).do("look", request=1, more=0, session=1)


def test_a_state_that_left_with_the_node_below_is_evicted_once() -> None:
    """The upper node was used later than the one below it. Each state leaves once, and no node stays."""
    buffer: Json = {"buffered": False, "doubled": False, "lazy": False, "size_mamba": 4}
    lock = started(components=["full", "swa", "mamba"], page_size=1, size=4, size_swa=3, window=1, **buffer)
    lock.do("admit", request=0, more=1, fork=1)
    lock.do("admit", request=1, more=3, fork=1)
    lock.do("finish", request=0, sent=0)
    lock.do("admit", request=0, more=1, fork=1)
    lock.do("abort", request=1)
    lock.do("abort", request=0)
    lock.do("evict", full=4, states=3)
    assert not run_of(lock).tree.at
    lock.do("quiesce")


def test_a_lazy_buffer_gets_its_second_slot_around_a_boundary() -> None:
    lock = stateful("lazy")
    lock.do("admit", request=0, more=5)
    lock.do("boundary", request=0)
    lock.do("settle", request=0)
    assert done(lock)["state_second"] == done(lock)["state_give_second"] == 1


def test_a_state_that_leaks_is_named() -> None:
    lock = stateful()
    lock.do("admit", request=0, more=4)
    pool = states_of(lock).mamba_allocator
    assert pool.alloc(1) is not None
    found(lock, "states.no_leak")


def test_a_row_that_shows_another_state_is_named() -> None:
    lock = stateful()
    lock.do("admit", request=0, more=4)
    states_of(lock).req_index_to_mamba_index_mapping[1] = 9
    found(lock, "row_says_what_is_owned")


def test_a_state_that_is_evicted_under_its_holder_is_named() -> None:
    lock = stateful()
    lock.do("admit", request=0, more=5)
    engine = engine_of(lock)
    node = engine.handles[0].node
    engine.tree.entries[node].state, engine.locks.mamba[node] = None, 0
    found(lock, "state_evict")


def test_a_row_that_gives_the_tree_nothing_new_may_have_given_the_track_from_before_a_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SGLang's ``donate_mamba_ping_pong_slot`` takes that track whether or not the tree had the state already."""
    lock = stateful("lazy")
    lock.do("admit", request=0, more=5)
    run = run_of(lock)
    steps: list[str] = []
    monkeypatch.setattr(run.states, "_turned", lambda _: True)
    monkeypatch.setattr(run.states, "_newest", lambda _: (1, 2))
    monkeypatch.setattr(lock.law, "engine_step", lambda name, *_: steps.append(name))
    run.share(0, run.calls.row_of[0])
    assert steps == ["state_turn_lazy", "state_renew", "state_turn_lazy"]


def test_a_request_gets_a_new_track_also_where_the_tree_has_a_node_for_each_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = stateful("two")
    lock.do("admit", request=0, more=5)
    run = run_of(lock)
    given: list[tuple[str, int]] = []
    pages = range(1, run.config["size"] + 1)
    monkeypatch.setattr(run.states.nodes, "at", {(number,): number for number in pages})
    monkeypatch.setattr(run.states, "_newest", lambda _: (1, 2))
    monkeypatch.setattr(lock.law, "engine_step", lambda name, _, spare, __: given.append((name, spare)))
    run.states.share(0)
    ((name, spare),) = given
    assert (name, spare in pages, lock.law.state.tree.nodes.has(spare)) == ("state_renew", False, True)
    states = lock.law.state.states
    assert states.table(states.first_node + spare, OWN) == ABSENT
