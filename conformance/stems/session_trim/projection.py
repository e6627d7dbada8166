"""Projects the snapshot of rows and session slots onto the law's state, and judges who owns rows and what rows read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from conformance.driver.lockstep import Finding
from conformance.stems.session_trim.protocol import Lengths, RowSnapshot, SessionTrimSnapshot, TreePage
from conformance.stems.swa_mapping.projection import project_pair, swa_slot
from spec.lengths import Length, in_pages, in_tokens, touched
from spec.logic import but
from spec.pair import Pair, waits
from spec.pool import Pool
from spec.session_trim_state import (
    SessionTrimState,
    allocated,
    committed,
    cursor,
    full_pool,
    has_gaps,
    swa_pool,
    window_is_kept,
)

ROW_OWNED = "every_row_has_one_owner"
ROW_SENTENCE = "Every row is idle, or belongs to one request or to one session's slot."
SLOT_OWNED = "every_slot_has_one_owner"
SLOT_SENTENCE = "A page of the tree has no other owner, and a row reads only pages that the tree has."


def lengths_of(st: SessionTrimState, row: int) -> Lengths:
    """The law's lengths of a row, in tokens."""
    size = full_pool(st).page_size
    found = (in_tokens(length(st, row), size) for length in (cursor, committed, allocated))
    return Lengths(st.protected(row) * size, *found)


def project_rows(
    st: SessionTrimState, seen: SessionTrimSnapshot, used: Mapping[int, RowSnapshot], slots: Mapping[int, int]
) -> SessionTrimState:
    """The law's rows, with pools, rows in use and session slots as the engine shows them; ``st`` itself if nothing
    differs.

    ``used``: the snapshots of the rows in use, by the law's row number. ``slots``: for each session the law's row
    number plus one.
    """
    pair = project_pair(st.pools.now, seen.pools)
    if pair is not st.pools.now:
        st = but(st, pools=but(st.pools, now=pair))
    for row, view in used.items():
        st = _with_row(st, row, view, seen.pools.mapping)
    if any(st.slot(session) != slots.get(session, 0) for session in {*st.sessions.items(), *slots}):
        slot = st.slot
        for session in {*st.sessions.items(), *slots}:
            slot = slot.put(session, slots.get(session, 0))
        st = but(st, slot=slot)
    return st


