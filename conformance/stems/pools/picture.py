"""Pictures of pools, of the mapping between them, and of the rows of requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from conformance.driver.diff import PHASES, PLACES, Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, listed, panel, uses_of
from conformance.stems.session_trim.projection import lengths_of
from spec.allocator import AllocatorState
from spec.cache_state import CacheState
from spec.lengths import touched
from spec.logic import Map, Truth
from spec.pair import Pair, swa_page
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, Pool, filled, held
from spec.session_trim_state import IDLE, SessionTrimState, allocated, in_gap, is_whole
from spec.swa_mapping import SwaMappingState

LENGTHS = {name: f"{name} length" for name in ("protected", "committed", "allocated")}
LOOKS = {FREE: "free", RELEASED: "released", HELD: "held", PENDING: "pending"}


def of_pools(st: AllocatorState | SwaMappingState, names: Names) -> list[Json]:
    """The pages of the pools, the rows that hold them, and what the engine counts."""
    first = st.now if isinstance(st.now, Pool) else st.now.full
    rows = (row for row in first.rows.items() if _pages(first, row))
    return [
        *_pages_of(st, names),
        panel("rows", "Rows", (item(f"row {row}", names.row(row), _holdings(st, row)) for row in rows)),
        _counts(st),
    ]


def of_rows(
    st: SessionTrimState, names: Names, more: Mapping[int, Json], read: Mapping[int, Sequence[int]] | None = None
) -> list[Json]:
    """The pages of the pools, the rows of requests with their lengths, and the sessions. ``more``: other facts of a
    row. ``read``: the full pages that each row reads, where rows read pages that are not theirs.
    """
    slots = ((s, st.slot(s)) for s in st.sessions.items())
    readers: dict[int, list[str]] = {}
    for row, pages in (read or {}).items():
        for page in pages if st.phase(row) != IDLE else ():
            readers.setdefault(page, []).append(names.row(row))
    return [
        *_pages_of(st.pools, names, readers),
        panel("rows", "Rows of requests", (_row(st, r, names, more) for r in range(st.limit) if st.phase(r) != IDLE)),
        panel(
            "sessions",
            "Streaming sessions",
            (
                item(f"session {s}", f"session {s}", {"has": names.row(slot - 1) if slot else "no row"})
                for s, slot in slots
            ),
        ),
        _counts(st.pools),
    ]


def reading(st: CacheState, names: Names) -> dict[int, Json]:
    """For each row of a request the pages that it reads, and its lock handle."""
    return {
        row: {
            "reads the pages": listed(pages),
            "lock handle": names.handle(st.handle(row)) if st.handle(row) else "none",
        }
        for row, pages in read_pages(st).items()
    }


def read_pages(st: CacheState) -> dict[int, list[int]]:
    """The full pages that each row of a request reads, in the order of its text. Behind the end of a row the engine's
    table has what an earlier request left there.
    """

    def unread(row: int, index: int) -> bool:
        return bool(in_gap(st.rows, row, index)) or index >= touched(allocated(st.rows, row))

    return {row: _until_the_end(st.reads, row, partial(unread, row)) for row in range(st.rows.limit)}


def _until_the_end(table: Map, row: int, gone: Callable[[int], Truth] = lambda _: False) -> list[int]:
    """The pages that a table has at the indices of a row. ``gone``: the page at an index does not count."""
    shown = {index: page for (r, index), page in table.items() if r == row and page != PADDING and not gone(index)}
    return [shown[index] for index in sorted(shown)]


# Pages.


def _pages_of(
    st: AllocatorState | SwaMappingState, names: Names, readers: Mapping[int, Sequence[str]] | None = None
) -> list[Json]:
    if isinstance(st, AllocatorState):
        return [panel("pages", "Pages", (_page(st.now, "", page, names) for page in st.now.pages.items()))]
    pair = st.now
    read = readers or {}
    full = (_page(pair.full, "full ", page, names, pair, read.get(page, ())) for page in pair.full.pages.items())
    swa = (_page(pair.swa, "SWA ", page, names) for page in pair.swa.pages.items())
    return [
        panel("pages", "Pages of the full pool", full),
        panel("pages", "Pages of the SWA pool", swa if st.windowed else ()),
    ]


def _page(
    pool: Pool, side: str, page: int, names: Names, pair: Pair | None = None, readers: Sequence[str] = ()
) -> Json:
    place, row, index = pool.place(page), pool.owner(page), pool.index(page)
    owned = place == HELD and pool.table(row, index) == page
    look = LOOKS.get(place, "lost") if place != HELD or owned else "lost"
    said = PLACES.get(place, "in no place")
    if place == HELD:
        said = f"held by {names.row(row)}, page {index} of it" if owned else "held by nobody"
    facts = {"place": said}
    held, others = [names.row(row)] * owned, [*map(names.row, _also_in(pool, page, row if owned else None))]
    if others:
        facts["also in the table of"] = listed(others)
    if owned and pool.page_size > 1:
        facts["used"] = f"{filled(pool, page)} of {pool.page_size} slots"
    wrong = ["place"] * (look == "lost") + ["also in the table of"] * bool(others)
    maps: list[str] = []
    for offset in pool.offsets.items() if pair else ():
        target, slot = _target(pair, page, offset), f"slot {page * pool.page_size + offset} maps to"
        if target != (PADDING, 0):
            facts[slot] = f"SWA slot {target[0] * pool.page_size + target[1]}"
            wrong += [slot] * _is_wrong(pair, page, offset, target)
            maps.append(f"SWA page {target[0]}")
    read = [name for name in readers if name not in (*held, *others)]
    uses = uses_of(held, others, read, maps)
    return item(f"{side}page {page}", f"{side}page {page}", facts, look, wrong=wrong, uses=uses)


def _also_in(pool: Pool, page: int, owner: int | None) -> list[int]:
    """The rows whose table has the page, though they do not own it."""
    return sorted({r for (r, _), at in pool.table.items() if at == page and r != owner})


def _target(pair: Pair | None, page: int, offset: int) -> tuple[int, int]:
    return (pair.to_page(page, offset), pair.to_offset(page, offset)) if pair else (PADDING, 0)


def _is_wrong(pair: Pair | None, page: int, offset: int, target: tuple[int, int]) -> bool:
    """No law allows this entry: it leads out of a free page, to a page of another row, or to another offset."""
    if pair is None or pair.full.place(page) == PENDING:
        return False
    lawful = held(pair.full, page) and held(pair.swa, target[0]) and swa_page(pair, page) == target[0]
    return not (lawful and target[1] == offset)


# Rows.


def _row(st: SessionTrimState, row: int, names: Names, more: Mapping[int, Json]) -> Json:
    turn = {"session": f"session {st.session(row)}"} if st.session(row) else {}
    phase = PHASES.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist")
    lengths = {LENGTHS.get(name, name): f"{n} tokens" for name, n in lengths_of(st, row)._asdict().items()}
    facts = {"phase": phase, **turn, **lengths, **_gap(st, row), **_holdings(st.pools, row), **more.get(row, {})}
    return item(f"row {row}", names.row(row), facts)


def _gap(st: SessionTrimState, row: int) -> Json:
    """What left the window of a row whose layers all have one."""
    if is_whole(st, row):
        return {}
    return {"gave back": f"its pages {st.gap(row)} to {st.cursor(row) - 1}, which left the window of every layer"}


def _holdings(st: AllocatorState | SwaMappingState, row: int) -> Json:
    if isinstance(st, AllocatorState):
        return {"length": _tokens(st.now, row), "holds the pages": listed(_pages(st.now, row))}
    length = {"length": _tokens(st.now.full, row), "holds the full pages": listed(_pages(st.now.full, row))}
    return length | ({"holds the SWA pages": listed(_pages(st.now.swa, row))} if st.windowed else {})


def _tokens(pool: Pool, row: int) -> str:
    return f"{pool.whole(row) * pool.page_size + pool.rest(row)} tokens"


def _pages(pool: Pool, row: int) -> list[int]:
    return _until_the_end(pool.table, row)


def _counts(st: AllocatorState | SwaMappingState) -> Json:
    """What the engine reports of its pools, and the calls that have begun and not ended."""
    pools = {"pages": st.now} if isinstance(st.now, Pool) else {"full pool": st.now.full, "SWA pool": st.now.swa}
    if isinstance(st, SwaMappingState) and not st.windowed:
        del pools["SWA pool"]
    sizes = {f"available in the {name}": f"{pool.available * pool.page_size} tokens" for name, pool in pools.items()}
    calls = {"free groups that are open": str(st.group)} if st.group else {}
    backup = {"backup": "there is one"} if st.backed_up else {}
    return panel("counts", "Counts", [item("counts", "counts", sizes | calls | backup)])
