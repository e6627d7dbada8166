"""Records a scheduler of SGLang while it serves: every event after which its memory may show something else.

A ``ServerRecorder`` is told by the very hooks that watch a driven server (``..server.watching``). No line of the engine
changes. A hook reads Python numbers, and queues a copy of what is on the device: nothing waits
for it. Records are made from the copies when the server polls for messages again, at least one turn of its loop later.
Where a hook fails, the recording ends, the log says so, and the server goes on.

A recording says nothing about texts: the tokens are named by digests (``digests``).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance.engines.sglang.recording import layout
from conformance.engines.sglang.recording.copies import HostCopy
from conformance.engines.sglang.recording.digests import TextOfRequest, TokenDigests
from conformance.engines.sglang.recording.memory import LookedAt, LookPlan, ServerMemory
from conformance.engines.sglang.releases import records
from conformance.engines.sglang.server.watching import (
    LOADED_BACK,
    TELLING,
    WATCHED,
    ServerWatch,
    watch_functions,
)
from conformance.recording.segments import SegmentWriter
from conformance.recording.server_records import (
    ANSWER,
    ARRIVED,
    DIGEST_BYTES,
    INPUT,
    NOT_ENDED,
    RAISED,
    STANDS,
    STRAYED,
    UNCHANGED,
    RecordedEvent,
    RecordedPart,
    RecordedPass,
    RecordedTokens,
    ServerStart,
    packed_event,
    packed_start,
)
from conformance.stems.server.protocol import ADMITTED, POLL

PASSED, FLUSHED, LEFT, EXTENDED, DECODED = "passed", "flushed", "left", "extended", "decoded"
OF_NOBODY = ("evicted", "group_begun", "group_ended", FLUSHED)
OF_REQUESTS = ("matched", ADMITTED, EXTENDED, DECODED, "cached", LEFT)
UNTOLD = (ARRIVED, LOADED_BACK)  # that a request is there is seen when something is done with it
WHOLE = (EXTENDED, "cached")  # events after which the rows of their requests may have other slots at old places
STEPS = (PASSED, DECODED, "group_begun", "group_ended")  # events that do not touch the tree, unless it evicts
OF_NO_ROW = ("evicted", "group_begun")  # events that touch no row
FUNCTIONS = {
    **{one.kind: one.places[0][1] for one in reversed(WATCHED)},
    **{kind: name for kinds in TELLING.values() for name, kind in reversed(kinds.items())},
    **{PASSED: "forward_batch_generation", POLL: layout.POLLS, ARRIVED: "handle_generate_request"},
}


@dataclass
class PassLater:
    """A forward pass whose numbers are on their way. ``starts``: ``None`` where each request computes one token."""

    requests: list[tuple[int, TextOfRequest]]
    starts: list[int] | None
    ends: HostCopy
    rows: HostCopy
    tokens: HostCopy
    slots: HostCopy
    samples: bool

    def copies(self) -> list[HostCopy]:
        """All copies that were queued."""
        return [self.ends, self.rows, self.tokens, self.slots]

    def told(self) -> list[RecordedPass]:
        """The passes. The copies are done."""
        ends, rows, tokens, slots = (copy.numbers() for copy in self.copies())
        starts = [end - 1 for end in ends] if self.starts is None else self.starts
        found, at = [], 0
        for (number, text), row, start, end in zip(self.requests, rows, starts, ends, strict=True):
            upto = at + end - start
            named = text.named(start, tokens[at:upto])
            found.append(RecordedPass(number, row, start, end, named, slots[at:upto], self.samples))
            at = upto
        return found


@dataclass
class Later:
    """A record that is made when its copies are done. ``turn``: of the loop in which the event was. ``start``: the
    record from which a reader can begin, whose event ``STANDS`` this is.
    """

    turn: int
    event: RecordedEvent
    looked: LookedAt | None = None
    passes: PassLater | None = None
    start: ServerStart | None = None

    @property
    def is_done(self) -> bool:
        """All numbers are there."""
        copies = [*(self.looked.copies() if self.looked else ()), *(self.passes.copies() if self.passes else ())]
        return all(copy.is_done for copy in copies)


class ServerRecorder:
    """The recorder of one scheduler. ``calls``: how many events were noted. ``failure``: the exception of a hook that
    has ended the recording, else ``None``. ``has_begun``: the server has polled for messages, and from then on events
    are noted.

    ``writer``: where records go. ``key``: 16 to 64 bytes. Raises ``UnrecordableServer`` if ``scheduler`` is none that
    can be recorded; then it has no hook.
    """

    def __init__(self, scheduler: Any, writer: SegmentWriter, key: bytes) -> None:
        layout.must_be_recordable(scheduler)
        self._scheduler, self._writer = scheduler, writer
        self._digests = TokenDigests(key)
        self.calls = 0
        self.failure: Exception | None = None
        self.has_begun = self._is_stopped = False
        self._names: dict[str, int] = {}  # by the engine's name of a request
        self._objects: dict[int, Any] = {}
        self._texts: dict[int, TextOfRequest] = {}
        self._next, self._turn = 1, 0
        self._running: set[int] = set()
        self._admitted: set[int] = set()
        self._later: deque[Later] = deque()
        self._has_news = self._start_waits = False
        self._error: Exception | None = None  # the last that a watched call has raised
        self._evictions = 0  # calls that change the tree, as they were counted last
        self.unknown = layout.unknown(scheduler)
        self._watch = ServerWatch(self, scheduler.tree_cache)
        if self.unknown:
            self._writer.write(packed_start(self._start()), start=True)
            self.stop()
            return
        self._memory = ServerMemory(scheduler, self._digests)
        watch_functions(layout.InstalledModules())  # type: ignore[arg-type]
        self._watch.watch(scheduler)
        for name in layout.LOOP:
            self._around(scheduler, name, self._polls if name == layout.POLLS else None)
        self._around(layout.worker_of(scheduler), "forward_batch_generation", self._passes)
        ServerWatch.now = self._watch

    def stop(self) -> None:
        """The recording ends, what was noted is written, and the file is closed. The hooks stay, and do nothing."""
        if self._is_stopped:
            return
        if self.failure is None:
            self._safely(self._write_all)
        if not self._is_stopped:
            self._end()

    def _end(self) -> None:
        self._is_stopped = True
        if ServerWatch.now is self._watch:
            ServerWatch.now = None
        if not self.unknown:
            self._memory.tree.stop()
        self._writer.close()

    def _safely(self, hook: Callable[..., None], *args: Any) -> None:
        """Runs a hook, unless the recording has ended. A server never fails for its recording."""
        if self._is_stopped:
            return
        try:
            hook(*args)
        except Exception as error:
            self.failure = error
            self._end()
            logging.getLogger("slotproof").exception("the recording has ended, since a hook failed; the server goes on")

    # What hooks tell.

    def _around(self, thing: Any, name: str, hook: Callable[..., None] | None) -> None:
        """Runs a hook before each call of a method, and notes an exception of it."""
        function = getattr(thing, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if hook is not None:
                self._safely(hook, *args)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self._safely(self._raised, name, error)
                raise

        setattr(thing, name, call)

    def tell(self, kind: str, answer: Any, *whom: Any) -> None:
        """See ``Told``."""
        self._safely(self._told, kind, answer, whom)

    def strays(self, what: str) -> None:
        """See ``Told``."""

    def raised(self, kind: str, error: Exception) -> None:
        """See ``Told``. What was noted is written now, as far as nobody has to wait for it: it may be the end."""
        self._safely(self._raised, FUNCTIONS[kind], error)

    def _raised(self, function: str, error: Exception) -> None:
        if not self.has_begun or error is self._error:
            return
        self._error = error
        named = f"{function} raised {type(error).__name__}"
        self._add(RecordedEvent(RAISED, _now(), named, [], [], [], [], [], UNCHANGED))
        self._write_done(self._turn + 2)

    def _told(self, kind: str, answer: Any, whom: tuple[Any, ...]) -> None:
        if not self.has_begun or kind in UNTOLD:
            return
        if kind == STRAYED:
            self._note(kind, function=str(whom[0]))
        elif kind == FLUSHED:
            if answer:  # it is refused while something runs, and changes nothing
                self._memory.forget_tree()
                self._note(kind)
        elif kind in OF_NOBODY:
            self._note(kind)
        elif kind not in OF_REQUESTS:
            raise layout.UnrecordableServer(f"the server does what no recording says: {kind}")
        elif whom or kind != ADMITTED:
            self._of_requests(kind, whom)

    def _of_requests(self, kind: str, whom: tuple[Any, ...]) -> None:
        numbers = [self._known(request) for request in whom]
        if kind == ADMITTED:
            self._admitted.update(numbers)
        elif kind == EXTENDED:
            self._admitted.difference_update(numbers)
            self._running.update(numbers)
        elif kind == LEFT:
            self._running.difference_update(numbers)
        self._note(kind, numbers)
        if kind == LEFT and layout.ends_at(whom[0]) is not None:
            self._forget(numbers[0])

    def _known(self, request: Any) -> int:
        """The number of a request. One that is new has arrived."""
        number = self._names.get(request.rid)
        if number is None:
            number = self._numbered(request)
            self._add(
                RecordedEvent(
                    *(ARRIVED, _now(), FUNCTIONS[ARRIVED], [(number, request.rid)]),
                    [RecordedTokens(number, INPUT, self._texts[number].input)],
                    *([self._part(number)], [], [], UNCHANGED),
                )
            )
        return number

    def _numbered(self, request: Any) -> int:
        """A number for a request that has none."""
        if layout.is_of_session(request):
            raise layout.UnrecordableServer("a turn of a session, which no recording says")
        number = self._names[request.rid] = self._next
        self._next += 1
        self._objects[number] = request
        self._texts[number] = TextOfRequest(self._digests, layout.namespace(request), request.origin_input_ids)
        return number

    def _forget(self, number: int) -> None:
        request = self._objects.pop(number)
        self._names.pop(request.rid, None)
        self._texts.pop(number, None)
        self._admitted.discard(number)

    def _part(self, number: int) -> RecordedPart:
        request = self._objects[number]
        sent = layout.ends_at(request)
        count = len(self._texts[number].input) // DIGEST_BYTES
        away = layout.is_turned_away(request)
        return RecordedPart(number, records.prefix(request), NOT_ENDED if sent is None else sent, count, away)

    def _answers(self) -> list[RecordedTokens]:
        """What has come to answers since this was asked last."""
        found = []
        for number in self._running:
            found += self._answer(number)
        return found

    def _answer(self, number: int) -> list[RecordedTokens]:
        request, text = self._objects[number], self._texts[number]
        if len(request.output_ids) <= text.answered:
            return []
        return [RecordedTokens(number, ANSWER, text.answers(request.output_ids[text.answered :]))]

    def _note(self, kind: str, numbers: list[int] | None = None, function: str = "") -> None:
        """Something was done; ``numbers``: to these requests."""
        whom = numbers or []
        texts = [one for number in whom for one in self._answer(number)]
        named = function or FUNCTIONS[kind]
        event = RecordedEvent(kind, _now(), named, [], texts, [*map(self._part, whom)], [], [], UNCHANGED)
        holders = {number: self._objects[number] for number in (*self._running, *self._admitted)}
        whole = [number for number in whom if kind in WHOLE]
        evictions, self._evictions = self._evictions, self._watch.tree_changes
        walks = kind not in STEPS or evictions != self._evictions
        rows_of = () if kind in OF_NO_ROW else numbers
        self._add(event, self._memory.look(self._watch.changes, holders, LookPlan(rows_of, whole, walks)))

    def _passes(self, batch: Any, *_: Any) -> None:
        """A forward pass is launched next."""
        if not self.has_begun or batch is None or not batch.reqs:
            return
        numbers = [self._known(request) for request in batch.reqs]
        later = PassLater(
            requests=[(number, self._texts[number]) for number in numbers],
            starts=None if batch.forward_mode.is_decode() else [*map(int, batch.prefix_lens)],
            ends=HostCopy(batch.seq_lens),
            rows=HostCopy(batch.req_pool_indices),
            tokens=HostCopy(batch.input_ids),
            slots=HostCopy(batch.out_cache_loc),
            samples=not batch.is_prefill_only,
        )
        event = RecordedEvent(PASSED, _now(), FUNCTIONS[PASSED], [], [], [], [], [], UNCHANGED)
        self._add(event, None, later)

    def _polls(self, *_: Any) -> None:
        """The server reads its messages next."""
        self._turn += 1
        if not self.has_begun:
            self._begin()
            return
        waiting = {request.rid for request in self._scheduler.waiting_queue}
        gone = [
            number
            for name, number in self._names.items()
            if number not in self._running and name not in waiting and number not in self._admitted
        ]
        texts = self._answers()
        if self._has_news or gone or texts:
            self._add(RecordedEvent(POLL, _now(), FUNCTIONS[POLL], [], texts, [], [], gone, UNCHANGED))
            self._has_news = False
        for number in gone:
            self._forget(number)
        self._write_done(self._turn)
        if self._writer.wants_start and not self._start_waits:
            self._begin()

    # Records.

    def _add(self, event: RecordedEvent, looked: LookedAt | None = None, passes: PassLater | None = None) -> None:
        self._later.append(Later(self._turn, event, looked, passes))
        self._has_news = True
        self.calls += 1

    def _write_done(self, turn: int) -> None:
        """Writes what was noted a whole turn before this one, as far as its copies are done."""
        while self._later and self._later[0].turn < turn - 1 and self._later[0].is_done:
            self._write(self._later.popleft())

    def _write_all(self) -> None:
        """Writes all that was noted."""
        while self._later:
            self._write(self._later.popleft())

    def _write(self, later: Later) -> None:
        event = later.event
        if later.passes is not None:
            event = event._replace(passes=later.passes.told())
        if later.looked is not None:
            event = event._replace(change=self._memory.change(later.looked))
        if later.start is None:
            self._writer.write(packed_event(event))
        else:
            self._writer.write(packed_start(later.start._replace(standing=event)), start=True)
            self._start_waits = False

    def _begin(self) -> None:
        """A reader can begin here: notes all that the server has and shows. Nothing is noted while a batch is put
        together.
        """
        if self._admitted:
            return
        if not self.has_begun:
            running, waiting = layout.requests(self._scheduler)
            self._running = {self._numbered(request) for request in running}
            for number in (*self._running, *map(self._numbered, waiting)):
                self._answer(number)
        names = [(number, name) for name, number in self._names.items()]
        texts = [RecordedTokens(number, INPUT, text.input) for number, text in self._texts.items()]
        texts += [RecordedTokens(number, ANSWER, text.answer) for number, text in self._texts.items() if text.answered]
        parts = [*map(self._part, self._objects)]
        event = RecordedEvent(STANDS, _now(), FUNCTIONS[POLL], names, texts, parts, [], [], UNCHANGED)
        holders = {number: self._objects[number] for number in self._running}
        looked = self._memory.whole(self._watch.changes, holders)
        self._later.append(Later(self._turn, event, looked, start=self._start()))
        self.has_begun = self._start_waits = True

    def _start(self) -> ServerStart:
        """A record from which a reader can begin, without the event."""
        shape = {} if self.unknown else layout.config(self._scheduler)
        overlaps = bool(self._scheduler.enable_overlap)
        return ServerStart(_now(), layout.ENGINE, layout.version(), shape, self.unknown, overlaps, None)


def _now() -> int:
    return time.time_ns() // 1000
