"""Models whose layers all have a sliding window: one pool, and what left the window gives its pages back; in our cache
and in releases, whose tree for such a model is PureSWARadixCache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from driven import between, done, driven, sampled, some

from conformance.driver.lockstep import CONFORMS, Finding, LockStep
from conformance.driver.protocol import Unsupported
from conformance.engines.ours.cache import cache
from conformance.engines.sglang.driving.cache import row_memory
from conformance.search.check import Search, check
from conformance.stems.configs import is_all_sliding, is_windowed, swa_size
from conformance.stems.session_trim.faults import DonatesFreedPages
from conformance.stems.stem_registry import start
from conformance.telling.picture import frame
from impl.allocator import TokenToKVPoolAllocator
from impl.cache import SessionCache
from impl.mamba_slots import MambaStates
from impl.session_trim import RequestRows
from spec import session_trim_state as noun

CONFIG = {"page_size": 1, "size": 12, "size_swa": 1, "window": 2, "need_sort": False, "rows": 3, "sessions": 0}
STEMS = ("session_trim", "cache")


def started(stem: str, make: Callable[..., Any] = cache, **config: Any) -> LockStep:
    return start(stem, make, {**CONFIG, "components": ["swa"], **config})


def lived(lock: LockStep, retracts: bool = True) -> dict[str, int]:
    """A request decodes past its window, also in a free group, where what it frees may wait or not. Another one comes
    with its prompt, and everything is given back. ``retracts``: the other request is retracted, and comes again.
    """
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0], slide=True)
    lock.do("admit", request=1, more=5)
    lock.do("decode", requests=[0, 1], slide=True)
    lock.do("begin_group")
    lock.do("decode", requests=[0], slide=True)
    lock.do("end_group")
    if retracts:
        lock.do("retract", request=1)
    lock.do("finish", request=0)
    if retracts:
        lock.do("admit", request=1)
    lock.do("quiesce")
    return done(lock)


# What is lawful is followed.


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("page_size", [1, 2])
def test_ours_gives_back_what_left_the_window(stem: str, page_size: int) -> None:
    did = lived(started(stem, page_size=page_size))
    assert did["leave_window"] >= 2
    assert not {"slide", "admit_tail", "drop_swa", "evict_swa", "settle_swa"} & set(did)


@pytest.mark.parametrize("whole", [False, True])
def test_a_gap_that_an_engine_shows_wrongly_is_found(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = started("session_trim")
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0], slide=True)
    run: Any = lock.run
    shown = run.engine.snapshot()
    (row,) = shown.requests.values()
    assert 0 < row.gap < row.lengths.cursor
    wrong = replace(shown, requests={0: replace(row, gap=row.lengths.cursor if whole else row.gap + 1)})
    monkeypatch.setattr(run.engine, "snapshot", lambda: wrong)
    run.seen = run.snapshot()
    with pytest.raises(Finding):
        lock.judge("decode")


@pytest.mark.parametrize("stem", STEMS)
def test_drawn_runs_leave_the_window(stem: str) -> None:
    result = check(stem, cache, Search(examples=30, parts=("swa",)))
    assert (result.verdict, result.transitions["leave_window done"] > 0) == (CONFORMS, True)


def test_a_session_goes_on_behind_its_gap_or_at_the_tree() -> None:
    """No release has sessions there, and the law does."""
    for sent, expected in ((6, 9), (1, 3)):
        lock = started("cache", sessions=1)
        lock.do("admit", request=0, more=3, session=1)
        for _ in range(6):
            lock.do("decode", requests=[0], slide=True)
        lock.do("finish", request=0, sent=sent)
        rows = lock.run.law.state.rows
        row = rows.slot(1) - 1
        assert noun.committed(rows, row).pages == expected, "the window before the cut is there, or all is cut"
        assert noun.is_whole(rows, row) == (sent == 1)
        lock.do("admit", request=0, more=1, session=1)
        lock.do("quiesce")


def test_the_picture_says_what_left_the_window() -> None:
    lock = started("cache")
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0], slide=True)
    view = lock.run.law.state.rows
    assert (view.gap(0), view.cursor(0)) == (3, 5)
    (row,) = next(
        panel["items"] for panel in frame(lock.run.law.state)["panels"] if panel["title"] == "Rows of requests"
    )
    assert row["facts"]["gave back"] == "its pages 3 to 4, which left the window of every layer"


def test_a_configuration_names_the_kind_of_model() -> None:
    every = {"components": ["swa"], "size_swa": 3}
    assert (is_all_sliding(every), is_windowed(every), swa_size(every)) == (True, False, 0)
    assert not any(is_all_sliding({"components": parts}) for parts in (["full"], ["full", "swa"]))
    assert not is_all_sliding({})


# What is not lawful is found.


@pytest.mark.parametrize("stem", STEMS)
def test_a_freed_page_that_goes_to_the_tree_is_a_finding(stem: str) -> None:
    lock = started(stem, lambda config: cache(config, rows=DonatesFreedPages))
    lock.do("admit", request=0, more=3)
    for _ in range(5):
        lock.do("decode", requests=[0], slide=True)
    with pytest.raises(Finding):
        lock.do("finish", request=0)


def test_pages_of_the_window_that_are_given_back_are_a_finding() -> None:
    class TooFar(RequestRows):
        def window_reach(self, rows: Any) -> Any:
            return self.committed[rows]

    lock = started("cache", lambda config: cache(config, rows=TooFar))
    lock.do("admit", request=0, more=3)
    lock.do("decode", requests=[0])
    with pytest.raises(Finding) as caught:
        lock.do("decode", requests=[0], slide=True)
    assert "the window before the next token keeps its pages" in str(caught.value)


# What nobody may ask for.


def test_a_server_refuses_sessions() -> None:
    with pytest.raises(Unsupported, match="refuses streaming sessions"):
        row_memory(object(), {**CONFIG, "components": ["swa"], "sessions": 1})  # type: ignore[arg-type]


def test_no_layer_is_recurrent_there() -> None:
    pools = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False, debug=True)
    with pytest.raises(ValueError, match="states must be None where every layer has a sliding window"):
        SessionCache(pools, 2, 8, 2, MambaStates(2, 4, buffer_size=0, device="cpu"), lambda *_: None)


def test_what_left_the_window_cannot_go_to_the_tree() -> None:
    pools = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False, debug=True)
    rows = RequestRows(pools, 1, 8, 2, "cpu")
    assert rows.admit([torch.empty(0, dtype=torch.int64)]) == [0]
    rows.extend([0], [6])
    before = rows.lengths.clone()
    rows.slide_to([0], [3])
    assert (int(rows.gap[0]), int(rows.cursor[0]), pools.available_size()) == (0, 3, 5)
    with pytest.raises(ValueError, match="before those that left the window"):
        rows.donate(0, 1)
    rows.finish([0])
    rows.release([0])
    assert pools.available_size() == 8
    assert before[3, 0] == 6


DRIVE = """
    import json, sys
    from conformance.engines.registry import load
    from test_all_sliding import STEMS, lived, started

    makers, said = load("sglang", release=sys.argv[1]).makers, []
    for stem in STEMS:
        lock = started(stem, makers[stem], prefill_aware=True)
        kind = type(lock.run.engine.memory.tree).__name__
        said.append({"tree": kind, "did": lived(lock, retracts=False)})
    print(json.dumps(said))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", sampled(some(between("0.5.15"))[::-1], 2))
def test_releases_give_back_what_left_the_window(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("tests")
    monkeypatch.setenv("PYTHONPATH", "tests")
    for one in driven(release, DRIVE):
        assert one["tree"] == "PureSWARadixCache"
        assert one["did"]["leave_window"] >= 2
