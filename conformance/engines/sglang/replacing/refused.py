"""What our allocators leave out on purpose: the one list of reasons that ``slotproof compat`` prints.

``REFUSED``: a member of a class. ``SUBCLASSES``: classes of a release that inherit from one that ours stand in for, and
read or replace its own lists. They stay on the release's class: ours have other lists, and no server that builds one of
these builds ours.
"""

from __future__ import annotations

_NPU = "Ascend NPU: our allocators run on CPU and CUDA, so this class keeps the release's own base"
_UNIFIED = "one buffer for both pools, with pages that move: another allocator, which keeps the release's own base"

REFUSED: dict[tuple[str, str], str] = {}
SUBCLASSES: dict[str, str] = {
    "NPUPagedTokenToKVPoolAllocator": _NPU,
    "DSV4NPUTokenToKVPoolAllocator": _NPU,
    "PageInterleavePoolAllocator": "free lists for each rank of a shard group: another allocator, which keeps the "
    "release's own base",
    "PureSWATokenToKVPoolAllocator": "one pool for models whose layers all have a window: it keeps the release's own "
    "base",
    "UnifiedSWAAllocatorBase": _UNIFIED,
    "UnifiedSWATokenToKVPoolAllocator": _UNIFIED,
    "UnifiedMambaSWATokenToKVPoolAllocator": _UNIFIED,
}
