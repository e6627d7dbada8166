"""Mamba states of a server that a release has built: track buffers, and copies in the pool of states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from conformance.engines.sglang.releases.release import TrackBuffers


class MadeCopies(NamedTuple):
    """Copies of states. ``copies``: each as the slots read and written. ``at_once``: see ``MambaSlotsSnapshot``."""

    copies: list[tuple[int, int]]
    at_once: frozenset[int]


def track_buffers(rows: Any) -> TrackBuffers:
    """The track buffers of the requests on these rows."""
    if not getattr(rows, "enable_mamba_extra_buffer", False):
        return TrackBuffers(doubled=False)
    doubled = int(rows.mamba_ping_pong_track_buffer_size) == 2
    return TrackBuffers(True, doubled, bool(getattr(rows, "enable_mamba_extra_buffer_lazy", False)))


class CopiesOfStates:
    """The copies that a release makes in its pool of states, from now on. ``pool``: ``None`` where there are no states.

    A copy is made at once, on the stream of the scheduler, unless it is made ``in_order``: as a part of a forward pass.
    """

    def __init__(self, pool: Any) -> None:
        self._made: list[tuple[int, int]] = []
        self._at_once: set[int] = set()
        self._in_order = False
        if pool is not None:
            self._watch(pool)

    def _watch(self, pool: Any) -> None:
        real = pool.copy_from

        def copy_from(sources: Tensor, targets: Tensor) -> Any:
            written = targets.view(-1).tolist()
            self._made.extend(zip(sources.view(-1).tolist(), written, strict=True))
            if not self._in_order:
                self._at_once.update(written)
            return real(sources, targets)

        pool.copy_from = copy_from

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """While this lasts, copies are made in the order of the forward passes."""
        before, self._in_order = self._in_order, True
        try:
            yield
        finally:
            self._in_order = before

    def taken(self) -> MadeCopies:
        """The copies since the last time that somebody asked."""
        made = MadeCopies(list(self._made), frozenset(self._at_once))
        self._made.clear()
        self._at_once.clear()
        return made


class StateMarks:
    """Whether a slot of a release's pool of states was cleared. ``pool``: ``None`` where there are no states.

    Here no pass computes a state. So where one is written, the slot of the release's own pool gets the number 1. The
    release's own calls copy it to other slots, and clear slots: those are zero.
    """

    def __init__(self, pool: Any) -> None:
        self._parts: list[Tensor] = [] if pool is None else [*pool.mamba_cache.conv, pool.mamba_cache.temporal]

    def write(self, slots: Iterable[int]) -> None:
        """States are written to these slots."""
        written = [slot for slot in slots if slot]
        for part in self._parts if written else ():
            part[:, written] = 1

    def cleared(self, slot: int) -> bool:
        """No part of a state is left in the slot."""
        return not any(bool(part[:, slot].any()) for part in self._parts)
