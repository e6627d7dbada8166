"""Our mamba state slots as an engine: ``MambaStates`` with a small tree of states, called as a scheduler calls them.

The stem ``cache`` drives the states of our session cache (``impl.mamba_in_cache``). They cannot replace this small
scheduler. In the cache a state stays with its row, so that no request waits with a copy, or comes again with slots
that it names. And no caller of the cache opens a group of state slots or clears the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.driver.protocol import Json, Key, OutOfMemory
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, SlotNames, Three
from impl.mamba_slots import Holder, MambaSlotAllocator, MambaStates, StateHolder


@dataclass(eq=False)
class OurRequest(StateHolder):
    """A request.

    ``text``: its token ids. ``tracked``: after so many of them its newest state was tracked. ``session``: 0 if it has
    none. ``resumed``: it goes on from what its session saved.
    """

    text: Key = ()
    tracked: int = 0
    session: int = 0
    resumed: bool = False


class StateTree:
    """A tree that keeps states by their token ids, and evicts the oldest first."""

    def __init__(self, pool: MambaSlotAllocator) -> None:
        self.pool = pool
        self.states: dict[Key, Tensor] = {}

    def keep(self, key: Key, state: Tensor) -> None:
        """Keeps the state for the key, or frees it if the tree has one for this key."""
        if key in self.states:
            self.pool.free(state.view(1))
        else:
            self.states[key] = state

    def evict(self, count: int) -> None:
        """Frees the ``count`` oldest states."""
        for key in list(self.states)[:count]:
            self.pool.free(self.states.pop(key).view(1))

    def make_room(self, slots: int, spared: Key | None = None) -> None:
        """Frees states, the oldest first, until ``slots`` slots are free or no other state is left. Never frees that
        of ``spared``.
        """
        while self.pool.available_size() + len(self.pool.group_slots) < slots:
            key = next((key for key in self.states if key != spared), None)
            if key is None:
                return
            self.pool.free(self.states.pop(key).view(1))


def longest(states: Collection[Key], text: Key) -> Key | None:
    """The longest prefix of a text among the keys that have a state."""
    return max((key for key in states if key == text[: len(key)]), key=len, default=None)


def donate_newest(states: MambaStates, request: OurRequest, key: Key, tree: StateTree) -> None:
    """A request that ends donates its newest state to the tree, as the state of ``key``, and frees its other slots."""
    if key:
        tree.keep(key, states.donate(request))
    states.release([request])


def give_all_back(states: MambaStates, request: OurRequest) -> None:
    """A request that is aborted frees all its slots."""
    states.release([request])


End = Callable[[MambaStates, OurRequest, Key, StateTree], None]
Abort = Callable[[MambaStates, OurRequest], None]
Find = Callable[[Collection[Key], Key], Key | None]


class OurStates:
    """Requests and sessions over ``states``: a ``MambaSlotsEngine``.

    ``end`` is called where a request without a session ends, ``abort`` where a request is aborted. ``find`` finds
    the node that a request matches. A faulty variant has other functions.
    """

    fragile = False

    def __init__(
        self,
        states: MambaStates,
        sessions: int,
        lacks: Collection[str] = (),
        end: End = donate_newest,
        abort: Abort = give_all_back,
        find: Find = longest,
    ) -> None:
        self.states, self.pool = states, states.mamba_allocator
        self.lacks: Collection[str] = frozenset(lacks)
        self.buffered = states.buffer_size > 0
        self._end, self._abort, self._find = end, abort, find
        self.tree = StateTree(self.pool)
        self.requests: dict[int, OurRequest] = {}
        self.sessions = {session: StateHolder() for session in range(1, sessions + 1)}
        self.texts: dict[int, Key] = dict.fromkeys(self.sessions, ())

    # A request comes.

    def match(self, request: int, tokens: Sequence[int], session: int, again: bool) -> Key | None:
        """A request comes and matches. Returns the node of whose state it got a copy, ``None`` if it got none."""
        if not again:
            self.requests[request] = OurRequest()
        one = self.requests[request]
        one.text = (*self.texts.get(session, ()), *tokens)
        one.session, one.tracked, one.resumed = session, 0, False
        if session and self.sessions[session].mamba_pool_idx is not None:
            self.states.restore(self.sessions[session], one)
            one.resumed = True
            return None
        found = self._find(self.tree.states, one.text)
        if found is None or one.mamba_pool_idx is not None:
            return None
        self.tree.make_room(1, found)
        if self.states.alloc_for_match(one) is None:
            raise OutOfMemory
        return found

    def admit(self, requests: Sequence[int]) -> None:
        """A batch gets rows and slots. The tree frees states for it first."""
        batch = [self.requests[request] for request in requests]
        self.tree.make_room(sum(map(self._missing, batch)))
        if self.states.alloc(batch) is None:
            raise OutOfMemory
        for one in batch:
            _decode(one)

    def _missing(self, one: OurRequest) -> int:
        """How many slots the request gets when it is admitted."""
        tracks = 1 if self.states.lazy else self.states.buffer_size
        return (one.mamba_pool_idx is None) + tracks * (one.mamba_ping_pong_track_buffer is None)

    # A request works.

    def track(self, request: int) -> None:
        """The state is written to the next track. Then the other track is next, unless the buffer is lazy."""
        one = self.requests[request]
        _decode_and_track(one)
        self.states.track(one)

    def boundary(self, request: int) -> None:
        """A lazy track buffer gets its second slot before a step that tracks."""
        self.tree.make_room(1)
        self.states.alloc_second(self.requests[request])

    def settle(self, request: int) -> None:
        """A lazy track buffer gives back one slot after the step."""
        _decode_and_track(self.requests[request])
        self.states.give_second(self.requests[request])

    def slide(self, request: int) -> None:
        """A long decode. This tree keeps its states wherever the window is."""
        for _ in range(4):
            _decode(self.requests[request])

    def cache(self, request: int) -> None:
        """A request that runs puts its newest state into the tree. A node that has a state keeps its own. A track that
        was given away is nobody's newest state any more: the request has none to give until it tracks the next.
        """
        one = self.requests[request]
        key = self._cached(one)
        if one.resumed or not key:
            return
        self.tree.make_room(1)
        new = self.pool.alloc(1)
        if new is None:
            raise OutOfMemory
        self.tree.keep(key, self.states.donate_mamba_ping_pong_slot(one, new) if self.buffered else new[0])
        one.tracked = 0

    def _cached(self, one: OurRequest) -> Key:
        """The token ids after which the newest state was made that the request can give away."""
        return one.text[: one.tracked] if self.buffered else one.text

    # A request leaves.

    def finish(self, request: int) -> None:
        """A session's turn is saved. Any other request donates its newest state to the tree."""
        one = self.requests[request]
        if one.session:
            self._save(one)
        else:
            self._end(self.states, one, self._cached(one), self.tree)

    def _save(self, one: OurRequest) -> None:
        self.texts[one.session] = one.text
        self.states.save(one, self.sessions[one.session])

    def abort(self, request: int) -> None:
        """The request frees all its slots, and its session begins anew."""
        one = self.requests[request]
        self.texts[one.session] = ()
        self._abort(self.states, one)

    def withdraw(self, request: int) -> None:
        """A turn that has taken over its session's states gives them back to its session. Any other request frees what
        it has.
        """
        one = self.requests[request]
        if one.resumed:
            self._save(one)
        else:
            self.states.release([one])

    def retract(self, request: int) -> None:
        """A session's turn is saved. Any other request frees its slots."""
        one = self.requests[request]
        if one.session:
            self._save(one)
        else:
            self.states.release([one])

    def close(self, session: int) -> None:
        """The session's slot frees its states."""
        self.texts[session] = ()
        self.states.release([self.sessions[session]])

    # The pool and the tree.

    def evict(self, states: int) -> None:
        """The tree frees its oldest states."""
        self.tree.evict(states)

    def begin_group(self, need: int) -> None:
        """``alloc_group_begin``: sets slots aside."""
        self.pool.alloc_group_begin(need)

    def end_group(self) -> None:
        """``alloc_group_end``."""
        self.pool.alloc_group_end()

    def clear(self) -> None:
        """Frees every slot, and empties tree and sessions."""
        self.tree.states.clear()
        self.texts = dict.fromkeys(self.texts, ())
        self.sessions = {session: StateHolder() for session in self.sessions}
        self.states.clear()

    def bad(self, kind: str) -> None:
        """Sends bad input; the kinds are ``BAD`` in conformance/stems/mamba_slots/rules.py."""
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

    # The snapshot.

    def snapshot(self) -> MambaSlotsSnapshot:
        """The lists, the rows, and the slots that requests, sessions and tree nodes name."""
        own: list[int] = self.states.req_index_to_mamba_index_mapping.tolist()
        tracks: list[list[int]] = self.states.req_index_to_mamba_ping_pong_track_buffer_mapping.tolist()
        rows: dict[int, Three] = {}
        for number, one in self.requests.items():
            if (row := one.req_pool_idx) is not None:
                rows[number] = (own[row], tracks[row][0], tracks[row][1])
        return MambaSlotsSnapshot(
            self.pool.free_slots.tolist(),
            self.pool.available_size(),
            self.pool.group_slots.tolist(),
            {number: _named(one) for number, one in self.requests.items()},
            rows,
            {session: _named(holder) for session, holder in self.sessions.items()},
            {key: int(slot) for key, slot in self.tree.states.items()},
        )


