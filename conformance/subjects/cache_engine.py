"""The whole cache of an SGLang release as a subject: sessions over one tree, its states, and who holds what of it.

With ``mamba`` among the ``components`` the tree is the unified one, with full, SWA and mamba parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance.machine import Json
from conformance.subjects import stateview, treeview
from conformance.subjects.cache_view import Hold
from conformance.subjects.hybrid import (
    Buffers,
    after_boundary,
    before_boundary,
    lacks,
    named,
    row_names,
    set_aside,
    track,
)
from conformance.subjects.rowview import Admission
from conformance.subjects.sessions import EngineRows
from conformance.subjects.sglang import SGLang

NEEDED = 3  # the states that an engine has for each row, beside its track buffer (_calculate_mamba_ratio)
OUT_OF_STATES = "Can not alloc mamba cache"  # how a match says that there is no slot for a copy


class EngineCache(EngineRows):
    """Requests and sessions of a release, whose tree and states can be read too."""

    def __init__(self, engine: SGLang, config: Json) -> None:
        self.stateful = "mamba" in config["components"]
        self.kinds = Buffers(*(bool(config[name]) for name in Buffers._fields)) if self.stateful else Buffers()
        self.missing = self._lacks(engine, config) if self.stateful else ""
        if not self.missing:
            super().__init__(engine, config)

    def _lacks(self, engine: SGLang, config: Json) -> str:
        if not self.kinds.buffered and config["page_size"] > 1:
            return "without a track buffer a page has one token"
        if config["rows"] * (NEEDED + self.tracks) > config["size_mamba"]:
            return "an engine has no more rows than it has states for"
        return lacks(engine, self.kinds, True)

    @property
    def tracks(self) -> int:
        """How many slots the track buffer of a new request has."""
        return (2 if self.kinds.doubled and not self.kinds.lazy else 1) * self.kinds.buffered

    def room_options(self, engine: SGLang, config: Json) -> dict[str, Any]:
        """With the components that are asked for."""
        unified = {"kind": "unified", "size_mamba": config["size_mamba"]} if self.stateful else {}
        known = super().room_options(engine, config)
        return {**known, **unified, "components": tuple(config["components"]), "kinds": self.kinds}

    def offers(self, name: str) -> bool:
        """A state is tracked in a buffer alone, and a lazy one has boundaries."""
        lazy = self.kinds.lazy
        return {"track": self.kinds.buffered, "boundary": lazy, "settle": lazy}.get(name, super().offers(name))

    # Requests arrive. Without a row nothing is matched; and a match that finds no state for its copy is a refusal.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request matches, and is not admitted."""
        if not self._may_match(request, session, tokens):
            return 0
        with self._reverted(request):
            return super().look(request, session, tokens)
        return 0

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """As ever."""
        if self._may_match(request, session, tokens):
            with self._reverted(request):
                return super().admit(request, session, tokens, most)
        return Admission(0, False)

    def _may_match(self, request: int, session: int, tokens: list[int]) -> bool:
        """There is a row for the request, or its session has one."""
        self._known(request, session, tokens)
        return self.turns.get(request, "") in self.engine.slots or self.rooms.rows.available_size() > 0

    @contextmanager
    def _reverted(self, request: int) -> Iterator[None]:
        """A scheduler takes back the copy that a match has made for a request that is not admitted."""
        try:
            yield
        except AssertionError as error:
            if str(error) != OUT_OF_STATES:
                raise
        known = self.requests[request]
        if self.stateful and request not in self.running and known.session is None and known.mamba_pool_idx is not None:
            self.rooms.slots.free(known.mamba_pool_idx.unsqueeze(-1))
            known.mamba_pool_idx = None

    def admissible(self, known: Any, upto: int) -> bool:
        """There is room, and there are the states that the request does not have."""
        return super().admissible(known, upto) and (not self.stateful or self._states_for(known))

    def _states_for(self, known: Any) -> bool:
        need = (known.mamba_pool_idx is None) + self.tracks * (known.mamba_ping_pong_track_buffer is None)
        slots = self.rooms.slots
        if need > slots.available_size():
            self.evict(0, 0, need - int(slots.available_size()))
        return bool(need <= slots.available_size())

    def cancel(self, request: int) -> None:
        """A request that waits may have a state already, which its scheduler gives back."""
        known = self.requests[request]
        super().cancel(request)
        if self.stateful and known.req_pool_idx is None and known.mamba_pool_idx is not None:
            self.engine.release(known, insert=False)

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """The tree gives back what nobody reads."""
        params = self.rooms.base.EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=states)
        self.engine.cache.evict(params)

    # States.

    def track(self, request: int) -> None:
        """A boundary: the state is written to the next track, and (unless it is lazy) the other one is next."""
        track(self.rooms.rows, self._runs(request), self.rooms.page_size, self.kinds.lazy)

    def boundary(self, request: int) -> None:
        """A lazy buffer gets its second slot before a step that tracks, if there is room."""
        before_boundary(
            self.rooms.engine, self.rooms.rows, self.engine.cache, self._runs(request), self.rooms.page_size
        )

    def settle(self, request: int) -> None:
        """A lazy buffer gives one slot back after the step."""
        after_boundary(self.rooms.engine, self.rooms.rows, self._runs(request))

    def states(self) -> stateview.Seen:
        """The states: the free list, what waits in a group, what everybody names.

        A turn that waits names what its session's slot has, and a slot what its turn has: each is a loan.
        """
        slots, rows = self.rooms.slots, self.rooms.rows
        mine = {r: known for r, known in self.requests.items() if r in self.running or not self._on_loan(known)}
        busy = {name for request, name in self.turns.items() if request in self.running}
        tables = {r: row_names(rows, self.requests[r].req_pool_idx, self.kinds.buffered) for r in self.running}
        sessions = {int(name): named(slot) for name, slot in self.engine.slots.items() if name not in busy}
        requests = {r: named(known) for r, known in mine.items()}
        free, waiting = slots.free_slots.tolist(), set_aside(slots)
        return stateview.Seen(
            free, int(slots.available_size()), waiting, requests, tables, sessions, dict(self._node_states())
        )

    @staticmethod
    def _on_loan(known: Any) -> bool:
        return known.req_pool_idx is not None

    def _node_states(self) -> Iterator[tuple[stateview.Key, int]]:
        view = self.rooms.view
        for node in view.walk():
            if (state := view.state(node)) is not None:
                yield tuple(_text(self._path(node))), state

    # The tree.

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
        """A turn that goes on holds nothing itself, its slot does: the node that it was given is none of the tree's."""
        known = self.requests[request]
        return known if hasattr(known.last_node, "parent") else self.engine.slots[self.turns[request]]

    def _hold(self, holder: Any) -> Hold | None:
        """The path of a lock, up to the node that its window token names, or else to the root.

        No record says whether it holds the node's state: a node that is matched has one, if the tree has states.
        """
        path = list(self._path(holder.last_node))
        if not path:
            return None
        ends = (node for node in path if self.rooms.window_token(node) == holder.swa_uuid_for_lock)
        top = path[-1] if holder.swa_uuid_for_lock is None else next(ends, None)
        number, state = self.rooms.view.number, self.stateful and self.rooms.view.state(path[0]) is not None
        return Hold(number(path[0]), -1 if top is None else number(top), _text(path), state)

    @staticmethod
    def _path(node: Any) -> Iterator[Any]:
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


def _text(path: Iterator[Any] | list[Any]) -> list[int]:
    """The tokens from the root to the end of the first node of a path."""
    return [int(token) for node in reversed(list(path)) for token in node.key]
