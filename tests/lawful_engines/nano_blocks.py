"""A block manager in the style of nano-vllm: a deque of free blocks, and one dict from a hash to its block.

The prefix cache has one block for a hash. Where a second request computes a block with a hash that is there already,
the entry names the second block from then on: the first one stays with its request and is not found any more. It keeps
its ``hash`` until it is handed out again. An engine of the stem ``block_pool``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name
from slotproof.plugin import Json


@dataclass
class Block:
    """One block: how many tables have it, and the hash of what it contains, ``None`` while it has none."""

    number: int
    ref_count: int = 0
    hash: Name | None = None


class BlockManager:
    """Blocks 1 to ``size``. A hash is the group of layers with the text up to the end of the block."""

    fragile = False
    lacks: tuple[str, ...] = ()

    def __init__(self, size: int) -> None:
        self.blocks = {number: Block(number) for number in range(1, size + 1)}
        self.free_ids = deque(self.blocks)
        self.id_of_hash: dict[Name, int] = {}

    def get(self, count: int) -> list[int] | None:
        """Hands out the blocks that have been free for the longest time."""
        if count > len(self.free_ids):
            return None
        taken = [self.free_ids.popleft() for _ in range(count)]
        for block in self._known(taken):
            self._forget(block)
            block.ref_count = 1
        return taken

    def find(self, group: int, text: Sequence[int]) -> int | None:
        """Looks the hash up."""
        return self.id_of_hash.get(Name(group, tuple(text)))

    def touch(self, blocks: Sequence[int]) -> None:
        """One table more has each block. A block that nobody had is not free any more."""
        for block in self._known(blocks):
            if not block.ref_count:
                self.free_ids.remove(block.number)
            block.ref_count += 1

    def free(self, blocks: Sequence[int]) -> None:
        """One table less has each block. What nobody has is free; it keeps its hash, so that it can be found again."""
        for block in self._known(blocks):
            block.ref_count -= 1
            if not block.ref_count:
                self.free_ids.append(block.number)

    def cache(self, group: int, text: Sequence[int], blocks: Sequence[int], first: int, last: int) -> None:
        """The newest block with a hash is the one that is found."""
        for place in range(first, last):
            if number := blocks[place]:
                block = self.blocks[number]
                block.hash = Name(group, tuple(text[: place + 1]))
                self.id_of_hash[block.hash] = number

    def evict(self, blocks: Sequence[int]) -> None:
        """The blocks lose their hashes."""
        for block in self._known(blocks):
            self._forget(block)

    def reset(self) -> bool:
        """All blocks lose their hashes, if no table has a block."""
        if any(block.ref_count for block in self.blocks.values()):
            return False
        self.evict(list(self.blocks))
        return True

    def snapshot(self) -> BlockPoolSnapshot:
        """The deque, the counts, the hash that each block says it has, and the dict."""
        return BlockPoolSnapshot(
            free=list(self.free_ids),
            backward=list(reversed(self.free_ids)),
            available=len(self.free_ids),
            refs={block.number: block.ref_count for block in self.blocks.values()},
            named={block.number: (block.hash,) for block in self.blocks.values() if block.hash is not None},
            found={name: (number,) for name, number in self.id_of_hash.items()},
        )

    def _known(self, numbers: Sequence[int]) -> Iterator[Block]:
        """The blocks with these numbers; a null block, 0, is passed over."""
        return (self.blocks[number] for number in numbers if number)

    def _forget(self, block: Block) -> None:
        """A block loses its hash. The entry of this hash may be another block's by now."""
        if block.hash is not None and self.id_of_hash.get(block.hash) == block.number:
            del self.id_of_hash[block.hash]
        block.hash = None


def make(config: Json) -> BlockManager:
    """A manager of ``blocks`` blocks, with or without a prefix cache."""
    return BlockManager(config["blocks"])
