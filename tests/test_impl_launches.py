"""How many kernels each transition launches on a device, and which calls wait for the device or copy to the host.

There is no device here: tensors on ``meta`` have no content, so that whatever would read a value raises, also
``tolist`` and ``cpu``, which read a CPU tensor unnoticed. The code takes the way that it takes on CUDA: nothing is
looked at, and Triton kernels are launched, which are counted instead of run. Every other operation on the device is a
launch of its own, but for views and for memory that is not filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from dispatched import Dispatched
from torch import Tensor

from impl import allocator, host, kernels, lock_kernels, lock_ref, swa_mapping
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.lock_ref import LockHandle, LockTree
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

DEVICE, ROWS, TOKENS, WINDOW = "meta", 8, 100, 32
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "alias"}


class Device(Dispatched):
    """Counts what is launched by the name of the operation. A copy between host and device must not be waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launched: Counter[str] = Counter()
        self.log: list[str] = []  # launches in order, and what streams wait for

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """An operation is about to be done."""
        name, given = func._schema.name.removeprefix("aten::"), kwargs or {}
        tensors = [x for x in torch.utils._pytree.tree_leaves((args, given)) if isinstance(x, Tensor)]
        to = torch.device(given.get("device") or "cpu").type
        places = {x.device.type for x in tensors if x.dim()} | {to} - {"cpu"}
        if name in ("_to_copy", "copy_") and places == {"cpu", DEVICE}:
            assert given.get("non_blocking") or args[2:3] == (True,), f"{name} makes the host wait for a copy"
            self.launched["copy to the device"] += 1
        elif DEVICE in places:
            assert "cpu" not in places, f"{name} copies a tensor of the host"
            assert name != "_to_copy" or "device" not in given or to != "cpu", "a copy to the host"
            self._launches(name, not (func.is_view or name in NO_KERNEL))
        return func(*args, **given)

    def _launches(self, name: str, kernel: bool) -> None:
        self.launched[name] += kernel
        self.log += [name] * kernel

    @property
    def launches(self) -> int:
        """How many kernels were launched; copies to the device are none."""
        return sum(count for name, count in self.launched.items() if name != "copy to the device")


FIRST, SECOND = 1, 2  # addresses of streams


