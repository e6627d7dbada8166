"""The allocators of a loaded SGLang release as subjects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.machine import Json
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.cache_engine import EngineCache
from conformance.subjects.mamba_engine import EngineStates
from conformance.subjects.sessions import EngineRows
from conformance.subjects.sglang import SGLang
from conformance.subjects.tree_subjects import EngineTree


def makers(engine: SGLang, label: str, device: str = "cpu") -> dict[str, Callable[[Json], Any]]:
    """For each stem a function that builds a subject of a drawn size."""
    swa_class = engine.find_class("SWATokenToKVPoolAllocator", ("mem_cache.allocator.swa", "mem_cache.swa_memory_pool"))
    traits = Traits("sglang", label, tail=hasattr(swa_class, "alloc_extend_swa_tail"), fragile=True)
    made: dict[str, Callable[[Json], Any]] = {
        "allocator": lambda config: _allocator(engine, traits, device, config),
        "swa_mapping": lambda config: _swa_mapping(engine, traits, device, config),
        "session_trim": lambda config: EngineRows(engine, config),
        "mamba_slots": lambda config: EngineStates(engine, config),
        "cache": lambda config: EngineCache(engine, config),
    }
    has_unified = engine.root.joinpath("sglang", "srt", "mem_cache", "unified_radix_cache.py").is_file()
    return {**made, "lock_ref": lambda config: _lock_ref(engine, config)} if has_unified else made


def _allocator(engine: SGLang, traits: Traits, device: str, config: Json) -> PoolSubject:
    page_size = config["page_size"]
    pool = engine.allocator(config["size"] * page_size, page_size, config["need_sort"], device)
    return PoolSubject(pool, page_size, device, traits)


def _swa_mapping(engine: SGLang, traits: Traits, device: str, config: Json) -> SwaSubject:
    page_size = config["page_size"]
    sizes = (config["size"] * page_size, config["size_swa"] * page_size)
    pools = engine.swa_allocator(*sizes, page_size, config["need_sort"], device)
    return SwaSubject(pools, page_size, device, traits)


def _lock_ref(engine: SGLang, config: Json) -> EngineTree:
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
