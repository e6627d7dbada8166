"""Our mamba state slots as a subject: under a small tree of states, driven by plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.machine import Json
from conformance.subjects.adapter import Traits
from conformance.subjects.stateview import Key, Named, OutOfSlots, Seen, Three
from impl.mamba_slots import Holder, MambaStates, StateHolder

OURS = Traits("ours", rejects=True)


@dataclass(eq=False)
class OurRequest(StateHolder):
    """A request: its tokens, how many of them were tracked last, its session, and whether it goes on from there."""

    text: tuple[int, ...] = ()
    tracked: int = 0
    session: int = 0
    later: bool = False


class OurStates:
    """Requests and sessions over ``MambaStates``, and a tree that keeps states by their tokens, oldest first."""

    missing = ""

    def __init__(self, states: MambaStates, config: Json, traits: Traits = OURS) -> None:
        self.states, self.traits, self.pool = states, traits, states.mamba_allocator
        self.buffered, self.lazy = states.buffer_size > 0, states.lazy
        self.requests: dict[int, OurRequest] = {}
        self.sessions = {s: StateHolder() for s in range(1, config["sessions"] + 1)}
        self.texts: dict[int, tuple[int, ...]] = dict.fromkeys(self.sessions, ())
        self.nodes: dict[Key, Tensor] = {}

    @staticmethod
    def offers(name: str) -> bool:
        """Every call."""
        return bool(name)

    # A request comes.

    def match(self, request: int, tokens: Sequence[int], session: int, same: bool) -> Key | None:
        """A request comes and matches its prefix; the node of whose state it was given a slot for a copy."""
        text = (*self.texts.get(session, ()), *tokens)
        if not same:
            self.requests[request] = OurRequest()
        r = self.requests[request]
        r.text, r.session, r.tracked, r.later = text, session, 0, False
        if session and self.sessions[session].mamba_pool_idx is not None:
            self.states.restore(self.sessions[session], r)
            r.later = True
            return None
        found = max((key for key in self.nodes if key == r.text[: len(key)]), key=len, default=None)
        if found is not None and r.mamba_pool_idx is None:
            self._room(1, found)
            if self.states.alloc_for_match(r) is None:
                raise OutOfSlots
            return found
        return None

    def admit(self, requests: Sequence[int]) -> None:
        """A batch gets rows and slots; the tree gives up states for it first."""
        batch = [self.requests[r] for r in requests]
        self._room(sum(map(sum, map(self.states._needs, batch))), None)
        if self.states.alloc(batch) is None:
            raise OutOfSlots
        for r in batch:
            self._decode(r, tracked=False)

    def _room(self, slots: int, spared: Key | None) -> None:
        """The oldest states leave the tree, as far as a call needs it."""
        while self.pool.available_size() + len(self.pool.group_slots) < slots:
            victim = next((key for key in self.nodes if key != spared), None)
            if victim is None:
                return
            self.pool.free(self.nodes.pop(victim).view(1))

    # A request works.

    def track(self, request: int) -> None:
        """A boundary: the state is written to the next track, and (unless it is lazy) the other one is next."""
        r = self.requests[request]
        self._decode(r)
        self.states.track(r)

    @staticmethod
    def _decode(r: OurRequest, tracked: bool = True) -> None:
        r.tracked = len(r.text) if tracked else r.tracked
        r.text = (*r.text, len(r.text) + 1)

    def boundary(self, request: int) -> None:
        """A lazy buffer gets its second slot before a step that tracks."""
        self._room(1, None)
        self.states.alloc_second(self.requests[request])

    def settle(self, request: int) -> None:
        """A lazy buffer gives one slot back after the step."""
        self._decode(self.requests[request])
        self.states.give_second(self.requests[request])

    def slide(self, request: int) -> None:
        """A long decode; this tree keeps states whatever the window is."""
        for _ in range(4):
            self._decode(self.requests[request], tracked=False)

    def cache(self, request: int) -> None:
        """A request that goes on puts its state into the tree; where there is one already it keeps the old one."""
        r = self.requests[request]
        key = self._cached(r)
        if r.later or not key:
            return
        self._room(1, None)
        new = self.pool.alloc(1)
        if new is None:
            raise OutOfSlots
        given = self.states.donate_mamba_ping_pong_slot(r, new) if self.buffered else new[0]
        self._keep(key, given)

    def _cached(self, r: OurRequest) -> Key:
        return r.text[: r.tracked] if self.buffered else r.text

    def _keep(self, key: Key, state: Tensor) -> None:
        if key in self.nodes:
            self.pool.free(state.view(1))
        else:
            self.nodes[key] = state

    # A request leaves.

    def finish(self, request: int) -> None:
        """A request ends well: a turn is saved, any other request gives its newest state to the tree."""
        r = self.requests[request]
        if r.session:
            self._save(r)
            return
        if key := self._cached(r):
            self._keep(key, self.states.donate(r))
        self.states.release([r])

    def _save(self, r: OurRequest) -> None:
        self.texts[r.session] = r.text
        self.states.save(r, self.sessions[r.session])

    def abort(self, request: int) -> None:
        """A running request is aborted: all it has is given back, and its session begins anew."""
        r = self.requests[request]
        self.texts[r.session] = ()
        self.states.release([r])

    def withdraw(self, request: int) -> None:
        """A waiting request is aborted; a later turn goes back into its session."""
        r = self.requests[request]
        if r.later:
            self._save(r)
        else:
            self.states.release([r])

    def retract(self, request: int) -> None:
        """A running request makes room for others; a turn is saved."""
        r = self.requests[request]
        if r.session:
            self._save(r)
        else:
            self.states.release([r])

    def close(self, session: int) -> None:
        """A session ends."""
        self.texts[session] = ()
        self.states.release([self.sessions[session]])

    # The pool and the tree.

    def evict(self, states: int) -> None:
        """The tree gives up its oldest states."""
        for key in list(self.nodes)[:states]:
            self.pool.free(self.nodes.pop(key).view(1))

    def begin(self, need: int) -> None:
        """A group sets slots aside."""
        self.pool.alloc_group_begin(need)

    def end(self) -> None:
        """A group ends."""
        self.pool.alloc_group_end()

    def clear(self) -> None:
        """Everything starts anew between requests."""
        self.nodes.clear()
        self.texts = dict.fromkeys(self.texts, ())
        self.sessions = {s: StateHolder() for s in self.sessions}
        self.states.clear()

    def bad(self, kind: str) -> None:
        """Sends bad input; kinds see ``BAD`` in conformance.mamba_rules."""
        some = self.pool.free_slots[:1]

        def slots(number: int) -> Tensor:
            return torch.tensor([number], device=self.pool.device)

        calls: dict[str, Callable[[], Any]] = {
            "free_padding": lambda: self.pool.free(slots(0)),
            "free_outside": lambda: self.pool.free(slots(self.pool.size + 1)),
            "free_again": lambda: self.pool.free(some if some.numel() else slots(0)),
            "alloc_negative": lambda: self.pool.alloc(-1),
            "donate_nothing": lambda: self.states.donate(OurRequest()),
            "row_of_nobody": lambda: self.states.free(OurRequest()),
        }
        calls[kind]()

    # What can be seen.

    def observe(self) -> Seen:
        """The lists, the table, and what everybody names."""
        free, waiting = self.pool.free_slots.tolist(), self.pool.group_slots.tolist()
        requests = {n: _named(r) for n, r in self.requests.items()}
        rows = {n: self._row(r.req_pool_idx) for n, r in self.requests.items() if r.req_pool_idx is not None}
        sessions = {s: _named(holder) for s, holder in self.sessions.items()}
        nodes = {key: int(slot) for key, slot in self.nodes.items()}
        return Seen(free, self.pool.available_size(), waiting, requests, rows, sessions, nodes)

    def _row(self, row: int) -> Three:
        own = int(self.states.req_index_to_mamba_index_mapping[row])
        first, second = self.states.req_index_to_mamba_ping_pong_track_buffer_mapping[row].tolist()
        return own, first, second


def _named(holder: Holder) -> Named:
    slots = [holder.mamba_pool_idx, *(holder.mamba_ping_pong_track_buffer or ()), None, None][:3]
    own, first, second = (0 if slot is None else int(slot) for slot in slots)
    return Named((own, first, second), holder.mamba_next_track_idx or 0)