def on_stream(address: int, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is called on the stream with this address. What a stream waits for is logged."""

    class Stream:
        def __init__(self, at: int, _: int) -> None:
            self.at = at

        def wait_stream(self, other: Stream) -> None:
            device.log.append(f"{self.at} waits for {other.at}")

    monkeypatch.setattr(host, "stream_address", lambda _: address)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda number: Stream(address, number))
    monkeypatch.setattr(torch.cuda, "ExternalStream", Stream)


class World:
    """An allocator of two pools, rows over it, and a tree with locks, on a device."""

    def __init__(self, page: int) -> None:
        size = 400 * page * ROWS
        self.pools = SWATokenToKVPoolAllocator(size, size, page, torch.bfloat16, DEVICE, None, False, backend="triton")
        self.rows = RequestRows(self.pools, ROWS, 1000, WINDOW, DEVICE)
        self.batch = list(range(ROWS))
        none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
        self.rows.admit([none] * ROWS, [f"session {row}" for row in self.batch])
        self.tree = tree_on_device()


def tree_on_device() -> LockTree:
    """A chain of nodes; it is built on the host, since a tree that grows reads its own tables."""
    tree, node = LockTree(64, window=WINDOW, backend="triton"), 0
    for depth in range(20):
        node = tree.add_leaf(node, 16 * (depth + 1))
    for part in (tree, tree.paths, tree.counts):
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                setattr(part, name, value.to(DEVICE))
    tree.device, tree._check_content, tree._order = torch.device(DEVICE), False, host.StreamOrder(torch.device(DEVICE))
    return tree


def lens(tokens: int) -> tuple[Tensor, Tensor]:
    known = torch.full((ROWS,), tokens)
    return known.to(DEVICE, non_blocking=True), known


def extended(world: World) -> Tensor:
    (none, none_cpu), (to, to_cpu) = lens(0), lens(TOKENS)
    slots = world.pools.alloc_extend(none, none_cpu, to, to_cpu, none - 1, ROWS * TOKENS)
    assert slots is not None
    return slots


def extend(world: World) -> Callable[[], object]:
    (none, none_cpu), (to, to_cpu), last = lens(0), lens(TOKENS), torch.full((ROWS,), -1, device=DEVICE)
    return lambda: world.pools.alloc_extend(none, none_cpu, to, to_cpu, last, ROWS * TOKENS)


def decode(world: World) -> Callable[[], object]:
    last = extended(world)[:ROWS]
    after, after_cpu = lens(TOKENS + 1)
    return lambda: world.pools.alloc_decode(after, after_cpu, last)


def tail(world: World) -> Callable[[], object]:
    none, to = torch.zeros(1, dtype=torch.int64), torch.tensor([TOKENS])
    on = [known.to(DEVICE, non_blocking=True) for known in (none, to, none - 1)]
    return lambda: world.pools.alloc_extend_swa_tail(on[0], none, on[1], to, on[2], TOKENS, WINDOW)


def row_free(world: World) -> Callable[[], object]:
    slots, each = extended(world), [TOKENS] * ROWS
    return lambda: world.pools.free(slots, row_lens=each, swa_lens=each)


def window_eviction(world: World) -> Callable[[], object]:
    slots, page = extended(world), world.pools.page_size
    part = TOKENS // 2 // page * page or page
    first = slots[: part * ROWS]
    return lambda: world.pools.free_swa(first, row_lens=[part] * ROWS)


def decode_step(world: World) -> Callable[[], object]:
    """A step as a scheduler makes it: every row gets a token, and the windows move on."""
    world.rows.extend(world.batch, [TOKENS] * ROWS)

    def step() -> None:
        assert world.rows.decode(world.batch) is not None
        world.rows.slide(world.batch)

    return step


def trims(world: World) -> Callable[[], object]:
    """Finished turns that decoded past their end are cut and saved in their sessions' slots."""
    world.rows.extend(world.batch, [TOKENS] * ROWS)
    world.rows.reserve(world.batch, [TOKENS + 200] * ROWS)
    return lambda: world.rows.save(world.batch, [TOKENS - 1] * ROWS)


def lock(world: World) -> Callable[[], object]:
    nodes = torch.arange(1, ROWS + 1, device=DEVICE)
    world.tree.release(world.tree.acquire(nodes))  # the first locks make room for their records
    return lambda: world.tree.acquire(nodes)


def release(world: World) -> Callable[[], object]:
    handles = world.tree.acquire(torch.arange(1, ROWS + 1, device=DEVICE))
    return lambda: world.tree.release(handles)


# The launches of each transition, by page size. One launch is the aim. Where there are more, the number must not grow.
LAUNCHES: dict[Callable[[World], Callable[[], object]], dict[int, int]] = {
    extend: {1: 1, 64: 1},
    decode: {1: 1, 64: 1},
    tail: {1: 1, 64: 1},
    row_free: {1: 1, 64: 1},
    window_eviction: {1: 1, 64: 1},
    decode_step: {1: 10, 64: 9},  # at page size 1 every step gives back a token of each window
    trims: {1: 1, 64: 1},
    lock: {1: 1, 64: 1},
    release: {1: 1, 64: 1},
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device; Triton's launches are counted, and pinned memory is memory."""
    counting = Device()

    class Kernel:
        def __init__(self, kernel: Callable[..., None]) -> None:
            self.name = kernel.__name__

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            assert all(size > 0 for size in grid)
            return lambda *_, **__: counting.launched.update([self.name])

    def tensor(values: Any, **given: Any) -> Tensor:
        assert torch.device(given.get("device") or "cpu").type == "cpu", "the host waits for a copy of a list"
        return made(values, **given)

    made = torch.tensor
    monkeypatch.setattr(torch, "tensor", tensor)
    for module in (kernels, lock_kernels):
        monkeypatch.setattr(module, "jit", Kernel)

    monkeypatch.setattr(host, "device_number", lambda _: 0)
    on_stream(FIRST, counting, monkeypatch)
    monkeypatch.setattr(Tensor, "pin_memory", lambda known: known)
    return counting


@pytest.mark.parametrize("page", [1, 64])
@pytest.mark.parametrize("transition", LAUNCHES, ids=lambda one: one.__name__)
def test_a_transition_launches_few_kernels_and_waits_for_none(
    transition: Callable[[World], Callable[[], object]], page: int, device: Device
) -> None:
    call = transition(World(page))
    device.launched.clear()
    with device:
        call()
    assert device.launches == LAUNCHES[transition][page], dict(device.launched)


WAITS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "item": lambda on, _: on[0].item(),
    "a truth": lambda on, _: bool((on > 0).all()),
    "tolist": lambda on, _: on.tolist(),
    "cpu": lambda on, _: on.cpu(),
    "numpy": lambda on, _: on.numpy(),
    "nonzero": lambda on, _: on.nonzero(),
    "a mask": lambda on, _: on[on > 0],
    "unique": lambda on, _: torch.unique(on),
    "repeats of unknown number": lambda on, _: torch.repeat_interleave(on, on),
    "a tensor of the host as an index": lambda on, known: on[known],
    "a blocking copy": lambda _, known: known.to(DEVICE),
    "a list that becomes a tensor": lambda *_: torch.tensor([1, 2], device=DEVICE),
}


@pytest.mark.parametrize("what", WAITS)
def test_whatever_waits_for_the_device_is_noticed(what: str, device: Device) -> None:
    on, known = torch.zeros(4, dtype=torch.int64, device=DEVICE), torch.zeros(4, dtype=torch.int64)
    with pytest.raises((AssertionError, RuntimeError, TypeError)), device:
        WAITS[what](on, known)


def test_what_is_launched_is_counted(device: Device) -> None:
    on = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    with device:
        on[:2].fill_(1)
        torch.cat([on, torch.empty_like(on)]).view(2, 4)
        on.add_(torch.zeros(4, dtype=torch.int64).to(DEVICE, non_blocking=True))
    assert device.launches == 3
    assert device.launched["copy to the device"] == 1


# Which calls wait: those that the module's docstring names, and no others.

Calls = dict[str, Callable[[Any], object]]
LEAF, HANDLES = 20, 2
OF_LOCKS: Calls = {
    "warm_up": lambda tree: tree.warm_up(4),
    "full_evictable_size": lambda tree: tree.full_evictable_size(),
    "full_protected_size": lambda tree: tree.full_protected_size(),
    "swa_evictable_size": lambda tree: tree.swa_evictable_size(),
    "swa_protected_size": lambda tree: tree.swa_protected_size(),
    "mamba_evictable_size": lambda tree: tree.mamba_evictable_size(),
    "mamba_protected_size": lambda tree: tree.mamba_protected_size(),
    "lockable": lambda tree: tree.lockable([1, 2]),
    "acquire": lambda tree: tree.acquire([1, 2]),
    "release": lambda tree: tree.release(list(tree.active)),
    "release_swa": lambda tree: tree.release_swa(list(tree.active)),
    "add_leaf": lambda tree: tree.add_leaf(LEAF, 16 * 22),
    "split": lambda tree: tree.split(LEAF, 16 * LEAF - 3),
    "mergeable": lambda tree: tree.mergeable(LEAF),
    "held_alike": lambda tree: tree.held_alike(LEAF - 1, LEAF),
    "merge": lambda tree: tree.merge(LEAF),
    "revivable": lambda tree: tree.revivable(LEAF),
    "restore": lambda tree: tree.restore(LEAF),
    "restore_swa": lambda tree: tree.restore_swa(LEAF),
    "set_mamba": lambda tree: tree.set_mamba(LEAF),
    "evict_leaf": lambda tree: tree.evict_leaf(LEAF),
    "evict_swa": lambda tree: tree.evict_swa(LEAF),
    "evict_mamba": lambda tree: tree.evict_mamba(LEAF),
    "check": lambda tree: tree.check(),
    "node": lambda tree: next(iter(tree.active)).node,
    "top": lambda tree: next(iter(tree.active)).top,
    "state": lambda tree: next(iter(tree.active)).state,
}
WITHOUT_DEVICE = {"active", "holds_swa"}  # attributes of a handle that read sets of the host


def locked_tree() -> LockTree:
    tree = tree_on_device()
    tree.acquire([1] * HANDLES)
    return tree


def waits(call: Callable[[Any], object], on: Any, device: Device) -> bool:
    try:
        with device:
            call(on)
    except (AssertionError, RuntimeError, TypeError):
        return True
    return False


@pytest.mark.parametrize("name", OF_LOCKS)
def test_a_call_of_a_lock_tree_that_waits_is_named(name: str, device: Device) -> None:
    says_so = f"``{name}``" in str(lock_ref.__doc__).split("All else", 1)[1]
    assert waits(OF_LOCKS[name], locked_tree(), device) == says_so


def test_every_call_of_a_lock_tree_is_tried() -> None:
    public = {name for kind in (LockTree, LockHandle) for name in vars(kind) if not name.startswith("_")}
    assert public - {"number", "tree"} == {*OF_LOCKS} | WITHOUT_DEVICE


def rows_of(pools: Any, given: int = 4) -> dict[str, Any]:
    return {"row_lens": [given * pools.page_size], "swa_lens": [given * pools.page_size]}


def some(pools: Any) -> Tensor:
    slots = pools.alloc(4 * pools.page_size)
    assert slots is not None
    return slots  # type: ignore[no-any-return]


def grouped(pools: Any, **lens: Any) -> None:
    pools.free_group_begin()
    pools.free(some(pools), **lens)
    pools.free_group_end()


def swa_in_group(pools: Any) -> None:
    pools.free_group_begin()
    pools.free(some(pools), **rows_of(pools))
    pools.free_swa(some(pools), row_lens=[4 * pools.page_size])
    pools.free_group_end()


# Calls of pools, and for one pool of pages of 1 and of 64 tokens, and then for two pools, whether they wait.
OF_POOLS: dict[str, tuple[Callable[[Any], object], tuple[bool | None, ...]]] = {
    "warm_up": (lambda pools: pools.warm_up(), (False, False, False, False)),
    "check_frees": (lambda pools: pools.check_frees(), (True, True, True, True)),
    "alloc": (some, (False, False, False, False)),
    "free by rows": (lambda pools: pools.free(some(pools), **rows_of(pools)), (False, False, False, False)),
    "free": (lambda pools: pools.free(some(pools)), (False, True, True, True)),
    "free without swa_lens": (
        lambda pools: pools.free(some(pools), row_lens=rows_of(pools)["row_lens"]), (False, False, True, True)
    ),
    "free_segment": (lambda pools: pools.free_segment(some(pools), start_pos=0), (False, False, False, False)),
    "free_full": (lambda pools: pools.free_full(some(pools)), (False, True, True, True)),
    "free_full_segment": (lambda pools: pools.free_full_segment(some(pools), start_pos=0), (False, True, True, True)),
    "free_full_segments": (lambda pools: pools.free_full_segments([(some(pools), 0)]), (False, True, True, True)),
    "free_group_end by rows": (lambda pools: grouped(pools, **rows_of(pools)), (False, False, False, False)),
    "free_group_end": (grouped, (True, True, True, True)),
    "free_group_end after free_swa": (swa_in_group, (None, None, True, True)),
    "free_swa": (lambda pools: pools.free_swa(some(pools)), (None, None, True, True)),
    "free_swa by rows": (
        lambda pools: pools.free_swa(some(pools), row_lens=[4 * pools.page_size]), (None, None, False, False)
    ),
    "free_swa_segment": (lambda pools: pools.free_swa_segment(some(pools), start_pos=0), (None, None, False, False)),
    "set_full_to_swa_mapping": (
        lambda pools: pools.set_full_to_swa_mapping(some(pools), some(pools)), (None, None, False, False)
    ),
    "clear_full_to_swa_mapping": (
        lambda pools: pools.clear_full_to_swa_mapping(some(pools)), (None, None, False, False)
    ),
    "move_swa": (lambda pools: pools.move_swa(some(pools), some(pools)), (None, None, False, False)),
    "merge_and_sort_free": (lambda pools: pools.merge_and_sort_free(), (False, False, False, False)),
    "restore_state": (lambda pools: pools.restore_state(pools.backup_state()), (False, False, False, False)),
    "clear": (lambda pools: pools.clear(), (False, False, False, False)),
}  # fmt: skip


def one_or_two(which: int) -> Any:
    page = (1, 64, 1, 64)[which]
    common: tuple[Any, ...] = (torch.bfloat16, DEVICE, None, False)
    if which > 1:
        return SWATokenToKVPoolAllocator(64 * 64, 64 * 64, page, *common, backend="triton")
    if page == 1:
        return TokenToKVPoolAllocator(64 * 64, *common, backend="triton")
    return PagedTokenToKVPoolAllocator(64 * 64, page, *common, backend="triton")


@pytest.mark.parametrize("name", OF_POOLS)
def test_a_call_of_pools_that_waits_is_named(name: str, device: Device) -> None:
    """By the docstring of ``allocator`` for one pool, and by that of ``swa_mapping`` for two."""
    call, expected = OF_POOLS[name]
    assert tuple(
        None if wanted is None else waits(call, one_or_two(which), device) for which, wanted in enumerate(expected)
    ) == expected  # fmt: skip
    for module, waiting in ((allocator, expected[:2]), (swa_mapping, expected[2:])):
        if any(waiting):
            assert f"``{name.split()[0]}``" in str(module.__doc__)


# Calls on two streams: whatever a call launches comes after all that was launched by the calls before.


STREAMED: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    **{
        f"{name}, pools {which}": (partial(one_or_two, which), call)
        for name, (call, waiting) in OF_POOLS.items()
        for which in (1, 3)
        if waiting[which] is not None and name not in ("warm_up", "merge_and_sort_free")
    },
    **{name: (locked_tree, call) for name, call in OF_LOCKS.items() if name != "warm_up"},
}