def _decode(one: OurRequest) -> None:
    one.text = (*one.text, len(one.text) + 1)


def _decode_and_track(one: OurRequest) -> None:
    """Tracks the state after the tokens so far; then one more token follows."""
    one.tracked = len(one.text)
    _decode(one)


def _named(holder: Holder) -> SlotNames:
    """The slots that a holder names, 0 for an absent slot."""
    own, tracks = holder.mamba_pool_idx, holder.mamba_ping_pong_track_buffer or ()
    first, second = (*(0 if slot is None else int(slot) for slot in tracks), 0, 0)[:2]
    return SlotNames((0 if own is None else int(own), first, second), holder.mamba_next_track_idx or 0)


def mamba_slots(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    states: Callable[..., MambaStates] = MambaStates,
    allocator: Callable[..., MambaSlotAllocator] = MambaSlotAllocator,
    end: End = donate_newest,
    abort: Abort = give_all_back,
    find: Find = longest,
    **options: Any,
) -> OurStates:
    """The state slots with a tree of states. On CUDA ``debug`` is on, so that bad input is found there too.

    ``states`` and ``allocator`` make the state slots and their pool. ``end``, ``abort`` and ``find``: see
    ``OurStates``. All of them may be faulty variants.
    """
    tracks = 0 if not config["buffered"] else 2 if config["doubled"] else 1
    rows, lazy = config["requests"] + config["sessions"], config["lazy"] and tracks == 2
    on = {"device": device, "debug": device != "cpu", **options}
    pool = allocator(config["size"], **on)
    made = states(rows, config["size"], buffer_size=tracks, lazy=lazy, mamba_allocator=pool, **on)
    return OurStates(made, config["sessions"], lacks, end, abort, find)
