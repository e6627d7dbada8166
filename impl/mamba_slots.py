"""The recurrent (mamba) states of requests and streaming sessions, in slots of one pool.

A request names the slots it has in three attributes, with the names of SGLang's ``Req``. What it does not have is
``None``, never a number, and whoever gives a slot away clears the name in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from impl import checks
from impl.host import StreamOrder, upload
from impl.states import MambaSlotAllocator

__all__ = ["Holder", "MambaSlotAllocator", "MambaStates", "StateHolder", "TrackBuffer"]

TrackBuffer = list[Tensor | None]  # slots (int64 without dimensions), None for a track that is absent


class Holder(Protocol):
    """Who can have slots: a request, or the slot of a streaming session.

    ``mamba_pool_idx``: the slot of its own state (int64 without dimensions, on the device).
    ``mamba_ping_pong_track_buffer``: the slots to which states are written at tracking boundaries.
    ``mamba_next_track_idx``: which track of the buffer is written next. ``req_pool_idx``: its row.
    """

    mamba_pool_idx: Tensor | None
    mamba_ping_pong_track_buffer: TrackBuffer | None
    mamba_next_track_idx: int | None
    req_pool_idx: int | None


@dataclass(eq=False)
class StateHolder:
    """A ``Holder`` that has nothing yet, for callers without a request class of their own."""

    mamba_pool_idx: Tensor | None = None
    mamba_ping_pong_track_buffer: TrackBuffer | None = None
    mamba_next_track_idx: int | None = None
    req_pool_idx: int | None = None


class MambaStates:
    """The rows ``1..size`` of a request table, each with the slot of its own state and its track buffer.

    Stands in for the state bookkeeping of SGLang's ``HybridReqToTokenPool``. ``mamba_size``: state slots of the pool.
    ``buffer_size``: tracks of a buffer; 0 for no buffers. ``lazy``: the second track is there only around a tracking
    boundary. ``mamba_allocator``: the pool, if the caller has made it; ValueError if its size or device differ.

    Every call does all or nothing: an error, or an answer None for want of slots or rows, leaves everything as it was.
    ``reqs`` and sessions: objects with the attributes of ``Holder``, which the calls read and set.
    """

    def __init__(
        self, size: int, mamba_size: int, *, buffer_size: int = 2, lazy: bool = False,
        device: str | torch.device = "cpu", debug: bool = False, mamba_allocator: MambaSlotAllocator | None = None,
    ) -> None:  # fmt: skip
        if buffer_size not in (0, 1, 2) or (lazy and buffer_size < 2):
            raise ValueError(f"buffer_size must be 0, 1 or 2, and 2 if lazy, got {buffer_size}")
        self.size, self.buffer_size, self.lazy = checks.integer("size", size, 1), buffer_size, lazy
        self.mamba_allocator = mamba_allocator or MambaSlotAllocator(mamba_size, device, debug=debug)
        pool = self.mamba_allocator
        checks.part("mamba_allocator", size=(pool.size, mamba_size), device=(pool.device, torch.device(device)))
        self.device = self.mamba_allocator.device
        self._table = torch.zeros((size + 1, 3), dtype=torch.int64, device=self.device)
        self._padding = torch.zeros((), dtype=torch.int64, device=self.device)
        self._order = StreamOrder(self.device)
        self._rows = list(range(size, 0, -1))

    @property
    def req_index_to_mamba_index_mapping(self) -> Tensor:
        """``[size + 1]`` int64 on the device: the slot of each row's own state, for the model's kernels. A view."""
        return self._table[:, 0]

    @property
    def req_index_to_mamba_ping_pong_track_buffer_mapping(self) -> Tensor:
        """``[size + 1, 2]`` int64 on the device: each row's track buffer, 0 (padding) for an absent track. A view."""
        return self._table[:, 1:]

    def available_size(self) -> int:
        """How many rows are free."""
        return len(self._rows)

    def clear(self) -> None:
        """Make all rows and slots free. The caller's requests and sessions must not use theirs any more."""
        self.mamba_allocator.clear()
        self._in_order()
        self._table.zero_()
        self._rows = list(range(self.size, 0, -1))

    # Requests.

    def alloc(self, reqs: Sequence[Holder]) -> list[int] | None:
        """Give each request a row, an own state and a track buffer, as far as it has none yet.

        Returns the rows of all requests, in order, or None if rows or slots are short. ValueError for a request that is
        there twice.
        """
        fresh = [req for req in reqs if req.req_pool_idx is None]
        needs = [self._needs(req) for req in reqs]
        if len(set(map(id, reqs))) < len(reqs):
            raise ValueError("reqs must be different requests, got a request twice")
        slots = self.mamba_allocator.alloc(sum(map(sum, needs))) if len(fresh) <= len(self._rows) else None
        if slots is None:
            return None
        parts = iter(slots.unbind())
        for req, (own, tracks) in zip(reqs, needs, strict=True):
            self._equip(req, parts, own, tracks)
        for req in fresh:
            req.req_pool_idx = self._rows.pop()
        self._write(reqs)
        return [req.req_pool_idx for req in reqs if req.req_pool_idx is not None]

    def slots_needed(self, reqs: Sequence[Holder]) -> int:
        """How many slots ``alloc`` would take for these requests."""
        return sum(sum(self._needs(req)) for req in reqs)

    def alloc_for_match(self, req: Holder) -> Tensor | None:
        """Take a slot for a copy of a tree node's state (copy-on-write), before the request has a row.

        The caller copies. Returns the slot (int64 without dimensions), or None if no slot is free. ValueError if the
        request has an own state already.
        """
        if req.mamba_pool_idx is not None:
            raise ValueError("req: expected a request without an own state, it has a state already")
        slots = self.mamba_allocator.alloc(1)
        req.mamba_pool_idx = None if slots is None else slots[0]
        return req.mamba_pool_idx

    def free(self, req: Holder) -> None:
        """Make the request's row free; its states stay its own. ValueError if it has no row."""
        self._rows.append(self._row(req))
        req.req_pool_idx = None

    def free_mamba_cache(self, req: Holder, mamba_ping_pong_track_buffer_to_keep: int | None = None) -> Tensor | None:
        """Give back all slots of the request and clear their names; its row stays.

        ``mamba_ping_pong_track_buffer_to_keep``: a track whose slot is not given back but returned; the caller owns it
        from now on. ValueError if the request has no such track.
        """
        keep = mamba_ping_pong_track_buffer_to_keep
        kept = None if keep is None else self._track(req, keep)
        self._give_back([slot for slot in self.named(req) if slot is not kept])
        self._forget(req)
        return kept

    def release(self, reqs: Iterable[Holder]) -> None:
        """Give back all slots of the requests in one free, clear their names, and make their rows, if any, free."""
        given = list(reqs)
        self._give_back(list(chain.from_iterable(map(self.named, given))))
        for req in given:
            self._forget(req)
            if req.req_pool_idx is not None:
                self.free(req)

    # The track buffer.

    def get_mamba_ping_pong_other_idx(self, idx: int) -> int:
        """The track that is written after track ``idx``."""
        return 1 - idx if self.buffer_size == 2 else idx

    def get_mamba_ping_pong_keep_idx(self, req: Holder) -> int:
        """The track with the newest state: the one that is not next; of a lazy buffer the one that is there."""
        return self._next(req) if self.lazy else self.get_mamba_ping_pong_other_idx(self._next(req))

    def track(self, req: Holder) -> None:
        """A state was written to the next track, so the other one is next.

        A lazy buffer changes its next track in ``alloc_second`` instead.
        """
        if not self.lazy:
            req.mamba_next_track_idx = self.get_mamba_ping_pong_other_idx(self._next(req))

    def alloc_second(self, req: Holder) -> bool:
        """Before a tracking boundary: give a lazy buffer its absent track, which is written next.

        False, with nothing changed, if no slot is free. ValueError if the buffer is not lazy.
        """
        at = 1 - self._lazy_next(req)
        if self._buffer(req)[at] is not None:
            return True
        slots = self.mamba_allocator.alloc(1)
        if slots is None:
            return False
        self.set_mamba_ping_pong_slot(req, at, slots[0])
        req.mamba_next_track_idx = at
        return True

    def give_second(self, req: Holder) -> None:
        """After a tracking boundary: give back the track of a lazy buffer that is not next, if it is there.

        ValueError if the buffer is not lazy.
        """
        at = 1 - self._lazy_next(req)
        if (slot := self._buffer(req)[at]) is not None:
            self._give_back([slot])
            self.set_mamba_ping_pong_slot(req, at, None)

    def set_mamba_ping_pong_slot(self, req: Holder, idx: int, value: Tensor | None) -> None:
        """Set track ``idx`` of the request's buffer, and in the row's table, to a slot, or to None for absent."""
        self._buffer(req)[idx] = value
        self._write([req])

    def donate_mamba_ping_pong_slot(self, req: Holder, new_slot: Tensor) -> Tensor:
        """Take the slot with the newest state out of the buffer and put ``new_slot`` (``[1]`` int64) in its place.

        Returns the slot (int64 without dimensions); the caller, for instance a tree node, owns it from now on.
        """
        at = self.get_mamba_ping_pong_keep_idx(req)
        donated = self._track(req, at)
        self.set_mamba_ping_pong_slot(req, at, new_slot[0])
        return donated

    def donate(self, req: Holder) -> Tensor:
        """Take the slot with the newest state from a request that ends.

        It is a track of the buffer, or, without a buffer, the own state. Returns the slot (int64 without dimensions),
        which the caller owns from now on. The caller then gives back the rest by ``release`` or ``free_mamba_cache``.
        """
        if self.buffer_size:
            at = self.get_mamba_ping_pong_keep_idx(req)
            donated = self._track(req, at)
            self._buffer(req)[at] = None
            return donated
        if req.mamba_pool_idx is None:
            raise ValueError("req: expected a request with an own state, it has no state to donate")
        donated, req.mamba_pool_idx = req.mamba_pool_idx, None
        return donated

    # Sessions.

    def save(self, req: Holder, session: Holder) -> None:
        """A turn ends: the session gets all that the request has, with its row. ValueError if it has anything yet."""
        self._move(req, session, "session")

    def restore(self, session: Holder, req: Holder) -> None:
        """The next turn: the request gets all that the session has, with its row. ValueError if it has anything yet."""
        self._move(session, req, "req")

    @staticmethod
    def _move(giver: Holder, taker: Holder, name: str) -> None:
        if (taker.mamba_pool_idx, taker.mamba_ping_pong_track_buffer, taker.req_pool_idx) != (None, None, None):
            raise ValueError(f"{name}: expected one with no state, track buffer or row, it has some of its own")
        for attribute in ("mamba_pool_idx", "mamba_ping_pong_track_buffer", "mamba_next_track_idx", "req_pool_idx"):
            setattr(taker, attribute, getattr(giver, attribute))
            setattr(giver, attribute, None)

    # Helpers.

    def _needs(self, req: Holder) -> tuple[int, int]:
        """How many slots the request lacks: for its own state, and for its buffer."""
        tracks = 1 if self.lazy else self.buffer_size
        return int(req.mamba_pool_idx is None), tracks if req.mamba_ping_pong_track_buffer is None else 0

    def _equip(self, req: Holder, slots: Iterator[Tensor], own: int, tracks: int) -> None:
        if own:
            req.mamba_pool_idx = next(slots)
        if tracks:
            first = [next(slots) for _ in range(tracks)]
            req.mamba_ping_pong_track_buffer = [*first, *([None] * (self.buffer_size - tracks))]
            req.mamba_next_track_idx = 0

    def _write(self, reqs: Sequence[Holder]) -> None:
        """Write what the requests have into their rows of the table."""
        if not reqs:
            return
        self._in_order()
        rows = torch.tensor([self._row(req) for req in reqs])
        named = [(req.mamba_pool_idx, *(req.mamba_ping_pong_track_buffer or ()), None, None)[:3] for req in reqs]
        values = torch.stack([self._padding if slot is None else slot for slot in chain.from_iterable(named)])
        self._table.index_copy_(0, upload(rows, self.device), values.view(-1, 3))

    def _in_order(self) -> None:
        """A call begins that writes the table on the current stream."""
        self._order.follow(lambda: [self._table, self._padding])

    @staticmethod
    def named(req: Holder) -> list[Tensor]:
        """All slots that the request or session has."""
        found = (req.mamba_pool_idx, *(req.mamba_ping_pong_track_buffer or ()))
        return [slot for slot in found if slot is not None]

    def _give_back(self, slots: list[Tensor]) -> None:
        if slots:
            self.mamba_allocator.free(torch.stack(slots))

    @staticmethod
    def _forget(req: Holder) -> None:
        req.mamba_pool_idx = req.mamba_ping_pong_track_buffer = req.mamba_next_track_idx = None

    @staticmethod
    def _row(req: Holder) -> int:
        if req.req_pool_idx is None:
            raise ValueError("req: expected a request with a row, it has no row")
        return req.req_pool_idx

    @staticmethod
    def _buffer(req: Holder) -> TrackBuffer:
        if req.mamba_ping_pong_track_buffer is None:
            raise ValueError("req: expected a request with a track buffer, it has no track buffer")
        return req.mamba_ping_pong_track_buffer

    def _track(self, req: Holder, at: int) -> Tensor:
        slot = self._buffer(req)[at] if 0 <= at < self.buffer_size else None
        if slot is None:
            raise ValueError(f"req: expected a request with track {at}, it has no track {at}")
        return slot

    @staticmethod
    def _next(req: Holder) -> int:
        if req.mamba_next_track_idx is None:
            raise ValueError("req: expected a request with a track buffer, it has no track buffer")
        return req.mamba_next_track_idx

    def _lazy_next(self, req: Holder) -> int:
        if not self.lazy:
            raise ValueError(
                "req: expected a lazy track buffer, this one is not lazy: its second track is always there"
            )
        return self._next(req)
