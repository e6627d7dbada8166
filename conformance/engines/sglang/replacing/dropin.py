"""Our allocators in the place of a release's own, so that the release's scheduler and trees run on them.

``classes(release)`` makes, for each allocator class of the release that ours stand in for, a class with two parents:
ours first, the release's second. So ``isinstance`` holds, and all bookkeeping is ours. What is left of the release's
class is a list of hooks (``HOOKS``): they decide what the scheduler plans, with its own classes, and touch the
allocator by calls that ours have. Every other member of the release's class that ours lack is hidden: it would read
lists that are not there. ``compat`` counts what the hooks touch.

The debug switch of the release turns ``debug`` of ours on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

import torch

from conformance.engines.sglang.releases.release import ALLOCATOR, SWA_ALLOCATOR, Release
from conformance.engines.sglang.replacing.hooks import HOOKS
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator

OWN, STOOD_IN, BOTH = "own", "slotproof", "both"  # whose allocators a server has
DEBUG_SWITCH = "SGLANG_DEBUG_MEMORY_POOL"
# Our classes by name, each with the modules where a release may have its own.
STAND_INS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "TokenToKVPoolAllocator": (TokenToKVPoolAllocator, ALLOCATOR),
    "PagedTokenToKVPoolAllocator": (PagedTokenToKVPoolAllocator, ALLOCATOR),
    "SWATokenToKVPoolAllocator": (SWATokenToKVPoolAllocator, SWA_ALLOCATOR),
}


class _Hidden:
    """Stands for a member of the release's class that ours do not have: no object has it, unless it is set."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, _: Any, owner: type[Any] | None = None) -> Any:
        kind = "" if owner is None else owner.__name__
        raise AttributeError(f"{kind}.{self.name}: our allocators do not have this member of the release's class")


def over(stand_in: type[Any], theirs: type[Any], made: Callable[..., None]) -> type[Any]:
    """A class with the bookkeeping of ``stand_in`` and the hooks of ``theirs``, and an instance of both. ``made``: its
    ``__init__``.
    """
    names = {name for parent in theirs.__mro__[:-1] for name in vars(parent)}
    hidden = {
        name
        for name in names
        if not hasattr(stand_in, name) and name not in HOOKS and not name.startswith(("__", "_abc_"))
    }
    members: dict[str, Any] = {name: _Hidden(name) for name in hidden}
    return type(stand_in.__name__, (stand_in, theirs), {**members, "__init__": made, "__doc__": stand_in.__doc__})


def debugs() -> bool:
    """The release's debug switch is on."""
    return os.environ.get(DEBUG_SWITCH, "").lower() in ("1", "true")


def classes(release: Release) -> dict[str, type[Any]]:
    """For each of ``STAND_INS`` the class to use in its place. ``EngineError`` if the release has no such class."""

    def one(self: Any, *args: Any, **options: Any) -> None:
        stand_in = next(parent for parent in type(self).__mro__[1:] if parent in kinds)
        stand_in.__init__(self, *args, **{"debug": debugs(), **options})

    kinds = [kind for kind, _ in STAND_INS.values()]
    found = {
        name: over(kind, release.imported.find_class(name, modules), one) for name, (kind, modules) in STAND_INS.items()
    }
    pair = found["SWATokenToKVPoolAllocator"]
    pair.pool_kinds = (found["TokenToKVPoolAllocator"], found["PagedTokenToKVPoolAllocator"])
    return found


def with_stand_ins(release: Release) -> Release:
    """The release, with our allocators in its servers."""
    return cast(Release, WithStandIns(release))


class WithStandIns:
    """A release whose servers have our allocators. All else is the release's."""

    def __init__(self, release: Release) -> None:
        self._release = release

    def __getattr__(self, name: str) -> Any:
        return getattr(self._release, name)

    @cached_property
    def _classes(self) -> dict[str, type[Any]]:
        return classes(self._release)

    def allocator(self, size: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """Our allocator of one pool. Arguments as for ``Release.allocator``."""
        kind = self._classes["TokenToKVPoolAllocator" if page_size == 1 else "PagedTokenToKVPoolAllocator"]
        pages = () if page_size == 1 else (page_size,)
        return kind(size, *pages, torch.bfloat16, device, None, need_sort)

    def swa_allocator(self, size: int, size_swa: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """Our allocator of a full and an SWA pool. Arguments as for ``Release.swa_allocator``."""
        kind = self._classes["SWATokenToKVPoolAllocator"]
        cache = self._release.swa_pool()
        return kind(size, size_swa, page_size, torch.bfloat16, device, cache, need_sort)
