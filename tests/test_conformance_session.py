"""Rows and session slots in lock-step: what a subject does wrong is named by the law that it breaks."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.check import STEMS, check
from conformance.faults import FAULTS
from conformance.machine import VIOLATION, Finding, Misuse, Trace
from conformance.row_seen import ROW_OWNED, TREE_READ, lengths_of
from conformance.session_trim import QUIESCENT, SessionTrimRun
from conformance.shrink import shrink
from conformance.subjects import ours
from conformance.tree_pages import spans

CONFIG = {"page_size": 2, "size": 8, "size_swa": 8, "window": 3, "need_sort": False, "rows": 3, "sessions": 2}


def started(make: Any = ours.session_trim, **config: Any) -> SessionTrimRun:
    """A run on small pools."""
    known = {**CONFIG, "tree": "unified", **config}
    return SessionTrimRun(make(known), known)


def saved(**config: Any) -> SessionTrimRun:
    """A run with a session whose slot has a row of eight tokens, four of which are the tree's."""
    run = started(**config)
    run.do("admit", request=0, more=5, session=1)
    for _ in range(3):
        run.do("decode", requests=[0])
    run.do("finish", request=0)
    return run


def slot(run: SessionTrimRun) -> tuple[int, ...]:
    """The lengths of session 1's slot."""
    return tuple(lengths_of(run.state, run.state.slot(1) - 1))


def test_the_run_is_the_stems_own() -> None:
    assert issubclass(STEMS["session_trim"][1], SessionTrimRun)


def test_a_session_lives_and_everything_comes_back() -> None:
    run = saved()
    assert slot(run) == (4, 0, 8, 8)
    run.do("look", request=1, more=2, session=1)
    run.do("admit", request=1, chunk=1)
    run.do("chunk", request=1)
    run.do("finish", request=1)
    run.do("end")
    assert run.counts["donate", "done"] == 1
    assert run.counts["close", "done"] == 1


def test_a_look_gives_the_tail_back_once() -> None:
    run = started()
    run.do("admit", request=0, more=2, session=1)
    run.do("reserve", request=0, more=5)
    run.do("finish", request=0)
    run.do("look", request=1, more=0, session=1)
    assert slot(run) == (2, 0, 2, 2)
    free = run.subject.observe().full.free
    run.do("look", request=1)
    assert (slot(run), run.subject.observe().full.free) == ((2, 0, 2, 2), free)


def test_a_cut_below_the_cursor_goes_back_to_the_trees_part() -> None:
    run = started()
    run.do("admit", request=0, more=2, session=1)
    run.do("reserve", request=0, more=6)
    run.do("commit", request=0, count=6)
    run.do("reserve", request=0, more=1, slide=True)
    run.do("finish", request=0, sent=1)
    assert slot(run) == (2, 2, 2, 2)


def test_a_turn_that_is_retracted_goes_on_where_it_was() -> None:
    run = saved()
    run.do("admit", request=1, more=1, session=1)
    run.do("retract", request=1)
    with pytest.raises(Misuse, match="one request at a time"):
        run.do("admit", request=2, more=1, session=1)
    run.do("admit", request=1)
    assert run.computed(1) == 11


def test_requests_share_what_the_tree_has() -> None:
    run = started()
    for request in (0, 1):
        run.do("admit", request=request, more=5)
    assert run.counts["donate", "done"] == 1
    assert run.used()[1].lengths.protected == 4
    run.do("begin")
    run.do("finish", request=0)
    run.do("close_group")
    run.do("end")


def test_two_that_compute_the_same_text_keep_one_copy() -> None:
    run = started()
    run.do("admit", request=0, more=5, chunk=1)
    run.do("admit", request=1, more=5)
    run.do("chunk", request=0)
    assert run.counts["dedupe", "done"] == 1


