"""How much of the law a recording needs: with as many nodes and places as the pool has pages, each law of a path would
look at each of them.
"""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.recording.server_records import DIGEST_BYTES, STANDS, RecordedEvent
from conformance.stems.server.recorded.player import FLUSHED
from spec.cache_state import CacheState
from spec.finite import Domain
from spec.logic import but


class RecordedSizes:
    """How many nodes the tree has had at most, and how many tokens a row or a path has had at most."""

    def __init__(self) -> None:
        self._here: dict[int, int] = {}  # by node, how many tokens the path to its end has
        self._nodes = self._longest = 0

    def takes(self, event: RecordedEvent) -> None:
        """The next event."""
        if event.kind in (FLUSHED, STANDS):
            self._here.clear()
        if (change := event.change) is None:
            return
        for row in change.rows:
            self._longest = max(self._longest, row.allocated)
        for left in change.gone:
            self._here.pop(left, None)
        for node in change.nodes:
            own = len(node.digests) // DIGEST_BYTES if node.digests is not None else 0
            self._here[node.node] = self._here.get(node.parent, 0) + own if own else self._here.get(node.node, 0)
            self._longest = max(self._longest, self._here[node.node])
        self._nodes = max(self._nodes, len(self._here))

    def of(self, config: Json) -> dict[str, int]:
        """``nodes``: as many as the law needs, where a split has both nodes for a moment. ``longest``: as many pages as
        a row or a path of the law can have. Neither is more than the pool has pages.
        """
        page, pages = int(config["page_size"]), int(config["size"])
        return {"nodes": min(pages, 2 * self._nodes + 1), "longest": min(pages, -(-self._longest // page) + 1)}


def sized(st: CacheState, nodes: int, longest: int) -> CacheState:
    """The state with so many nodes, and rows of so many pages: no law says anything of those that nobody uses."""
    pair = st.rows.pools.now
    if nodes == st.tree.nodes.high and longest == pair.full.indices.high:
        return st
    rows, indices = Domain(0, st.rows.limit + nodes + 1), Domain(0, longest)
    sides = {"full": but(pair.full, rows=rows, indices=indices), "swa": but(pair.swa, rows=rows, indices=indices)}
    return but(
        st,
        tree=but(st.tree, nodes=Domain(1, nodes)),
        states=but(st.states, owners=Domain(0, st.states.first_node + nodes + 1)),
        rows=but(st.rows, pools=but(st.rows.pools, now=but(pair, **sides))),
    )
