"""The whole cache of an SGLang release as a subject: sessions over its unified tree, and who holds what of that."""

from __future__ import annotations

from typing import Any

from conformance.subjects import treeview
from conformance.subjects.cache_view import Hold
from conformance.subjects.sessions import EngineRows


class EngineCache(EngineRows):
    """Requests and sessions of a release, whose tree can be read too."""

    def nodes(self) -> treeview.Seen:
        """The tree: its nodes, parents first, their slots and locks, what could be evicted and what is held."""
        return self.rooms.observe()

    def holds(self) -> dict[tuple[str, int], Hold]:
        """What each request that runs (``request``) and each slot with a row (``session``) holds, if anything."""
        slots = {("session", int(name)): slot for name, slot in self.engine.slots.items() if slot.is_holding_kv}
        requests = {("request", request): self._holder(request) for request in self.running}
        held = {who: self._hold(holder) for who, holder in (slots | requests).items()}
        return {who: hold for who, hold in held.items() if hold is not None}

    def _holder(self, request: int) -> Any:
        """A turn that goes on holds nothing itself, its slot does: what it was given for a node is none of the tree's."""
        known = self.requests[request]
        return known if hasattr(known.last_node, "parent") else self.engine.slots[self.turns[request]]

    def _hold(self, holder: Any) -> Hold | None:
        """The path of a lock, up to the node that its window token names, or else to the root."""
        path = list(self._path(holder.last_node))
        if not path:
            return None
        named = (node for node in path if self.rooms.window_token(node) == holder.swa_uuid_for_lock)
        top = path[-1] if holder.swa_uuid_for_lock is None else next(named, None)
        number = self.rooms.view.number
        text = [int(token) for node in reversed(path) for token in node.key]
        return Hold(number(path[0]), -1 if top is None else number(top), text)

    def _path(self, node: Any) -> Any:
        while node is not None and node.parent is not None:
            yield node
            node = node.parent
