"""Blocks of KV cache that many requests share: reference counts, a free queue in eviction order, and a prefix cache.

Plain Python on the host: a block is a number, and no call touches a tensor. Each call takes time in proportion to the
blocks that it names, however large the pool is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from impl.checks import expect, integer

__all__ = ["BlockPool"]

NULL = 0


class BlockPool:
    """The blocks ``1..size``, each with as many holders as it likes.

    Block 0 is the null block: callers put it where a request needs no block, calls pass over it, and it is never handed
    out. A block without holders is in the free queue: blocks are taken from its head, and come back to its tail. A free
    block keeps its hash, and can be found by it, until it is taken. ``nameless_first``: a block without a hash comes
    back to the head, since nobody can find it.

    A *hash* names what a block contains. It must cover all on which the content depends: the whole text up to the end
    of the block, the group of layers, the adapter. Any hashable value will do. Several blocks can have one hash; the
    one that got it first is found. A block can have further hashes, which name beginnings of its text.

    Tables to read, which only the calls write: ``refs``, the number of holders by block; ``hash_of``, the hash by block
    (``None`` for none); ``more``, the further hashes of those blocks that have some; ``known``, for each hash its
    blocks, oldest first; ``kept``, the free blocks that somebody still reads.

    Every error is raised before anything changes. ``debug``: every call ends with ``check``.
    """

    def __init__(self, size: int, *, nameless_first: bool = False, debug: bool = False) -> None:
        self.size, self.debug = integer("size", size, 1), debug
        self._nameless_first = nameless_first
        self.refs = [0] * (size + 1)
        self.hash_of: list[Hashable | None] = [None] * (size + 1)
        self.more: dict[int, dict[Hashable, None]] = {}
        self.known: dict[Hashable, dict[int, None]] = {}
        self.kept: set[int] = set()
        # The free queue as a ring through block 0, which stands before its head and behind its tail.
        self._next = [*range(1, size + 1), NULL]
        self._before = [size, *range(size)]
        self._free = size

    def available_size(self) -> int:
        """How many blocks are free."""
        return self._free

    def queue(self) -> Iterator[int]:
        """The free blocks, from the one that is taken next on."""
        return self._along(self._next)

    def queue_backward(self) -> Iterator[int]:
        """The free blocks, from the one that is taken last on."""
        return self._along(self._before)

    # Holders.

    def alloc(self, count: int) -> list[int] | None:
        """Take ``count`` blocks; each has one holder then, and no hash.

        Returns None, with nothing changed, if fewer are free.
        """
        if integer("count", count, 0) > self._free:
            return None
        taken = []
        for _ in range(count):
            block = self._next[NULL]
            self._unlink(block)
            self._forget(block)
            self.refs[block] = 1
            taken.append(block)
        self._changed()
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """Each block gets one holder more. ValueError for a free block that has no hash and was not kept: ``alloc``
        gives those.
        """
        for block in self._different(blocks):
            if not self.refs[block] and self.hash_of[block] is None and block not in self.kept:
                raise ValueError(f"blocks: block {block} is free and has no hash, so nobody can have found it")
        for block in filter(None, blocks):
            if not self.refs[block]:
                self._unlink(block)
            self.refs[block] += 1
        self._changed()

    def free(self, blocks: Sequence[int], *, kept: bool = False) -> None:
        """Each block loses one holder. Those without holders go to the tail of the free queue, in this order; with
        ``nameless_first`` those of them that have no hash go to its head, in this order. ``kept``: somebody still
        reads them. All go to the tail, and each can be touched again until it is taken.

        ValueError for a block that has no holder, or fewer than the times that it is named.
        """
        for block, times in self._different(blocks).items():
            if self.refs[block] < times:
                held = self.refs[block]
                raise ValueError(f"blocks: block {block} has {held} holders, and is given back {times} times")
        before = NULL  # what goes to the head stands behind this block
        for block in filter(None, blocks):
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if kept:
                self.kept.add(block)
            if kept or not self._nameless_first or self.hash_of[block] is not None:
                self._link(block)
            else:
                self._link(block, before)
                before = block
        self._changed()

    # The prefix cache.

    def find(self, block_hash: Hashable) -> int | None:
        """A block with this hash, None if there is none."""
        return next(iter(self.known.get(block_hash, ())), None)

    def cache(self, blocks: Sequence[int], hashes: Sequence[Hashable]) -> None:
        """Each block is found by its hash from now on. The caller has computed the block whole, and holds it.

        ValueError for a block that is free, or that has another hash.
        """
        pairs = list(zip(blocks, hashes, strict=True))
        for block in self._different(blocks):
            if not self.refs[block]:
                raise ValueError(f"blocks: block {block} is free, and only who holds a block knows what it contains")
        for block, known in pairs:
            if self.hash_of[block] not in (None, known):
                raise ValueError(f"blocks: block {block} has another hash already: {self.hash_of[block]}")
        for block, known in pairs:
            if block != NULL:
                self.hash_of[block] = known
                self.known.setdefault(known, {})[block] = None
        self._changed()

    def cache_also(self, block: int, block_hash: Hashable) -> None:
        """A block that has a hash is found by this one too.

        ValueError for a block that is free or has no hash.
        """
        self._different([block])
        if block == NULL or not self.refs[block] or self.hash_of[block] is None:
            raise ValueError(f"block: block {block} must have a holder and a hash, before it gets a further hash")
        if block_hash != self.hash_of[block]:
            self.more.setdefault(block, {})[block_hash] = None
            self.known.setdefault(block_hash, {})[block] = None
        self._changed()

    def evict(self, blocks: Sequence[int]) -> None:
        """The blocks lose all their hashes, so that nobody finds them any more. Who holds one keeps it."""
        for block in self._different(blocks):
            self._forget(block)
        self._changed()

    def reset(self) -> bool:
        """Every block loses its hash, as after new weights. False, with nothing changed, while a block has a holder."""
        if self._free < self.size:
            return False
        for blocks in self.known.values():
            for block in blocks:
                self.hash_of[block] = None
        self.more.clear()
        self.known.clear()
        self._changed()
        return True

    # Helpers.

    def _different(self, blocks: Sequence[int]) -> Counter[int]:
        """How often each block is named; the null block left out. ValueError for what is no block of the pool."""
        named = Counter(blocks)
        named.pop(NULL, None)
        for block in named:
            if not hasattr(block, "__index__") or not 1 <= block <= self.size:
                raise ValueError(f"blocks must lie in 1..{self.size} (0 is the null block), got {block}")
        return named

    def _link(self, block: int, before: int | None = None) -> None:
        """The block goes to the tail of the free queue, or behind the block ``before``; behind block 0 is the head."""
        before = self._before[NULL] if before is None else before
        after = self._next[before]
        self._next[before], self._before[block] = block, before
        self._next[block], self._before[after] = after, block
        self._free += 1

    def _unlink(self, block: int) -> None:
        """The block leaves the free queue, wherever it stands."""
        before, after = self._before[block], self._next[block]
        self._next[before], self._before[after] = after, before
        self._free -= 1
        self.kept.discard(block)

    def _forget(self, block: int) -> None:
        """The block loses its hashes; others with one of them keep theirs."""
        known = self.hash_of[block]
        if known is None:
            return
        self.hash_of[block] = None
        for one in (known, *self.more.pop(block, ())):
            alike = self.known[one]
            del alike[block]
            if not alike:
                del self.known[one]

    def _along(self, links: list[int]) -> Iterator[int]:
        """The ring of links from block 0 on, at most once around the pool: a broken ring may never come back."""
        block = links[NULL]
        for _ in range(self.size + 1):
            if block == NULL:
                return
            yield block
            block = links[block]

    def _changed(self) -> None:
        if self.debug:
            self.check()

    def check(self) -> None:
        """AssertionError if the tables contradict each other. Takes time in proportion to the pool."""
        free = [block for block in range(1, self.size + 1) if not self.refs[block]]
        queue = list(self.queue())
        expect("the blocks in the free queue", sorted(queue), free)
        expect("the free queue backward", list(self.queue_backward()), queue[::-1])
        expect("the number of free blocks", self._free, len(free))
        found = {(block, known) for known, blocks in self.known.items() for block in blocks}
        named = {(block, known) for block, known in enumerate(self.hash_of) if known is not None}
        named |= {(block, known) for block, hashes in self.more.items() for known in hashes}
        expect("the hashes by which blocks are found", found, named)
