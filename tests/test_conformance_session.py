"""Rows and session slots in lock-step: what an engine does wrong is named by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from driven import Variant, found

from conformance.driver.lockstep import QUIESCENT, VIOLATION, Finding, LockStep
from conformance.driver.protocol import Json, Misuse
from conformance.driver.trace import Trace
from conformance.engines.ours.cache import cache
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.stems.requests.calls import RequestCalls
from conformance.stems.requests.request import MARK
from conformance.stems.session_trim.projection import ROW_OWNED, SLOT_OWNED, lengths_of
from conformance.stems.session_trim.run import SessionTrimRun
from conformance.stems.session_trim.tree_pages import spans
from conformance.stems.stem_registry import start
from conformance.traces.shrink import shrink

CONFIG = {"page_size": 2, "size": 8, "size_swa": 8, "window": 3, "need_sort": False, "rows": 3, "sessions": 2}


def started(make: Callable[[Json], Any] = cache, **config: Any) -> LockStep:
    """A run on small pools."""
    return start("session_trim", make, {**CONFIG, "tree": "unified", **config})


def run_of(lock: LockStep) -> SessionTrimRun:
    """The run of the stem."""
    assert isinstance(lock.run, SessionTrimRun)
    return lock.run


def calls_of(lock: LockStep) -> RequestCalls:
    """The requests and sessions of the run."""
    return run_of(lock).calls


def engine_of(lock: LockStep) -> Any:
    """Our cache, of which tests change what no caller may change."""
    engine: Any = run_of(lock).engine
    return engine.engine


def saved(**config: Any) -> LockStep:
    """A run with a session whose slot has a row of eight tokens, four of which are the tree's."""
    lock = started(**config)
    lock.do("admit", request=0, more=5, session=1)
    for _ in range(3):
        lock.do("decode", requests=[0])
    lock.do("finish", request=0)
    return lock


def slot(lock: LockStep) -> tuple[int, ...]:
    """The lengths of session 1's slot."""
    return tuple(lengths_of(run_of(lock).rows, run_of(lock).rows.slot(1) - 1))


def test_a_session_lives_and_everything_comes_back() -> None:
    lock = saved()
    assert slot(lock) == (4, 0, 8, 8)
    lock.do("look", request=1, more=2, session=1)
    lock.do("admit", request=1, chunk=1)
    lock.do("chunk", request=1)
    lock.do("finish", request=1)
    lock.do("quiesce")
    assert lock.law.counts["donate", "done"] == 2, "the prompts of both turns"
    assert lock.law.counts["close", "done"] == 1


def test_a_look_gives_the_tail_back_once() -> None:
    lock = started()
    lock.do("admit", request=0, more=2, session=1)
    lock.do("reserve", request=0, more=5)
    lock.do("finish", request=0)
    lock.do("look", request=1, more=0, session=1)
    assert slot(lock) == (2, 0, 2, 2)
    free = run_of(lock).seen.pools.full.free
    lock.do("look", request=1)
    assert (slot(lock), run_of(lock).seen.pools.full.free) == ((2, 0, 2, 2), free)


def test_a_cut_below_the_cursor_goes_back_to_the_trees_part() -> None:
    lock = started()
    lock.do("admit", request=0, more=2, session=1)
    lock.do("reserve", request=0, more=6)
    lock.do("commit", request=0, count=6)
    lock.do("reserve", request=0, more=1, slide=True)
    lock.do("finish", request=0, sent=1)
    assert slot(lock) == (2, 2, 2, 2)


def test_a_turn_that_is_retracted_goes_on_where_it_was() -> None:
    lock = saved()
    lock.do("admit", request=1, more=1, session=1)
    lock.do("retract", request=1)
    with pytest.raises(Misuse, match="one request at a time"):
        lock.do("admit", request=2, more=1, session=1)
    lock.do("admit", request=1)
    assert calls_of(lock).computed(1) == 11


@pytest.mark.parametrize("components", [["full", "swa"], ["full"]])
@pytest.mark.parametrize("page", [1, 2])
def test_a_turn_whose_whole_input_the_tree_has_begins_anew(page: int, components: list[str]) -> None:
    """Its last token is computed again, in a page of its own: the row in the session's slot is given up."""
    lock = started(page_size=page, components=components)
    lock.do("admit", request=0, more=4, session=1)
    lock.do("retract", request=0, sent=0)
    assert slot(lock)[0] == 4
    lock.do("look", request=0)
    assert lock.law.counts["close", "done"] == 1
    lock.do("admit", request=0)
    assert lock.law.counts["admit", "done"] == 2
    lock.do("finish", request=0, sent=0)
    lock.do("admit", request=1, more=0, session=1)
    lock.do("finish", request=1)
    lock.do("quiesce")


def test_a_turn_that_goes_on_in_a_page_of_the_tree_is_named() -> None:
    lock = started(partial(cache, rows=FAULTS["turn_writes_into_tree"].parts["rows"]))
    lock.do("admit", request=0, more=4, session=1)
    lock.do("retract", request=0, sent=0)
    with pytest.raises(Finding):
        lock.do("admit", request=0)


def test_requests_share_what_the_tree_has() -> None:
    lock = started()
    for request in (0, 1):
        lock.do("admit", request=request, more=5)
    assert lock.law.counts["donate", "done"] == 1
    assert calls_of(lock).used()[1].lengths.protected == 4
    lock.do("begin_group")
    lock.do("finish", request=0)
    lock.do("end_group")
    lock.do("quiesce")


