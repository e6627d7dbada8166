"""Our allocator of one paged pool as an engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from conformance.driver.protocol import Json
from conformance.engines.adapters import PoolAdapter
from impl.allocator import BaseTokenToKVPoolAllocator, PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


def allocator(config: Json, device: str = "cpu", lacks: Collection[str] = (), **options: Any) -> PoolAdapter:
    """The paged allocator, at page size 1 the token allocator, as an ``AllocatorEngine``."""
    return PoolAdapter(single(config, device, **options), config["page_size"], device, lacks)


def single(config: Json, device: str = "cpu", **options: Any) -> BaseTokenToKVPoolAllocator:
    """The paged allocator, at page size 1 the token allocator. ``size`` counts pages. On CUDA ``debug`` is on, so that
    bad input is found there too.
    """
    options = {"debug": device != "cpu", **options}
    page_size, tokens = config["page_size"], config["size"] * config["page_size"]
    common = (torch.float16, device, None, config["need_sort"])
    if page_size == 1:
        return TokenToKVPoolAllocator(tokens, *common, **options)
    return PagedTokenToKVPoolAllocator(tokens, page_size, *common, **options)
