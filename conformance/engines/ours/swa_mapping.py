"""Our allocator of two pools with their mapping as an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from conformance.driver.protocol import Json
from conformance.engines.adapters import PairAdapter
from impl.swa_mapping import SWATokenToKVPoolAllocator


def pair(
    config: Json, device: str = "cpu", kind: Callable[..., Any] = SWATokenToKVPoolAllocator, **options: Any
) -> SWATokenToKVPoolAllocator:
    """An allocator of two pools. Sizes count pages. ``kind``: its class, or a faulty variant of it. On CUDA ``debug``
    is on, so that bad input is found there too.
    """
    options = {"debug": device != "cpu", **options}
    page_size = config["page_size"]
    sizes = (config["size"] * page_size, config["size_swa"] * page_size, page_size)
    made: SWATokenToKVPoolAllocator = kind(*sizes, torch.float16, device, None, config["need_sort"], **options)
    return made


def swa_mapping(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    kind: Callable[..., Any] = SWATokenToKVPoolAllocator,
    **options: Any,
) -> PairAdapter:
    """The allocator of two pools as a ``SwaMappingEngine``."""
    return PairAdapter(pair(config, device, kind, **options), config["page_size"], device, lacks)
