"""What our implementation does on CUDA that would end the process there, seen on a CPU.

A number outside of a tensor is an IndexError on a CPU. On CUDA it is an assertion of the device, after which no call of
the process works any more. So no bad input may come as far as an indexing operation of torch.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
from dispatched import Dispatched
from driven import sampled

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from conformance.engines.ours import make
from conformance.search.check import Search, draw
from conformance.stems.machine import Sink

INDEXING = ("index", "gather", "scatter", "take", "embedding")
# The stems whose engine has tensors on the device; and those where it takes the kernels that CUDA has by default.
ON_DEVICE = ("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache")
WITH_KERNELS = ("allocator", "swa_mapping", "lock_ref")


class DeviceAssert(BaseException):
    """On CUDA the device would have stopped here. No caller catches this class."""


class AsOnDevice(Dispatched):
    """An indexing operation that gets a number outside of its tensor raises ``DeviceAssert``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except (IndexError, RuntimeError) as error:
            if any(word in func._schema.name for word in INDEXING):
                raise DeviceAssert(f"{func}: {error}") from error
            raise


@pytest.mark.soak(but=3)
@pytest.mark.parametrize(
    ("stem", "more"),
    sampled([*((stem, {}) for stem in ON_DEVICE), *((stem, {"backend": "triton"}) for stem in WITH_KERNELS)], 2),
    ids=str,
)
def test_no_input_ends_the_device(stem: str, more: dict[str, Any]) -> None:
    """Drawn runs with bad input, with the checks of content that CUDA has with ``debug``."""
    sink = Sink()
    with AsOnDevice():  # type: ignore[no-untyped-call]
        draw(stem, partial(make, stem, debug=True, **more), sink, Search(examples=40))
    assert sink.failure is None
