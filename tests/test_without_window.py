"""Models without sliding-window layers: one pool, no SWA slot, no window that moves; in our cache and in releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from driven import NEWEST, Variant, done, driven, found, some

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json
from conformance.engines.ours.cache import cache
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.configs import is_windowed, swa_size
from conformance.stems.stem_registry import start
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.cache import SessionCache
from impl.lock_ref import LockTree
from impl.session_trim import RequestRows

CONFIG = {"page_size": 2, "size": 8, "size_swa": 1, "window": 2, "need_sort": False, "rows": 3, "sessions": 2}
STATES = {"size_mamba": 15, "buffered": True, "doubled": True, "lazy": False}
WHOLE = [("session_trim", ["full"]), ("cache", ["full"]), ("cache", ["full", "mamba"])]


def started(stem: str, parts: list[str], make: Callable[[Json], Any] = cache, **config: Any) -> LockStep:
    """A run of a model with these components."""
    states = STATES if "mamba" in parts else {}
    return start(stem, make, {**CONFIG, **states, "components": parts, **config})


def lived(lock: LockStep) -> dict[str, int]:
    """Requests share a prefix, a session has two turns, windows are asked to move, and everything is given back."""
    lock.do("admit", request=0, more=5)
    lock.do("admit", request=1, more=5)
    lock.do("admit", request=2, more=3, fork=2, session=1)
    for _ in range(4):
        lock.do("decode", requests=[0, 2], slide=True)
    lock.do("finish", request=2)
    lock.do("finish", request=1)
    lock.do("admit", request=1, more=1, session=1)
    lock.do("finish", request=0)
    lock.do("evict", full=4, swa=4)
    lock.do("quiesce")
    return done(lock)


# What is lawful is followed.


@pytest.mark.parametrize(("stem", "parts"), WHOLE)
def test_ours_keeps_the_law_over_one_pool(stem: str, parts: list[str]) -> None:
    did = lived(started(stem, parts))
    assert {"admit", "extend", "decode", "save", "restore", "resume"} <= set(did)
    assert not {"slide", "admit_tail", "drop_swa", "evict_swa", "settle_swa"} & set(did)


def test_a_configuration_without_components_has_a_window() -> None:
    assert (is_windowed({"size_swa": 3}), swa_size({"size_swa": 3})) == (True, 3)
    assert (is_windowed({"components": ["full"]}), swa_size({"components": ["full"], "size_swa": 3})) == (False, 0)


# What is not lawful is found.


@pytest.mark.parametrize(("stem", "parts"), WHOLE)
def test_a_window_that_moves_is_a_finding(stem: str, parts: list[str]) -> None:
    def make(config: Json) -> Any:
        engine = cache(config)

        def slide(request: int) -> None:
            engine.rows.cursor[engine.running[request].row] = 4

        return Variant(engine, slide=slide)

    lock = started(stem, parts, make)
    lock.do("admit", request=0, more=2, fork=1, session=1)
    lock.do("decode", requests=[0])
    lock.do("decode", requests=[0])
    with pytest.raises(Finding) as caught:
        lock.do("decode", requests=[0], slide=True)
    assert "the model has an SWA pool" in str(caught.value)


def test_slots_of_an_swa_pool_are_a_finding() -> None:
    """The engine has an SWA pool after all, and maps a slot into it."""

    def make(config: Json) -> Any:
        engine = cache(config)

        def snapshot() -> Any:
            seen = engine.snapshot()
            mapping = [0] * 18
            for row in seen.requests.values():
                mapping[row.slots[0]] = 2
            return replace(seen, pools=replace(seen.pools, mapping=mapping))

        return Variant(engine, snapshot=snapshot)

    lock = started("session_trim", ["full"], make)
    with pytest.raises(Finding):
        lock.do("admit", request=0, more=1)


def test_a_page_of_an_swa_pool_is_a_finding() -> None:
    def make(config: Json) -> Any:
        engine = cache(config)

        def snapshot() -> Any:
            seen = engine.snapshot()
            return replace(seen, pools=replace(seen.pools, swa=AllocatorSnapshot([1], [], 2)))

        return Variant(engine, snapshot=snapshot)

    with pytest.raises(Finding):
        started("session_trim", ["full"], make).do("admit", request=0, more=1)


def test_a_lock_too_many_is_a_finding() -> None:
    lock = started("cache", ["full"])
    lock.do("admit", request=0, more=5)
    engine: Any = lock.run
    engine.engine.locks.full_ref[engine.engine.engine.handles[0].node] += 1
    assert found(lock, "full_pairs")


def test_a_page_that_stays_behind_is_a_finding() -> None:
    """An eviction drops the node and forgets its pages."""

    def make(config: Json) -> Any:
        engine = cache(config)
        return Variant(engine, evict=engine.tree.evict)

    lock = started("cache", ["full"], make)
    lock.do("admit", request=0, more=5)
    lock.do("finish", request=0)
    with pytest.raises(Finding) as caught:
        lock.do("evict", full=4)
    assert caught.value.law in ("no_leak", "freed_exactly_once")


# Our parts over one pool.


def rows() -> RequestRows:
    """Rows over one pool with pages of two tokens."""
    pool = PagedTokenToKVPoolAllocator(16, 2, torch.float16, "cpu", None, False, debug=True)
    return RequestRows(pool, 2, 16, 0, "cpu")


def test_rows_over_one_pool_have_no_swa_slots() -> None:
    known, nothing = rows(), torch.zeros(0, dtype=torch.int64)
    (row,) = known.admit([nothing]) or [-1]
    assert known.extend([row], [6]) is not None
    assert known.slide([row]).tolist() == [0]
    before = known.lengths.clone()
    calls: list[Callable[[], object]] = [
        lambda: known.slide_to([row], [2]),
        lambda: known.admit_tail(nothing, 4, 2),
        lambda: known.donate_swa(row, nothing, 2),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"has no SWA pool|expected rows with a window"):
            call()
    assert torch.equal(known.lengths, before)
    assert known.session_held_swa_tokens() == 0


def test_a_cache_over_one_pool_refuses_a_tail_and_locks_with_a_window() -> None:
    pool = TokenToKVPoolAllocator(8, torch.float16, "cpu", None, False, debug=True)
    with pytest.raises(ValueError, match="locks must have window 0, got 3"):
        SessionCache(pool, 2, 8, 0, locks=LockTree(8, window=3))
    made = SessionCache(pool, 2, 8, 0)
    with pytest.raises(ValueError, match="has no tail"):
        made.admit_tail([1, 2, 3])
    assert (made.allocator.full_available_size(), made.allocator.swa_available_size()) == (8, 0)


# Real releases.

DRIVE = """
    import json, sys
    from conformance.driver.protocol import Unsupported
    from conformance.engines.registry import load
    from test_without_window import WHOLE, lived, started

    makers, said = load("sglang", release=sys.argv[1]).makers, []
    for tree in ("unified", "radix", "mamba_radix"):
        for stem, parts in WHOLE:
            fits = tree == "unified" or ("mamba" in parts) == (tree == "mamba_radix")
            try:
                lock = started(stem, parts, makers[stem], tree=tree) if fits else None
            except Unsupported:
                continue
            if lock is not None:
                kind = type(lock.run.engine.memory.tree).__name__
                said.append({"stem": stem, "tree": kind, "done": sorted(lived(lock))})
    print(json.dumps(said))
"""
TREES = {
    "0.5.11": {"UnifiedRadixCache", "RadixCache", "MambaRadixCache"},
    "0.5.15": {"UnifiedRadixCache", "RadixCache", "MambaRadixCache"},
    "0.5.18": {"UnifiedRadixCache", "RadixCache"},
    NEWEST: {"UnifiedRadixCache"},
}


@pytest.mark.engine
@pytest.mark.parametrize("release", some(tuple(TREES)))
def test_releases_keep_the_law_over_one_pool(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("tests")
    monkeypatch.setenv("PYTHONPATH", "tests")
    said = driven(release, DRIVE)
    assert {one["tree"] for one in said} == TREES[release]
    for one in said:
        assert {"admit", "extend", "decode", "save", "resume"} <= set(one["done"])
        assert "slide" not in one["done"]
