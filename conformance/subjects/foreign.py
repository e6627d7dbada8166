"""The allocators of a loaded SGLang release as subjects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.machine import Json
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.sglang import SGLang
from conformance.subjects.tree_subjects import EngineTree


def makers(engine: SGLang, label: str, device: str = "cpu") -> dict[str, Callable[[Json], Any]]:
    """For each stem a function that builds a subject of a drawn size."""
    swa_class = engine.find_class("SWATokenToKVPoolAllocator", ("mem_cache.allocator.swa", "mem_cache.swa_memory_pool"))
    traits = Traits("sglang", label, tail=hasattr(swa_class, "alloc_extend_swa_tail"), fragile=True)

    def allocator(config: Json) -> PoolSubject:
        page_size = config["page_size"]
        pool = engine.allocator(config["size"] * page_size, page_size, config["need_sort"], device)
        return PoolSubject(pool, page_size, device, traits)

    def swa_mapping(config: Json) -> SwaSubject:
        page_size = config["page_size"]
        sizes = (config["size"] * page_size, config["size_swa"] * page_size)
        pools = engine.swa_allocator(*sizes, page_size, config["need_sort"], device)
        return SwaSubject(pools, page_size, device, traits)

    def lock_ref(config: Json) -> EngineTree:
        page_size = config["page_size"]
        return EngineTree(
            engine,
            config["kind"],
            tuple(config["components"]),
            page_size,
            size=config["size"] * page_size,
            size_swa=config["size_swa"] * page_size,
            window=config["window"],
            size_mamba=config["size_mamba"],
        )

    made: dict[str, Callable[[Json], Any]] = {"allocator": allocator, "swa_mapping": swa_mapping}
    has_trees = engine.root.joinpath("sglang", "srt", "mem_cache", "unified_radix_cache.py").is_file()
    return {**made, "lock_ref": lock_ref} if has_trees else made
