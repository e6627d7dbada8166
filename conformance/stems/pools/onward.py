"""Drives an allocator on after a law was broken: its rows grow and end, as its caller would let them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from conformance.driver.onward import Move, send
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.pools.calls import PoolCalls
from conformance.stems.pools.contents import HOLE, Growth
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot


class OnwardPools:
    """The rows of a run of ``allocator`` or ``swa_mapping``, driven without the law."""

    def __init__(self, run: Any) -> None:
        calls: PoolCalls = run.calls
        self.run, self.engine, self.passes, self.shadow = run, run.engine, calls.passes, run.shadow
        self.size, self.slots = calls.page_size, {row: list(slots) for row, slots in calls.slots.items()}
        for row, before, new in self.passes.last:  # a batch that the law refused is not in the caller's table
            if len(self.slots[row]) == len(before) < len(self.passes.texts.get(row, ())):
                self.slots[row] = [*before, *new]
        self.strangers: list[int] = []
        self.open = int(run.law.state.group)
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": self.begin,
            "guest": self.guest,
            "stranger": self.stranger,
            "decode": self.decode,
            "finish": self.finish,
            "leave": self.leave,
        }

    def begin(self) -> Move:
        """Free groups that are open end."""
        while self.open:
            self.open -= 1
            send(self.run, self.engine.end_group)
            yield "end the free group", None

    def stranger(self) -> Move:
        """An empty row takes all pages that are available."""
        yield from self._comes(self._pages())

    def guest(self) -> Move:
        """An empty row takes a page."""
        yield from self._comes(min(self._pages(), 1))

    def _comes(self, pages: int) -> Move:
        row = next((r for r, slots in self.slots.items() if not slots), None)
        if row is not None and pages:
            self.strangers.append(row)
            yield from self._grow(row, pages * self.size)

    def decode(self) -> Move:
        """Each row that has tokens grows by a token, or by a page where the engine hands out whole pages alone."""
        for row, slots in self.slots.items():
            if slots and row not in self.strangers and (self._pages() or len(slots) % self.size):
                yield from self._grow(row, self.size if "extend" in self.run.lacks else 1)

    def finish(self) -> Move:
        """The first row that has tokens ends."""
        for row in [r for r, slots in self.slots.items() if slots][:1]:
            yield from self._end(row)

    def leave(self) -> Move:
        """The strangers end."""
        for row in list(self.strangers):
            yield from self._end(row)

    # Calls.

    def _pages(self) -> int:
        """How many pages every pool has available."""
        seen: AllocatorSnapshot | SwaMappingSnapshot = self.run.seen
        pools = (seen.full, seen.swa) if isinstance(seen, SwaMappingSnapshot) else (seen,)
        return min(pool.available for pool in pools) // self.size

    def _grow(self, row: int, more: int) -> Move:
        slots = self.slots[row]
        before, last = len(slots), slots[-1] if slots else HOLE
        if "extend" not in self.run.lacks:
            answer = send(self.run, lambda: self.engine.extend([before], [before + more], [last]))
        elif before % self.size or more % self.size:
            return
        else:
            answer = send(self.run, lambda: self.engine.alloc(more))
        if answer is None or len(answer) != more:
            return
        self.passes.grow([Growth(row, slots, answer)])
        self.slots[row] = [*slots, *answer]
        yield f"row {row} grows by {more} tokens", self.shadow.wrong

    def _end(self, row: int) -> Move:
        slots = [slot for slot in self.slots[row] if slot != HOLE]
        mapped = {slot // self.size for slot in slots if self.run.swa_slot(slot)}
        bare = [s for s in slots if "free_unmapped" in self.run.lacks and s // self.size not in mapped]
        for call, part in (("free", [s for s in slots if s not in bare]), ("free_full", bare)):
            if part:
                send(self.run, partial(getattr(self.engine, call), part))
        self.slots[row] = []
        self.passes.cut(row, 0)
        self.strangers = [r for r in self.strangers if r != row]
        if slots:
            yield f"row {row} ends", None
