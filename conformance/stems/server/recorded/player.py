"""Plays a recording as the engine of the room ``server``: it has acted already, and shows what it showed then."""

from __future__ import annotations

from collections import Counter, deque

from conformance.driver.protocol import Json
from conformance.recording.server_records import (
    INPUT,
    NO_NODE,
    NOT_ENDED,
    STANDS,
    ListChange,
    MemoryChange,
    PoolLists,
    RecordedEvent,
    RecordedPart,
    RecordedPass,
)
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.cache.protocol import CacheSnapshot, LockHold
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.server.protocol import POLL, SENDS, TRANSFER, ServedRequest, ServerEvent, ServerPass
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.session_trim.protocol import Lengths, RowSnapshot, SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot

FLUSHED = "flushed"
FULL = "full"


class PlayedServer:
    """A ``ServerEngine`` that plays events. ``standing``: tells what the server shows before all others. ``coming``:
    those that are played next. ``calls``: how many were played so far, of each function ``by_function``. ``last``: that
    which was played last. ``starts``: how often the recording has told all that the server shows. ``shape``: see
    ``recorded_run``.
    """

    fragile = False
    lacks: frozenset[str] = frozenset({TRANSFER, SENDS})

    def __init__(self, standing: RecordedEvent, overlaps: bool, shape: Json, texts: RecordedTexts) -> None:
        self.shape = shape
        self.overlaps = overlaps
        self.coming: deque[RecordedEvent] = deque()
        self.calls = self.starts = 0
        self.by_function = Counter[str]()
        self.last = standing
        self._texts = texts
        self._sides = list(shape["components"])
        self._plays(standing)

    def _forgets(self) -> None:
        """Nothing is shown any more: what the server has and shows is told next."""
        self._here: set[int] = set()
        self._input: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}
        self._pools = [PoolLists([], [], 0) for _ in self._sides]
        self._mapping: list[int] = []
        self._free_rows: list[int] = []
        self._rows: dict[int, RowSnapshot] = {}
        self._nodes: dict[int, NodeSnapshot] = {}
        self._sizes = [(0, 0) for _ in self._sides]
        self._holds: list[tuple[int, int, int | None]] = []

    def go_on(self) -> ServerEvent:
        """The next event."""
        self.last = self.coming.popleft()
        if self.last.kind != STANDS:
            self.calls += 1
            self.by_function[self.last.function] += 1
        return self._plays(self.last)

    def _plays(self, event: RecordedEvent) -> ServerEvent:
        if event.kind == STANDS:
            self.starts += 1
            self._forgets()
        for told in event.texts:
            into = self._input if told.part == INPUT else self._answers
            into.setdefault(told.request, []).extend(self._texts.numbered(told.digests))
        if event.kind == FLUSHED:
            self._nodes.clear()
        if event.change is not None:
            self._changes(event.change)
        self._here.update(one.request for one in event.requests)
        self._here.difference_update(event.gone)
        requests = {one.request: self.known(one) for one in event.requests}
        for one in event.requests:
            if one.sent != NOT_ENDED:
                self._leaves(one.request)
        for request in event.gone:
            self._leaves(request)
        if event.kind == POLL:
            nothing = ServedRequest([], [], 0, 0, None, False)
            return ServerEvent(POLL, dict.fromkeys(sorted(self._here), nothing), batch=1)
        return ServerEvent(event.kind, requests, [self._pass(one) for one in event.passes])

    def _leaves(self, request: int) -> None:
        self._here.discard(request)
        self._input.pop(request, None)
        self._answers.pop(request, None)

    def known(self, one: RecordedPart) -> ServedRequest:
        """A request of an event, with what is known of its text so far."""
        return ServedRequest(
            tokens=list(self._input.get(one.request, ())),
            sampled=list(self._answers.get(one.request, ())),
            session=0,
            prefix=one.prefix,
            sent=None if one.sent == NOT_ENDED else one.sent,
            turned_away=one.turned_away,
        )

    def _pass(self, one: RecordedPass) -> ServerPass:
        tokens = self._texts.numbered(one.digests)
        if len(tokens) < one.end - one.start:  # the recorder did not know the text so far
            tokens = [self._texts.token(n, one.request) for n in range(one.start, one.end)]
        return ServerPass(one.request, one.row, one.start, one.end, tuple(tokens), tuple(one.slots), one.samples)

    # What is shown.

    def _changes(self, change: MemoryChange) -> None:
        self._pools = [
            PoolLists(_now(before.free, now.free), _now(before.released, now.released), now.available)
            for before, now in zip(self._pools, change.pools, strict=True)
        ]
        self._mapping = _now(self._mapping, change.mapping)
        self._free_rows, self._sizes = _now(self._free_rows, change.free_rows), change.sizes
        for one in change.rows:
            before = self._rows.get(one.request)
            kept = [] if before is None else before.slots[: one.first]
            lengths = Lengths(one.protected, one.cursor, one.committed, one.allocated)
            self._rows[one.request] = RowSnapshot(one.row, lengths, [*kept, *one.slots])
        for request in change.left:
            self._rows.pop(request, None)
        for node in change.gone:
            self._nodes.pop(node, None)
        for new in change.nodes:
            known = self._nodes.get(new.node)
            key = self._texts.numbered(new.digests) if new.digests is not None else known.key if known else []
            parts = {}
            for side, part in zip(self._sides, new.parts, strict=True):
                slots = _slots(new.node, side, part.slots)
                if part.slots is None and known is not None:
                    slots = known.parts[side].slots
                parts[side] = NodePart(slots, part.lock)
            parent = None if new.parent == NO_NODE else new.parent
            self._nodes[new.node] = NodeSnapshot(new.node, parent, key, parts)
        if change.holds is not None:
            self._holds = change.holds

    def cache_snapshot(self) -> CacheSnapshot:
        """What the server showed after the event that was played last."""
        full, *others = [AllocatorSnapshot(*one) for one in self._pools]
        swa = [SwaMappingSnapshot(full, other, self._mapping) for other in others]
        pools = swa[0] if swa else SwaMappingSnapshot.without_swa(full)
        rows = SessionTrimSnapshot(dict(self._rows), {}, self._free_rows, pools)
        evictable, protected = (dict(zip(self._sides, sizes, strict=True)) for sizes in zip(*self._sizes, strict=True))
        free = {side: [*pool.free, *pool.released] for side, pool in zip(self._sides, self._pools, strict=True)}
        tree = LockRefSnapshot(self._in_order(), evictable, protected, free)
        return CacheSnapshot(rows, tree, self._held(), None)

    def _in_order(self) -> list[NodeSnapshot]:
        """The nodes, parents first."""
        below: dict[int | None, list[NodeSnapshot]] = {}
        for node in self._nodes.values():
            below.setdefault(node.parent, []).append(node)
        found = list(below.get(None, ()))
        for node in found:
            found += below.get(node.id, ())
        root = {side: NodePart([] if side == FULL else None, 1) for side in self._sides}
        return found or [NodeSnapshot(0, None, [], root)]

    def _held(self) -> dict[tuple[str, int], LockHold]:
        return {("request", request): LockHold(node, top, self._path(node)) for request, node, top in self._holds}

    def _path(self, number: int) -> list[int]:
        """The text from the root to the end of a node."""
        found: list[list[int]] = []
        node = self._nodes.get(number)
        while node is not None and node.parent is not None:
            found.append(list(node.key))
            node = self._nodes.get(node.parent)
        return [token for key in reversed(found) for token in key]

    # What nobody asks a server that has acted already.

    def grants_alone(self, request: int) -> bool:
        """Nobody can ask it any more."""
        del request
        return False

    def idle_problems(self) -> list[str]:
        """Nobody can ask it any more."""
        return []


def _now(before: list[int], change: ListChange | None) -> list[int]:
    return before if change is None else change.of(before)


def _slots(node: int, side: str, slots: list[int] | None) -> list[int] | None:
    """The slots of a node that are told; ``None`` where it has none, but the root has an empty list of full slots."""
    return slots or ([] if not node and side == FULL else None)
