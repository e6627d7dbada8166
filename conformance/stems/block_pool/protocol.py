"""What an engine must implement to be driven as the stem ``block_pool``: a pool of blocks, and the prefix cache on it.

All arguments and answers are plain Python numbers and lists, as ``conformance.driver.protocol`` says it. Beside that:

- A block is a block number from 1 on. 0 is the null block: it stands in a table where a block is not needed any more,
  and is neither handed out nor counted.
- A table is the list of the blocks of one request in one group of layers, a row of the run. Row ``r`` belongs to group
  ``r % groups``.
- A text is a list of small positive numbers, one for each block: ``[3, 3, 1]`` is a prompt of three blocks, and has
  ``[3, 3]`` in common with ``[3, 3, 2]``. The engine makes tokens of it. Two texts have one hash at a block exactly
  where their beginnings up to this block are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from conformance.driver.protocol import Engine

NULL = 0


class Name(NamedTuple):
    """A hash, as what it is the hash of: the text up to the end of a block, in a group of layers."""

    group: int
    text: tuple[int, ...]


@dataclass(frozen=True)
class BlockPoolSnapshot:
    """The pool as it is now.

    ``free``: the free queue, from its head, where blocks are taken next, to its tail. ``backward``: the queue as its
    backward links say it, from its tail to its head. ``available``: how many blocks are free, as the engine reports it.
    ``refs``: how many holders each block has, by block. ``named``: for each block that says that it has hashes, what
    they are hashes of; a block that is not found since another one got its hash may still say so. ``found``: for each
    hash that the prefix cache knows, the blocks that it finds under it. Both have ``None`` in the place of a hash that
    the caller's texts do not have. ``null``: the number of the null block. ``null_named``: the null block says that it
    has a hash.
    """

    free: list[int]
    backward: list[int]
    available: int
    refs: Mapping[int, int]
    named: Mapping[int, tuple[Name | None, ...]]
    found: Mapping[Name | None, tuple[int, ...]]
    null: int = NULL
    null_named: bool = False


class BlockPoolEngine(Engine, Protocol):
    """A pool of blocks with reference counts, a free queue in eviction order, and a prefix cache.

    Configuration: ``blocks`` (usable blocks, without the null block), ``rows`` (how many rows the caller has),
    ``indices`` (most blocks of a row), ``groups`` (groups of layers), and ``caching`` (whether there is a prefix
    cache; without one ``find``, ``cache`` and ``evict`` are not sent).
    """

    def get(self, count: int) -> list[int] | None:
        """Takes ``count`` blocks from the head of the free queue; each has one holder then.

        A block that the prefix cache knows is forgotten by it. Returns the blocks, or ``None`` if fewer are free: then
        nothing changes. ``count`` may be 0.
        """

    def find(self, group: int, text: Sequence[int]) -> int | None:
        """The block that the prefix cache finds for the last block of ``text``, in a group of layers.

        Where several blocks have this hash, the engine says which. ``None`` if none has. Changes nothing.
        """

    def touch(self, blocks: Sequence[int]) -> None:
        """Each block gets one holder more; one that was free leaves the free queue.

        Sent for blocks that ``find`` has just answered, or that somebody holds. Cannot be refused.
        """

    def free(self, blocks: Sequence[int]) -> None:
        """Each block loses one holder; one without holders is free. ``blocks`` is in the order of eviction: the first
        should be handed out first.

        Null blocks may be among them, which are passed over. Cannot be refused.
        """

    def cache(self, group: int, text: Sequence[int], blocks: Sequence[int], first: int, last: int) -> None:
        """The prefix cache finds the blocks of a row at the places from ``first`` to ``last`` from now on.

        ``text``: the row's text, at least ``last`` long. ``blocks``: the row's table. A null block there is passed
        over. Sent once for each place of a row whose block it has taken. Cannot be refused.

        Where a block has the hash already, the prefix cache finds both from now on, or one of them.
        """

    def evict(self, blocks: Sequence[int]) -> None:
        """The prefix cache does not find these blocks any more. Their holders keep them. Cannot be refused."""

    def reset(self) -> bool:
        """The prefix cache forgets every block. ``False``, with nothing changed, while a block has a holder."""

    def snapshot(self) -> BlockPoolSnapshot:
        """Reads the pool as it is now, and changes nothing. Sent once after each call."""
