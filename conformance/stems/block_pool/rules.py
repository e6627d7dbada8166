"""The machine that draws runs of ``block_pool``: few blocks, one or two groups, and texts that often begin alike.

A rule sends what an engine's scheduler can send in the present state, and nothing else. Each run ends with ``drain``:
every row is released, and then every block must be free and the prefix cache can be reset.
"""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from conformance.driver.protocol import Json
from conformance.stems.block_pool.contents import Table
from conformance.stems.block_pool.exclusions import BlockPoolExclusion as Exclusion
from conformance.stems.block_pool.protocol import NULL
from conformance.stems.block_pool.run import BlockPoolRun
from conformance.stems.machine import StemMachine

ROWS, INDICES = 5, 4
LAST = 16  # of the picks
MOST = 10  # blocks, for an engine that refuses smaller pools
CONFIG = {
    "blocks": st.sampled_from((8, 3, 4, 5, 6, 7, 9, 10)),
    "groups": st.sampled_from((1, 1, 2)),
    "caching": st.sampled_from((True, True, True, True, False)),
}
TEXTS = ([1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 1], [1, 2, 1, 1], [2, 1, 1, 1], [1, 1], [2, 2])
rows, picks = st.integers(1, ROWS), st.integers(0, LAST)
moves = st.lists(st.tuples(rows, picks, st.integers(0, len(TEXTS) - 1), st.integers(0, 7)), min_size=2, max_size=4)


class BlockPoolMachine(StemMachine):
    """Rows that begin, work and end, and a prefix cache."""

    run: BlockPoolRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """Makes an engine of a drawn size, and the law. An engine without a prefix cache, or one with nothing else, is
        driven as it is.
        """
        first = {**config, "rows": ROWS, "indices": INDICES}
        kinds = product((config["blocks"], MOST), (True, False), (1, 2))
        others = [
            {**first, "blocks": blocks, "caching": caching, "groups": groups} for blocks, caching, groups in kinds
        ]
        self.begin_one_of(first, others)

    @property
    def begun(self) -> BlockPoolRun:
        """The run, after the start."""
        assert self.run is not None
        return self.run

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        try:
            if self.run is not None and not self.failed:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """Every row ends. The driver's comparison says that every block is free then; so a reset must be done."""
        for row in list(self.begun.tables):
            self.do("release", row=row)
        self.do("reset")

    # Rules.

    @rule(moves=moves)
    def go(self, moves: list[tuple[int, int, int, int]]) -> None:
        """A few rows do their next step: they begin, work or end."""
        if self.run is None:  # Hypothesis needs one rule that is always possible
            return
        for row, how, text, place in moves:
            if how == LAST:
                self._reset(place < 2)
            elif row in self.begun.tables:
                self._go_on(row, how, place)
            else:
                self._admit(row, how, TEXTS[text], place)

    def _admit(self, row: int, how: int, text: list[int], place: int) -> None:
        """Most requests look for their text, or for all of it but the last block.

        Some look behind a window, some not at all.
        """
        cached = self.begun.caching and how % 4 != 2
        skip = place % 3 if how % 4 == 3 and cached else 0
        hits = len(text) - skip - how % 2 if cached else 0
        to = place % INDICES + 1
        if how % 3:  # the scheduler knows how much is free
            to = min(to, self.begun.seen.available)
        self.do("admit", row=row, text=text, skip=skip, hits=max(hits, 0), to=to)

    def _go_on(self, row: int, how: int, place: int) -> None:
        table = self.begun.tables[row]
        if how < 5:
            self._compute(row, table, place, how)
        elif how < 8:
            self._grow(row, table, place)
        elif how < 12:
            (self._slide, self._cut, self._lend, self._evict)[how - 8](row, table, place)
        else:
            self.do("release", row=row)

    def _compute(self, row: int, table: Table, place: int, how: int) -> None:
        """A forward pass, most often to the end of the table. Some passes offer nothing to the prefix cache yet."""
        most = min(len(table.blocks), len(table.text))
        if most >= table.filled:
            to = most if how else table.filled + place % (most - table.filled + 1)
            bare = self.excludes(Exclusion.NULL_HASH) and NULL in table.blocks[table.offered : to]
            self.do("compute", row=row, to=to, cache=place != 0 and not bare)

    def _grow(self, row: int, table: Table, place: int) -> None:
        """A row grows by a block or two, in some runs behind a null block; a block may be moved there then."""
        first = len(table.blocks)
        skip = int(place > 5 and first + 1 < INDICES)
        if first < INDICES:
            self.do("grow", row=row, to=min(first + skip + 1 + place % 2, INDICES), skip=skip)
        if skip and table.filled <= first and table.held(first + 1) and table.held(first, first + 1) == []:
            self.do("move", row=row, place=first + 1, to=first)

    def _slide(self, row: int, table: Table, place: int) -> None:
        if table.held(0, table.filled):
            self.do("slide", row=row, to=1 + place % table.filled)

    def _cut(self, row: int, table: Table, place: int) -> None:
        behind = len(table.blocks) - table.filled
        if behind:
            self.do("cut", row=row, to=table.filled + place % behind)

    def _lend(self, row: int, table: Table, place: int) -> None:
        run = self.begun
        idle = [r for r in range(1, ROWS + 1) if r not in run.tables and (r - row) % run.groups == 0]
        if idle and table.held(0, table.filled):
            self.do("lend", row=row, other=idle[place % len(idle)])

    def _evict(self, row: int, table: Table, place: int) -> None:
        """A block of a row is evicted from the prefix cache, or all its blocks are."""
        first, last = (place, place + 1) if place < INDICES else (0, INDICES)
        if self.begun.caching and table.held(first, last):
            self.do("evict", row=row, first=first, last=last)

    def _reset(self, ends: bool) -> None:
        """The prefix cache is reset, sometimes after every row has ended."""
        if ends:
            for row in list(self.begun.tables):
                self.do("release", row=row)
        self.do("reset")
