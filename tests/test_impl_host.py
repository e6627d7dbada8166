"""The pinned memory through which numbers of the host go to the device: it is written again only when it is read."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from impl import host
from impl.host import PinnedRing


class Device:
    """A device that does its copies later, in order. Each event knows how many copies it waits for."""

    def __init__(self) -> None:
        self.queued: list[tuple[Tensor, list[int]]] = []
        self.done = 0

    def copy(self, pinned: Tensor, wanted: Tensor) -> None:
        self.queued.append((pinned, wanted.tolist()))

    def work(self, copies: int) -> None:
        """Do so many copies: what is copied must be what was put there."""
        for pinned, wanted in self.queued[self.done : self.done + copies]:
            assert pinned.tolist() == wanted
        self.done = min(self.done + copies, len(self.queued))

    def event(self) -> DeviceEvent:
        return DeviceEvent(self)


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self.device, self.after = device, 0

    def record(self) -> None:
        self.after = len(self.device.queued)

    def query(self) -> bool:
        return self.device.done >= self.after


@pytest.mark.parametrize("behind", [0, 3, 1000])
def test_nothing_is_overwritten_before_the_device_has_read_it(behind: int) -> None:
    device, draws, granted = Device(), random.Random(behind), 0
    ring = PinnedRing(torch.zeros(64, dtype=torch.int64), 4, device.event)
    for step in range(500):
        wanted = torch.full((draws.randint(0, 17),), step)
        pinned = ring.put(wanted)
        if pinned is not None:
            granted += 1
            device.copy(pinned, wanted)
        assert pinned is not None or wanted.numel() > 16 or behind
        device.work(max(0, len(device.queued) - device.done - behind))
    device.work(1000)
    assert granted > (400 if behind < 1000 else 4)


def test_a_table_keeps_its_shape_and_other_numbers_are_not_taken() -> None:
    ring = PinnedRing(torch.zeros(64, dtype=torch.int64), 4, Device().event)
    table = torch.arange(12).view(3, 4)
    found = ring.put(table)
    assert found is not None
    assert torch.equal(found, table)
    assert ring.put(table.int()) is None
    assert ring.put(torch.arange(17)) is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_copies_are_right_while_the_device_is_behind() -> None:
    """On two streams, with more than a ring holds; no pinned memory is allocated before the ring is full."""
    device, streams = torch.device("cuda"), [torch.cuda.current_stream(), torch.cuda.Stream()]  # type: ignore[no-untyped-call]
    for stream in streams:
        with torch.cuda.stream(stream):
            host.upload(torch.arange(3), device)
    torch.cuda.synchronize()
    copies = []
    for step in range(60):
        with torch.cuda.stream(streams[step % 2]):
            if step < 2:
                torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
            copies.append(host.upload(torch.full((30_000,), step), device))
    torch.cuda.synchronize()
    assert all(bool((copy == step).all()) for step, copy in enumerate(copies))
