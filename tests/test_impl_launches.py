"""How many kernels each transition launches on a device, and that none waits for the device or copies to the host.

There is no device here: tensors on ``meta`` have no content, so that whatever would read a value raises, also
``tolist`` and ``cpu``, which read a CPU tensor unnoticed. The code takes the way that it takes on CUDA: nothing is
looked at, and Triton kernels are launched, which are counted instead of run. Every other operation on the device is a
launch of its own, but for views and for memory that is not filled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl import host, kernels, lock_kernels
from impl.lock_ref import LockTree
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

DEVICE, ROWS, TOKENS, WINDOW = "meta", 8, 100, 32
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "alias"}


class Device(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is launched by the name of the operation. A copy between host and device must not be waited for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launched: Counter[str] = Counter()

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
            self.launched[name] += not (func.is_view or name in NO_KERNEL)
        return func(*args, **given)

    @property
    def launches(self) -> int:
        """How many kernels were launched; copies to the device are none."""
        return sum(count for name, count in self.launched.items() if name != "copy to the device")


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
    tree.device, tree._check_content = torch.device(DEVICE), False
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

    def pin(_: Tensor) -> Tensor:
        raise AssertionError("a call allocates pinned memory")

    class Done:
        def record(self) -> None:
            """What was queued."""

        def query(self) -> bool:
            return True

    memory = host.PinnedRing(torch.zeros(1 << 12, dtype=torch.int64), 2, Done)
    monkeypatch.setattr(host, "ring", lambda *_: memory)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(Tensor, "pin_memory", pin)
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
