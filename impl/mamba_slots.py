"""What requests, streaming sessions and the tree have of a pool of mamba state slots.

A request names what it has by three attributes, as engines' requests do; what it does not have is ``None``, never a
number, and whoever gives a slot away forgets its name in the same call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from impl import checks
from impl.states import MambaSlotAllocator

__all__ = ["Holder", "MambaSlotAllocator", "MambaStates", "StateHolder", "TrackBuffer"]

TrackBuffer = list[Tensor | None]


class Holder(Protocol):
    """Who can have slots: its own state, a track buffer with ``None`` for what is absent, and which track is next."""

    mamba_pool_idx: Tensor | None
    mamba_ping_pong_track_buffer: TrackBuffer | None
    mamba_next_track_idx: int | None
    req_pool_idx: int | None


@dataclass(eq=False)
class StateHolder:
    """A holder with nothing: the record of a request, or the slot of a streaming session."""

    mamba_pool_idx: Tensor | None = None
    mamba_ping_pong_track_buffer: TrackBuffer | None = None
    mamba_next_track_idx: int | None = None
    req_pool_idx: int | None = None


class MambaStates:
    """Request rows ``1..size``, each with its states: own, and a track buffer of ``buffer_size`` slots (0: none).

    ``lazy``: the second slot of a buffer is there only around a tracking boundary. Every call is all or nothing.
    """

    def __init__(
        self, size: int, mamba_size: int, *, buffer_size: int = 2, lazy: bool = False,
        device: str | torch.device = "cpu", debug: bool = False,
    ) -> None:  # fmt: skip
        if buffer_size not in (0, 1, 2) or (lazy and buffer_size < 2):
            raise ValueError(f"buffer_size must be 0, 1 or 2, and 2 if lazy, got {buffer_size}")
        self.size, self.buffer_size, self.lazy = checks.whole("size", size, 1), buffer_size, lazy
        self.mamba_allocator = MambaSlotAllocator(mamba_size, device, debug=debug)
        self.device = self.mamba_allocator.device
        self._table = torch.zeros((size + 1, 3), dtype=torch.int64, device=self.device)
        self._padding = torch.zeros((), dtype=torch.int64, device=self.device)
        self._rows = list(range(size, 0, -1))

    @property
    def req_index_to_mamba_index_mapping(self) -> Tensor:
        """``[size + 1]``: the own state of each row; what kernels read."""
        return self._table[:, 0]

    @property
    def req_index_to_mamba_ping_pong_track_buffer_mapping(self) -> Tensor:
        """``[size + 1, 2]``: the track buffer of each row, 0 (padding) for what is absent."""
        return self._table[:, 1:]

    def available_size(self) -> int:
        """Rows that can be given out."""
        return len(self._rows)

    def clear(self) -> None:
        """All rows and slots free; the caller's requests and sessions must have nothing."""
        self.mamba_allocator.clear()
        self._table.zero_()
        self._rows = list(range(self.size, 0, -1))

    # Requests.

    def alloc(self, reqs: Sequence[Holder]) -> list[int] | None:
        """Rows for the requests, and the states that they do not have yet; None where rows or slots do not suffice."""
        fresh = [req for req in reqs if req.req_pool_idx is None]
        needs = [self._needs(req) for req in reqs]
        if len(set(map(id, reqs))) < len(reqs):
            raise ValueError("reqs must not hold a request twice")
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

    def alloc_for_match(self, req: Holder) -> Tensor | None:
        """Copy-on-write: a slot for a copy of a node's state, before the request has a row. The caller copies."""
        if req.mamba_pool_idx is not None:
            raise ValueError("the request has a state already")
        slots = self.mamba_allocator.alloc(1)
        req.mamba_pool_idx = None if slots is None else slots[0]
        return req.mamba_pool_idx

    def free(self, req: Holder) -> None:
        """The request's row is free again. ValueError if it has none."""
        self._rows.append(self._row(req))
        req.req_pool_idx = None

    def free_mamba_cache(self, req: Holder, mamba_ping_pong_track_buffer_to_keep: int | None = None) -> Tensor | None:
        """Give back all that the request has and forget it, but one track that is kept and returned: the tree's now."""
        keep = mamba_ping_pong_track_buffer_to_keep
        kept = None if keep is None else self._track(req, keep)
        self._give_back([slot for slot in self.named(req) if slot is not kept])
        self._forget(req)
        return kept

    def release(self, reqs: Iterable[Holder]) -> None:
        """Give back all that the requests have, and their rows, in one call; the same for requests without a row."""
        given = list(reqs)
        self._give_back(list(chain.from_iterable(map(self.named, given))))
        for req in given:
            self._forget(req)
            if req.req_pool_idx is not None:
                self.free(req)

    # The track buffer.

    def get_mamba_ping_pong_other_idx(self, idx: int) -> int:
        """The track after this one."""
        return 1 - idx if self.buffer_size == 2 else idx

    def get_mamba_ping_pong_keep_idx(self, req: Holder) -> int:
        """The track with the newest state: the one that is not next, or the one that is there."""
        return self._next(req) if self.lazy else self.get_mamba_ping_pong_other_idx(self._next(req))

    def track(self, req: Holder) -> None:
        """A state was written to the next track; the other one is next. A lazy buffer changes at boundaries alone."""
        if not self.lazy:
            req.mamba_next_track_idx = self.get_mamba_ping_pong_other_idx(self._next(req))

    def alloc_second(self, req: Holder) -> bool:
        """At a boundary: a lazy buffer's absent track, which is next then. False without room, and nothing changes."""
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
        """After a boundary: the track of a lazy buffer that is not next is given back, if it is there."""
        at = 1 - self._lazy_next(req)
        if (slot := self._buffer(req)[at]) is not None:
            self._give_back([slot])
            self.set_mamba_ping_pong_slot(req, at, None)

    def set_mamba_ping_pong_slot(self, req: Holder, idx: int, value: Tensor | None) -> None:
        """Put a slot, or nothing, into the buffer and its row."""
        self._buffer(req)[idx] = value
        self._write([req])

    def donate_mamba_ping_pong_slot(self, req: Holder, new_slot: Tensor) -> Tensor:
        """The track with the newest state, which is the caller's now; ``new_slot`` (``[1]``) takes its place."""
        at = self.get_mamba_ping_pong_keep_idx(req)
        donated = self._track(req, at)
        self.set_mamba_ping_pong_slot(req, at, new_slot[0])
        return donated

    def donate(self, req: Holder) -> Tensor:
        """The newest state of a request that ends, which is the caller's now; give back the rest next."""
        if self.buffer_size:
            at = self.get_mamba_ping_pong_keep_idx(req)
            donated = self._track(req, at)
            self._buffer(req)[at] = None
            return donated
        if req.mamba_pool_idx is None:
            raise ValueError("the request has no state to donate")
        donated, req.mamba_pool_idx = req.mamba_pool_idx, None
        return donated

    # Sessions.

    def save(self, req: Holder, session: Holder) -> None:
        """All that the request has, with its row, is the session's. ValueError if the session has something."""
        self._move(req, session)

    def restore(self, session: Holder, req: Holder) -> None:
        """All that the session has, with its row, is the request's. ValueError if the request has something."""
        self._move(session, req)

    @staticmethod
    def _move(giver: Holder, taker: Holder) -> None:
        if (taker.mamba_pool_idx, taker.mamba_ping_pong_track_buffer, taker.req_pool_idx) != (None, None, None):
            raise ValueError("the taker has states or a row of its own")
        for name in ("mamba_pool_idx", "mamba_ping_pong_track_buffer", "mamba_next_track_idx", "req_pool_idx"):
            setattr(taker, name, getattr(giver, name))
            setattr(giver, name, None)

    # Helpers.

    def _needs(self, req: Holder) -> tuple[int, int]:
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
        if not reqs:
            return
        rows = torch.tensor([self._row(req) for req in reqs])
        named = [(req.mamba_pool_idx, *(req.mamba_ping_pong_track_buffer or ()), None, None)[:3] for req in reqs]
        values = torch.stack([self._padding if slot is None else slot for slot in chain.from_iterable(named)])
        where = rows if self.device.type == "cpu" else rows.pin_memory().to(self.device, non_blocking=True)
        self._table.index_copy_(0, where, values.view(-1, 3))

    @staticmethod
    def named(req: Holder) -> list[Tensor]:
        """The slots that the request or the session's slot has."""
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
            raise ValueError("the request has no row")
        return req.req_pool_idx

    @staticmethod
    def _buffer(req: Holder) -> TrackBuffer:
        if req.mamba_ping_pong_track_buffer is None:
            raise ValueError("the request has no track buffer")
        return req.mamba_ping_pong_track_buffer

    def _track(self, req: Holder, at: int) -> Tensor:
        slot = self._buffer(req)[at] if 0 <= at < self.buffer_size else None
        if slot is None:
            raise ValueError(f"the request has no track {at}")
        return slot

    @staticmethod
    def _next(req: Holder) -> int:
        if req.mamba_next_track_idx is None:
            raise ValueError("the request has no track buffer")
        return req.mamba_next_track_idx

    def _lazy_next(self, req: Holder) -> int:
        if not self.lazy:
            raise ValueError("the buffer is not lazy: its second track is always there")
        return self._next(req)
