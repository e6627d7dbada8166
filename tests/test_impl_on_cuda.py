"""What only a CUDA device shows: calls on two streams, frees of free pages, kernels that are compiled later."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from impl.host import StreamOrder
from impl.lock_ref import LockTree
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
LONG = 400_000_000  # clock cycles for which a stream is kept busy, about 0.2 seconds


def pools(page: int, size: int = 1 << 14) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(size, size, page, torch.bfloat16, "cuda", None, False)


def granted(slots: Tensor | None) -> Tensor:
    assert slots is not None
    return slots


def on_two_streams(page: int) -> tuple[list[int], list[int]]:
    """The slots that an allocation on a busy stream should get and gets, while a free on another stream goes on."""
    made, streams = pools(page), [torch.cuda.Stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    made.warm_up()
    rows = 8
    host = torch.full((rows,), 2 * page)
    lens, none, last = host.cuda(), torch.zeros_like(host).cuda(), torch.full((rows,), -1).cuda()
    old = granted(made.alloc(64 * page))
    made.free(granted(made.alloc(page)), row_lens=[page], swa_lens=[page])  # kernels and memory are there
    expected = made.full_attn_allocator.slots(made.full_attn_allocator.free_pages[: 2 * rows]).tolist()
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        got = granted(made.alloc_extend(none, torch.zeros_like(host), lens, host, last, 2 * page * rows))
    with torch.cuda.stream(streams[1]):
        made.free(old, row_lens=[64 * page], swa_lens=[64 * page])
    torch.cuda.synchronize()
    return expected, got.tolist()


@pytest.mark.parametrize("page", [1, 64])
def test_a_free_on_another_stream_waits_for_the_allocation_before(page: int) -> None:
    expected, got = on_two_streams(page)
    assert got == expected


def test_without_the_order_of_streams_the_free_overtakes_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamOrder, "follow", lambda *_: None)
    expected, got = on_two_streams(64)
    assert got != expected


@pytest.mark.parametrize("page", [1, 64])
def test_what_is_freed_twice_is_found(page: int) -> None:
    made = pools(page)
    slots, others = granted(made.alloc(4 * page)), granted(made.alloc(4 * page))
    torch.cuda.set_sync_debug_mode("error")
    try:
        made.free(slots, row_lens=[4 * page], swa_lens=[4 * page])
        made.free(slots[page : 2 * page], row_lens=[page], swa_lens=[page])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(RuntimeError, match=r"full pages: .* 1$"):
        made.check_frees()
    with pytest.raises(RuntimeError, match="free already"):
        made.free(others)


def test_not_every_call_allocates_pinned_memory() -> None:
    """400 calls, each of which copies lengths or places to the device: torch allocates it for a few sizes alone."""
    made, draws = pools(4), random.Random(4)
    rows = RequestRows(made, 40, 200, 8, "cuda")
    for step in range(120):
        batch = rows.admit([torch.zeros(0, dtype=torch.int64, device="cuda")] * draws.randint(1, 40))
        assert batch is not None
        assert rows.extend(batch, [draws.randint(1, 90) for _ in batch]) is not None
        assert rows.decode(batch) is not None
        rows.finish(batch)
        rows.release(batch)
        torch.cuda.synchronize()
        if step == 20:
            before = torch.cuda.host_memory_stats()["num_host_alloc"]
    assert 0 < before <= torch.cuda.host_memory_stats()["num_host_alloc"] <= before + 10


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that Triton compiles, in order."""
    from triton import knobs

    names: list[str] = []

    def compiles(*, fn: Any, **_: Any) -> None:
        names.append(fn.name)

    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", compiles)
    return names


@pytest.mark.parametrize("page", [1, 3])
def test_after_warm_up_nothing_is_compiled(page: int, compiled: list[str]) -> None:
    made = pools(page, 3 << 13)
    made.warm_up()
    tree, under = LockTree(40, window=3, stateful=True), 0
    for stop in range(1, 30):
        under = tree.add_leaf(under, stop)
    tree.warm_up(40)
    compiled.clear()
    rows, draws = RequestRows(made, 40, 200, 8, "cuda"), random.Random(page)
    for _ in range(100):
        batch = rows.admit([torch.zeros(0, dtype=torch.int64, device="cuda")] * draws.randint(1, 40))
        assert batch is not None
        assert rows.extend(batch, [draws.randint(1, 90) for _ in batch]) is not None
        assert rows.decode(batch[: draws.randint(1, len(batch))]) is not None
        rows.slide(batch)
        rows.finish(batch)
        rows.release(batch)
        tree.release(tree.acquire([draws.randint(1, 29) for _ in batch]))
    assert compiled == []
    made.check_frees()
    assert made.available_size() == made.size
