"""The whole cache in lock-step: what an engine does wrong is named by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driven import Variant, done, found

from conformance.driver.lockstep import QUIESCENT, VIOLATION, Finding, LockStep
from conformance.driver.protocol import Json, Misuse
from conformance.engines.ours.cache import OurCache, cache
from conformance.search.check import Search, check
from conformance.stems.cache.run import CacheRun
from conformance.stems.stem_registry import start
from impl.cache import SessionCache
from impl.lock_ref import LockTree
from impl.radix import ROOT
from impl.session_trim import RequestRows

CONFIG = {"page_size": 2, "size": 8, "size_swa": 8, "window": 2, "need_sort": False, "rows": 3, "sessions": 2}


def started(make: Callable[[Json], Any] = cache, **config: Any) -> LockStep:
    """A run on small pools."""
    return start("cache", make, {**CONFIG, "components": ["full", "swa"], **config})


def shared(**config: Any) -> LockStep:
    """A run with a request that ended, and one that reads the two nodes of four tokens which it left."""
    lock = started(**config)
    lock.do("admit", request=0, more=5)
    lock.do("finish", request=0)
    lock.do("admit", request=1, more=6)
    return lock


def run_of(lock: LockStep) -> CacheRun:
    """The run of the stem."""
    assert isinstance(lock.run, CacheRun)
    return lock.run


def engine_of(lock: LockStep) -> SessionCache:
    """Our cache, of which tests change what no caller may change."""
    engine: Any = run_of(lock).engine
    found: SessionCache = engine.engine
    return found


def with_cache(engine: type[SessionCache]) -> Callable[[Json], OurCache]:
    """Our engine on a variant of our cache."""

    def make(config: Json) -> OurCache:
        plain = cache(config).engine
        sizes = plain.rows.rows, plain.rows.max_tokens, plain.rows.window
        return OurCache(engine(plain.allocator, *sizes, plain.mamba.states), lacks=("bad",))

    return make


# What a lawful engine does is followed.


def test_what_a_request_leaves_the_next_one_reads() -> None:
    lock = shared()
    assert run_of(lock).calls.view(1).lengths.protected == 6
    lock.do("finish", request=1)
    lock.do("quiesce")
    assert {name: done(lock)[name] for name in ("admit", "insert_leaf", "free_rest")} == {
        "admit": 2,
        "insert_leaf": 2,
        "free_rest": 2,
    }


def test_a_turn_whose_input_the_tree_has_may_evict_what_its_old_row_held() -> None:
    """The old row is given up before the tree makes room for the last token, which is computed again."""
    lock = started(size=6, page_size=1, components=["full"])
    lock.do("admit", request=1, more=6, session=1)
    lock.do("finish", request=1, sent=0)
    lock.do("admit", request=0, session=1)
    assert done(lock)["close"] == done(lock)["evict_leaf"] == 1
    lock.do("quiesce")


def test_a_prefix_is_cut_where_texts_part() -> None:
    lock = started()
    lock.do("admit", request=0, more=5, fork=4)
    lock.do("admit", request=1, more=5, fork=2)
    assert done(lock)["split"] == 1
    lock.do("quiesce")


def test_two_that_compute_the_same_text_keep_one_copy() -> None:
    lock = started()
    for request in (0, 1):
        lock.do("admit", request=request, more=6, chunk=1)
    for request in (0, 1):
        lock.do("chunk", request=request)
    assert done(lock)["drop_duplicates"] >= 1
    lock.do("quiesce")


def test_a_tombstone_comes_to_life() -> None:
    lock = started()
    lock.do("admit", request=0, more=2)
    for slide in (False, False, False, False, True):
        lock.do("decode", requests=[0], slide=slide)
    lock.do("finish", request=0)
    lock.do("evict", swa=6)
    lock.do("admit", request=1, more=5)
    lock.do("finish", request=1)
    lock.do("quiesce")


def test_the_upper_part_of_a_tombstone_comes_to_life() -> None:
    lock = started(size=5, size_swa=4, page_size=1)
    lock.do("admit", request=0, more=3)
    lock.do("decode", requests=[0])
    lock.do("finish", request=0)
    lock.do("admit", request=0, more=1)
    assert {name: done(lock)[name] for name in ("evict_swa", "split", "revive_tombstone")} == {
        "evict_swa": 1,
        "split": 1,
        "revive_tombstone": 1,
    }
    lock.do("quiesce")


def test_a_session_goes_on_holding_its_prefix() -> None:
    lock = started()
    lock.do("admit", request=0, more=5, session=1)
    lock.do("finish", request=0)
    lock.do("evict", full=16, swa=16)
    assert run_of(lock).tree.at
    lock.do("admit", request=1, more=2, session=1)
    lock.do("abort", request=1)
    lock.do("evict", full=16)
    assert not run_of(lock).tree.at
    lock.do("quiesce")


class Renewing(SessionCache):
    """An engine that takes a new track for each state that it passes on, also where the tree has that state already."""

    def cache_unfinished(self, rows: Any, texts: Any, upto: Any = None) -> None:
        """What is inserted is inserted, and the newest track is another one."""
        super().cache_unfinished(rows, texts, upto)
        states = self.mamba.states
        assert states is not None
        for row in rows:
            new = states.mamba_allocator.alloc(1)
            assert new is not None
            old = states.donate_mamba_ping_pong_slot(self.mamba.of[row], new)
            states.mamba_allocator.free(old.reshape(1))


def test_a_state_that_the_tree_has_already_is_renewed() -> None:
    states = {"size_mamba": 8, "buffered": True, "doubled": True, "lazy": False}
    lock = started(with_cache(Renewing), components=["full", "swa", "mamba"], **states)
    for request in (0, 1):
        lock.do("admit", request=request, more=5)
    lock.do("quiesce")
    assert done(lock)["state_renew"] == 1


def test_what_is_out_of_memory_is_refused() -> None:
    lock = started(size=3, size_swa=3)
    lock.do("admit", request=0, more=4)
    lock.do("admit", request=1, more=4, fork=1)
    assert lock.law.counts["admit", "refused"] == 1
    lock.do("quiesce")


# What an engine does wrong.


def test_a_lock_too_many_is_named() -> None:
    lock = shared()
    engine = engine_of(lock)
    engine.locks.full_ref[engine.handles[0].node] += 1
    found(lock, "full_pairs")


def test_a_size_that_is_no_sum_is_named() -> None:
    lock = shared()
    sizes = engine_of(lock).locks
    sizes.swa_evictable_size = lambda: 2  # type: ignore[method-assign]
    found(lock, "swa_evictable_is_sum")


def test_a_page_that_is_read_and_not_held_is_named() -> None:
    lock = shared()
    rows = engine_of(lock).rows
    rows.req_to_token[0, :2] = rows.req_to_token[0, 2:4].clone()
    found(lock, "reads_what_it_holds")


def test_a_row_that_does_not_read_its_own_is_named() -> None:
    lock = shared(page_size=2)
    lock.do("decode", requests=[1])
    engine_of(lock).rows.req_to_token[0, 6:] = 15
    found(lock, "slots_fill_pages")


def test_a_node_that_nobody_left_is_named() -> None:
    lock = shared()
    engine = engine_of(lock)
    slots = engine.pools.alloc(2)
    assert slots is not None
    engine.tree.add(ROOT, [77, 78], slots, live=True)
    found(lock, "insert_leaf")


def test_a_handle_that_was_lost_is_named() -> None:
    lock = shared()
    engine_of(lock).handles.clear()
    found(lock, "request_holds_its_prefix")


def test_a_page_that_is_freed_under_its_node_is_named() -> None:
    lock = shared()
    engine = engine_of(lock)
    entry = next(entry for node, entry in engine.tree.entries.items() if node)
    engine.allocator.free(entry.slots[:2])
    found(lock, "one_owner")


def test_a_node_that_is_evicted_under_its_reader_is_named() -> None:
    lock = shared()
    engine = engine_of(lock)
    held = engine.handles[0].node
    engine.locks.full_ref[:] = 0
    engine.tree.evict(16, 0)
    assert held not in engine.tree.entries
    finding = found(lock, "evict_leaf")
    assert "(held by row 0 (request 1))" in finding.detail


def test_what_stays_at_the_end_is_named() -> None:
    lock = shared(make=lambda config: Variant(cache(config), evict=lambda *_: None))
    with pytest.raises(Finding) as caught:
        lock.do("quiesce")
    assert caught.value.law == QUIESCENT


def test_what_no_caller_sends_is_misuse() -> None:
    lock = shared()
    for op, arguments in {"chunk": {"request": 1}, "finish": {"request": 0}, "close": {"session": 3}}.items():
        with pytest.raises(Misuse):
            lock.do(op, **arguments)


# Faults are found from nothing.


class KeepsCopies(RequestRows):
    """What the tree has already is not given back."""

    def _give_back(self, *_: Any) -> None:
        """Gives back nothing."""


class ForgetsToLetGo(SessionCache):
    """An aborted request holds its prefix for ever."""

    def abort(self, rows: Any) -> None:
        """The lock stays."""
        self.rows.finish(rows)
        self.rows.release(rows)
        for row in rows:
            self.handles.pop(row, None)


class LocksLate(SessionCache):
    """The old lock is given back and the new one never taken."""

    def _share(self, row: int, text: list[int], end: int) -> None:
        super()._share(row, text, end)
        self._release_locks([row])


class CountsTwice(LockTree):
    """A lock is counted twice at the node itself."""

    def acquire(self, nodes: Any, *, over_tombstones: bool = False) -> Any:
        """Locks the nodes, and counts each of them once too often."""
        handles = super().acquire(nodes, over_tombstones=over_tombstones)
        for handle in handles:
            self.full_ref[handle.node] += 1
        return handles


FAULTY: dict[str, tuple[Callable[[Json], Any], set[str]]] = {
    "copies": (
        lambda config: cache(config, lacks=("bad",), rows=KeepsCopies),
        {"freed_exactly_once", "no_leak", "full_positions", "swa_positions"},
    ),
    "abort": (with_cache(ForgetsToLetGo), {"full_pairs", "free_rest", "request_holds_its_prefix"}),
    "late": (with_cache(LocksLate), {"continue_prefill"}),
    "counts": (lambda config: cache(config, lacks=("bad",), locks=CountsTwice), {"full_pairs"}),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_found_and_the_run_is_short(name: str) -> None:
    make, laws = FAULTY[name]
    result = check("cache", make, Search(page_sizes=(2,)))
    assert result.verdict == VIOLATION
    assert result.law in laws, result
    assert result.trace is not None
    assert len(result.trace.steps) <= 8, result.trace.lines()
