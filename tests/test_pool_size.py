"""No call takes work in proportion to the pool: a script of calls is counted over a small pool and over one that is 400
times as large, and each call must count the same. Calls that cannot are named in ``WHOLE``, each with its reason.

Counted are elements of tensors and arrays that operations read or write, entries of long lists on the host, and lines
of ``impl`` that run, so that no loop is missed. A list that is made anew shows in the memory that a call takes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from dispatched import Dispatched
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import impl
from impl import paths
from impl.allocator import (
    BaseTokenToKVPoolAllocator,
    PagedTokenToKVPoolAllocator,
    SlotAllocator,
    TokenToKVPoolAllocator,
)
from impl.block_cache import Scheduler
from impl.block_pool import BlockPool
from impl.cache import SessionCache
from impl.lock_ref import LockHandle, LockTree
from impl.mamba_slots import MambaSlotAllocator, MambaStates, StateHolder
from impl.prefix_cache import PrefixCache, Types
from impl.swa_mapping import SWATokenToKVPoolAllocator

SMALL, LARGE = 10_000, 4_000_000  # slots
LONG = SMALL // 4  # a list of the host with so many entries is as long as the pool, not as what a script does
MEMORY = LONG * 8  # bytes that two runs of one call may differ by: less than such a list has
OURS = str(Path(impl.__file__).parent)

UNTOUCHED = {"empty", "empty_like", "empty_strided", "new_empty"}  # memory that is not filled
BY_INDEX = {
    *("index", "index_select", "gather", "index_put", "index_put_", "_index_put_impl_"),
    *("index_copy_", "index_add_", "index_fill_", "scatter_"),
}  # what these index is touched at the places of the index alone


class Cost(NamedTuple):
    """What a call took. ``memory``: bytes of the host beside tensors, at most at one time."""

    elements: int
    entries: int
    lines: int
    memory: int


class Count:
    """What is counted now."""

    elements = entries = lines = 0


class Tensors(Dispatched):
    """Counts the elements that operations read and write. A view touches none; an index its own and the values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation is done."""
        found, name = func(*args, **(kwargs or {})), func._schema.name.removeprefix("aten::")
        if not (func.is_view or name in UNTOUCHED):
            by_index = name in BY_INDEX
            touched = [*tree_leaves((args[by_index:], kwargs)), *tree_leaves(found)]
            base = args[0] if by_index else None
            Count.elements += sum(x.numel() for x in touched if isinstance(x, Tensor) and x is not base)
        return found


def entries(x: Any) -> int:
    """How many numbers an array has; 1 for a number."""
    return int(np.asarray(x).size)


class Array(np.ndarray):
    """The memory of a tensor as NumPy has it. Counts what operations on it touch."""

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **more: Any) -> Any:
        """An operation of all elements of its arguments."""
        Count.elements += sum(map(entries, given))
        plain = [np.asarray(x) if isinstance(x, Array) else x for x in given]
        found = getattr(ufunc, method)(*plain, **more)
        return found.view(Array) if isinstance(found, np.ndarray) else found

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A function of NumPy."""
        Count.elements += sum(map(entries, tree_leaves(args)))
        return super().__array_function__(func, types, args, kwargs)

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Count.elements += entries(found) * (isinstance(at, np.ndarray) or not isinstance(found, np.ndarray))
        return found

    def __setitem__(self, at: Any, value: Any) -> None:
        Count.elements += entries(super().__getitem__(at))
        super().__setitem__(at, np.asarray(value))

    def argmax(self, *args: Any, **more: Any) -> Any:
        """A search through all elements."""
        Count.elements += self.size
        return np.asarray(self).argmax(*args, **more)

    def tolist(self) -> Any:
        """A copy."""
        Count.elements += self.size
        return super().tolist()


