"""Drives a pool of blocks on after a law was broken: rows begin, look for prefixes, compute, and end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from conformance.driver.onward import Move, send
from conformance.stems.block_pool.contents import Table, forward, table_of
from conformance.stems.block_pool.run import BlockPoolRun

STRANGER = 5_000_000  # the first number in a text that no other text has


class OnwardBlocks:
    """The rows of a run of ``block_pool``, driven without the law.

    ``strangers``: the rows whose text is like no other.
    """

    def __init__(self, run: BlockPoolRun) -> None:
        self.run, self.engine, self.shadow = run, run.engine, run.shadow
        self.tables = dict(run.tables)
        self.rows, self.indices = list(run.state.rows.items()), int(run.state.indices.size)
        self.strangers: list[int] = []
        self.count = 0
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": lambda: iter(()),
            "guest": self.guest,
            "stranger": self.stranger,
            "again": self.again,
            "decode": self.decode,
            "finish": self.finish,
            "leave": self.leave,
            "evict": self.evict,
        }

    def guest(self) -> Move:
        """A row begins whose text is like no other, and takes a block."""
        yield from self._comes(1)

    def stranger(self) -> Move:
        """A row begins whose text is like no other, and takes all blocks that it can."""
        yield from self._comes(self.indices)

    def again(self) -> Move:
        """For each text that was there a row of each group begins, takes over what the prefix cache finds, and reads
        it.
        """
        for text in list(self.run.stories):
            for group in range(self.run.groups):
                yield from self._matches(list(text), group)

    def decode(self) -> Move:
        """Each row computes what it has room for, and reads what it has."""
        for row, table in list(self.tables.items()):
            yield from self._compute(row, table)

    def finish(self) -> Move:
        """The row that began first ends."""
        yield from self._end(list(self.tables)[:1])

    def leave(self) -> Move:
        """The strangers end."""
        yield from self._end(list(self.strangers))

    def evict(self) -> Move:
        """The prefix cache is reset, where the engine does that now."""
        if "reset" not in self.run.lacks and not self.tables and send(self.run, self.engine.reset):
            yield "reset the prefix cache", None

    # Calls.

    def _idle(self) -> Iterator[int]:
        return (row for row in self.rows if row not in self.tables)

    def _comes(self, most: int) -> Move:
        row, count = next(self._idle(), None), min(most, self.run.seen.available)
        if row is None or count < 1:
            return
        self.count += 1
        text = [STRANGER + self.count] * count
        blocks = send(self.run, partial(self.engine.get, count))
        if not blocks:
            return
        self.strangers.append(row)
        self.tables[row] = table = table_of(self.shadow, text, row % self.run.groups)
        table.blocks = list(blocks)
        yield f"row {row} begins with {len(blocks)} new blocks", None
        yield from self._compute(row, table)

    def _matches(self, text: list[int], group: int) -> Move:
        row = next((row for row in self._idle() if row % self.run.groups == group), None)
        if row is None or not self.run.caching:
            return
        found: list[int] = []
        for place in range(len(text)):
            block = send(self.run, partial(self.engine.find, group, text[: place + 1]))
            if block is None:
                break
            found.append(block)
        if found:
            send(self.run, partial(self.engine.touch, found))
            self.tables[row] = table = table_of(self.shadow, text, group)
            table.blocks, table.filled, table.offered = found, len(found), len(found)
            forward(self.shadow, row, table, table.filled)
            yield f"row {row} takes over {len(found)} blocks for {text}", self.shadow.wrong

    def _compute(self, row: int, table: Table) -> Move:
        to = max(min(len(table.blocks), len(table.text)), table.filled)
        self.shadow.begin(self.shadow.step + 1)
        forward(self.shadow, row, table, to)
        yield f"row {row} computes up to place {to}", self.shadow.wrong
        if self.run.caching and table.offered < to:
            offer = (row % self.run.groups, table.text, table.blocks, table.offered, to)
            table.offered = to
            send(self.run, partial(self.engine.cache, *offer))
            yield f"row {row} offers its blocks to the prefix cache", None

    def _end(self, rows: list[int]) -> Move:
        for row in rows:
            self.strangers = [r for r in self.strangers if r != row]
            if blocks := self.tables.pop(row).blocks:
                send(self.run, partial(self.engine.free, blocks[::-1]))
                yield f"row {row} ends", None
