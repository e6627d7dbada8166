"""What a caller may hand to the session cache, what looking finds, and that nothing waits for the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dispatched import Dispatched
from test_impl_cache import cached, drained, got_rows, new, one, seen, shape, text
from test_impl_swa_mapping import SYNCS, got
from torch import Tensor
from torch.utils._pytree import tree_leaves

from impl.cache import SessionCache
from impl.lock_ref import LockTree
from impl.radix import RadixTree
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator as SWA

# Errors.

Call = Callable[[SessionCache], object]
# Page size 4. Row 0 runs with 9 tokens, of which 8 are the tree's; row 1 runs with 5, of session "s"; row 2 is in the
# slot of "t" with 6.
BAD: dict[str, tuple[Call, str]] = {
    "nothing to compute": (lambda c: c.admit([text(2), []]), "prompts[1]: expected a token to compute"),
    "a session has a row": (lambda c: c.admit([text(9)], ["t"]), "sessions[0]: expected a session without a row"),
    "sessions are missing": (lambda c: c.admit([text(9)], []), "sessions must be as many as prefixes, 1"),
    "texts are missing": (lambda c: c.cache_unfinished([0, 1], [text(9)]), "texts must be as many as rows, 2, got 1"),
    "a text is short": (
        lambda c: c.cache_finished([1, 0], [text(5), text(7)]),
        "texts[1]: expected at least row 0's 8",
    ),
    "another text": (lambda c: c.cache_finished([0], [text(9, 7)]), "texts[0]: expected a text that begins with the 8"),
    "a row in a slot": (lambda c: c.cache_finished([1, 2], [text(5), text(6)]), "it is saved, got 2"),
    "a row twice": (lambda c: c.cache_unfinished([1, 1], [text(5), text(5)]), "rows must be different rows"),
    "no such row": (lambda c: c.abort([0, 5]), "rows[1]: expected a row in 0..3, got 5"),
    "shrinking": (lambda c: c.extend([1], [4]), "to[0]: expected a length from 5"),
    "a session that runs": (lambda c: c.close(["t", "s"]), "sessions[1]: expected a session whose slot holds a row"),
    "less than nothing": (lambda c: c.evict(0, -1), "swa must be at least 0, got -1"),
}


def crowd() -> SessionCache:
    c = new(4, rows=4, full=16, swa=16)
    one(c, text(9))
    c.cache_unfinished([0], [text(9)])
    one(c, text(5, 0), "s")
    one(c, text(6, 0, 2), "t")
    c.save([2], [6])
    return c


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_changes_nothing(name: str) -> None:
    c, (call, message) = crowd(), BAD[name]
    before = seen(c)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(c)
    assert seen(c) == before


def test_a_window_has_a_token() -> None:
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        new(4, window=0)


# Parts.


def parts() -> SWA:
    return SWA(32, 32, 4, torch.float16, "cpu", None, False, debug=True)


def idle_rows(pools: SWA, rows: int = 2, most: int = 32, window: int = 3) -> RequestRows:
    return RequestRows(pools, rows, most, window, "cpu")


def busy_rows(pools: SWA) -> RequestRows:
    rows = idle_rows(pools)
    rows.admit([torch.zeros(0, dtype=torch.int64)])
    return rows


def grown(locks: LockTree) -> LockTree:
    locks.add_leaf(0, 4)
    return locks


Parts = Callable[[SWA], dict[str, Any]]
MISFITS: dict[str, tuple[Parts, str]] = {
    "rows of another allocator": (
        lambda _: {"request_rows": idle_rows(parts())},
        "request_rows must have this",
    ),
    "fewer rows": (lambda a: {"request_rows": idle_rows(a, rows=1)}, "request_rows must have rows 2, got 1"),
    "shorter rows": (lambda a: {"request_rows": idle_rows(a, most=8)}, "request_rows must have max_tokens 32, got 8"),
    "rows with a window": (
        lambda a: {"request_rows": idle_rows(a, window=4)},
        "request_rows must have window 3",
    ),
    "rows in use": (lambda a: {"request_rows": busy_rows(a)}, "request_rows must have available_size 2, got 1"),
    "locks with a window": (lambda _: {"locks": LockTree(8, window=4)}, "locks must have window 3, got 4"),
    "locks without windows": (
        lambda _: {"locks": LockTree(8, window=3, windowed=False)},
        "must have windowed True",
    ),
    "locks with states": (lambda _: {"locks": LockTree(8, window=3, stateful=True)}, "locks must have stateful False"),
    "few locks": (lambda _: {"locks": LockTree(7, window=3)}, "locks must have a capacity of at least 8 nodes, got 7"),
    "locks of nodes": (lambda _: {"locks": grown(LockTree(8, window=3))}, "locks must have nodes 0, got 1"),
    "a tree of other pages": (lambda _: {"tree": RadixTree(8, 2, 3, "cpu")}, "tree must have page_size 4, got 2"),
    "a tree with a window": (lambda _: {"tree": RadixTree(8, 4, 5, "cpu")}, "tree must have window 3, got 5"),
    "a tree with states": (
        lambda _: {"tree": RadixTree(8, 4, 3, "cpu", stateful=True)},
        "must have stateful False",
    ),
    "a tree elsewhere": (lambda _: {"tree": RadixTree(8, 4, 3, "meta")}, "tree must have device cpu, got meta"),
    "a small tree": (lambda _: {"tree": RadixTree(7, 4, 3, "cpu")}, "tree must have room for 8 nodes"),
    "a tree and its locks": (
        lambda _: {"tree": RadixTree(8, 4, 3, "cpu"), "locks": LockTree(8, window=3)},
        "give either tree or locks",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_part_that_does_not_fit_is_named(name: str) -> None:
    made, message = MISFITS[name]
    pools = parts()
    with pytest.raises(ValueError, match=re.escape(message)):
        SessionCache(pools, 2, 32, 3, **made(pools))


class EveryTombstone(LockTree):
    """Says that any tombstone may be revived."""

    def revivable(self, node: int) -> bool:
        return not self.swa[node]


@pytest.mark.parametrize("kind", [LockTree, EveryTombstone])
def test_a_given_part_is_the_one_that_is_asked(kind: type[LockTree]) -> None:
    """An insert replaces the full slots of what ``revivable`` names. Another tombstone keeps its full slots."""
    pools = parts()
    c = SessionCache(pools, 3, 32, 3, locks=kind(8, window=3), request_rows=idle_rows(pools, rows=3))
    c.debug = pools.debug = False  # the variant breaks what ``check`` looks for
    cached(c, text(12), cursor=8)
    (reader,) = got_rows(c.admit([text(13)]))
    other = one(c, text(8, fork=8))
    c.cache_finished([other], [text(8, fork=8)])
    assert [live for *_, live in shape(c)] == [True, True]
    read = c.rows.req_to_token[reader, :4].tolist()
    owned = [slot for entry in c.tree.entries.values() for slot in entry.slots.tolist()]
    assert (set(read) <= set(owned)) == (kind is LockTree), "who reads a tombstone goes on reading its slots"
    c.abort([reader])


# Looking.


STOLEN: dict[str, Call] = {
    "a node's page": lambda c: c.tree.entries[1].slots.add_(4),
    "a node's text": lambda c: c.tree.entries[1].key.pop(),
    "a lock": lambda c: c.handles.pop(0),
    "what a row reads": lambda c: c.rows.req_to_token[0, :4].add_(4),
    "a free page": lambda c: c.pools.full_attn_allocator.take(c.pools.full_attn_allocator.free_pages[:1]),
    "an SWA page": lambda c: c.pools.swa_attn_allocator.put(c.pools.full_to_swa_index_mapping[4:5] // 4),
    "a tombstone's mapping": lambda c: c.tree.locks.swa.fill_(True).logical_not_(),
}


@pytest.mark.parametrize("name", STOLEN)
def test_debug_finds_what_was_changed_from_outside(name: str) -> None:
    c = crowd()
    c.check()
    STOLEN[name](c)
    with pytest.raises(AssertionError, match=r"\w"):
        c.check()


# Waiting.


class NoSlotRead(Dispatched):
    """What comes of a tensor of the device is on the device; the host must not wait for its values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = any(getattr(t, "on_device", False) for t in given)
        assert not there or func._schema.name.removeprefix("aten::") not in SYNCS, func
        answer = func(*args, **(kwargs or {}))
        for t in tree_leaves(answer) if there else ():
            if isinstance(t, Tensor):
                t.on_device = True  # type: ignore[attr-defined]
        return answer


