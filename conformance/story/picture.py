"""A state as a picture: pages as cells, owners as colours, the mapping as lines; rows, trees and states in words.

The picture is plain data that a template draws. Lengths count tokens, in the tree of a whole cache pages.
"""

from __future__ import annotations

from collections.abc import Callable

from conformance.diff import PHASES, SCHEDULED, STATE_PLACES
from conformance.diff import ROLES as ROLE_NAMES
from conformance.engines.protocol import Json
from conformance.mamba_slots.seen import owner_names
from conformance.session_trim.seen import lengths_of
from spec.allocator import Allocator
from spec.block_cache import BlockCache, ahead
from spec.block_cache import computed as computed_of
from spec.blocks import NO_HASH, NULL, Blocks, runs
from spec.cache_state import CacheState
from spec.kv_events import UNSAID, Events
from spec.logic import Map
from spec.pair import Pair, swa_page
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, Pool, filled, held
from spec.rows import IDLE, Rows
from spec.states import ABSENT, GROUPED, ROLES, MambaSlots, has_buffer, leaving
from spec.states import FREE as FREE_STATE
from spec.states import HELD as HELD_STATE
from spec.states import IDLE as GONE
from spec.swa_mapping import SwaMapping
from spec.tree import ROOT, Tree, begin, lives, path

PLACES = {FREE: "free", RELEASED: "released", HELD: "held", PENDING: "pending"}
State = Allocator | SwaMapping | Rows | Tree | MambaSlots | CacheState | Blocks | BlockCache | Events


def frame(state: State) -> Json:
    """A picture of a state: its current pools, the lines of the mapping between them, and everything else in words."""
    if isinstance(state, CacheState):
        parts = (frame(state.rows), tree_frame(state.tree, "pages"), state_frame(state.states))
        return {key: [item for part in parts for item in part[key]] for key in ("pools", "lines", "words")}
    if isinstance(state, Rows):
        return {**frame(state.pools), "words": row_lines(state)}
    if isinstance(state, Tree):
        return tree_frame(state)
    if isinstance(state, MambaSlots):
        return state_frame(state)
    if isinstance(state, Blocks):
        return {"pools": [], "lines": [], "words": [*table_lines(state), *block_lines(state)]}
    if isinstance(state, BlockCache):
        return {"pools": [], "lines": [], "words": [*scheduled_lines(state), *frame(state.pool)["words"]]}
    if isinstance(state, Events):
        return {"pools": [], "lines": [], "words": reader_lines(state)}
    if isinstance(state.now, Pool):
        return {"pools": [_pool("pages", state.now)], "lines": [], "words": []}
    pair = state.now
    return {"pools": [_pool("full", pair.full), _pool("SWA", pair.swa)], "lines": _lines(pair), "words": []}


# Pools and the mapping.


def _pool(name: str, pool: Pool) -> Json:
    return {"name": name, "page_size": pool.page_size, "pages": [_page(pool, p) for p in pool.pages.items()]}


def _page(pool: Pool, page: int) -> Json:
    row, index = pool.owner(page), pool.index(page)
    owner = row if pool.place(page) == HELD and pool.table(row, index) == page else None
    used = filled(pool, page) if owner is not None else 0
    return {"page": page, "place": PLACES.get(pool.place(page), "nowhere"), "row": owner, "used": used}


def _lines(pair: Pair) -> list[Json]:
    found = []
    for page in pair.full.pages.items():
        for offset in pair.full.offsets.items():
            target = (pair.to_page(page, offset), pair.to_offset(page, offset))
            if target != (PADDING, 0):
                found.append({"from": [page, offset], "to": list(target), "wrong": _wrong(pair, page, offset, target)})
    return found


def _wrong(pair: Pair, page: int, offset: int, target: tuple[int, int]) -> bool:
    """The law does not allow this line: it leads out of a free page, to a page of another row, or to another offset."""
    if pair.full.place(page) == PENDING:
        return False
    lawful = held(pair.full, page) and held(pair.swa, target[0]) and swa_page(pair, page) == target[0]
    return not (lawful and target[1] == offset)


# Rows.


def row_lines(st: Rows) -> list[str]:
    """The rows that are in use, a line each, with their lengths in tokens."""
    return [_row(st, row) for row in range(st.limit) if st.phase(row) != IDLE] or ["no row is in use"]


def _row(st: Rows, row: int) -> str:
    lengths = ", ".join(f"{name} {n}" for name, n in lengths_of(st, row)._asdict().items())
    turn = f" of session {st.session(row)}" if st.session(row) else ""
    phase = PHASES.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist")
    return f"row {row}{turn}, {phase}: {lengths}"


# The tree.


def tree_frame(st: Tree, unit: str = "tokens") -> Json:
    """The nodes of a tree, parents first, a line each; then those from which no way leads to the root. ``unit``: what
    the tree counts.
    """
    hanging = _in_order(st, ROOT)
    lost = [n for n in st.nodes.items() if lives(st, n) and n not in hanging]
    words = [_node(st, n, unit) for n in hanging]
    words += [f"{_node(st, n, unit)}; not below the root: its parent is node {st.parent(n)}" for n in lost]
    return {"pools": [], "lines": [], "words": words or ["the root alone"]}


