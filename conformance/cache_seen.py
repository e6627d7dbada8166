"""What a cache shows of its tree and of who reads it, put in the place of what the law says, and what differs then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.cache_nodes import TreeNodes
from conformance.machine import Finding
from conformance.subjects import treeview
from conformance.subjects.rowview import RowSeen
from spec.logic import but
from spec.tree import Tree
from spec.whole import Whole, home

SIDES = ("full", "swa")
COUNTS = {"full": "full_ref", "swa": "swa_ref", "mamba": "mamba_ref"}


class Held(NamedTuple):
    """A node and where its SWA part ends, by the law's numbers, -1 where the law has none; ``state``: 1, or 0."""

    node: int
    top: int
    state: int = 0


NOTHING = Held(0, 0)


@dataclass(frozen=True)
class Look:
    """One look at a cache: its nodes by the law's numbers, its counters, the rows in use and what each holds."""

    nodes: TreeNodes
    tree: treeview.Seen
    rows: Mapping[int, RowSeen]
    held: Mapping[int, Held]

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self.nodes.page_size

    def sizes(self) -> Iterator[tuple[str, int, int]]:
        """The sizes that the tree claims, and in what they are counted: tokens of a page, or states."""
        for which, known in (("evictable", self.tree.evictable), ("protected", self.tree.protected)):
            for side, size in known.items():
                yield f"{side}_{which}", size, 1 if side == "mamba" else self.page_size

    def locks(self) -> Iterator[tuple[int, str, int]]:
        """The lock counts of each node."""
        for key, n in self.nodes.at.items():
            for side, part in self.nodes.seen[key].parts.items():
                yield n, COUNTS[side], part.lock

    def pages(self) -> Iterator[tuple[int, str, dict[int, int]]]:
        """The pages of each node on each side, by their place."""
        for key, n in self.nodes.at.items():
            node = self.nodes.seen[key]
            first = self.nodes.pages(key) - self.nodes.pages(node.key)
            for side in SIDES:
                pages = whole_pages(node.parts[side].slots or [], self.page_size, f"node {list(key)}")
                yield n, side, dict(enumerate(pages, start=first))


def whole_pages(slots: Sequence[int], size: int, what: str) -> list[int]:
    """The pages that these slots fill, each from its first one on; 0 where there is no slot."""
    pages = [slot // size for slot in slots[::size]]
    filled = [pages[i // size] * size + i % size if pages[i // size] else 0 for i in range(len(slots))]
    if filled != list(slots):
        raise Finding("slots_fill_pages", "A row's slots fill its pages in order.", f"{what} has the slots {slots}")
    return pages


def with_nodes(st: Whole, look: Look) -> Any:
    """The rows and pools with the nodes' pages as they are seen."""
    pair = st.life.pools.now
    tables = {side: getattr(pair, side).table for side in SIDES}
    for number, side, pages in look.pages():
        row = home(st, number)
        for i in pair.full.indices.items():
            if tables[side](row, i) != pages.get(i, 0):
                tables[side] = tables[side].put((row, i), pages.get(i, 0))
    sides = {side: but(getattr(pair, side), table=tables[side]) for side in SIDES}
    return but(st.life, pools=but(st.life.pools, now=but(pair, **sides)))


def with_locks(st: Whole, look: Look) -> Tree:
    """The tree with its lock counts and its sizes, and each row's node and window, as they are seen."""
    tree = st.tree
    refs = {name: getattr(tree, name) for name in COUNTS.values()}
    for n, name, lock in look.locks():
        refs[name] = refs[name] if refs[name](n) == lock else refs[name].put(n, lock)
    parts = {name: getattr(tree, name) for name in Held._fields}
    for row, held in look.held.items():
        if (h := st.handle(row)) and held != NOTHING:
            parts = {name: parts[name].put(h, value) for name, value in held._asdict().items()}
    return but(tree, **refs, **parts, **{name: size // unit for name, size, unit in look.sizes()})


def with_readers(st: Whole, look: Look) -> Whole:
    """What ``req_to_token`` shows of each row, and which rows hold something."""
    reads, handle = st.reads, st.handle
    for row, view in look.rows.items():
        for i, page in enumerate(whole_pages(view.slots, look.page_size, f"row {row}")):
            reads = reads if reads(row, i) == page else reads.put((row, i), page)
        if st.handle(row) and look.held[row] == NOTHING:
            handle = handle.put(row, 0)
    return but(st, reads=reads, handle=handle)


# What differs.


def tree_differences(st: Whole, seen: Whole, look: Look) -> list[str]:
    """The pages of nodes, lock counts and sizes."""
    names, found = {n: f"node {list(key)}" for key, n in look.nodes.at.items()}, []
    for n, side, _ in look.pages():
        was, now = (getattr(s.life.pools.now, side).table for s in (st, seen))
        for i in st.life.pools.now.full.indices.items():
            a, b = was(home(st, n), i), now(home(st, n), i)
            found += [f"{names[n]} has {side} page {b or 'none'} at index {i}, not {a or 'none'}"] if a != b else []
    for n, name, lock in look.locks():
        want = getattr(st.tree, name)(n)
        found += [f"{name} of {names[n]} is {lock}, not {want}"] if lock != want else []
    for name, size, unit in look.sizes():
        want = getattr(st.tree, name) * unit
        found += [f"{name} is {size}, not {want}"] if size != want else []
    return found


def reader_differences(st: Whole, seen: Whole, look: Look) -> list[str]:
    """What rows read, and what they hold."""
    keys, found = {n: list(key) for key, n in look.nodes.at.items()}, []
    for row, view in look.rows.items():
        for i in range(-(-len(view.slots) // look.page_size)):
            a, b = st.reads(row, i), seen.reads(row, i)
            found += [f"row {row} reads page {b} at index {i}, not {a}"] if a != b else []
        h, held = st.handle(row), look.held[row]
        want = Held(*(getattr(st.tree, name)(h) for name in Held._fields)) if h else NOTHING
        found += [f"row {row} holds {_words(held, keys)}, not {_words(want, keys)}"] if held != want else []
    return found


def _words(held: Held, keys: Mapping[int, list[int]]) -> str:
    if held == NOTHING:
        return "nothing"
    node, top = (keys.get(n, "no node") for n in held[:2])
    return f"{node} with the window from {top} on and {'its' if held.state else 'no'} state"