def a_day(c: SessionCache) -> None:
    page = c.page_size
    rows = got_rows(c.admit([text(4 * page), text(6 * page, page)], ["a", None]))
    got(c.extend(rows, [4 * page, 6 * page]))
    c.cache_unfinished(rows, [text(4 * page), text(6 * page, page)])
    got(c.decode(rows))
    got(c.reserve(rows[:1], [5 * page]))
    c.slide(rows)
    c.save(rows[:1], [4 * page + 1])
    third = one(c, text(5 * page, 3 * page, 2))
    c.cache_finished([rows[1], third], [text(6 * page + 1, page), text(5 * page, 3 * page, 2)])
    c.restore(["a"], [4 * page])
    c.resume(["a"], [9 * page])
    got(c.extend(rows[:1], [9 * page]))
    c.abort(rows[:1])
    c.evict(page, 2 * page)
    c.evict(99 * page, 0)


@pytest.mark.parametrize("page", [1, 4])
def test_nothing_waits_for_the_device(page: int) -> None:
    """As on CUDA without debug: no slot is read."""
    c = new(page, window=page, full=20, swa=20, debug=False)
    a, r, root = c.pools, c.rows, c.tree.entries[0]
    pools = (a.full_attn_allocator, a.swa_attn_allocator)
    for part in (a, r, *pools):
        part._check_content = False
    lists = [t for pool in pools for t in (pool._stack, pool._in_page)]
    for tensor in (r.req_to_token, r.token_slots.flat, a.full_to_swa_index_mapping, root.slots, *lists):
        tensor.on_device = True  # type: ignore[attr-defined]
    with NoSlotRead():  # type: ignore[no-untyped-call]
        a_day(c)
    assert drained(c)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits() -> None:
    c = new(4, window=4, full=20, swa=20, debug=False, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        a_day(c)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert drained(c)