def _with_row(st: SessionTrimState, row: int, view: RowSnapshot, mapping: Sequence[int]) -> SessionTrimState:
    """The state with one row as the engine shows it. A cursor inside the cached prefix is not compared: it has no
    meaning there.
    """
    size, law, seen, pair = full_pool(st).page_size, lengths_of(st, row), view.lengths, st.pools.now
    full_pages, swa_pages = owned_pages(pair, view, mapping, has_gaps(st))
    long = in_pages(seen.allocated, size)
    full, swa = (
        _with_pages(pool, row, pages, long) for pool, pages in ((pair.full, full_pages), (pair.swa, swa_pages))
    )
    if full is not pair.full or swa is not pair.swa:
        st = but(st, pools=but(st.pools, now=but(pair, full=full, swa=swa)))
    at = law.cursor if max(law.cursor, seen.cursor) <= seen.protected else seen.cursor
    if (seen.protected, at, seen.committed) == law[:3]:
        return st
    return but(
        st,
        protected=st.protected.put(row, seen.protected // size),
        cursor=st.cursor.put(row, at // size),
        cursor_rest=st.cursor_rest.put(row, at % size),
        committed=st.committed.put(row, seen.committed // size),
        committed_rest=st.committed_rest.put(row, seen.committed % size),
    )


def owned_pages(
    pair: Pair, view: RowSnapshot, mapping: Sequence[int], gaps: bool
) -> tuple[dict[int, int], dict[int, int]]:
    """The full and the SWA page that a row has at each page index after its cached prefix. A slot may still map into an
    SWA page that waits for the end of a free group; the row does not have this page any more. ``gaps``: every layer has
    a sliding window, so that the row has no page in its gap.
    """
    size = pair.full.page_size
    full, swa = {}, {}
    behind = range(view.lengths.protected // size, touched(in_pages(view.lengths.allocated, size)))
    gap = range(view.gap // size, view.lengths.cursor // size) if gaps else ()
    for i in (i for i in behind if i not in gap):
        slots = view.slots[i * size : (i + 1) * size]
        if slots:
            full[i] = slots[0] // size
            page = max(swa_slot(mapping, slot) for slot in slots) // size
            swa[i] = 0 if waits(pair.swa, page) else page
    return full, swa


def _with_pages(pool: Pool, row: int, pages: Mapping[int, int], long: Length) -> Pool:
    """The pool with a row of length ``long`` that has exactly these pages, by page index."""
    table = pool.table
    for i in {*pool.indices.items(), *pages}:
        if table(row, i) != pages.get(i, 0):
            table = table.put((row, i), pages.get(i, 0))
    if table is pool.table and (pool.whole(row), pool.rest(row)) == (long.pages, long.rest):
        return pool
    return but(pool, table=table, whole=pool.whole.put(row, long.pages), rest=pool.rest.put(row, long.rest))


def row_problems(size: int, used: Mapping[int, RowSnapshot]) -> list[str]:
    """What a row shows and the law's state has no field for: the number of its slots, and a cached prefix that is no
    whole number of pages of ``size`` tokens. ``used``: the rows in use, by the law's row number.
    """
    found = []
    for row, view in used.items():
        allocated, protected = view.lengths.allocated, view.lengths.protected
        found += [f"row {row} shows {len(view.slots)} slots for {allocated} tokens"] * (len(view.slots) != allocated)
        found += [f"the cached prefix of row {row} is {protected} tokens, no whole pages"] * (protected % size > 0)
    return found


def judge_rows(seen: SessionTrimSnapshot, used: Collection[RowSnapshot], rows: Collection[int]) -> None:
    """Raises ``Finding`` unless each of the engine's ``rows`` (its own numbers for them) is idle or has one owner."""
    owners = Counter([*seen.free_rows, *(view.row for view in used)])
    twice = sorted(row for row, n in owners.items() if n > 1)
    if twice:
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"the engine's rows {twice} have two owners")
    if lost := sorted(set(rows) - set(owners)):
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"the engine's rows {lost} have no owner")
    if unknown := sorted(set(owners) - set(rows)):
        raise Finding(ROW_OWNED, ROW_SENTENCE, f"the engine shows rows {unknown}, which it does not have")


def judge_tree(
    st: SessionTrimState, seen: SessionTrimSnapshot, used: Mapping[int, RowSnapshot], owners: Mapping[int, int]
) -> None:
    """Raises ``Finding`` unless the tree has only pages that rows donated to it, and rows read only pages that it has.

    ``owners``: the law's row number for each full page of the tree.
    """
    full, swa = full_pool(st), swa_pool(st)
    for page, there in seen.tree.items():
        if page not in owners:
            raise Finding(SLOT_OWNED, SLOT_SENTENCE, f"the tree has page {page}, which no row donated to it")
        index = full.index(page)
        lawful = TreePage(index, swa.table(owners[page], index) != 0)
        if there != lawful:
            what = f"the tree has page {page} {_said(there)}, the law has it {_said(lawful)}"
            raise Finding(SLOT_OWNED, SLOT_SENTENCE, what)
    for row, view in used.items():
        _reads_the_tree(st, seen, row, view)


def _said(page: TreePage) -> str:
    return f"at index {page.index} {'with' if page.swa else 'without'} its SWA page"


def _reads_the_tree(st: SessionTrimState, seen: SessionTrimSnapshot, row: int, view: RowSnapshot) -> None:
    """Raises ``Finding`` unless the cached prefix of a row is the tree's, with SWA pages in the row's window."""
    size = full_pool(st).page_size
    begin = view.lengths.committed - (st.window * size + st.window_rest)
    for i in range(view.lengths.protected // size):
        slots = view.slots[i * size : (i + 1) * size]
        there = seen.tree.get(slots[0] // size)
        if there is None or there.index != i or slots != list(range(slots[0] // size * size, slots[0] + size)):
            what = f"row {row} reads the slots {slots} at index {i}, which is not the tree's page at this index"
            raise Finding(SLOT_OWNED, SLOT_SENTENCE, what)
        if st.pools.windowed and begin < (i + 1) * size and not there.swa:
            what = f"row {row} reads page {slots[0] // size} of the tree, whose SWA side is gone"
            raise Finding(window_is_kept.__name__, " ".join((window_is_kept.__doc__ or "").split()), what)
