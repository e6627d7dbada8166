"""Whose the pages are that rows leave to the tree: rows of the law that are no request's, as the tree's nodes are.

Which pages the tree takes, and which it gives back, is its own affair; each difference is asked of the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from conformance.subjects.rowview import Seen
from spec.rows import Rows, full_pool, swa_pool

Must = Callable[..., None]
State = Callable[[], Rows]


class TreePages:
    """``owner``: the law's row of each full page of the tree. ``must`` asks the law, ``state`` is its state now."""

    def __init__(self, state: State, must: Must) -> None:
        self.state, self.must = state, must
        self.owner: dict[int, int] = {}

    def grown(self) -> bool:
        """The tree has something."""
        return bool(self.owner)

    def follow(self, seen: Seen) -> None:
        """What the tree has given back since, it has given back."""
        swa, full = swa_pool(self.state()), full_pool(self.state())
        self._lose("drop", [page for page in self.owner if page not in seen.tree])
        for page in [page for page in self.owner if page not in seen.tree]:
            del self.owner[page]
        mapped = [page for page, row in self.owner.items() if swa.table(row, full.index(page))]
        self._lose("drop_swa", [page for page in mapped if not seen.tree[page].swa])

    def _lose(self, name: str, pages: list[int]) -> None:
        for row in sorted({self.owner[page] for page in pages}):
            mine = {page for page, owner in self.owner.items() if owner == row}
            if mine <= set(pages):
                self.must(name, row)
                continue
            for first, last in spans(full_pool(self.state()).index(page) for page in mine & set(pages)):
                self.must("pass_on", row, part := self._spare(), first, last)
                self._own(part, first, last)
                self.must(name, part)

    def take(self, row: int, last: int, kept: Callable[[int], bool]) -> None:
        """The pages of a row up to index ``last`` pass on: those ``kept`` to the tree, the others are copies."""
        first = self.state().protected(row)
        for is_kept, part in groupby(range(first, last), lambda i: kept(full_pool(self.state()).table(row, i))):
            end = list(part)[-1] + 1
            if not is_kept:
                self.must("dedupe", row, end)
                continue
            begin, to = self.state().protected(row), self._spare()
            self.must("donate", row, to, end)
            self._own(to, begin, end)

    def _own(self, row: int, first: int, last: int) -> None:
        pool = full_pool(self.state())
        self.owner |= {page: row for i in range(first, last) if (page := pool.table(row, i))}

    def _spare(self) -> int:
        st, taken = self.state(), set(self.owner.values())
        found: int = next(row for row in full_pool(st).rows.items() if row >= st.limit and row not in taken)
        return found


def spans(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring indices as ranges, from the first up to the one after the last."""
    ordered = sorted(indices)
    for _, part in groupby(enumerate(ordered), lambda item: item[1] - item[0]):
        found = [index for _, index in part]
        yield found[0], found[-1] + 1
