"""What stands for the streams and events of a device: which forward passes have ended when the server has waited."""

from __future__ import annotations

import pytest

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.server.copying import CopyDevice
from conformance.engines.sglang.server.streams import PassDevice, PassesInFlight, PassStream


def launched(device: PassDevice, forward: PassStream, count: int) -> PassesInFlight:
    """So many passes were launched on a stream."""
    with device.block_of(forward):
        for _ in range(count):
            device.now.launch()
    return device.now


def test_a_wait_for_a_stream_ends_what_is_before_it() -> None:
    device = PassDevice()
    forward, other = device.stream_of(priority=0), device.stream_of()
    passes = launched(device, forward, 2)
    other.synchronize()
    assert passes.ended == 0
    other.wait_stream(forward)
    assert passes.ended == 0, "the server does not wait"
    launched(device, forward, 1)
    other.synchronize()
    assert passes.ended == 2
    device.synchronize()
    assert passes.ended == 3


def test_a_wait_for_an_event_ends_what_is_before_the_event() -> None:
    device = PassDevice()
    forward, other = device.stream_of(), device.stream_of()
    passes, never = launched(device, forward, 1), device.event_of()
    first = forward.record_event()
    launched(device, forward, 1)
    second = forward.record_event(device.event_of(enable_timing=True))
    never.synchronize()
    assert (passes.ended, never.query()) == (0, True)
    first.synchronize()
    assert passes.ended == 1
    assert (first.query(), second.query(), passes.ended) == (True, False, 1)
    assert (second.query(), passes.ended) == (True, 2), "who asks again has waited"
    launched(device, forward, 1)
    second.record(forward)
    assert not second.query()
    second.wait(other)
    assert (other.last, passes.ended) == (3, 2)
    second.wait()
    device.current_stream().synchronize()
    assert passes.ended == 3


def test_calls_belong_to_the_stream_of_the_block_around_them() -> None:
    device = PassDevice()
    forward, outer = device.stream_of(), device.current_stream()
    block = device.block_of(forward)
    for _ in range(2):
        with block, block, device.block_of(None):
            assert device.current_stream() is forward
        assert device.current_stream() is outer


def test_a_tensor_is_read_when_its_stream_has_done_what_is_before() -> None:
    device = PassDevice()
    forward = device.stream_of()
    passes, read = launched(device, forward, 1), device.reads(lambda tensor, more: (tensor, more))
    assert (read(1, 2), passes.ended) == ((1, 2), 0)
    with device.block_of(forward):
        assert (read(1, more=2), passes.ended) == ((1, 2), 1)


def test_no_wait_is_taken_away() -> None:
    device = PassDevice()
    forward = device.stream_of()
    passes = launched(device, forward, 1)
    forward.synchronize = lambda: None
    forward.synchronize()
    assert passes.ended == 1


def test_copies_are_behind_no_pass() -> None:
    device, copies = PassDevice(), CopyDevice()
    stream, event = device.stream_of(), copies.Event()
    copies.current_stream().begin(lambda: None)
    event.record()
    stream.wait_stream(copies.current_stream())
    stream.wait_event(event)
    assert stream.last == 0


def test_a_pass_that_does_not_wait_for_the_one_before_it_has_no_verdict() -> None:
    device = PassDevice()
    forward, other = device.stream_of(), device.stream_of()
    launched(device, forward, 1)
    with pytest.raises(EngineError, match="does not wait for the pass before it"):
        launched(device, other, 1)
    forward.synchronize()
    launched(device, other, 1)
