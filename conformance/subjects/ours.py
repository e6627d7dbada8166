"""Our own implementation as a subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from conformance.machine import Json
from conformance.subjects import cache_subjects
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.mamba_ours import OurStates
from conformance.subjects.pagepools import Pools
from conformance.subjects.row_subjects import OurRows
from conformance.subjects.tree_subjects import OurTree
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.lock_ref import LockTree
from impl.mamba_slots import MambaStates
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

TRAITS = Traits("ours", paged_at_one=True, rejects=True)


def allocator(config: Json, device: str = "cpu", **options: Any) -> PoolSubject:
    """The paged allocator (at page size 1 the token allocator)."""
    page_size, tokens = config["page_size"], config["size"] * config["page_size"]
    common = (torch.float16, device, None, config["need_sort"])
    if page_size == 1:
        return PoolSubject(TokenToKVPoolAllocator(tokens, *common, **options), 1, device, TRAITS)
    engine = PagedTokenToKVPoolAllocator(tokens, page_size, *common, **options)
    return PoolSubject(engine, page_size, device, TRAITS)


def swa_mapping(config: Json, device: str = "cpu", **options: Any) -> SwaSubject:
    """The allocator of two pools."""
    return _swa_subject(SWATokenToKVPoolAllocator, config, device, TRAITS, **options)


def faulty(kind: type[SWATokenToKVPoolAllocator]) -> Callable[[Json], SwaSubject]:
    """A variant of the allocator of two pools with a known bug; nobody asks it to answer bad input."""
    return lambda config: _swa_subject(kind, config, "cpu", replace(TRAITS, label="faulty", rejects=False))


def _swa_subject(
    kind: type[SWATokenToKVPoolAllocator], config: Json, device: str, traits: Traits, **options: Any
) -> SwaSubject:
    page_size = config["page_size"]
    sizes = (config["size"] * page_size, config["size_swa"] * page_size, page_size)
    engine = kind(*sizes, torch.float16, device, None, config["need_sort"], **options)
    return SwaSubject(engine, page_size, device, traits)


def session_trim(config: Json, device: str = "cpu", **options: Any) -> OurRows:
    """Request rows and session slots, beside a prefix store of their own."""
    return _rows(RequestRows, OurRows, config, TRAITS, device, **options)


def faulty_rows(engine: type[RequestRows] = RequestRows, rows: type[OurRows] = OurRows) -> Callable[[Json], OurRows]:
    """A variant of the rows, or of the scheduler that calls them, with a known bug."""
    return lambda config: _rows(engine, rows, config, replace(TRAITS, label="faulty", rejects=False), "cpu")


def _rows(
    engine: type[RequestRows], rows: type[OurRows], config: Json, traits: Traits, device: str, **options: Any
) -> OurRows:
    pools = _swa_subject(SWATokenToKVPoolAllocator, config, device, traits, **options).engine
    tokens = config["size"] * config["page_size"]
    return rows(engine(pools, config["rows"], tokens, config["window"], device), traits)


def lock_ref(config: Json, device: str = "cpu", **options: Any) -> OurTree:
    """The locks, under a prefix tree of their own."""
    return _tree(LockTree, OurTree, config, TRAITS, device=device, **options)


def faulty_tree(locks: type[LockTree] = LockTree, tree: type[OurTree] = OurTree) -> Callable[[Json], OurTree]:
    """A variant of the locks or of the prefix tree over them with a known bug."""
    return lambda config: _tree(locks, tree, config, replace(TRAITS, label="faulty", rejects=False))


def _tree(locks: type[LockTree], tree: type[OurTree], config: Json, traits: Traits, **options: Any) -> OurTree:
    components = config["components"]
    sizes = {"full": config["size"], "swa": config["size_swa"], "mamba": config["size_mamba"]}
    windowed, stateful = "swa" in components, "mamba" in components
    engine = locks(config["size"], window=config["window"], windowed=windowed, stateful=stateful, **options)
    return tree(engine, Pools.of(components, config["page_size"], sizes), traits)


def mamba_slots(config: Json, device: str = "cpu", **options: Any) -> OurStates:
    """The state slots, under a tree of states of their own; bad input is looked for on CUDA too."""
    return _states(MambaStates, OurStates, config, TRAITS, device=device, debug=device != "cpu", **options)


def faulty_states(
    states: type[MambaStates] = MambaStates, tree: type[OurStates] = OurStates
) -> Callable[[Json], OurStates]:
    """A variant of the state slots or of the tree over them with a known bug."""
    return lambda config: _states(states, tree, config, replace(TRAITS, label="faulty", rejects=False))


def _states(
    states: type[MambaStates], tree: type[OurStates], config: Json, traits: Traits, **options: Any
) -> OurStates:
    tracks = 0 if not config["buffered"] else 2 if config["doubled"] else 1
    rows = config["requests"] + config["sessions"]
    lazy = config["lazy"] and tracks == 2
    engine = states(rows, config["size"], buffer_size=tracks, lazy=lazy, **options)
    return tree(engine, config, traits)


MAKERS: dict[str, Callable[..., Any]] = {
    "allocator": allocator,
    "swa_mapping": swa_mapping,
    "lock_ref": lock_ref,
    "session_trim": session_trim,
    "mamba_slots": mamba_slots,
    "cache": cache_subjects.cache,
}
