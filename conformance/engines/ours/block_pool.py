"""Our block pool as an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from conformance.driver.protocol import Json
from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name
from impl.block_pool import BlockPool

Hashes = Callable[[int, tuple[int, ...]], Hashable]
Places = Callable[[int, int, int], Sequence[int]]


def of_whole_text(group: int, text: tuple[int, ...]) -> Hashable:
    """The hash of the last block of a text: the group and the whole text, so that no two are mixed up."""
    return group, text


def from_to(first: int, last: int, length: int) -> Sequence[int]:
    """The places whose blocks are cached: from ``first`` to ``last``, of ``length`` that table and text have."""
    del length
    return range(first, last)


class OurBlocks:
    """``BlockPool`` as a ``BlockPoolEngine``.

    ``hashes`` makes the hash of a block, ``places`` says which places of a row are cached. A faulty variant has other
    functions.
    """

    fragile = False

    def __init__(
        self,
        pool: BlockPool,
        lacks: Collection[str] = (),
        hashes: Hashes = of_whole_text,
        places: Places = from_to,
    ) -> None:
        self.pool = pool
        self.lacks: Collection[str] = frozenset(lacks)
        self._hash, self._places = hashes, places
        self.names: dict[Hashable, Name] = {}  # the texts of the hashes that the pool has got

    def get(self, count: int) -> list[int] | None:
        """``alloc``."""
        return self.pool.alloc(count)

    def find(self, group: int, text: Sequence[int]) -> int | None:
        """``find``, by the hash of the text."""
        return self.pool.find(self._hash(group, tuple(text)))

    def touch(self, blocks: Sequence[int]) -> None:
        """``touch``."""
        self.pool.touch(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """``free``."""
        self.pool.free(blocks)

    def cache(self, group: int, text: Sequence[int], blocks: Sequence[int], first: int, last: int) -> None:
        """``cache``, with the hash of the row's text at each place."""
        places = [i for i in self._places(first, last, min(len(text), len(blocks))) if blocks[i]]
        hashes = []
        for place in places:
            name = Name(group, tuple(text[: place + 1]))
            hashes.append(self._hash(*name))
            self.names.setdefault(hashes[-1], name)
        self.pool.cache([blocks[place] for place in places], hashes)

    def evict(self, blocks: Sequence[int]) -> None:
        """``evict``."""
        self.pool.evict(blocks)

    def reset(self) -> bool:
        """``reset``."""
        return self.pool.reset()

    def snapshot(self) -> BlockPoolSnapshot:
        """The free queue in both directions, the counts, and the hashes as texts."""
        return shown(self.pool, self.names.__getitem__)


def shown(pool: BlockPool, name: Callable[[Hashable], Name]) -> BlockPoolSnapshot:
    """The snapshot of a pool. ``name``: what a hash is the hash of."""
    return BlockPoolSnapshot(
        list(pool.queue()),
        list(pool.queue_backward()),
        pool.available_size(),
        dict(enumerate(pool.refs[1:], start=1)),
        {block: (name(known),) for block, known in enumerate(pool.hash_of) if known is not None},
        {name(known): tuple(blocks) for known, blocks in pool.known.items()},
    )


def block_pool(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    kind: Callable[[int], BlockPool] = BlockPool,
    hashes: Hashes = of_whole_text,
    places: Places = from_to,
) -> OurBlocks:
    """Our block pool. It is on the host, whatever the ``device``. ``kind``: its class, or a faulty variant of it."""
    del device
    return OurBlocks(kind(config["blocks"]), lacks, hashes, places)
