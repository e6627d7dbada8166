"""A snapshot without the choices of an allocator, so that two servers with different allocators can be compared.

An allocator decides which free page it hands out, and in which order it lists free pages. Everything else must be
equal: lengths, which rows and nodes share a page, which pages have an SWA page, sizes. So pages get new numbers, in the
order in which they are met: in the rows, then in the nodes of the tree.

While a free group is open (``grouped``), an engine chooses when a page that was freed in it becomes available, and when
its slots map to nothing. So sizes, and the mapping of pages that no row and no node has, are left out then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.driver.protocol import Json, PublishedEvents
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.kv_events.wire import Malformed, Removed, Stored, parsed, shown
from conformance.stems.lock_ref.protocol import Inserted, LockRefSnapshot, NodeSnapshot, PrefixMatch
from conformance.stems.session_trim.protocol import RowSnapshot, SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot


class _Names:
    """New numbers of the pages of one pool, in the order in which they are met; 0 stays 0."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[int, int] = {0: 0}

    def slot(self, slot: int) -> int:
        """The slot in its page's new number."""
        page, offset = divmod(slot, self.page_size)
        return self.pages.setdefault(page, len(self.pages)) * self.page_size + offset


def shape(answer: Any, page_size: int, grouped: bool = False) -> Any:
    """What is left of an answer: of a snapshot, of a match or an insert, which name slots, and of KV events, which may
    say one page or several. Any other answer is returned as it is.
    """
    if isinstance(answer, LockRefSnapshot):
        return _tree(answer, page_size)
    if isinstance(answer, PrefixMatch):
        return answer.length, answer.node
    if isinstance(answer, Inserted):
        return answer.prefix, len(answer.fresh)
    if isinstance(answer, PublishedEvents):
        return _as_published(answer)
    if isinstance(answer, CacheSnapshot):
        rows, nodes = answer.rows, answer.tree.nodes
    elif isinstance(answer, SessionTrimSnapshot):
        rows, nodes = answer, []
    else:
        return answer
    full, swa = _Names(page_size), _Names(page_size)
    found: Json = {
        "requests": _rows(rows.requests, full),
        "sessions": _rows(rows.sessions, full),
        "free rows": rows.free_rows,
        "nodes": _nodes(nodes, full, swa),
    }
    found["tree pages"] = sorted((full.pages.get(page, -1), one.index, one.swa) for page, one in rows.tree.items())
    found["mapped"], others = _mapped(rows.pools, full, swa)
    if not grouped:
        found |= {"full": _size(rows.pools.full), "swa": _size(rows.pools.swa), "mapped besides": others}
    if isinstance(answer, CacheSnapshot):
        found |= {"holds": answer.holds, "states": answer.states}
        found |= {"evictable": answer.tree.evictable, "protected": answer.tree.protected}
    return found


def _as_published(published: PublishedEvents) -> Json:
    """Which pages were stored and removed since the last time, each with all that is said of it; in no order."""
    stored, removed, others = [], [], []
    for raw in published.events:
        try:
            event = parsed(raw)
        except Malformed as error:
            others.append(f"{error}: {raw!r}")
            continue
        if isinstance(event, Stored):
            parents = [event.parent, *event.hashes]
            for at, (block, parent) in enumerate(zip(event.hashes, parents, strict=False)):
                tokens = event.tokens[at * event.size : (at + 1) * event.size]
                before = "nothing" if parent is None else shown(parent)
                stored.append(f"{shown(block)} after {before} in {event.medium}: {tokens}")
        elif isinstance(event, Removed):
            removed += [f"{shown(block)} in {event.medium}" for block in event.hashes]
        else:
            others.append(str(event))
    return {"stored": sorted(stored), "removed": sorted(removed), "other events": others}


def _tree(tree: LockRefSnapshot, page_size: int) -> Json:
    found = {"nodes": _nodes(tree.nodes, _Names(page_size), _Names(page_size))}
    sizes = {"evictable": tree.evictable, "protected": tree.protected}
    return {**found, **sizes, "free": {name: len(set(pages)) for name, pages in tree.free.items()}}


def _rows(rows: Mapping[int, RowSnapshot], full: _Names) -> Json:
    return {
        str(number): {"row": row.row, "lengths": row.lengths, "slots": [*map(full.slot, row.slots)]}
        for number, row in sorted(rows.items())
    }


def _nodes(nodes: list[NodeSnapshot], full: _Names, swa: _Names) -> Json:
    """The nodes below the root by their text from the root. States have the numbers that the engine gives them."""
    texts: dict[int | None, tuple[int, ...]] = {None: ()}
    for node in nodes:
        texts[node.id] = (*texts[node.parent], *node.key)
    found = {}
    for node in sorted((one for one in nodes if one.parent is not None), key=lambda one: texts[one.id]):
        names = {"full": full, "swa": swa}
        parts = {
            name: (part.lock, part.held, part.slots and [*map(names[name].slot, part.slots)] if name in names else part)
            for name, part in node.parts.items()
        }
        found[f"{list(texts[node.id])}"] = {"id": node.id, "parts": parts}
    return found


def _mapped(pools: SwaMappingSnapshot, full: _Names, swa: _Names) -> tuple[list[int], int]:
    """The SWA slot of each full slot that was met, in new numbers; and how many other full slots have one."""
    size, mapping = full.page_size, pools.mapping
    met = [page for page in full.pages if (page + 1) * size <= len(mapping)]
    slots = [swa.slot(mapping[page * size + offset]) for page in met for offset in range(size)]
    others = sum(slot > 0 for at, slot in enumerate(mapping) if at // size not in full.pages)
    return slots, others


def _size(pool: AllocatorSnapshot) -> tuple[int, int]:
    """The available size in tokens, and the number of free pages."""
    return pool.available, len({*pool.free, *pool.released})