def test_what_is_out_of_memory_is_refused() -> None:
    run = started(size=3, size_swa=3)
    run.do("admit", request=0, more=4)
    run.do("admit", request=1, more=2, fork=1)
    run.do("decode", requests=[1])
    run.do("admit", request=2, more=3, fork=1)
    assert run.counts["decode", "refused"] == run.counts["admit", "refused"] == 1


def test_a_page_that_is_lost_is_named() -> None:
    run = saved()
    pool = run.subject.pools.engine.full_attn_allocator  # type: ignore[attr-defined]
    pool.take(pool.peek(1))
    with pytest.raises(Finding) as found:
        run.compare("finish")
    assert found.value.law == "no_leak"


def test_a_row_with_two_owners_is_named() -> None:
    run = saved()
    run.subject.engine.phase[0] = 0  # type: ignore[attr-defined]
    with pytest.raises(Finding, match=r"the engine's rows \[0\] have two owners") as found:
        run.compare("finish")
    assert found.value.law == ROW_OWNED


def test_a_row_that_is_lost_is_named() -> None:
    run = saved()
    run.subject.engine.phase[2] = 3  # type: ignore[attr-defined]
    with pytest.raises(Finding, match="1 rows have no owner"):
        run.compare("finish")


def test_a_page_that_is_evicted_under_its_reader_is_named() -> None:
    run = saved()
    store: Any = run.subject.store  # type: ignore[attr-defined]
    for page in store.pages.values():
        page.readers = 0
    with pytest.raises(Finding, match="which are no page of the tree there") as found:
        run.do("evict", full=4)
    assert found.value.law == TREE_READ


def test_a_window_that_is_evicted_under_its_reader_is_named() -> None:
    run = started()
    run.do("admit", request=0, more=5)
    store: Any = run.subject.store  # type: ignore[attr-defined]
    for page in store.pages.values():
        page.readers = 0
    with pytest.raises(Finding, match="whose SWA side is gone") as found:
        run.do("evict", swa=4)
    assert found.value.law == "window_is_kept"


def test_what_stays_at_the_end_is_named() -> None:
    run = saved()
    store: Any = run.subject.store  # type: ignore[attr-defined]
    store.hold(list(store.pages), 1)
    with pytest.raises(Finding, match="2 full pages are leaked; 2 SWA pages are leaked") as found:
        run.do("end")
    assert found.value.law == QUIESCENT


def test_accepting_bad_input_is_a_finding() -> None:
    run = started()
    subject: Any = run.subject
    subject.bad = lambda _: None
    with pytest.raises(Finding, match="bad_input_is_refused"):
        run.do("bad", kind="row_twice")


def test_what_no_caller_sends_is_misuse() -> None:
    run = saved()
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
            run.do(op, **arguments)
    run.do("admit", request=0, more=2, session=1)
    for op, arguments in {"commit": {"count": 1}, "reserve": {"more": 0}, "finish": {"sent": 2}}.items():
        with pytest.raises(Misuse):
            run.do(op, request=0, **arguments)


def test_neighbours_are_ranges() -> None:
    assert list(spans([4, 1, 2, 6, 5])) == [(1, 3), (4, 7)]


def test_a_window_too_far_is_found_at_any_page_size_and_the_run_shrinks() -> None:
    found = check("session_trim", FAULTS["window_too_far"].make, page_sizes=(4,))
    assert (found.verdict, found.law) == (VIOLATION, "slide")
    assert isinstance(found.trace, Trace)
    assert len(found.trace.steps) <= 6
    assert found.trace.config["page_size"] < 4, "smaller pages show it as well"


def test_a_long_run_shrinks_by_merging_steps() -> None:
    make = FAULTS["pr_22862"].make
    run = started(make)
    run.do("admit", request=0, more=2, session=1)
    for _ in range(3):
        run.do("reserve", request=0, more=1)
    run.do("finish", request=0)
    with pytest.raises(Finding) as found:
        run.do("look", request=1, more=3, session=1)
    _, trace = shrink(found.value, run.trace, lambda config: SessionTrimRun(make(config), config))
    assert len(trace.steps) == 4
