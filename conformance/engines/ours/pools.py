"""Our allocators as engines: one paged pool, and two pools with their mapping."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.protocol import Json
from impl.allocator import BaseTokenToKVPoolAllocator, PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator


def allocator(config: Json, device: str = "cpu", lacks: Collection[str] = (), **options: Any) -> PoolAdapter:
    """The paged allocator, at page size 1 the token allocator, as a ``PoolEngine``."""
    return PoolAdapter(single(config, device, **options), config["page_size"], device, lacks)


def single(config: Json, device: str = "cpu", **options: Any) -> BaseTokenToKVPoolAllocator:
    """The paged allocator, at page size 1 the token allocator. ``size`` counts pages."""
    page_size, tokens = config["page_size"], config["size"] * config["page_size"]
    common = (torch.float16, device, None, config["need_sort"])
    if page_size == 1:
        return TokenToKVPoolAllocator(tokens, *common, **options)
    return PagedTokenToKVPoolAllocator(tokens, page_size, *common, **options)


def pair(
    config: Json, device: str = "cpu", kind: Callable[..., Any] = SWATokenToKVPoolAllocator, **options: Any
) -> SWATokenToKVPoolAllocator:
    """An allocator of two pools. Sizes count pages. ``kind``: its class, or a faulty variant of it."""
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
    """The allocator of two pools as a ``PairEngine``."""
    return PairAdapter(pair(config, device, kind, **options), config["page_size"], device, lacks)