@pytest.mark.parametrize("name", STREAMED)
def test_a_call_on_another_stream_comes_after_the_calls_before(
    name: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, call = STREAMED[name]
    made, kept = make(), set[int]()
    if not isinstance(made, LockTree):
        slots = [some(made) for _ in range(3)]
        if not name.startswith("alloc"):  # what the call gives back was handed out before
            monkeypatch.setattr(made, "alloc", lambda _: slots.pop())
    parts = [made.paths, made.counts] if isinstance(made, LockTree) else [pool for _, pool in made._each_pool()]
    tensors = [value for part in (made, *parts) for value in vars(part).values() if isinstance(value, Tensor)]
    on_stream(SECOND, device, monkeypatch)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, _: kept.add(id(tensor)))
    device.log.clear()
    waits(call, made, device)
    ours = [line for line in device.log if line != "cat"]  # slots that a caller passes in parts are put together
    assert ours[0] == "2 waits for 1"
    assert {*map(id, tensors)} <= kept


def slides(world: World) -> Callable[[], object]:
    """The windows of rows move on."""
    world.rows.extend(world.batch, [3 * TOKENS] * ROWS)
    return lambda: world.rows.slide(world.batch)


def end_of_group(world: World) -> Callable[[], object]:
    """What waits in a free group is freed."""
    world.pools.free_group_begin()
    world.pools.free(some(world.pools), **rows_of(world.pools))
    return world.pools.free_group_end


