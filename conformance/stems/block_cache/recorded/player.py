"""What the recorded scheduler shows after each call, as far as the call has changed it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformance.recording.block_records import (
    KINDS,
    NOBODY,
    RecordedCall,
    RecordedDone,
    RecordedLaunch,
    RecordedMove,
    RecordedStart,
    TableChange,
)
from conformance.stems.block_cache.copied import StatesOfPasses, WithoutCopies
from conformance.stems.block_cache.protocol import NEW, RESUMED, RUNNING, Known, Launched, Move, RequestPass, sizes_of
from conformance.stems.block_pool.protocol import NULL

WITHOUT_NAME = ("get", "evict")


@dataclass
class ShownBlocks:
    """What is shown of a scheduler after a call.

    ``requests``: those that have not ended. ``refs``, ``names``: the reference counts and the digests of the blocks
    that the call names; an empty digest is no hash. ``places``: by request and group, the places of its table that have
    changed, ``None`` for all. ``available``: free blocks.
    """

    requests: dict[int, Known] = field(default_factory=dict)
    refs: dict[int, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)
    places: dict[tuple[int, int], list[int] | None] = field(default_factory=dict)
    available: int = 0


class Player:
    """Plays a recording. ``shown``: see ``ShownBlocks``. ``tables``: by request and group, the blocks as the workers
    have them; what is shown has each state at its own place.
    """

    def __init__(self, start: RecordedStart) -> None:
        self._sizes = sizes_of(start.config)
        self._done, self._states = WithoutCopies(), StatesOfPasses(self._sizes)
        self.tables: dict[tuple[int, int], tuple[int, ...]] = {}
        self._before: dict[tuple[int, int], tuple[int, ...]] = {}  # that the last call has changed
        self.shown = ShownBlocks()
        self.begins(start)

    @property
    def moves(self) -> list[Move]:
        """What was done to blocks in the last call, without copies of blocks."""
        return self._done.moves

    @property
    def _groups(self) -> range:
        return range(len(self._sizes))

    def begins(self, start: RecordedStart) -> None:
        """The recording says the whole state."""
        self._done.begin()
        for place in start.places:
            self._states.stands(*place)
        self.tables.clear()
        self.tables.update(
            ((one.request, group), tuple(table)) for one in start.requests for group, table in enumerate(one.tables)
        )
        self.shown.requests = {
            one.request: Known(one.status, one.computed, (), self._states.shown(one.request, one.tables))
            for one in start.requests
        }
        self.shown.refs = dict(enumerate(start.refs, start=1))
        self.shown.names = dict.fromkeys(self.shown.refs, b"") | {block: digest for block, _, digest in start.names}
        self.shown.places = {(request, group): None for request in self.shown.requests for group in self._groups}
        self.shown.available = start.available

    def plays(self, call: RecordedCall) -> None:
        """The next call of the recording."""
        shown = self.shown
        self._done.begin()
        for move in call.moves:
            self._done.takes(_move(move))
        self._states.follow(self._done)
        shown.refs, shown.names, shown.places, shown.available = {}, {}, {}, call.available
        self._before.clear()
        for move in call.moves:
            shown.refs.update((block, count) for block, count in zip(move.blocks, move.refs, strict=False) if block)
            self._names(move)
        for request in call.preempted:
            self._set(request, status="preempted", computed=0)
        for change in call.tables:
            if change.request in shown.requests:
                self._changes(change)
        self._puts_states({change.request for change in call.tables} | {move.request for move in call.moves})
        for request in call.ended:
            shown.requests.pop(request, None)
            for group in self._groups:
                self.tables.pop((request, group), None)

    def _changes(self, change: TableChange) -> None:
        """A table of a request has changed."""
        key = change.request, change.group
        before = self._before[key] = self.tables[key]
        table = list(before[: change.keep])
        pairs = list(zip(change.changed[::2], change.changed[1::2], strict=True))
        for place, block in pairs:
            table[place] = block
        self.tables[key] = (*table, *change.more)
        appended = range(change.keep, change.keep + len(change.more))
        places = [*(place for place, _ in pairs), *appended]
        self.shown.places[key] = places if change.keep == len(before) else None
        self._shows(change.request)

    def block(self, request: int, group: int, column: int) -> int:
        """The block at a place of a table, the null block where there is none."""
        return _at(self.tables.get((request, group), ()), column)

    def blocks(self, request: int, group: int, column: int) -> set[int]:
        """The blocks that have stood at a place of a table in the last call, at its beginning or at its end."""
        return {self.block(request, group, column), _at(self._before.get((request, group), ()), column)}

    def _puts_states(self, requests: Iterable[int]) -> None:
        """States that stand at other places of these requests' tables than their own are shown at their own."""
        for request in requests:
            for group in self._groups if request in self.shown.requests else ():
                if self._states.are_apart(request, group):
                    self._shows(request)
                    self.shown.places[request, group] = None

    def _shows(self, request: int) -> None:
        tables = [self.tables[request, group] for group in self._groups]
        self._set(request, tables=self._states.shown(request, tables))

    def comes(self, request: int) -> None:
        """A request comes."""
        self.shown.requests[request] = Known("waiting", 0, (), ((),) * len(self._sizes))
        self.tables |= {(request, group): () for group in self._groups}

    def launches(self, launch: RecordedLaunch) -> Launched:
        """A step is launched."""
        starts, drafts = dict(launch.starts), dict(launch.drafts)
        kinds = dict.fromkeys(launch.resumed, RESUMED) | dict.fromkeys(launch.new, NEW)
        passes = {}
        for request, count in zip(launch.requests, launch.counts, strict=True):
            known = self.shown.requests.get(request)  # one of a step in flight at a start may have ended
            start = starts.get(request, 0 if known is None else known.computed)
            kind = kinds.get(request, RUNNING)
            passes[request] = RequestPass(start, count, drafts.get(request, 0), False, kind, ())
            self._set(request, status="running", computed=start + count)
        return Launched(passes)

    def completes(self, done: RecordedDone) -> None:
        """A step is done."""
        for request, computed in done.computed:
            self._set(request, computed=computed)

    def _set(self, request: int, **fields: Any) -> None:
        if (known := self.shown.requests.get(request)) is not None:
            self.shown.requests[request] = known._replace(**fields)

    def _names(self, move: RecordedMove) -> None:
        if KINDS[move.kind] == "cache_partial":
            self.shown.names.update(zip(move.blocks, move.names[1:], strict=False))
        elif move.names:
            self.shown.names.update((block, name) for block, name in zip(move.blocks, move.names, strict=True) if block)
        elif KINDS[move.kind] in WITHOUT_NAME:
            self.shown.names.update((block, b"") for block in move.blocks if block)


def _at(table: Sequence[int], column: int) -> int:
    return table[column] if column < len(table) else NULL


def _move(move: RecordedMove) -> Move:
    request = None if move.request == NOBODY else move.request
    group = None if move.group == NOBODY else move.group
    return Move(KINDS[move.kind], tuple(move.blocks), request, group, move.first)