class ToHost(TorchFunctionMode):
    """Counts what goes from tensors to the host by functions that are no operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A function of torch is called."""
        found = func(*args, **(kwargs or {}))
        if func is Tensor.numpy:
            return found.view(Array)
        if func in (Tensor.tolist, torch.tensor):
            Count.elements += (args[0] if func is Tensor.tolist else found).numel()
        return found


def counted(name: str) -> Callable[..., Any]:
    """A method of lists that goes through all entries of one, or of the slice that it is given."""

    def method(self: list[Any], *args: Any) -> Any:
        found = getattr(list, name)(self, *args)
        if not (name.endswith("item__") and isinstance(args[0], int)) and (name != "pop" or args):
            Count.entries += len(found) if name == "__getitem__" else len(self)
        return found

    return method


OF_ALL = (
    *("__iter__", "__reversed__", "__contains__", "__add__", "__mul__", "__eq__", "__getitem__", "__setitem__"),
    *("__delitem__", "index", "count", "copy", "reverse", "sort", "remove", "insert", "pop"),
)
LongList = type("LongList", (list,), {name: counted(name) for name in OF_ALL})


def watch(made: object, seen: set[int] | None = None) -> None:
    """The long lists of an object of ours, and of its parts, count from now on."""
    seen = set() if seen is None else seen
    if id(made) in seen or not type(made).__module__.startswith("impl"):
        return
    seen.add(id(made))
    slots = [name for kind in type(made).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in [*getattr(made, "__dict__", ()), *slots]:
        value = getattr(made, name)
        if type(value) is list and len(value) >= LONG:
            setattr(made, name, LongList(value))
        watch(value, seen)


def traced(frame: FrameType, event: str, _: Any) -> Any:
    """Counts the lines of ``impl``, among them each turn of a loop."""
    if not frame.f_code.co_filename.startswith(OURS):
        return None
    Count.lines += event == "line"
    return traced


class Script:
    """Counts calls one by one. ``costs``: each call, by the class that has it and its name, and what it took."""

    def __init__(self) -> None:
        self.costs: list[tuple[str, Cost]] = []

    def __call__(self, on: Any, name: str, *args: Any, **more: Any) -> Any:
        """The call of this name, on an object; or a property is read."""
        attribute = partial(getattr, on, name)
        return self._count(on, name, lambda: answer(*args, **more) if callable(answer := attribute()) else answer)

    def set(self, on: Any, name: str, value: object) -> None:
        """A property is set."""
        self._count(on, f"{name} =", partial(setattr, on, name, value))

    def _count(self, on: Any, name: str, call: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        Count.elements = Count.entries = Count.lines = 0
        tracemalloc.start()
        with Tensors(), ToHost():  # type: ignore[no-untyped-call]
            sys.settrace(traced)
            try:
                answer = call()
                answer = next(answer) if isinstance(answer, Iterator) else answer
            finally:
                sys.settrace(before)
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        kind = next(kind for kind in type(on).__mro__ if name.removesuffix(" =") in vars(kind))
        self.costs.append((f"{kind.__name__}.{name}", Cost(Count.elements, Count.entries, Count.lines, memory)))
        return answer


# The scripts: what is called, and what must be the same whatever ``size`` is. Each makes its objects itself.


def lock_tree(do: Script, size: int, *, counting: bool) -> None:
    """A tree that gets deeper and gets more nodes than its table of paths begins with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "FEW", 32)
        tree = LockTree(size, window=8, stateful=True, counting=counting)
    watch(tree)
    call, chain = partial(do, tree), [0]
    for depth in range(1, 12):
        chain.append(call("add_leaf", chain[-1], 8 * depth, mamba=depth == 11))
    leaves = [call("add_leaf", chain[1], 16) for _ in range(70)]
    upper = call("split", chain[6], 44)
    (one,) = call("acquire", [chain[11]])
    several = call("acquire", [chain[6], leaves[0], chain[11]])
    for name in ("node", "top", "state", "active", "holds_swa"):
        do(one, name)
    for part in ("full", "swa", "mamba"):
        call(f"{part}_protected_size")
        call(f"{part}_evictable_size")
    call("lockable", [leaves[0], size])
    call("held_alike", upper, chain[6])
    call("release_swa", [several[2]])
    call("release", several)
    call("mergeable", chain[6])
    call("merge", chain[6])
    call("release", [one])
    for restore in ("restore", "restore_swa"):
        call("evict_swa", chain[3])
        call("revivable", chain[3])
        call(restore, chain[3])
    call("evict_mamba", chain[11])
    call("set_mamba", chain[11])
    for leaf in (leaves[0], chain[11]):
        call("evict_leaf", leaf)
    call("add_leaf", chain[10], 88)
    call("warm_up", 4)


class Content:
    """A KV cache of which nothing is asked."""

    def get_cpu_copy(self, *_: Any, **__: Any) -> None:
        """Copies nothing."""

    load_cpu_copy = get_cpu_copy


def made_pools(size: int, page: int, *, two: bool, need_sort: bool) -> Any:
    common: tuple[Any, ...] = (torch.bfloat16, "cpu", Content(), need_sort)
    if two:
        return SWATokenToKVPoolAllocator(size, size, page, *common)
    return TokenToKVPoolAllocator(size, *common) if page == 1 else PagedTokenToKVPoolAllocator(size, page, *common)


def pools(do: Script, size: int, *, page: int, two: bool, need_sort: bool) -> None:
    """Every call of one pool or of two."""
    pool = made_pools(size, page, two=two, need_sort=need_sort)
    watch(pool)
    call, lens = partial(do, pool), [3 * page, page]
    zero, to = torch.tensor([0, 0]), torch.tensor([2 * page + 1, page])
    call("warm_up")
    slots = call("alloc_extend", zero, zero, to, to, zero - 1, 3 * page + 1)
    call("alloc_decode", to + 1, to + 1, slots[[2 * page, -1]])
    given = iter(call("alloc", 64 * page).split(4 * page))
    call("free", next(given))
    call("free", next(given), row_lens=lens, swa_lens=lens)
    call("free", next(given), row_lens=lens)
    call("free_segment", next(given), start_pos=page)
    call("free_segments", [(next(given), page), (next(given), 0)])
    call("free_group_begin")
    call("is_not_in_free_group")
    call("free", next(given))
    call("free", next(given), row_lens=lens, swa_lens=lens)
    call("free_group")
    call("free_group_end")
    for name, value in (("is_not_in_free_group", True), ("free_group", [])):
        call("free_group_begin")
        call("free", next(given))
        do.set(pool, name, value)
    for name in ("free_full", "free_full_segment", "free_full_segments"):
        own, more = next(given), {"start_pos": 0} if name == "free_full_segment" else {}
        if two:
            call("free_swa", own, **({"row_lens": lens} if more else {}))
        call(name, [(own, 0)] if name.endswith("s") else own, **more)
    state = call("backup_state")
    call("alloc", 4 * page)
    call("restore_state", state)
    for name in ("available_size", "full_available_size", "swa_available_size", "debug_print", "check_frees"):
        call(name)
    for name in ("size_full", "full_pool", "debug_mode", "frees_in_one_launch", "free_pages", "release_pages"):
        call(name)
    for name in ("get_kvcache", "get_all_free_pages"):
        call(name)
    call("get_cpu_copy", slots)
    call("load_cpu_copy", None, slots)
    call("translate_kv_indices_for_transfer", slots)
    (two_pools if two else one_pool)(do, pool, next(given), page)
    state = call("backup_state")
    call("merge_and_sort_free")
    call("alloc", 4 * page)
    call("restore_state", state)
    if need_sort:
        running_short(do, pool, page)
    if page == 1 or not two:
        call("free_at", pool.alloc(4 * page), None if page == 1 else torch.arange(4) * page, ())
    call("clear")
    call("resize", SimpleNamespace(**dict.fromkeys(RESIZED, size)))


RESIZED = ("max_total_num_tokens", "full_max_total_num_tokens", "swa_max_total_num_tokens")


def one_pool(do: Script, pool: Any, slots: Tensor, page: int) -> None:
    """What only one pool has, also for the pair of pools that it may be in."""
    call = partial(do, pool)
    call("looks_at_frees")
    call("free_count")
    call("all_free")
    pages = call("peek", 4)
    call("take", pages)
    call("slots", pages)
    call("mark", pages, held=True)
    call("pages_to_free", slots)
    call("check_row_pages", slots, slots[::page] // page)
    call("check_room", 4)
    call("put", pages[:2].clone())
    call("room", 2).room.copy_(pages[2:].clone())
    pool.mark(pages[2:], held=False)
    for name in ("free_pages", "release_pages"):
        do.set(pool, name, torch.arange(1 + 5 * (name == "release_pages"), 6 + 5 * (name == "release_pages")))
    call("set_size", pool.size)
    pool.clear()


def two_pools(do: Script, pool: Any, slots: Tensor, page: int) -> None:
    """What only two pools have."""
    call = partial(do, pool)
    for name in ("size", "size_swa", "swa_req_ring", "swa_ring_cost_tokens"):
        call(name)
    call("new_pages_available", 4, 4)
    call("free_swa_segment", slots, start_pos=0)
    zero, to = torch.tensor([0]), torch.tensor([8 * page])
    row = call("alloc_extend_swa_tail", zero, zero, to, to, zero - 1, 8 * page, 4 * page)
    call("translate_loc_from_full_to_swa", row)
    call("translate_swa_indices_for_transfer", row)
    call("move_swa", row[4 * page :], row[: 4 * page])
    swa = pool.translate_loc_from_full_to_swa(row[: 4 * page])
    call("clear_full_to_swa_mapping", row[: 4 * page])
    call("set_full_to_swa_mapping", row[: 4 * page], swa)
    call("free_swa_at", row[: 4 * page : page], None if page == 1 else torch.arange(4))
    call("unmap", row[::page] // page)


def running_short(do: Script, pool: Any, page: int) -> None:
    """Few pages are left, so that those that were freed are sorted in; and it did not happen after all."""
    own = pool.alloc(8 * page)
    pool.alloc(pool.available_size() - 8 * page)
    do(pool, "free", own)
    state = do(pool, "backup_state")
    do(pool, "alloc", 4 * page)
    do(pool, "alloc", 8 * page)
    do(pool, "restore_state", state)


class Key:
    """A text as an engine has it."""

    extra_key = None

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def raw_token_ids(self) -> list[int]:
        """The tokens."""
        return self.tokens


class Lock:
    """What a lock answers."""

    def __init__(self, swa_uuid_for_lock: int | None) -> None:
        self.swa_uuid_for_lock = swa_uuid_for_lock

    def to_dec_params(self) -> Lock:
        """What the release is given."""
        return self


def held(node: Any, receipt: Any) -> Any:
    return SimpleNamespace(node=node, receipt=receipt, swa_released=False)


def values(device_indices: Any = None, last_device_node: Any = None) -> Any:
    return SimpleNamespace(slots=device_indices, node=last_device_node)


def tokens_of(way: int, count: int) -> list[int]:
    """A text that leaves the others after 12 tokens."""
    return [*range(12), *range(100 * way, 100 * way + count - 12)]


class Table:
    """The rows of an engine."""

    def __init__(self) -> None:
        self.req_to_token = torch.zeros((4, 100), dtype=torch.int32)

    def write(self, at: Any, slots: Tensor) -> None:
        """Write slots of a row."""
        self.req_to_token[at] = slots.to(torch.int32)


def prefix_cache(do: Script, size: int, *, window: int) -> None:
    """The calls of an engine's scheduler."""
    table, allocator = Table(), made_pools(size, 2, two=window > 0, need_sort=False)
    given = {"req_to_token_pool": table, "token_to_kv_pool_allocator": allocator, "page_size": 2, "disable": False}
    more = {"is_eagle": False, "eviction_policy": "lru", "sliding_window_size": window}
    types = Types(match=values, insert=values, evict=values, lock=Lock, unlock=values, held=held)
    cache = PrefixCache(SimpleNamespace(**given, **more), types, window=window)
    watch(cache)
    call = partial(do, cache)

    def inserted(way: int, count: int) -> Any:
        slots = allocator.alloc(count)
        params = SimpleNamespace(key=Key(tokens_of(way, count)), value=slots, prev_prefix_len=0, priority=None)
        return call("insert", params).node

    nodes = [inserted(way, 40) for way in range(6)]
    matched = call("match_prefix", SimpleNamespace(key=Key(tokens_of(2, 30)))).node
    call("touch_prefix", Key(tokens_of(3, 20)))
    lock = call("inc_lock_ref", nodes[1])
    call("dec_lock_ref", nodes[1], lock)
    lock = call("lock", matched)
    call("release_swa", lock)
    call("release_swa_prefix_lock", SimpleNamespace(lock=lock))
    lock.node and call("unlock", lock)
    lock = call("inc_lock_ref", matched)
    if window:
        call("dec_swa_lock_only", matched, lock.swa_uuid_for_lock)
    call("dec_lock_ref", matched, lock, skip_swa=window > 0)
    for name in ("evictable_size", "protected_size", "total_size", "full_evictable_size", "full_protected_size"):
        call(name)
    for name in ("swa_evictable_size", "swa_protected_size", "supports_swa", "all_values_flatten", "take_events"):
        call(name)
    call("path_device_indices", nodes[0])
    call("number", nodes[0])
    call("node", 1)
    call("is_root", nodes[0])
    call("root_node_handle")
    call("session_records")
    requests(do, cache, table, allocator)
    call("evict", SimpleNamespace(num_tokens=0, swa_num_tokens=8))
    call("evict", SimpleNamespace(num_tokens=8, swa_num_tokens=0))
    call("evict_for_alloc", SimpleNamespace(num_tokens=8, swa_num_tokens=8))
    call("reset")


def requests(do: Script, cache: Any, table: Table, allocator: Any) -> None:
    """Requests that the cache finishes, and a request whose caller frees its row."""
    call = partial(do, cache)
    tokens = tokens_of(7, 40)
    table.req_to_token[0, :40] = allocator.alloc(40)
    req = SimpleNamespace(
        origin_input_ids=tokens[:30], output_ids=tokens[30:], extra_key=None, req_pool_idx=0, cache_protected_len=0,
        last_node=cache.root_node, swa_uuid_for_lock=None, get_fill_ids=lambda: tokens[:30],
        pop_committed_kv_cache=lambda: 40,
    )  # fmt: skip
    call("cache_unfinished_req", req)
    call("cache_finished_req", req)
    tokens = tokens_of(8, 40)
    table.req_to_token[1, :40] = allocator.alloc(40)
    kv = SimpleNamespace(req_pool_idx=1, cache_protected_len=0, cache_inserted_len=0)
    req = SimpleNamespace(
        origin_input_ids=tokens[:30], full_untruncated_fill_ids=tokens, extra_key=None, priority=0, kv=kv, lock=None
    )
    call("checkpoint", req, up_to=30)
    call("checkpoint_into_tree", req, up_to=40)
    call("unlock", req.lock)
    call("maybe_hand_to_session", req)
    call("claim_kv_row", req)
    call("release_session", "session")


def copied(_: Tensor, __: Tensor) -> None:
    """The contents of states are not of interest."""


def session_cache(do: Script, size: int, *, two: bool, stateful: bool) -> None:
    """Requests and turns of sessions over one tree."""
    allocator = made_pools(size, 2, two=two, need_sort=False)
    states = MambaStates(8, size, lazy=True) if stateful else None
    cache = SessionCache(allocator, 8, 200, 4 * two, states, copied if stateful else None)
    watch(cache)
    call = partial(do, cache)

    def request(way: int, session: str | None = None) -> int:
        text = tokens_of(way, 40)
        (row,) = call("admit", [text], [session])
        call("extend", [row], [41])
        call("decode", [row])
        if stateful:
            call("boundary", [row])
            call("track", [row], [40])
            call("settle", [row])
        return int(row)

    for way in range(4):
        row = request(way)
        call("cache_unfinished", [row], [tokens_of(way, 44)])
        call("slide", [row])
        call("release_swa", [row])
        call("cache_finished", [row], [tokens_of(way, 44)])
    call("match_prefix", tokens_of(1, 20))
    row = request(5)
    call("reserve", [row], [50])
    call("commit", [row], [46])
    call("roll_back", [row], [46])
    if two:
        call("slide_to", [row], [30])
        call("pools")
        call("abort", [call("admit_tail", tokens_of(2, 60))])
    call("abort", [row])
    for way in (6, 7):
        row = request(way, "session")
        call("save", [row], [42])
        call("restore", ["session"], [41])
        if way == 6:
            (row,) = call("resume", ["session"], [60])
            call("save", [row], [41])
        call("close", ["session"])
    call("free_group_begin")
    call("free_group_end")
    call("make_room", 8, 8)
    call("evict", full=8)
    call("evict", swa=8)
    call("evict", states=1)
    call("compact")


def states(do: Script, size: int) -> None:
    """The slots of recurrent states."""
    made = MambaStates(8, size, lazy=True)
    watch(made)
    call, pool = partial(do, made), partial(do, made.mamba_allocator)
    reqs = [StateHolder() for _ in range(4)]
    call("slots_needed", reqs)
    call("alloc_for_match", reqs[0])
    call("alloc", reqs)
    call("alloc_second", reqs[0])
    call("track", reqs[0])
    call("give_second", reqs[0])
    call("get_mamba_ping_pong_keep_idx", reqs[0])
    call("get_mamba_ping_pong_other_idx", 0)
    call("donate_mamba_ping_pong_slot", reqs[0], pool("alloc", 1))
    call("set_mamba_ping_pong_slot", reqs[0], 0, (reqs[0].mamba_ping_pong_track_buffer or [None])[0])
    session = StateHolder()
    call("save", reqs[1], session)
    call("restore", session, reqs[1])
    call("donate", reqs[1])
    call("named", reqs[1])
    call("free_mamba_cache", reqs[0])
    call("free", reqs[0])
    call("release", reqs[1:])
    for name in ("req_index_to_mamba_index_mapping", "req_index_to_mamba_ping_pong_track_buffer_mapping"):
        call(name)
    call("available_size")
    pool("alloc_group_begin", 4)
    slots = pool("alloc", 2)
    pool("alloc_group_end")
    pool("free", slots)
    pool("put", made.mamba_allocator.alloc(2))
    for name in ("available_size", "schedulable_available_size", "free_slots"):
        pool(name)
    do.set(made.mamba_allocator, "free_slots", torch.arange(1, 9))
    pool("clear")
    call("clear")


def blocks(do: Script, size: int) -> None:
    """A pool of blocks, and a scheduler over one."""
    pool = BlockPool(size)
    watch(pool)
    call = partial(do, pool)
    taken = call("alloc", 8)
    call("cache", taken, list("abcdefgh"))
    call("cache_also", taken[6], "z")
    call("free", taken[:6])
    call("find", "a")
    call("touch", taken[:2])
    call("evict", taken[4:5])
    call("available_size")
    call("queue")
    call("queue_backward")
    call("free", [*taken[:2], *taken[6:]])
    call("reset")
    scheduler(do, BlockPool(size))


def scheduler(do: Script, pool: BlockPool) -> None:
    """Requests that are computed, one of them elsewhere."""
    made = Scheduler(pool, 4, [None, 8], batch=64, requests=4, drafts=1)
    watch(made)
    call = partial(do, made)
    for name in range(3):
        call("add", name, tokens_of(name, 20), 4, elsewhere=8 * (name == 2), sends=name == 1)
    for _ in range(8):
        step = call("schedule")
        for name, load in step.loads.items():
            call("received", name, load.end)
        if not made.flying:
            continue
        _kept, ended = call("complete", {name: [1] for name, one in step.passes.items() if one.samples})
        call("draft", {0: [1]})
        for name in ended:
            if name == 1:
                call("sent", name)
    call("known")
    call("add", 9, tokens_of(9, 20), 4)
    call("abort", 9)
    call("reset", preempt=True)


SCRIPTS: dict[str, Callable[[Script, int], None]] = {
    **{f"locks, counting {counting}": partial(lock_tree, counting=counting) for counting in (False, True)},
    **{
        f"{1 + two} pools, pages of {page}, need_sort {need_sort}": partial(
            pools, page=page, two=two, need_sort=need_sort
        )
        for page, two, need_sort in ((1, False, True), (4, False, False), (1, True, False), (4, True, True))
    },
    **{f"prefix cache, window {window}": partial(prefix_cache, window=window) for window in (0, 5)},
    **{
        f"session cache, {1 + two} pools, states {stateful}": partial(session_cache, two=two, stateful=stateful)
        for two, stateful in ((False, False), (True, True))
    },
    "states": states,
    "blocks": blocks,
}

ANEW = "it makes all free, as the construction does"
ALL_FREE = "it is about all free pages"
# Calls that take work in proportion to the pool, and why.
WHOLE = {
    **dict.fromkeys(("BaseTokenToKVPoolAllocator.clear", "BaseTokenToKVPoolAllocator.resize"), ANEW),
    **dict.fromkeys(("SWATokenToKVPoolAllocator.clear", "SWATokenToKVPoolAllocator.resize"), ANEW),
    **dict.fromkeys(("MambaSlotAllocator.clear", "MambaStates.clear", "PrefixCache.reset"), ANEW),
    "BaseTokenToKVPoolAllocator.all_free": f"{ALL_FREE}: it copies them",
    "BaseTokenToKVPoolAllocator.get_all_free_pages": f"{ALL_FREE}: it copies them",
    "BaseTokenToKVPoolAllocator.merge_and_sort_free": f"{ALL_FREE}: it sorts them; alloc calls it only where few are",
    "SWATokenToKVPoolAllocator.merge_and_sort_free": f"{ALL_FREE}, as for one pool",
    "BaseTokenToKVPoolAllocator.free_pages =": f"{ALL_FREE}: all others count as handed out from then on",
    "BaseTokenToKVPoolAllocator.release_pages =": f"{ALL_FREE}, as free_pages",
    "MambaSlotAllocator.free_slots =": f"{ALL_FREE}: all other slots count as handed out from then on",
}
# Calls that look for errors and count everything again. They are not tried; with ``debug`` every call ends with one.
CHECKS = {"LockTree.check", "SessionCache.check", "PrefixCache.sanity_check", "BlockPool.check", "Scheduler.check"}


def costs(script: Callable[[Script, int], None], size: int) -> list[tuple[str, Cost]]:
    do = Script()
    script(do, size)
    gc.collect()
    return do.costs


def differing(script: Callable[[Script, int], None]) -> dict[str, list[tuple[Cost, Cost]]]:
    """The calls whose work is another one in the larger pool."""
    small, large = costs(script, SMALL), costs(script, LARGE)
    assert [name for name, _ in small] == [name for name, _ in large]
    found: dict[str, list[tuple[Cost, Cost]]] = {}
    for (name, one), (_, other) in zip(small, large, strict=True):
        if one[:3] != other[:3] or other.memory > one.memory + MEMORY:
            found.setdefault(name, []).append((one, other))
    return found


def named(kind: type) -> set[str]:
    """What a class has for callers."""
    calls = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    there = {n for n, v in calls.items() if isinstance(v, (FunctionType, staticmethod, property))}
    settable = {f"{n} =" for n, v in calls.items() if isinstance(v, property) and v.fset is not None}
    abstract: frozenset[str] = getattr(kind, "__abstractmethods__", frozenset())
    return {f"{kind.__name__}.{name}" for name in (there - abstract) | settable}


WHO = (
    LockTree, LockHandle, SlotAllocator, BaseTokenToKVPoolAllocator, SWATokenToKVPoolAllocator, PrefixCache,
    SessionCache, MambaStates, MambaSlotAllocator, BlockPool, Scheduler,
)  # fmt: skip


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_no_call_takes_work_in_proportion_to_the_pool(name: str) -> None:
    found = differing(SCRIPTS[name])
    assert {call: cost for call, cost in found.items() if call not in WHOLE} == {}


def test_every_call_is_tried() -> None:
    tried = {call for script in SCRIPTS.values() for call, _ in costs(script, SMALL)}
    assert set().union(*map(named, WHO)) - CHECKS - {"PrefixCache.pretty_print"} - tried == set()
    assert (WHOLE.keys() - tried, CHECKS & tried) == (set(), set())


# What the count cannot miss: each of these is planted in a call, and found.


def reads_a_table(tree: LockTree) -> None:
    """All elements of a tensor are looked at."""
    (tree.alive & (tree.parent == 1)).any()


def reads_memory(tree: LockTree) -> None:
    """The memory of a tensor is looked at by NumPy."""
    (tree.parent.numpy() == 1).any()


def searches_memory(tree: LockTree) -> None:
    """NumPy looks for the first of all elements."""
    tree.alive.numpy().argmax()


def copies_to_the_host(tree: LockTree) -> None:
    """A tensor becomes a list."""
    tree.parent.tolist()


def searches_a_list(tree: LockTree) -> None:
    """A list is searched without a loop of Python."""
    assert -1 not in tree._free


def makes_a_list(tree: LockTree) -> None:
    """A list is made without a loop of Python."""
    assert [0] * (tree.capacity + 1)


def copies_a_list(tree: LockTree) -> None:
    """A list is sorted into a new one."""
    sorted(tree._free)


def goes_through_nodes(tree: LockTree) -> None:
    """A loop of Python. Its lines are those of ``impl`` only if it is compiled as one of them."""
    SOURCE["loop"](tree)


SOURCE: dict[str, Any] = {}
exec(compile("def loop(tree):\n    for _ in range(tree.capacity // 8): pass", f"{OURS}/planted.py", "exec"), SOURCE)


@pytest.mark.soak(but=3)
@pytest.mark.parametrize(
    "planted",
    [reads_a_table, reads_memory, searches_memory, copies_to_the_host, searches_a_list, makes_a_list, copies_a_list,
     goes_through_nodes],
)  # fmt: skip
def test_work_in_proportion_to_the_pool_is_found(
    planted: Callable[[LockTree], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = LockTree.evict_leaf

    def evict_leaf(tree: LockTree, node: int) -> None:
        planted(tree)
        right(tree, node)

    def script(do: Script, size: int) -> None:
        tree = LockTree(size, window=8)
        watch(tree)
        do(tree, "evict_leaf", do(tree, "add_leaf", 0, 8))

    monkeypatch.setattr(LockTree, "evict_leaf", evict_leaf)
    assert differing(script).keys() == {"LockTree.evict_leaf"}