def window_in_group(world: World) -> Callable[[], object]:
    """In an open group SWA pages are freed at once."""
    slots = some(world.pools)
    world.pools.free_group_begin()
    return lambda: world.pools.free_swa(slots, row_lens=rows_of(world.pools)["row_lens"])


def free_pages_are_set(world: World) -> Callable[[], object]:
    """A subclass has changed the free pages."""
    pool = world.pools.full_attn_allocator
    pages = pool.free_pages.clone()
    return lambda: setattr(pool, "free_pages", pages)


def freed_pages_are_sorted(_: World) -> Callable[[], object]:
    """Pages that were freed are sorted into the free ones."""
    pool = PagedTokenToKVPoolAllocator(64 * 64, 64, torch.bfloat16, DEVICE, None, True, backend="triton")
    pool.free(some(pool), row_lens=[4 * 64])
    return pool.merge_and_sort_free


ON_TWO_STREAMS: dict[Callable[[World], Callable[[], object]], int] = {
    **dict.fromkeys((decode_step, trims, slides), 2),  # the table of the rows waits, and the pools
    **dict.fromkeys((end_of_group, window_in_group, free_pages_are_set, freed_pages_are_sorted), 1),
}


@pytest.mark.parametrize("transition", ON_TWO_STREAMS, ids=lambda one: one.__name__)
def test_steps_on_another_stream_come_after_the_calls_before(
    transition: Callable[[World], Callable[[], object]], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, kept = transition(World(64)), set[int]()
    on_stream(SECOND, device, monkeypatch)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, _: kept.add(id(tensor)))
    device.log.clear()
    with device:
        call()
    assert device.log[0] == "2 waits for 1"
    assert device.log.count("2 waits for 1") == ON_TWO_STREAMS[transition]
