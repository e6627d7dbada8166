"""The engine's memory as its snapshot says it, without the law: which pages are free, which rows and nodes have which,
and who wrote them.

This is the picture of a run that is driven on after a law was broken: the law's state means nothing any more there. It
has the panels of ``conformance.telling.picture``, with fewer facts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conformance.driver.protocol import Json
from conformance.driver.shadow import BLOCK_SLOTS, BLOCKS, FULL, STATES, SWA, Shadow, SlotContent, WrongSlot
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.block_cache.protocol import BlockCacheSnapshot, sizes_of
from conformance.stems.block_pool.protocol import BlockPoolSnapshot
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.lock_ref.projection import KeyedTree
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.panels import item, listed, panel, uses_of
from conformance.stems.session_trim.protocol import SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from conformance.traces.harm_found import a_step_less

Slots = Mapping[str, Sequence[int]]  # the slots of each row, node or request, by the name that a picture gives it
PADDING = 0
_BLOCK = re.compile(r"\bblock \d+")  # where words say in which block the contents are


def _largest_block(config: Json) -> int:
    """The slots of the largest blocks of a run; 1 where it has none."""
    return max(sizes_of(config)) if "layers" in config and "block_size" in config else config.get("block_size") or 1


class MemoryPicture:
    """Draws the snapshots of one run. ``config``: of the trace. ``shadow``: what each slot holds. ``beside``: another
    request came in the first operation, which is step 0 then.
    """

    def __init__(self, config: Json, shadow: Shadow, beside: bool = False) -> None:
        self.size: int = config.get("page_size") or _largest_block(config)
        self.pages: Mapping[str, int] = {
            FULL: config.get("size", 0),
            SWA: config.get("size_swa", 0),
            STATES: config.get("size_mamba") or config.get("size", 0),
            BLOCKS: config.get("blocks", 0),
        }
        self.shadow, self.beside = shadow, beside

    def panels(self, seen: Any, rows: Slots) -> list[Json]:
        """The panels of a snapshot. ``rows``: the slots of the rows of a caller, which no snapshot has."""
        found: list[Json] = []
        match seen:
            case AllocatorSnapshot():
                found = [self._pool("Pages", "page", FULL, seen, rows, {})]
            case SwaMappingSnapshot():
                found = self._pools(seen, rows, {})
            case SessionTrimSnapshot():
                found = [*self._pools(seen.pools, {}, _rows(seen)), *_of_rows(seen)]
            case CacheSnapshot():
                nodes = _nodes(seen.tree, FULL)
                found = [*self._pools(seen.rows.pools, nodes, _rows(seen.rows)), *_of_rows(seen.rows), _tree(seen.tree)]
                found += [self._states(seen.states)] if seen.states else []
            case KeyedTree():
                found = [*self._of_tree(seen.tree), _tree(seen.tree)]
            case MambaSlotsSnapshot():
                found = [self._states(seen)]
            case BlockCacheSnapshot():
                held = {f"request {n}": [b for table in one.tables for b in table] for n, one in seen.requests.items()}
                found = [self._blocks(seen.pool, held)]
            case BlockPoolSnapshot():
                found = [self._blocks(seen, rows)]
        return [one for one in found if one["items"]]

    def page_of(self, wrong: WrongSlot, seen: Any) -> str:
        """The key of the page in which a slot is; empty where the reader has none."""
        if not wrong.slot:
            return ""
        if named := _BLOCK.search(wrong.where):
            return named.group()
        if wrong.pool in (BLOCKS, BLOCK_SLOTS):
            return f"block {wrong.slot if wrong.pool == BLOCKS else wrong.slot // self.size}"
        if wrong.pool == STATES:
            return f"state slot {wrong.slot}"
        if isinstance(seen, AllocatorSnapshot):
            return f"page {wrong.slot // self.size}"
        return f"{wrong.pool} page {wrong.slot // self.size}"

    def _pools(self, seen: SwaMappingSnapshot, held: Slots, read: Slots) -> list[Json]:
        full = self._pool("Pages of the full pool", "full page", FULL, seen.full, held, read, seen.mapping)
        if not seen.mapping:
            return [full]
        mapped: dict[str, list[int]] = {}
        for one in full["items"]:
            for name in one["uses"]["held"]:
                mapped.setdefault(name, []).extend(int(key.split()[-1]) * self.size for key in one["uses"]["maps"])
        return [full, self._pool("Pages of the SWA pool", "SWA page", SWA, seen.swa, mapped, {})]

    def _of_tree(self, tree: LockRefSnapshot) -> list[Json]:
        titles = {"full": ("Pages of the full pool", "full page"), "swa": ("Pages of the SWA pool", "SWA page")}
        found = []
        for part, free in tree.free.items():
            if part in titles:
                pool = FULL if part == "full" else SWA
                seen = AllocatorSnapshot(free, [], 0)
                found.append(self._pool(*titles[part], pool, seen, _nodes(tree, part), {}))
        return found

    def _pool(
        self,
        title: str,
        word: str,
        pool: str,
        seen: AllocatorSnapshot,
        held: Slots,
        read: Slots,
        mapping: Sequence[int] = (),
    ) -> Json:
        free = {*seen.free, *seen.released}
        holders, readers = _by_page(held, self.size), _by_page(read, self.size)
        last = max([self.pages[pool], *free, *holders, *readers], default=0)
        items = []
        for page in range(1, last + 1):
            inside = range(page * self.size, (page + 1) * self.size)
            maps = [f"SWA page {mapping[s] // self.size}" for s in inside if s < len(mapping) and mapping[s]]
            mine, reading = holders.get(page, []), readers.get(page, [])
            if not mine and page not in free:
                mine, reading = reading, []  # a page of nobody else is the reader's own
            uses = uses_of(mine, (), [name for name in reading if name not in mine], maps)
            items.append(self._item(f"{word} {page}", page in free, uses, pool, inside))
        return panel("pages", title, items)

    def _states(self, seen: MambaSlotsSnapshot) -> Json:
        owners: dict[int, list[str]] = {}
        for what, of in (("request", seen.requests), ("session", seen.sessions)):
            for number, names in of.items():
                for slot in names.slots:
                    owners.setdefault(slot, []).append(f"{what} {number}")
        for key, slot in seen.nodes.items():
            owners.setdefault(slot, []).append(f"node {list(key)}")
        items = [
            self._item(f"state slot {slot}", slot in seen.free, uses_of(owners.get(slot, ())), STATES, [slot])
            for slot in range(1, max([self.pages[STATES], *seen.free, *(s for s in owners if s > 0)], default=0) + 1)
        ]
        return panel("pages", "Mamba state slots", items)

    def _blocks(self, seen: BlockPoolSnapshot, held: Slots) -> Json:
        holders = _by_page(held, 1)
        items = []
        for block in range(1, self.pages[BLOCKS] + 1):
            inside = range(block * self.size, (block + 1) * self.size)
            uses = uses_of(holders.get(block, ()))
            items.append(self._item(f"block {block}", block in seen.free, uses, BLOCK_SLOTS, inside, BLOCKS, block))
        return panel("pages", "Blocks", items)

    def _item(
        self, key: str, free: bool, uses: Json, pool: str, slots: Iterable[int], other: str = "", whole: int = 0
    ) -> Json:
        """A page. ``other``, ``whole``: another pool of the shadow memory in which the page is one slot."""
        holds = [self.shadow.holds(pool, slot) for slot in slots]
        holds += [self.shadow.holds(other, whole)] if other else []
        wrote = dict.fromkeys(self._wrote(one) for one in holds if one is not None)
        facts = {"place": "free" if free else f"held by {listed(uses['held'])}" if uses["held"] else "in use"}
        facts |= {"written by": listed(wrote)} if wrote else {}
        return item(key, key, facts, "free" if free else "held", uses=uses)

    def _wrote(self, one: SlotContent) -> str:
        writer = a_step_less(one.writer) if self.beside else one.writer
        return f"{writer} in step {one.step - self.beside}"


def _by_page(slots: Slots, size: int) -> dict[int, list[str]]:
    """Who has a slot in each page."""
    found: dict[int, dict[str, None]] = {}
    for name, mine in slots.items():
        for slot in mine:
            if slot // size > PADDING:
                found.setdefault(slot // size, {})[name] = None
    return {page: [*names] for page, names in found.items()}


def _rows(seen: SessionTrimSnapshot) -> Slots:
    named = {f"request {n}": row.slots for n, row in seen.requests.items()}
    return named | {f"session {n}": row.slots for n, row in seen.sessions.items()}


def _of_rows(seen: SessionTrimSnapshot) -> list[Json]:
    shown = [
        item(name, name, {"row": str(row.row), "committed length": f"{row.lengths.committed} tokens"})
        for name, row in [
            *((f"request {n}", row) for n, row in seen.requests.items()),
            *((f"session {n}", row) for n, row in seen.sessions.items()),
        ]
    ]
    return [panel("owners", "Requests and sessions with a row", shown)]


def _texts(tree: LockRefSnapshot) -> dict[int, list[int]]:
    """The tokens from the root to the end of each node, by its number; only its own where its parent is gone."""
    found: dict[int, list[int]] = {}
    for node in tree.nodes:
        found[node.id] = [*found.get(-1 if node.parent is None else node.parent, []), *node.key]
    return found


def _nodes(tree: LockRefSnapshot, part: str) -> Slots:
    texts = _texts(tree)
    return {
        f"node {texts[node.id]}": slots
        for node in tree.nodes
        if node.parent is not None and part in node.parts and (slots := node.parts[part].slots)
    }


def _tree(tree: LockRefSnapshot) -> Json:
    """The nodes, parents first and each above what is below it."""
    texts, known = _texts(tree), {node.id for node in tree.nodes}

    def below(parent: int, depth: int) -> Iterable[Json]:
        for node in tree.nodes:
            if node.parent == parent:
                locks = {
                    f"{_said(name)} lock": str(part.lock) for name, part in node.parts.items() if part.lock is not None
                }
                gone = [_said(name) for name, part in node.parts.items() if part.slots is None]
                facts = locks | ({"lacks": listed(gone)} if gone else {})
                name = f"node {texts[node.id]}"
                yield item(name, name, facts, "tombstone" if "SWA" in gone else "node", depth)
                yield from below(node.id, depth + 1)

    root = next((node.id for node in tree.nodes if node.parent is None), 0)
    lost = [node for node in tree.nodes if node.parent is not None and node.parent not in known]
    hanging = [
        item(f"node {texts[n.id]}", f"node {texts[n.id]}", {"place": "its parent is gone"}, "lost", 1) for n in lost
    ]
    return panel("tree", "Prefix tree", [item("root", "the root", {}), *below(root, 1), *hanging])


def _said(part: str) -> str:
    return {"swa": "SWA", "mamba": "state"}.get(part, part)
