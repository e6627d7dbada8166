"""A state as a picture: pages as cells, owners as colours, the mapping as lines; what is no page, in words.

Plain data; a template draws it.
"""

from __future__ import annotations

from typing import Any

from conformance.machine import Json
from conformance.row_picture import row_lines
from conformance.state_picture import state_frame
from conformance.tree_picture import tree_frame
from spec.pair import Pair, swa_page
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, Pool, filled, held
from spec.rows import Rows
from spec.states import MambaSlots
from spec.tree import Tree
from spec.whole import Whole

PLACES = {FREE: "free", RELEASED: "released", HELD: "held", PENDING: "pending"}


def owner(pool: Pool, page: int) -> int | None:
    """The row that has the held page in its table, ``None`` if nobody has."""
    row, index = pool.owner(page), pool.index(page)
    return row if pool.place(page) == HELD and pool.table(row, index) == page else None


def frame(state: Any) -> Json:
    """The current pools of a state and the lines between them; rows, trees and states of a model in words."""
    if isinstance(state, Whole):
        return _together(frame(state.life), tree_frame(state.tree, "pages"), state_frame(state.states))
    if isinstance(state, Rows):
        return {**frame(state.pools), "words": row_lines(state)}
    if isinstance(state, Tree):
        return tree_frame(state)
    if isinstance(state, MambaSlots):
        return state_frame(state)
    now = state.now
    if isinstance(now, Pool):
        return {"pools": [_pool("pages", now)], "lines": [], "words": []}
    return {"pools": [_pool("full", now.full), _pool("SWA", now.swa)], "lines": _lines(now), "words": []}


def _together(*frames: Json) -> Json:
    return {key: [part for one in frames for part in one[key]] for key in ("pools", "lines", "words")}


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
