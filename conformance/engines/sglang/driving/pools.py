"""The allocators of a release: an ``AllocatorEngine`` and a ``SwaMappingEngine``. Sizes count pages."""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.sglang.releases.release import Release


def pool(release: Release, config: Json, device: str) -> PoolAdapter:
    """A TokenToKVPoolAllocator or a PagedTokenToKVPoolAllocator. The former has no calls that grow rows by tokens."""
    page_size = config["page_size"]
    engine = release.allocator(config["size"] * page_size, page_size, config["need_sort"], device)
    lacks = {"bad", *release.lacks_of(engine, "free_segment"), *(("extend", "decode") if page_size == 1 else ())}
    return PoolAdapter(engine, page_size, device, lacks, release.fragile, release.release_list)


def pair(release: Release, config: Json, device: str) -> PairAdapter:
    """A SWATokenToKVPoolAllocator: at page size 1 it only hands out whole pages, at others it only grows rows."""
    page_size = config["page_size"]
    sizes = (config["size"] * page_size, config["size_swa"] * page_size)
    engine = release.swa_allocator(*sizes, page_size, config["need_sort"], device)
    lacks = {"bad", *(("extend", "decode", "tail") if page_size == 1 else ("alloc",))}
    lacks |= release.lacks_of(engine, "free_segment", "free_swa_segment")
    if not release.has_tail_allocation:
        lacks.add("tail")
    return PairAdapter(engine, page_size, device, lacks, release.fragile, release.release_list)
