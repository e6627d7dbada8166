"""Projects the snapshot of a whole cache (nodes, locks, what rows read and hold) onto the law's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from conformance.driver.protocol import Key
from conformance.stems.lock_ref.projection import shown_locks
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodeSnapshot
from conformance.stems.pools.calls import whole_pages
from conformance.stems.session_trim.protocol import RowSnapshot
from spec.cache_state import CacheState, home
from spec.lock_ref_state import HELD, LockRefState
from spec.logic import but
from spec.session_trim_state import in_gap

SIDES = ("full", "swa")


class RowHold(NamedTuple):
    """What a row holds, by the law's numbers: a node, the node at which its window ends, and 1 if it holds the node's
    state, or counts it where it is missing.

    A number is -1 where the law has no such node.
    """

    node: int
    top: int
    state: int = 0


NOTHING = RowHold(0, 0)


class CacheView(NamedTuple):
    """A snapshot with the law's numbers.

    ``numbers``, ``nodes``: for each key the law's number of the node, and what the engine shows of it. ``rows``,
    ``held``: for each row in use its snapshot, and what it holds.
    """

    page_size: int
    numbers: Mapping[Key, int]
    nodes: Mapping[Key, NodeSnapshot]
    tree: LockRefSnapshot
    rows: Mapping[int, RowSnapshot]
    held: Mapping[int, RowHold]


def project_cache(st: CacheState, view: CacheView) -> CacheState:
    """The law's state with nodes' pages, lock counts, sizes, and what rows read and hold as the engine shows them;
    ``st`` itself if nothing differs.
    """
    st = _with_nodes(st, view)
    tree = _with_locks(st, view)
    st = st if tree is st.tree else but(st, tree=tree)
    return _with_readers(st, view)


def _with_nodes(st: CacheState, view: CacheView) -> CacheState:
    """The state with the nodes' pages as the engine shows them."""
    pair, sides = st.rows.pools.now, {}
    rows = {home(st, number) for number in view.numbers.values()}
    for side in SIDES:
        table, shown = getattr(pair, side).table, _pages_of_nodes(st, view, side)
        gone = [at for at, page in table.items() if page and at[0] in rows and at not in shown]
        wrong = {at: page for at, page in shown.items() if table(*at) != page} | dict.fromkeys(gone, 0)
        for at, page in wrong.items():
            table = table.put(at, page)
        if wrong:
            sides[side] = but(getattr(pair, side), table=table)
    if not sides:
        return st
    return but(st, rows=but(st.rows, pools=but(st.rows.pools, now=but(pair, **sides))))


def _pages_of_nodes(st: CacheState, view: CacheView, side: str) -> dict[tuple[int, int], int]:
    """By row and index of the law's table the page that the engine shows of a node, in one pool."""
    found, indices = {}, st.rows.pools.now.full.indices
    for key, number in view.numbers.items():
        node, row = view.nodes[key], home(st, number)
        first = (len(key) - len(node.key)) // view.page_size
        pages = whole_pages(_slots(node, side) or [], view.page_size, f"node {list(key)}")
        found.update({(row, i): page for i, page in enumerate(pages, start=first) if page and indices.has(i)})
    return found


def _slots(node: NodeSnapshot, side: str) -> list[int] | None:
    """The slots of a part of a node; ``None`` also where the tree has no such parts."""
    part = node.parts.get(side)
    return None if part is None else part.slots


def _with_locks(st: CacheState, view: CacheView) -> LockRefState:
    """The tree with lock counts, sizes, and each handle's node and window as the engine shows them."""
    tree = st.tree
    shown = shown_locks(tree, view.nodes, view.numbers) | _with_handles(st, view) | _sizes(tree, view)
    return but(tree, **shown) if shown else tree


def _with_handles(st: CacheState, view: CacheView) -> dict[str, Any]:
    tree, shown = st.tree, {}
    for name in RowHold._fields:
        values = before = getattr(tree, name)
        for row, held in view.held.items():
            handle, value = st.handle(row), getattr(held, name)
            known = min(values(handle), HELD) if name == "state" else values(handle)
            if handle and held != NOTHING and known != value:
                values = values.put(handle, value)
        if values is not before:
            shown[name] = values
    return shown


def _sizes(tree: LockRefState, view: CacheView) -> dict[str, int]:
    """The sizes that the tree reports, in pages and states, where they differ from the law's."""
    found = {}
    for which, sizes in (("evictable", view.tree.evictable), ("protected", view.tree.protected)):
        for side, size in sizes.items():
            unit = 1 if side == "mamba" else view.page_size
            if size // unit != getattr(tree, f"{side}_{which}"):
                found[f"{side}_{which}"] = size // unit
    return found


def _with_readers(st: CacheState, view: CacheView) -> CacheState:
    """The state with the pages that ``req_to_token`` shows of each row, and with no handle where the row holds
    nothing.
    """
    reads, handle = st.reads, st.handle
    for row, seen in view.rows.items():
        for i, page in enumerate(whole_pages(seen.slots, view.page_size, f"row {row}")):
            if reads(row, i) != page and not in_gap(st.rows, row, i):
                reads = reads.put((row, i), page)
        if handle(row) and view.held[row] == NOTHING:
            handle = handle.put(row, 0)
    if reads is st.reads and handle is st.handle:
        return st
    return but(st, reads=reads, handle=handle)


def node_problems(view: CacheView) -> list[str]:
    """What the tree shows and the law's state has no field for, in words: the number of a node's slots, and a size that
    is no whole number of pages.
    """
    found = []
    for key, number in view.numbers.items():
        node = view.nodes[key]
        for side in SIDES:
            slots = _slots(node, side)
            if slots is not None and len(slots) != len(node.key):
                found.append(f"node {list(key)} ({number}) has {len(slots)} {side} slots for {len(node.key)} tokens")
    for which, sizes in (("evictable", view.tree.evictable), ("protected", view.tree.protected)):
        for side in SIDES:
            if sizes.get(side, 0) % view.page_size:
                found.append(f"the {which} {side} size is {sizes[side]} tokens, no whole pages")
    return found


def holds_without_handle(st: CacheState, view: CacheView) -> list[str]:
    """Rows that hold something of the tree although the law has no handle for them, in words."""
    return [
        f"row {row} holds node {held.node}, the law has that it holds nothing"
        for row, held in view.held.items()
        if held != NOTHING and not st.handle(row)
    ]
