"""SGLang's side of the benchmarks: its allocators, and locks on its unified tree, at the size of a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.releases import allocators, cores
from conformance.engines.sglang.releases.release import Release, building_unified
from conformance.engines.sglang.replacing import droptree

COMPONENTS = ("full", "swa")
WINDOW = 1  # of a model without sliding-window layers, whose tree reads none


class ComparedTree:
    """A UnifiedRadixCache with one node for each path; a node has the number at the end of its path. It is read by
    the reader of its memory, which was there when the texts were inserted: a Rust core does not tell them later.
    """

    def __init__(self, release: Release, memory: SGLangMemory) -> None:
        self.locks = release.locks(memory.tree)
        self.nodes = {node.key[0]: node.handle for node in memory.reader.walk()[1:]}

    def batch(self, requests: Sequence[int]) -> Callable[[], None]:
        """A function that locks the node of each request (``inc_lock_ref``), then gives every lock back."""
        locks = self.locks
        nodes = [self.nodes[request] for request in requests]

        def lock_and_release() -> None:
            for lock in [locks.acquire(node) for node in nodes]:
                locks.release(lock, "temporary")

        return lock_and_release


class PrefixTree:
    """A tree over a pool of its own, called as a scheduler of the release calls it."""

    def __init__(self, release: Release, memory: SGLangMemory) -> None:
        self.release, self.tree, self.pools = release, memory.tree, memory.pools
        self.locks = release.locks(memory.tree)

    def slots(self, tokens: int) -> Any:
        """Allocated slots, whole pages."""
        slots = self.pools.engine.alloc(tokens)
        if slots is None:
            raise EngineError(f"{self.release.label}: the pool of the benchmark has no {tokens} tokens left")
        return slots

    def insert(self, text: Sequence[int], slots: Any) -> None:
        """``insert`` of a whole text; what the tree had is freed."""
        self.release.insert(self.tree, text, 0, value=slots)

    def match(self, text: Sequence[int]) -> Any:
        """``match_prefix``; the node in which the longest prefix ends."""
        return self.release.match(self.tree, text).last_device_node

    def lock(self, node: Any) -> None:
        """``inc_lock_ref`` and ``dec_lock_ref``."""
        self.locks.release(self.locks.acquire(node), "temporary")

    def evict(self, tokens: int) -> None:
        """``evict`` of at least so many tokens."""
        self.release.evict(self.tree, tokens, 0, 0)


class Comparison:
    """One release, with tensors on ``device``. ``interpreted``: its Triton kernels are interpreted, hence slow."""

    def __init__(self, release: Release, device: str) -> None:
        self.release, self.device = release, device
        self.label, self.interpreted = f"SGLang {release.label}", release.interpreted

    def allocator(self, size: int, page_size: int, need_sort: bool) -> Any:
        """The allocator of one pool of so many tokens: the release's own object."""
        return self.release.allocator(size, page_size, need_sort, self.device)

    def swa_allocator(self, size: int, size_swa: int, page_size: int, need_sort: bool) -> Any:
        """The allocator of a full and an SWA pool: the release's own object."""
        return self.release.swa_allocator(size, size_swa, page_size, need_sort, self.device)

    def pages(self, allocator: Any, count: int) -> Tensor:
        """The slots of so many new whole pages. Of two pools, each full slot is mapped to its SWA slot: the release
        maps rows that its kernels have allocated, and ``alloc`` of its two pools hands out single tokens alone.
        """
        need = count * allocator.page_size
        found = [side.alloc(need) for side in allocators.sides(allocator)]
        if any(slots is None for slots in found):
            raise EngineError(f"{self.label}: the pool of the benchmark has no {count} pages left")
        full: Tensor = found[0]
        for swa in found[1:]:
            allocator.full_to_swa_index_mapping[full] = swa.to(allocator.full_to_swa_index_mapping.dtype)
        return full

    def lock_tree(self, paths: Iterable[Sequence[int]], span: int, window: int) -> ComparedTree:
        """A tree with a node of ``span`` tokens at the end of each path; a path begins below the root, and the path
        of a parent comes before those of its children. EngineError if the release cannot build it.
        """
        wanted = list(paths)
        size = (len(wanted) + 1) * span
        with building_unified(self.label):
            memory = SGLangMemory(self.release, "unified", COMPONENTS, 1, size=size, size_swa=size, window=window)
        rows: dict[int, list[int]] = {}  # the slots of the path that ends with a number
        for path in wanted:
            tokens = [node for node in path for _ in range(span)]
            row = (rows[path[-2]] if path[1:] else []) + (memory.pools.alloc(span) or [])
            rows[path[-1]] = row
            value = torch.tensor(row, dtype=torch.int64)
            self.release.insert(memory.tree, tokens, 0, value=value, prev_prefix_len=len(row) - span)
        tree = ComparedTree(self.release, memory)
        if len(tree.nodes) != len(wanted):
            raise EngineError(f"{self.label} built another tree: {len(tree.nodes):,} nodes")
        return tree

    def trees(self, tokens: int, page_size: int) -> list[tuple[str, PrefixTree]]:
        """Our prefix cache behind the release's interface, then the release's unified tree with each core that it has;
        each over a pool of so many tokens. EngineError if the release has no unified tree that can be built.
        """
        silent = Release(self.release.imported, publishing=False)
        own = droptree.with_our_tree(silent, debug=False)
        known = [(f"its core {core}", silent, core) for core in cores.known(silent.imported)]
        wanted = [("Slotproof", own, cores.DEFAULT), *known]
        return [(name, self._tree(release, core, tokens, page_size)) for name, release, core in wanted]

    def _tree(self, release: Release, core: str, tokens: int, page_size: int) -> PrefixTree:
        with building_unified(self.label):
            memory = SGLangMemory(
                release, "unified", ("full",), page_size, size=tokens, size_swa=0, window=WINDOW, core=core
            )
        return PrefixTree(release, memory)
