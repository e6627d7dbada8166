"""The whole cache in lock-step: what a subject does wrong is named by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from conformance.cache import CacheRun
from conformance.check import STEMS, check
from conformance.machine import VIOLATION, Finding, Misuse
from conformance.session_trim import QUIESCENT
from conformance.subjects import cache_subjects, ours
from impl.cache import SessionCache
from impl.radix import ROOT

CONFIG = {"page_size": 2, "size": 8, "size_swa": 8, "window": 2, "need_sort": False, "rows": 3, "sessions": 2}


def started(make: Any = ours.MAKERS["cache"], **config: Any) -> CacheRun:
    """A run on small pools."""
    known = {**CONFIG, "components": ["full", "swa"], **config}
    return CacheRun(make(known), known)


def shared(**config: Any) -> CacheRun:
    """A run with a request that ended, and one that reads the two nodes of four tokens which it left."""
    run = started(**config)
    run.do("admit", request=0, more=5)
    run.do("finish", request=0)
    run.do("admit", request=1, more=6)
    return run


def done(run: CacheRun) -> dict[str, int]:
    """How often each transition was done."""
    return {name: n for (name, outcome), n in run.counts.items() if outcome == "done"}


def test_the_run_is_the_stems_own() -> None:
    assert STEMS["cache"][1] is CacheRun


# What a lawful engine does is followed.


def test_what_a_request_leaves_the_next_one_reads() -> None:
    run = shared()
    assert run.view(1).lengths.protected == 6
    run.do("finish", request=1)
    run.do("end")
    assert {name: done(run)[name] for name in ("admit_cold", "admit", "leave", "depart")} == {
        "admit_cold": 1,
        "admit": 1,
        "leave": 2,
        "depart": 2,
    }


def test_a_prefix_is_cut_where_texts_part() -> None:
    run = started()
    run.do("admit", request=0, more=5, fork=4)
    run.do("admit", request=1, more=5, fork=2)
    assert done(run)["split"] == 1
    run.do("end")


def test_two_that_compute_the_same_text_keep_one_copy() -> None:
    run = started()
    for request in (0, 1):
        run.do("admit", request=request, more=6, chunk=1)
    for request in (0, 1):
        run.do("chunk", request=request)
    assert done(run)["leave_copies"] >= 1
    run.do("end")


def test_a_tombstone_comes_to_life() -> None:
    run = started()
    run.do("admit", request=0, more=2)
    for slide in (False, False, False, False, True):
        run.do("decode", requests=[0], slide=slide)
    run.do("finish", request=0)
    run.do("evict", swa=6)
    run.do("admit", request=1, more=5)
    run.do("finish", request=1)
    run.do("end")


def test_the_upper_part_of_a_tombstone_comes_to_life() -> None:
    run = started(size=5, size_swa=4, page_size=1)
    run.do("admit", request=0, more=3)
    run.do("decode", requests=[0])
    run.do("finish", request=0)
    run.do("admit", request=0, more=1)
    assert {name: done(run)[name] for name in ("evict_swa", "split", "leave_window")} == {
        "evict_swa": 1,
        "split": 1,
        "leave_window": 1,
    }
    run.do("end")


def test_a_session_goes_on_holding_its_prefix() -> None:
    run = started()
    run.do("admit", request=0, more=5, session=1)
    run.do("finish", request=0)
    run.do("evict", full=16, swa=16)
    assert run.tree.at
    run.do("admit", request=1, more=2, session=1)
    run.do("abort", request=1)
    run.do("evict", full=16)
    assert not run.tree.at
    run.do("end")


class Renewing(SessionCache):
    """An engine that takes a new track for each state that it passes on, also where the tree has that state already."""

    def cache_unfinished(self, rows: Any, texts: Any) -> None:
        """What is inserted is inserted, and the newest track is another one."""
        super().cache_unfinished(rows, texts)
        states: Any = self.carried.states
        for row in rows:
            new = states.mamba_allocator.alloc(1)
            old = states.donate_mamba_ping_pong_slot(self.carried.of[row], new)
            states.mamba_allocator.free(old.reshape(1))


def test_a_state_that_the_tree_has_already_is_renewed() -> None:
    states = {"size_mamba": 8, "buffered": True, "doubled": True, "lazy": False}
    run = started(cache_subjects.faulty_cache(Renewing), components=["full", "swa", "mamba"], **states)
    for request in (0, 1):
        run.do("admit", request=request, more=5)
    run.do("end")
    assert done(run)["state_renew"] == 1


def test_what_is_out_of_memory_is_refused() -> None:
    run = started(size=3, size_swa=3)
    run.do("admit", request=0, more=4)
    run.do("admit", request=1, more=4, fork=1)
    assert run.counts["admit", "refused"] == 1
    run.do("end")


# What an engine does wrong.


def named(run: CacheRun, name: str) -> None:
    """The run goes wrong at the next look, by this law."""
    with pytest.raises(Finding) as found:
        run.compare("finish")
    assert found.value.law == name, found.value


def locks(run: CacheRun) -> Any:
    return run.subject.engine.locks


def test_a_lock_too_many_is_named() -> None:
    run = shared()
    locks(run).full_ref[run.subject.engine.handles[0].node] += 1
    named(run, "full_pairs")


def test_a_size_that_is_no_sum_is_named() -> None:
    run = shared()
    run.subject.engine.locks.swa_evictable_size = lambda: 2
    named(run, "swa_evictable_is_sum")


def test_a_page_that_is_read_and_not_held_is_named() -> None:
    run = shared()
    rows = run.subject.rows
    rows.req_to_token[0, :2] = rows.req_to_token[0, 2:4].clone()
    named(run, "reads_what_it_holds")


def test_a_row_that_does_not_read_its_own_is_named() -> None:
    run = shared(page_size=2)
    run.do("decode", requests=[1])
    rows = run.subject.rows
    rows.req_to_token[0, 6:] = 15
    named(run, "slots_fill_pages")


def test_a_node_that_nobody_left_is_named() -> None:
    run = shared()
    engine = run.subject.engine
    slots = engine.allocator.alloc(2)
    engine.tree.add(ROOT, [77, 78], slots, live=True)
    named(run, "leave")


def test_a_handle_that_was_lost_is_named() -> None:
    run = shared()
    run.subject.engine.handles.clear()
    named(run, "request_holds_its_prefix")


def test_a_page_that_is_freed_under_its_node_is_named() -> None:
    run = shared()
    engine = run.subject.engine
    entry = next(entry for node, entry in engine.tree.entries.items() if node)
    engine.allocator.free(entry.slots[:2])
    named(run, "one_owner")


def test_a_node_that_is_evicted_under_its_reader_is_named() -> None:
    run = shared()
    held = run.subject.engine.handles[0].node
    run.subject.engine.locks.full_ref[:] = 0
    run.subject.engine.tree.evict(16, 0)
    assert held not in run.subject.engine.tree.entries
    named(run, "evict_leaf")


def test_what_stays_at_the_end_is_named() -> None:
    run = shared()
    run.subject.evict = lambda *_: None
    with pytest.raises(Finding) as found:
        run.do("end")
    assert found.value.law == QUIESCENT


def test_what_no_caller_sends_is_misuse() -> None:
    run = shared()
    for op, arguments in {"chunk": {"request": 1}, "finish": {"request": 0}, "close": {"session": 3}}.items():
        with pytest.raises(Misuse):
            run.do(op, **arguments)


# Faults are found from nothing.


class KeepsCopies(SessionCache):
    """What the tree has already is not given back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        real = self.rows.dedupe

        def dedupe(row: int, slots: torch.Tensor, upto: int) -> None:
            free = self.allocator.free
            self.allocator.free = lambda *_, **__: None  # type: ignore[method-assign]
            real(row, slots, upto)
            self.allocator.free = free  # type: ignore[method-assign]

        self.rows.dedupe = dedupe  # type: ignore[method-assign, assignment]


class ForgetsToLetGo(SessionCache):
    """An aborted request holds its prefix for ever."""

    def abort(self, rows: Any) -> None:
        self.rows.finish(rows)
        self.rows.release(rows)
        for row in rows:
            self.handles.pop(row, None)


class LocksLate(SessionCache):
    """The old lock is given back and the new one never taken."""

    def _share(self, row: int, text: list[int]) -> None:
        super()._share(row, text)
        self._let_go([row])


FAULTY: dict[str, tuple[type[SessionCache], set[str]]] = {
    "copies": (KeepsCopies, {"freed_exactly_once", "no_leak"}),
    "abort": (ForgetsToLetGo, {"full_pairs", "depart", "request_holds_its_prefix"}),
    "late": (LocksLate, {"come_back", "come_back_cold"}),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_and_the_run_is_short(name: str) -> None:
    engine, laws = FAULTY[name]
    make: Callable[[Any], Any] = cache_subjects.faulty_cache(engine=engine)
    found = check("cache", make, page_sizes=(2,))
    assert found.verdict == VIOLATION
    assert found.law in laws, found
    assert found.trace is not None
    assert len(found.trace.steps) <= 8, found.trace.lines()
