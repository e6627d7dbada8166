"""The radix trees of a release, as a ``LockRefEngine``: UnifiedRadixCache, and the older SWARadixCache.

The engine does what SGLang's callers do around a call of the tree. For an ``insert`` it allocates slots for the
tokens that the caller does not share with the tree, frees their SWA side below the cursor, and frees what the tree
did not take.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import Json, Misuse, PublishedEvents, Unsupported
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.releases.cores import DEFAULT, RUST
from conformance.engines.sglang.releases.locking import CALLERS
from conformance.engines.sglang.releases.release import Release, TrackBuffers
from conformance.stems.lock_ref.protocol import Inserted, LockRefSnapshot, PrefixMatch
from spec.lengths import pages_needed


def tree_memory(release: Release, config: Json, core: str = DEFAULT) -> SGLangMemory:
    """A tree with one row. Sizes of the configuration count pages; buffers are what SGLang needs at this page size.
    ``core``: see ``cores``.
    """
    page_size = config["page_size"]
    return SGLangMemory(
        release,
        config["kind"],
        tuple(config["components"]),
        page_size,
        size=config["size"] * page_size,
        size_swa=config["size_swa"] * page_size,
        window=config["window"],
        states=config["size_mamba"],
        buffers=TrackBuffers(page_size > 1),
        core=core,
    )


class DrivenLockRef:
    """One tree over its pools, and the locks that callers have on it."""

    def __init__(self, memory: SGLangMemory) -> None:
        self.fragile = memory.release.fragile
        self.memory, self.sglang, self.tree = memory, memory.release, memory.tree
        self.page_size, self.ran = memory.page_size, memory.ran
        self.locks = self.sglang.locks(self.tree)
        self.windowed, self.stateful = "swa" in memory.components, "mamba" in memory.components
        self.lacks = self._lacks()
        self._handles: dict[int, Any] = {}
        self._early: set[int] = set()
        self._count = 0

    def _lacks(self) -> Collection[str]:
        early = self.windowed and self.locks.unlocks_window
        has = {"release_swa": early, "copy_on_write": self.stateful, "bad": False, "compact": False}
        counts, hidden = self.locks.counts_missing, self.ran.get("core") == RUST
        # A Rust core does not show the locks of tombstones, so it must be known what a lock over them does.
        has |= {"pin": self.locks.pins and (counts or not hidden), "counts_missing": counts}
        has |= {"pinned_by_requests": self.locks.pinned_by_requests}
        has |= {"state_goes_early": early and self.locks.state_goes_early}
        return frozenset(name for name, offered in has.items() if not offered)

    # Inserting and matching.

    def insert(self, tokens: list[int], cursor: int = 0, protected: int = 0) -> Inserted | None:
        """Caches a row, as ``cache_finished_req`` does; ``None``: out of memory."""
        if cursor % self.page_size or protected % self.page_size or max(cursor, protected) > len(tokens):
            raise Misuse("cursor and protected prefix are whole pages of the row")
        row = self._shared(tokens, protected)
        state = self._new_state() if self.stateful else None
        fresh = self._allocate(row, len(tokens)) if state is not None or not self.stateful else None
        if fresh is None:
            self._free_state(state)
            return None
        pools = self.memory.pools
        if self.windowed:
            pools.engine.free_swa(torch.tensor(fresh[: max(0, cursor - protected)], dtype=torch.int64))
        row += fresh
        whole = len(tokens) // self.page_size * self.page_size
        answer = self.sglang.insert(
            self.tree,
            tokens[:whole],
            cursor,
            value=torch.tensor(row[:whole], dtype=torch.int64),
            prev_prefix_len=protected,
            mamba_value=None if state is None else torch.tensor([state]),
        )
        if not self.sglang.insert_frees(self.memory.kind):  # its callers free what the tree has already
            pools.free(row[protected : int(answer.prefix_len)])
        pools.free(row[whole:])
        if answer.mamba_exist:  # the node has a state, so the caller frees its own
            self._free_state(state)
        return Inserted(int(answer.prefix_len), fresh)

    def match(self, tokens: list[int]) -> PrefixMatch:
        """``match_prefix``."""
        return self._matched(tokens)

    def copy_on_write(self, tokens: list[int]) -> PrefixMatch:
        """``match_prefix`` with ``cow_mamba``: the request gets a copy of the state, and the tree may lock and evict
        for it. The request ends at once, so the copy is freed.
        """
        record = StandIn(mamba_pool_idx=None, holds_mamba=False)  # of the request; a part of it, or all
        request = StandIn(mamba_pool_idx=None, session=None, kv=record)
        found = self._matched(tokens, cow_mamba=True, req=request)
        for holder in (request, record):
            self._free_state(holder.mamba_pool_idx)
        return found

    def _new_state(self) -> int | None:
        """A state slot for a request that runs; ``None``: out of memory."""
        slot = self.memory.state_slots.alloc(1)
        return None if slot is None else int(slot)

    def _free_state(self, slot: Any) -> None:
        if slot is not None:
            self.memory.state_slots.free(torch.tensor([int(slot)]))

    def _matched(self, tokens: list[int], **more: Any) -> PrefixMatch:
        found = self.sglang.match(self.tree, tokens, **more)
        slots = self.sglang.matched_slots(self.tree, found)
        length = self.sglang.matched_length(found, slots)
        return PrefixMatch(length, self.memory.reader.number(found.last_device_node), slots)

    def _shared(self, tokens: list[int], protected: int) -> list[int]:
        """The tree's slots of the first tokens: the caller has them since its match, and holds them."""
        root, *nodes = self.memory.reader.walk()
        row: list[int] = []
        at = root.ident
        while len(row) < protected:
            rest = tokens[len(row) : protected]
            step = (n for n in nodes if n.parent == at and n.key == rest[: len(n.key)])
            if (node := next(step, None)) is None:
                raise Misuse(f"no node of the tree ends after {protected} of these tokens")
            at = node.ident
            row += node.parts["full"].slots or []
        return row

    def _allocate(self, row: list[int], length: int) -> list[int] | None:
        """Slots for the tokens of a row of this length that it does not have yet; ``None``: out of memory."""
        pools = self.memory.pools
        if length == len(row):
            return []
        if self.page_size == 1:
            return pools.alloc(length - len(row))
        # A call of ``alloc_extend`` with an empty free list is a finding of the stem ``allocator``; callers make room.
        short = pages_needed(len(row), length, self.page_size) * self.page_size > pools.engine.available_size()
        return None if short else pools.extend([len(row)], [length], row[-1:] or [-1])

    # Locks.

    def acquire(self, node: int) -> int:
        """``inc_lock_ref`` of a node; the number of the handle."""
        found = self.memory.reader.find(node)
        if found is None:
            raise Misuse(f"the tree has no node {node}")
        locked = self.locks.acquire(found)
        self._count += 1
        self._handles[self._count] = locked
        return self._count

    def pin(self, node: int) -> int:
        """``inc_lock_ref`` of a node whose window may have tombstones, as a write to the host or to a store does."""
        if "pin" in self.lacks:
            raise Unsupported(f"no caller of this release locks over tombstones (node {node})")
        return self.acquire(node)

    def compact(self) -> None:
        """Lacking: a tree that merges nodes does so in other calls."""
        raise Unsupported("no release merges nodes on demand")

    def release(self, handle: int, caller: str = "request") -> None:
        """``dec_lock_ref`` with what this caller has kept of the lock, see CALLERS."""
        if caller not in CALLERS:
            raise Misuse(f"no caller {caller!r}: there are {CALLERS}")
        lock = self._held(handle)
        del self._handles[handle]
        self._early.discard(handle)
        self.locks.release(lock, caller)

    def release_swa(self, handle: int) -> None:
        """``dec_swa_lock_only``: after a long decode the SWA part of a handle that fills its window is given back."""
        lock = self._held(handle)
        if "release_swa" in self.lacks or handle in self._early or not self.locks.fills_window(lock):
            raise Misuse("no caller of this release would give the SWA part of this handle back")
        self._early.add(handle)
        self.locks.release_window(lock)

    def _held(self, handle: int) -> Any:
        if handle not in self._handles:
            raise Misuse(f"handle {handle} is not held")
        return self._handles[handle]

    # Evicting, and the snapshot.

    def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> None:
        """``evict``: so many tokens of each pool, and states."""
        self.sglang.evict(self.tree, full, swa, mamba)

    def bad(self, kind: str) -> None:
        """Lacking: releases answer bad input in many ways."""
        raise Unsupported(f"no release is sent bad input ({kind})")

    def published(self) -> PublishedEvents | None:
        """What the tree has said in KV events, and what it has cached; ``None`` where it publishes none."""
        return self.memory.published()

    def snapshot(self) -> LockRefSnapshot:
        """The tree and the free pages of its pools."""
        return self.memory.reader.read(self.memory.pools.snapshot())