def _in_order(st: Tree, under: int) -> list[int]:
    alive = (n for n in st.nodes.items() if lives(st, n))
    below = sorted((n for n in alive if st.parent(n) == under), key=st.stop)
    return [m for n in below for m in (n, *_in_order(st, n))]


def _node(st: Tree, n: int, unit: str) -> str:
    parts = [f"full lock {st.full_ref(n)}"]
    if st.windowed:
        parts.append(f"SWA lock {st.swa_ref(n)}" if st.swa(n) else f"tombstone (SWA lock {st.swa_ref(n)})")
    if st.stateful:
        parts.append(f"state lock {st.mamba_ref(n)}" if st.mamba(n) else "no state")
    indent = "  " * (len(path(st, n)) - 1)
    return f"{indent}node {n} ({unit} {begin(st, n)} to {st.stop(n)}): {', '.join(parts)}"


# Blocks.


def table_lines(st: Blocks) -> list[str]:
    """The rows that are in use, a line each."""
    return [_table(st, row) for row in st.rows.items() if runs(st, row)] or ["no row is in use"]


def _table(st: Blocks, row: int) -> str:
    places = (st.table(row, i) for i in range(st.length(row)))
    blocks = ", ".join("null" if block == NULL else str(block) for block in places)
    return f"row {row} of group {st.group(row)}: blocks {blocks or '-'}; {st.filled(row)} computed"


def block_lines(st: Blocks) -> list[str]:
    """The free blocks, and what the prefix cache finds."""
    free = [str(b) for b in st.blocks.items() if st.refs(b) == 0]
    shared = [f"block {b} has {st.refs(b)} holders" for b in st.blocks.items() if st.refs(b) > 1]
    found = [f"block {b} at place {st.index(b)}" for b in st.blocks.items() if st.hash(b) != NO_HASH]
    return [f"free: {', '.join(free) or '-'}", *shared, f"the prefix cache finds: {', '.join(found) or '-'}"]


def scheduled_lines(st: BlockCache) -> list[str]:
    """What the scheduler has of each row that is in use: its phase, and its lengths in tokens."""
    return [_scheduled(st, row) for row in st.pool.rows.items() if runs(st.pool, row)]


def _scheduled(st: BlockCache, row: int) -> str:
    computed, slots = (part.pages * st.block_size + part.rest for part in (computed_of(st, row), ahead(st, row)))
    phase = SCHEDULED.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist")
    return f"row {row}, {phase}: computed {computed}, slots for {slots}, read from place {st.first(row)} on"


# KV events.


def reader_lines(st: Events) -> list[str]:
    """What the pool holds and what the reader of the events believes, a line for each block and medium."""
    places = ((b, m) for b in st.blocks.items() for m in st.media.items())
    return [_block(st, b, m) for b, m in places if st.copies(b, m) or st.said(b, m)] or ["no block is cached"]


def _block(st: Events, block: int, medium: int) -> str:
    text = f"text {st.text(block)}" if st.text(block) != UNSAID else "a text that no event has said"
    held, said = st.copies(block, medium), st.said(block, medium)
    return f"block {block} in medium {medium}, {text}: the pool holds {held}, the reader has counted {said}"


# States.


def state_frame(st: MambaSlots) -> Json:
    """Who has which state slots, and which slots nobody has."""
    name = owner_names(st, {})
    owners = [_owner(st, o, name) for o in st.owners.items()]
    places = [f"{STATE_PLACES[p]}: {', '.join(map(str, _at(st, p))) or '-'}" for p in (FREE_STATE, GROUPED)]
    lost = [s for s in _at(st, HELD_STATE) if st.table(st.owner(s), st.role(s)) != s]
    places += [f"held by nobody: {', '.join(map(str, lost))}"] if lost else []
    return {"pools": [], "lines": [], "words": [*filter(None, owners), *places]}


def _at(st: MambaSlots, place: int) -> list[int]:
    return [s for s in st.slots.items() if st.place(s) == place]


def _owner(st: MambaSlots, o: int, name: Callable[[int], str]) -> str:
    has, names = _slots(st.table, o), _slots(st.names, o)
    if not has and not names:
        return ""
    following = f"; its {_track(st.next(o))} is written next" if has_buffer(st, o) and not leaving(st, o) else ""
    if o >= st.limit or names == has:
        return f"{name(o)}: {has or 'nothing'}{following}"
    still = " still" if st.phase(o) == GONE else ""
    return f"{name(o)}: {has or 'nothing'}{following}; its record{still} names {names or 'nothing'}"


def _track(number: int) -> str:
    """A wrong state may name a track that does not exist."""
    return {0: "first track", 1: "second track"}.get(number, f"track {number}, which does not exist,")


def _slots(table: Map, o: int) -> str:
    return ", ".join(f"{ROLE_NAMES[k]} {table(o, k)}" for k in ROLES if table(o, k) != ABSENT)
