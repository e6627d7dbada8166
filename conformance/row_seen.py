"""Rows as an engine shows them, put in the place of what the law says of them, and what differs then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from conformance.machine import Finding
from conformance.subjects.rowview import Lengths, RowSeen, Seen
from spec.finite import Map
from spec.lengths import in_pages, in_tokens, touched
from spec.logic import but
from spec.rows import Rows, allocated, committed, cursor, full_pool, swa_pool, window_is_kept

ROW_OWNED = "every_row_has_one_owner"
ROW_SENTENCE = "Every row is idle, or belongs to one request or to one session's slot."
TREE_READ = "every_slot_has_one_owner"
TREE_SENTENCE = "What the tree has, the tree alone owns, and what a row reads of it is there."


def lengths_of(st: Rows, row: int) -> Lengths:
    """The law's lengths of a row, in tokens."""
    size = full_pool(st).page_size
    found = (in_tokens(length(st, row), size) for length in (cursor, committed, allocated))
    return Lengths(st.protected(row) * size, *found)


def pages_seen(st: Rows, view: RowSeen, mapping: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The full and the SWA page that a row has at each index from the tree's part on."""
    size = full_pool(st).page_size
    first, last = view.lengths.protected // size, touched(in_pages(view.lengths.allocated, size))
    slots = {i: view.slots[i * size : (i + 1) * size] for i in range(first, last)}
    full = {i: part[0] // size for i, part in slots.items() if part}
    swa = {i: max(mapping[slot] for slot in part) // size for i, part in slots.items() if part}
    return full, swa


def with_row(st: Rows, row: int, view: RowSeen, mapping: Sequence[int]) -> Rows:
    """The state with one row as the engine shows it. A cursor within the tree's part says nothing."""
    size, law, pair = full_pool(st).page_size, lengths_of(st, row), st.pools.now
    seen = view.lengths
    at = law.cursor if max(law.cursor, seen.cursor) <= seen.protected else seen.cursor
    full_pages, swa_pages = pages_seen(st, view, mapping)
    long = in_pages(seen.allocated, size)
    sides = {
        name: but(
            pool,
            table=_with(pool.table, row, pages),
            whole=pool.whole.put(row, long.pages),
            rest=pool.rest.put(row, long.rest),
        )
        for name, pool, pages in (("full", pair.full, full_pages), ("swa", pair.swa, swa_pages))
    }
    return but(
        st,
        pools=but(st.pools, now=but(pair, **sides)),
        protected=st.protected.put(row, seen.protected // size),
        cursor=st.cursor.put(row, at // size),
        cursor_rest=st.cursor_rest.put(row, at % size),
        committed=st.committed.put(row, seen.committed // size),
        committed_rest=st.committed_rest.put(row, seen.committed % size),
    )


def _with(table: Map, row: int, pages: Mapping[int, int]) -> Map:
    known = {i for (r, i), page in table.items() if r == row and page}
    return table.where(
        lambda r, i: r == row and (i in pages or i in known),
        lambda _, i: pages.get(i, 0),
        lambda: [(row, i) for i in {*pages, *known}],
    )


def row_differences(st: Rows, seen: Rows, row: int) -> list[str]:
    """How a row differs: its lengths, and the pages that it owns."""
    law, now = lengths_of(st, row), lengths_of(seen, row)
    pairs = zip(Lengths._fields, law, now, strict=True)
    found = [f"{name} of row {row} is {b}, not {a}" for name, a, b in pairs if a != b]
    for name, pool, other in (("full", full_pool(st), full_pool(seen)), ("SWA", swa_pool(st), swa_pool(seen))):
        for i in pool.indices.items():
            a, b = pool.table(row, i), other.table(row, i)
            found += [f"row {row} has {name} page {b or 'none'} at index {i}, not {a or 'none'}"] if a != b else []
    return found


def judge_rows(seen: Seen, used: Mapping[int, RowSeen], rows: int) -> None:
    """Each of the engine's rows is idle or has one owner."""
    owners = Counter([*seen.free_rows, *(view.row for view in used.values())])
    twice = sorted(row for row, n in owners.items() if n > 1)
    if twice:
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"the engine's rows {twice} have two owners")
    if len(owners) != rows:
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"{rows - len(owners)} rows have no owner")


def judge_tree(st: Rows, seen: Seen, used: Mapping[int, RowSeen], others: Mapping[int, int]) -> None:
    """The tree has what rows have left to it, and rows read nothing else of it."""
    full, swa = full_pool(st), swa_pool(st)
    for page, there in seen.tree.items():
        if page not in others:
            raise Finding(TREE_READ, TREE_SENTENCE, f"the tree has page {page}, which nobody left to it")
        index = full.index(page)
        if (there.index, there.swa) != (index, swa.table(others[page], index) != 0):
            raise Finding(TREE_READ, TREE_SENTENCE, f"the tree has page {page} as {there}, not at {index}")
    for row, view in used.items():
        _reads_the_tree(st, seen, row, view)


def _reads_the_tree(st: Rows, seen: Seen, row: int, view: RowSeen) -> None:
    """The first pages of a row are the tree's, and those in its window have their SWA side."""
    size = full_pool(st).page_size
    begin = view.lengths.committed - (st.window * size + st.window_rest)
    for i in range(view.lengths.protected // size):
        slots = view.slots[i * size : (i + 1) * size]
        there = seen.tree.get(slots[0] // size)
        if there is None or there.index != i or slots != list(range(slots[0] // size * size, slots[0] + size)):
            what = f"row {row} reads the slots {slots} at index {i}, which are no page of the tree there"
            raise Finding(TREE_READ, TREE_SENTENCE, what)
        if begin < (i + 1) * size and not there.swa:
            what = f"row {row} reads page {slots[0] // size} of the tree, whose SWA side is gone"
            raise Finding(window_is_kept.__name__, " ".join((window_is_kept.__doc__ or "").split()), what)