def test_two_that_compute_the_same_text_keep_one_copy() -> None:
    lock = started()
    lock.do("admit", request=0, more=5, chunk=1)
    lock.do("admit", request=1, more=5)
    lock.do("chunk", request=0)
    assert lock.law.counts["dedupe", "done"] == 1


def test_what_is_out_of_memory_is_refused() -> None:
    lock = started(size=3, size_swa=3)
    lock.do("admit", request=0, more=4)
    lock.do("admit", request=1, more=2, fork=1)
    lock.do("decode", requests=[1])
    lock.do("admit", request=2, more=3, fork=1)
    assert lock.law.counts["decode", "refused"] == lock.law.counts["admit", "refused"] == 1


def test_a_page_that_is_lost_is_named() -> None:
    lock = saved()
    pool = engine_of(lock).allocator.full_attn_allocator
    pool.take(pool.peek(1))
    found(lock, "no_leak")


def test_a_row_with_two_owners_is_named() -> None:
    lock = saved()
    engine_of(lock).rows.phase[0] = 0
    assert "the engine's rows [0] have two owners" in found(lock, ROW_OWNED).detail


def test_a_row_that_is_lost_is_named() -> None:
    lock = saved()
    engine_of(lock).rows.phase[2] = 3
    assert "the engine's rows [2] have no owner" in found(lock, ROW_OWNED).detail


def test_a_page_that_is_evicted_under_its_reader_is_named() -> None:
    lock = saved()
    engine_of(lock).locks.full_ref[:] = engine_of(lock).locks.swa_ref[:] = 0
    with pytest.raises(Finding, match=r"row 0 reads the slots \[2, 3\] at index 0") as caught:
        lock.do("evict", full=4)
    assert caught.value.law == SLOT_OWNED


def test_a_window_that_is_evicted_under_its_reader_is_named() -> None:
    lock = started()
    lock.do("admit", request=0, more=5)
    engine_of(lock).locks.swa_ref[:] = 0
    with pytest.raises(Finding, match="whose SWA side is gone") as caught:
        lock.do("evict", swa=4)
    assert caught.value.law == "window_is_kept"


def test_what_stays_at_the_end_is_named() -> None:
    lock = start("session_trim", lambda config: Variant(cache(config), evict=lambda *_: None), saved().trace.config)
    lock.do("admit", request=0, more=5)
    with pytest.raises(
        Finding, match="2 full pages are leaked; 2 SWA pages are leaked; the tree keeps pages"
    ) as caught:
        lock.do("quiesce")
    assert caught.value.law == QUIESCENT


def test_accepting_bad_input_is_a_finding() -> None:
    lock = started(lambda config: Variant(cache(config), bad=lambda _: None))
    with pytest.raises(Finding, match="bad_input_is_refused"):
        lock.do("bad", kind="row_twice")


def test_what_no_caller_sends_is_misuse() -> None:
    lock = saved()
    unlawful: dict[str, dict[str, Any]] = {
        "admit": {"request": 0},
        "chunk": {"request": 0},
        "decode": {"requests": [0]},
        "finish": {"request": 0},
        "retract": {"request": 0},
        "cancel": {"request": 0},
        "close": {"session": 3},
    }
    for op, arguments in unlawful.items():
        with pytest.raises(Misuse):
            lock.do(op, **arguments)
    lock.do("admit", request=0, more=2, session=1)
    for op, arguments in {"commit": {"count": 1}, "reserve": {"more": 0}, "finish": {"sent": 2}}.items():
        with pytest.raises(Misuse):
            lock.do(op, request=0, **arguments)


def test_neighbours_are_ranges() -> None:
    assert list(spans([4, 1, 2, 6, 5])) == [(1, 3), (4, 7)]


def test_a_window_too_far_is_found_at_any_page_size_and_the_run_shrinks() -> None:
    sizes = set()
    for seed in (0, 1):  # where a page of one run fills just so, one of half its size needs another run
        search = Search(page_sizes=(4,), seed=seed, parts=("full", "swa"))
        result = check("session_trim", FAULTS["window_too_far"].make, search)
        assert (result.verdict, result.law) == (VIOLATION, "slide")
        assert isinstance(result.trace, Trace)
        assert len(result.trace.steps) <= 6
        sizes.add(result.trace.config["page_size"])
    assert min(sizes) < 4, "smaller pages show it as well"


def test_a_long_run_shrinks_by_merging_steps() -> None:
    make = FAULTS["pr_22862"].make
    lock = started(make)
    lock.do("admit", request=0, more=2, session=1)
    for _ in range(3):
        lock.do("reserve", request=0, more=1)
    lock.do("finish", request=0)
    with pytest.raises(Finding) as caught:
        lock.do("look", request=1, more=3, session=1)
    _, trace = shrink(caught.value, lock.trace, lambda config: start("session_trim", make, config))
    assert len(trace.steps) == 4


def test_runs_have_texts_without_a_mark_and_with_each_of_two() -> None:
    """Engines may keep what a mark stands for in two places, which no run with one mark can tell apart."""
    marks: set[int] = set()

    def counting(config: Json) -> Any:
        made = cache({**config, "tree": "unified"})

        def admit(request: int, session: int, tokens: list[int], most: int) -> Any:
            marks.update(token // MARK for token in tokens)
            return made.admit(request, session, tokens, most)

        return Variant(made, admit=admit)

    check("session_trim", counting, Search(examples=30, seed=1))
    assert marks == {0, 1, 2}
