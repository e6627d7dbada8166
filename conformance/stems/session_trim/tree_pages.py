"""Owner of each page that rows donated to the tree. In the law such owners are rows of their own, as nodes are in
``cache``.

The engine chooses which pages its tree takes and frees. Each such change is explained as a step of the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby

from conformance.driver.lockstep import Finding, Law
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.swa_mapping.projection import waits_in_group
from spec.session_trim_state import SessionTrimState, full_pool, swa_pool

Kept = Callable[[int], bool]  # whether the tree took this page


class TreePages:
    """``owner``: the law's row number of each full page of the tree."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self.owner: dict[int, int] = {}

    @property
    def rows(self) -> SessionTrimState:
        """The law's rows."""
        found: SessionTrimState = self.law.state
        return found

    def grown(self) -> bool:
        """The tree has pages."""
        return bool(self.owner)

    def follow(self, seen: SessionTrimSnapshot) -> None:
        """Explains that the tree freed the pages, and the SWA pages, that the snapshot does not show any more."""
        gone = [page for page in self.owner if page not in seen.tree]
        self._lose("drop", gone)
        for page in [page for page in self.owner if page not in seen.tree]:
            del self.owner[page]
        swa, full = swa_pool(self.rows), full_pool(self.rows)
        mapped = [page for page, row in self.owner.items() if swa.table(row, full.index(page))]
        self._lose("drop_swa", [page for page in mapped if not seen.tree[page].swa])

    def _lose(self, name: str, pages: list[int]) -> None:
        for row in sorted({self.owner[page] for page in pages}):
            mine = {page for page, owner in self.owner.items() if owner == row}
            if mine <= set(pages):
                self.law.engine_step(name, row)
                continue
            for first, last in spans(full_pool(self.rows).index(page) for page in mine & set(pages)):
                self.law.engine_step("pass_on", row, part := self._spare(), first, last)
                self._own(part, first, last)
                self.law.engine_step(name, part)

    def revived(self, seen: SessionTrimSnapshot) -> dict[int, int]:
        """The law's row of each page of the tree whose SWA slots the snapshot shows and the law does not have, by the
        page's index: an insert gave them to the tree, which kept its own full pages.
        """
        swa, full = swa_pool(self.rows), full_pool(self.rows)
        alive = (page for page in self.owner if page in seen.tree and seen.tree[page].swa)
        bare = [page for page in alive if not swa.table(self.owner[page], full.index(page))]
        return {int(full.index(page)): self.owner[page] for page in bare}

    def take(self, row: int, last: int, seen: SessionTrimSnapshot, revived: Mapping[int, int], kept: Kept) -> None:
        """Explains what the tree did with the pages of a row up to page index ``last``.

        Pages for which ``kept`` is true went to the tree. The others were duplicates, and were freed; where ``revived``
        says so, the tree took their SWA pages.
        """

        def fate(i: int) -> int:
            return -1 if kept(full_pool(self.rows).table(row, i)) else revived.get(i, 0)

        for to, part in groupby(range(self.rows.protected(row), last), fate):
            end = list(part)[-1] + 1
            if to == -1:
                begin, spare = self.rows.protected(row), self._spare()
                self.law.engine_step("donate", row, spare, end)
                self._own(spare, begin, end)
            elif to:
                page = full_pool(self.rows).table(row, self.rows.protected(row))
                later = waits_in_group(self.rows.pools.group, page, seen.pools)
                self.law.engine_step("donate_swa", row, to, end, later)
            else:
                self.law.engine_step("dedupe", row, end)

    def _own(self, row: int, first: int, last: int) -> None:
        pool = full_pool(self.rows)
        self.owner |= {page: row for i in range(first, last) if (page := pool.table(row, i))}

    def _spare(self) -> int:
        """A row of the law that owns no page of the tree. Raises ``Finding`` if there is none."""
        st, taken = self.rows, set(self.owner.values())
        spare = (row for row in full_pool(st).rows.items() if row >= st.limit and row not in taken)
        found: int | None = next(spare, None)
        if found is None:
            raise Finding("donate", self.law.sentence("donate"), "the tree has more parts than the pool has pages")
        return found


def spans(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring indices as ranges ``(first, last)``, ``last`` excluded."""
    ordered = sorted(indices)
    for _, part in groupby(enumerate(ordered), lambda item: item[1] - item[0]):
        found = [index for _, index in part]
        yield found[0], found[-1] + 1
