"""A state as a picture: pages as cells, owners as colours, the mapping as lines. Plain data; a template draws it."""

from __future__ import annotations

from typing import Any

from conformance.machine import Json
from conformance.tree_picture import tree_frame
from spec.pair import Pair, swa_page
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, Pool, filled, held
from spec.tree import Tree

PLACES = {FREE: "free", RELEASED: "released", HELD: "held", PENDING: "pending"}


def owner(pool: Pool, page: int) -> int | None:
    """The row that has the held page in its table, ``None`` if nobody has."""
    row, index = pool.owner(page), pool.index(page)
    return row if pool.place(page) == HELD and pool.table(row, index) == page else None


def frame(state: Any) -> Json:
    """The current pools of a state and the lines between them; of a radix tree, its nodes in words."""
    if isinstance(state, Tree):
        return tree_frame(state)
    now = state.now
    if isinstance(now, Pool):
        return {"pools": [_pool("pages", now)], "lines": []}
    return {"pools": [_pool("full", now.full), _pool("SWA", now.swa)], "lines": _lines(now)}


def _pool(name: str, pool: Pool) -> Json:
    return {"name": name, "page_size": pool.page_size, "pages": [_page(pool, p) for p in pool.pages.items()]}


def _page(pool: Pool, page: int) -> Json:
    row = owner(pool, page)
    used = filled(pool, page) if row is not None else 0
    return {"page": page, "place": PLACES.get(pool.place(page), "nowhere"), "row": row, "used": used}


def _lines(pair: Pair) -> list[Json]:
    found = []
    for page in pair.full.pages.items():
        for offset in pair.full.offsets.items():
            target = (pair.to_page(page, offset), pair.to_offset(page, offset))
            if target != (PADDING, 0):
                found.append({"from": [page, offset], "to": list(target), "wrong": _wrong(pair, page, offset, target)})
    return found


def _wrong(pair: Pair, page: int, offset: int, target: tuple[int, int]) -> bool:
    """The line leads where the law does not allow it: out of a free page, to another row's page, to another offset."""
    if pair.full.place(page) == PENDING:
        return False
    lawful = held(pair.full, page) and held(pair.swa, target[0]) and swa_page(pair, page) == target[0]
    return not (lawful and target[1] == offset)
