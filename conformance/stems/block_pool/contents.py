"""What blocks contain, in runs of ``block_pool``: tables of blocks, and the forward passes over them.

A block holds the prefix that ends with it, in its group of layers. Its last token is computed from all tokens before
it, so who shares a block needs the whole prefix, and not the tokens of the block alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.driver.shadow import BLOCKS, EMPTY, Shadow
from conformance.stems.block_pool.protocol import NULL


@dataclass
class Table:
    """The table of a row, as its caller keeps it.

    ``text``: the row's whole text, a number for each block. ``prefixes``: the number of the prefix that ends with each
    block of the text; ``contents``: that of this prefix in the row's group of layers. ``blocks``: the table, with null
    blocks. The first ``filled`` places are computed, and the first ``offered`` are found in the prefix cache or were
    offered to it.
    """

    text: Sequence[int]
    prefixes: Sequence[int]
    contents: Sequence[int]
    blocks: list[int] = field(default_factory=list)
    filled: int = 0
    offered: int = 0

    def held(self, first: int = 0, last: int | None = None) -> list[int]:
        """The blocks at the places from ``first`` to ``last``, without null blocks."""
        return [block for block in self.blocks[first:last] if block != NULL]


def table_of(shadow: Shadow, text: Sequence[int], group: int) -> Table:
    """An empty table for a text in a group of layers."""
    texts = shadow.texts
    return Table(text, texts.prefixes(text), texts.prefixes(text, texts.longer(EMPTY, -1 - group)))


def forward(shadow: Shadow, row: int, table: Table, to: int) -> None:
    """A forward pass of a row writes the places up to ``to`` that are not computed, and reads all places before.

    Notes the first block that does not hold what the row needs. A write to the null block is lost, and null
    blocks are not read: the window does not reach them.
    """
    reader, needs, first = f"row {row}", table.contents, table.filled
    if first < to:
        shadow.write(BLOCKS, table.blocks[first:to], needs[first:to], reader)
        table.filled = to
    for place, block in enumerate(table.blocks[:to]):
        if block != NULL:
            shadow.note(shadow.read(BLOCKS, (block,), (needs[place],), reader, place))
