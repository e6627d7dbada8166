"""What the recorded scheduler shows after each call, as far as the call has changed it."""

from __future__ import annotations

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
)
from conformance.stems.block_cache.protocol import NEW, RESUMED, RUNNING, Known, Launched, Move, RequestPass

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
    """Plays a recording. ``moves``: what was done to blocks in the last call. ``shown``: see ``ShownBlocks``."""

    def __init__(self, start: RecordedStart) -> None:
        self._groups = len(start.config["layers"])
        self.moves: list[Move] = []
        self.shown = ShownBlocks()
        self.begins(start)

    def begins(self, start: RecordedStart) -> None:
        """The recording says the whole state."""
        self.moves = []
        self.shown.requests = {
            one.request: Known(one.status, one.computed, (), tuple(map(tuple, one.tables))) for one in start.requests
        }
        self.shown.refs = dict(enumerate(start.refs, start=1))
        self.shown.names = dict.fromkeys(self.shown.refs, b"") | {block: digest for block, _, digest in start.names}
        self.shown.places = {(request, group): None for request in self.shown.requests for group in range(self._groups)}
        self.shown.available = start.available

    def plays(self, call: RecordedCall) -> None:
        """The next call of the recording."""
        shown = self.shown
        self.moves = [_move(move) for move in call.moves]
        shown.refs, shown.names, shown.places, shown.available = {}, {}, {}, call.available
        for move in call.moves:
            shown.refs.update((block, count) for block, count in zip(move.blocks, move.refs, strict=False) if block)
            self._names(move)
        for request in call.preempted:
            self._set(request, status="preempted", computed=0)
        for change in call.tables:
            if (known := shown.requests.get(change.request)) is None:
                continue
            before = known.tables[change.group]
            table = list(before[: change.keep])
            pairs = list(zip(change.changed[::2], change.changed[1::2], strict=True))
            for place, block in pairs:
                table[place] = block
            tables = list(known.tables)
            tables[change.group] = (*table, *change.more)
            shown.requests[change.request] = known._replace(tables=tuple(tables))
            appended = range(change.keep, change.keep + len(change.more))
            places = [*(place for place, _ in pairs), *appended]
            shown.places[change.request, change.group] = places if change.keep == len(before) else None
        for request in call.ended:
            shown.requests.pop(request, None)

    def comes(self, request: int) -> None:
        """A request comes."""
        self.shown.requests[request] = Known("waiting", 0, (), ((),) * self._groups)

    def launches(self, launch: RecordedLaunch) -> Launched:
        """A step is launched."""
        starts, drafts = dict(launch.starts), dict(launch.drafts)
        kinds = dict.fromkeys(launch.resumed, RESUMED) | dict.fromkeys(launch.new, NEW)
        passes = {}
        for request, count in zip(launch.requests, launch.counts, strict=True):
            start = starts.get(request, self.shown.requests[request].computed)
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
        if move.names:
            self.shown.names.update((block, name) for block, name in zip(move.blocks, move.names, strict=True) if block)
        elif KINDS[move.kind] in WITHOUT_NAME:
            self.shown.names.update((block, b"") for block in move.blocks if block)


def _move(move: RecordedMove) -> Move:
    request = None if move.request == NOBODY else move.request
    group = None if move.group == NOBODY else move.group
    return Move(KINDS[move.kind], tuple(move.blocks), request, group, move.first)
