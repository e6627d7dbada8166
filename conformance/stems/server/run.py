"""A run of the room ``server``: clients send messages, and the law of the stem ``cache`` follows what the server does.

A server decides everything but its clients' messages. What it did to its memory it tells event by event, and waits;
each event is explained as steps of the law, and judged. The explanations are those of the stem ``cache``, whose run
(``CacheRun``) is a part of this one.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import INVARIANT, EngineCall, Finding, Ignores, Operation, nothing
from conformance.driver.operations import operations_of
from conformance.driver.protocol import Json
from conformance.stems.cache.flights import PassOfRow
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.cache.run import CacheRun
from conformance.stems.configs import is_all_sliding, is_windowed
from conformance.stems.mamba_slots.protocol import SlotNames
from conformance.stems.requests.request import RunRequest, Sampled, token
from conformance.stems.server.economy import ServerEconomy
from conformance.stems.server.protocol import (
    ADMITTED,
    FINDS,
    NOT_SAMPLED,
    POLL,
    SENDS,
    TRANSFER,
    SendStep,
    ServedRequest,
    ServerEngine,
    ServerEvent,
    ServerPass,
    TransferStep,
)
from conformance.stems.server.sendings import WAITS, Sendings
from conformance.stems.server.served import GOES_ON, GOES_ON_SENTENCE, ServedClients
from conformance.stems.server.transfers import TransferCalls
from conformance.stems.session_trim.projection import lengths_of
from spec.cache_state import CacheState
from spec.lengths import in_pages
from spec.mamba_slots_state import FIRST, OWN

COMPUTES_OWN = "pass_computes_own_tokens"
COMPUTES_OWN_SENTENCE = (
    "A forward pass computes the tokens of its requests' texts, writes the slots of their rows, and begins a text on a "
    "state that was cleared."
)
OWN_TEXT = "turn_has_text_of_its_session"
OWN_TEXT_SENTENCE = (
    "The input of a turn is the text of its session, of turns that ended well alone, and then what its client sent."
)
SERVES = "waiting_requests_are_served"
SERVES_SENTENCE = (
    "While a server has requests it goes on: soon one of them is computed, unless all of them wait and the memory that "
    "idle sessions hold leaves no room for the first."
)
AGREES = "idle_check_agrees"
AGREES_SENTENCE = "When nothing runs, the server's own check of its memory finds nothing amiss where the law holds."
STILL = 50  # so many turns without a batch, one after the other, and nothing will come of the next ones
ADMITS = frozenset({"matched", ADMITTED})  # a batch is put together
# The server goes on at once with what belongs to it, such as a lock, or how much of a row the tree has.
MIDWAY = ADMITS | {"arrived", "preallocated"}
# While requests are admitted, others that run may have to leave: those that are admitted hold locks, and no row yet.
PREEMPTS = frozenset({"left", "evicted", "states_ended"})


class Midway:
    """Whether a server is in the middle of something after an event, so that nothing is judged. ``now``: it is."""

    def __init__(self) -> None:
        self.now = self._admits = False

    def after(self, kind: str) -> bool:
        """The next event is of this kind."""
        self._admits = kind in ADMITS or (self._admits and kind in PREEMPTS)
        self.now = self._admits or kind in MIDWAY
        return self.now


class ServerRun(ServedClients):
    """Messages to one server. A number of a request comes once. ``sampled``: which token is sampled at a position of
    the text of a fork. ``wastes``: what the scheduler wastes is a finding.
    """

    name = "server"
    seldom = 8  # one operation of a server is ten judgements, and to evaluate all laws took half of the time

    def __init__(
        self,
        engine: ServerEngine,
        config: Json,
        strict: bool = True,
        ignores: Ignores = nothing,
        sampled: Sampled = token,
        wastes: bool = True,
    ) -> None:
        super().__init__(engine, config)
        self._sampled = sampled
        owners = engine.shape.get("size_mamba", 1)  # each request that owns a state slot owns another one
        self.cache = CacheRun(engine, engine.shape, strict, ignores, owners, sampled)  # type: ignore[arg-type]
        self.law, self.calls, self.shadow = self.cache.law, self.cache.calls, self.cache.shadow
        self.said: dict[int, list[int]] = {}  # the text of each session: its turns that have ended well
        self.economy = ServerEconomy(self.law, engine.shape, FINDS not in self.lacks, wastes)
        self.cut: set[int] = set()  # the requests that were retracted at some time
        self.verifying: dict[int, list[int]] = {}  # what passes have accepted of drafts, until it counts
        self.batches = 0  # the steps with a batch
        self._still = 0  # the turns since the last batch
        self.sendings = Sendings(self, sampled)
        self.transfers = TransferCalls(self)
        self.operations: Mapping[str, Operation] = operations_of(self, self.transfers, self.sendings)

    def transfer_steps(self) -> Mapping[int, Sequence[TransferStep | SendStep]]:
        """See ``ServedClients``."""
        return {**self.transfers.steps(), **self.sendings.steps()}

    # The server runs.

    def _turn(self) -> Generator[EngineCall | None, Any, ServerEvent]:
        """One turn of the loop: what the server does, event by event."""
        midway = Midway()
        self.transfers.turn()
        while True:
            event: ServerEvent = yield EngineCall(
                "go_on", self.engine.go_on, unjudged=midway.now, law=(GOES_ON, GOES_ON_SENTENCE)
            )
            self.takes(event)
            midway.after(event.kind)
            yield from self.sendings.hurries(midway.now)
            if event.kind == POLL:
                return event

    def takes(self, event: ServerEvent) -> None:
        """Explains an event."""
        self.hears(event)
        self.cache.follow_tracks()
        self.transfers.copied(event.backups)
        self.transfers.waited(event.done)
        self.sendings.waited(event.done)
        self.economy.happens(event.kind, self.seen.tree)
        if event.kind == POLL:
            self._polls(event)
        else:
            self._follow_commits()
            getattr(self, f"_{event.kind}")(event)

    def _arrived(self, event: ServerEvent) -> None:
        """Requests came, and wait."""
        for request, known in event.requests.items():
            self.here.add(request)
            self.coming.discard(request)
            session = 0 if known.turned_away else known.session
            if session and self._alone(request, session):
                self._goes_on(request, session, known)
            self.calls.requests[request] = RunRequest(session, list(known.tokens), self.forks[request])
            if known.turned_away:
                self.calls.turned_away[request] = known.session

    def _alone(self, request: int, session: int) -> bool:
        """Whether no other turn of its session is on the server."""
        return not any(self.sent_to.get(other) == session for other in self.here - {request})

    def _goes_on(self, request: int, session: int, known: ServedRequest) -> None:
        """Raises ``Finding`` if a turn does not go on after the turns of its session that ended well."""
        text = self.said.get(session, []) + self.sent[request]
        if list(known.tokens) != text:
            detail = f"request {request}: its input is {list(known.tokens)}, and the session's text goes on as {text}"
            raise Finding(OWN_TEXT, OWN_TEXT_SENTENCE, detail, kind=INVARIANT)

    def _matched(self, event: ServerEvent) -> None:
        """A request that waits was matched."""
        for request, known in event.requests.items():
            if request not in self.calls.row_of:
                asked = self.calls.requests[request]
                self.calls.explain_given_up(asked)
                self.cache.follow_tree()
                self.calls.explain_match(asked, known.prefix)
                self.cache.waits(request)
                if not known.turned_away and not self._has_row(asked.session):
                    self.economy.matched(request, asked.tokens, self.cache.tree.seen)
            else:
                self.cache.follow_tree()

    def _admitted(self, event: ServerEvent) -> None:
        """A request will be in the next batch. It has its lock now, and the row comes later. A decode server gives out
        the row next, or takes the lock back.
        """
        for request in event.requests if TRANSFER in self.lacks else ():
            self.cache.locked(request)

    def _extended(self, event: ServerEvent) -> None:
        """A batch got slots for a prefill: new requests have rows, and locks on the nodes that they matched."""
        for request in event.requests:
            if request in self.calls.row_of:
                self.calls.explain_window(request)
        self.cache.follow_tree()
        for request, known in event.requests.items():
            if request not in self.calls.row_of:
                asked = self.calls.requests[request]
                self.calls.passes.begin(request, asked, known.prefix)
                self.calls.explain_begin(request, asked, known.prefix)
                self.economy.begins(request, known.prefix)
            self.calls.grow("extend", request, self.calls.view(request).lengths.allocated)
        self.cache.follow_tracks()  # a batch says at once which tracks it writes

    def _preallocated(self, event: ServerEvent) -> None:
        """A request has a row, with slots for what a prefill server computes, or for what it had computed before it
        gave its row up.
        """
        self.cache.follow_tree()
        for request, known in event.requests.items():
            asked, upto = self.calls.requests[request], self.calls.view(request).lengths.allocated
            self.calls.passes.begin(request, asked, known.prefix)
            if is_windowed(self.engine.shape):
                self.calls.explain_tail(request, asked, known.prefix, upto)
            else:  # the law has rows with tails where there is a window
                self.calls.explain_begin(request, asked, known.prefix)
                self.calls.grow("extend_elsewhere", request, upto)
        self.cache.follow()  # nothing is judged before the server goes on

    def _transfer_begun(self, event: ServerEvent) -> None:
        """The prefill server knows where to write."""
        self.transfers.asked(event)

    def _transfer_ended(self, event: ServerEvent) -> None:
        """The prompt is there, and the first token of the answer."""
        for request, known in event.requests.items():
            asked = self.calls.requests[request]
            asked.sampled[:] = [*known.tokens, *known.sampled][len(asked.tokens) :]

    def _decoded(self, event: ServerEvent) -> None:
        """A batch got a slot for one token each, or slots for drafts where those that it has are too few. Windows have
        moved before.
        """
        for request in event.requests:
            self.calls.explain_window(request)
        self.cache.follow_tree()
        for request in event.requests:
            lengths = self.calls.view(request).lengths
            if lengths.allocated == lengths.committed:
                self.calls.grow("decode", request, lengths.allocated)
            elif lengths.allocated > self.calls.tokens(self.calls.row_of[request]):
                self.calls.grow("reserve", request, lengths.allocated)

    def _passed(self, event: ServerEvent) -> None:
        """A forward pass was launched."""
        self.batches += 1
        self.sendings.launched((one.request, self.calls.passes.writes(one.request, one.slots)) for one in event.passes)
        done = []
        for one in event.passes:
            known = self.calls.requests[one.request]
            self._computes_own(one, known)
            if (at := one.sampled.start - len(known.tokens)) >= 0:
                known.sampled[at:] = [self._sampled(n, known.fork) if one.samples else NOT_SAMPLED for n in one.sampled]
            coming = self.verifying.setdefault(one.request, [])
            if ahead := max(0, one.end - self.calls.computed(one.request) - sum(coming)):
                coming.append(ahead)
            self.calls.passes.computed[one.request] = one.start
            done.append((one.request, known, one.end))
        self.calls.passes.launch(done, {one.request: one.start + len(one.slots) for one in event.passes})
        for one in event.passes:
            if one.tracked is not None:
                self.calls.passes.tracks(one.request, self.calls.requests[one.request], *one.tracked)
                self.cache.states.written(one.request, *one.tracked)
        tracked = [one.request for one in event.passes if one.tracked is not None]
        self.economy.launched(tracked, self.calls.row_of.keys() - self.sent_to.keys(), self._named_states)
        if TRANSFER not in self.lacks:
            self.cache.flights.launched(map(self._pass_of_row, event.passes))
        elif self.cache.stateful:
            self.cache.flights.ended_but(1)  # of two steps in flight, a server processes the older one next
            self.cache.flights.launched(map(self._pass_of_row, event.passes))

    def _pass_of_row(self, one: ServerPass) -> PassOfRow:
        """The pass, with the law's numbers."""
        track = OWN if one.tracked is None else FIRST + self.cache.states.tracks(one.request).index(one.tracked[0])
        return PassOfRow(self.calls.row_of[one.request], one.start // self.calls.page_size, track)

    def _resulted(self, _: ServerEvent) -> None:
        """The result of the oldest step in flight has come."""
        if TRANSFER in self.lacks:
            self.cache.flights.ended()
        self.economy.resulted()

    def _computes_own(self, one: ServerPass, known: RunRequest) -> None:
        """Raises ``Finding`` if a pass computes other tokens than those of the text, or writes other slots than those
        of the row.
        """
        text = known.text[one.start : one.end]
        view = self.calls.view(one.request)
        told = []
        if list(one.tokens) != text[: 1 if one.drafted else None]:
            told.append(f"it computes the tokens {list(one.tokens)}, and the text has {text}")
        own = view.slots[one.start : one.start + len(one.slots)]
        if view.row != one.row or own != list(one.slots):
            told.append(f"it writes the slots {list(one.slots)} of row {one.row}, and row {view.row} has {own}")
        if one.tracked is not None and one.tracked[0] not in self.cache.states.tracks(one.request):
            told.append(f"it tracks a state in state slot {one.tracked[0]}, which is not one of its row")
        if one.uncleared:
            told.append(f"it begins the text on state slot {one.uncleared}, which was not cleared")
        if told:
            detail = f"request {one.request}, tokens {one.start} to {one.end - 1}: {'; '.join(told)}"
            raise Finding(COMPUTES_OWN, COMPUTES_OWN_SENTENCE, detail, kind=INVARIANT)

    def _verified(self, _: ServerEvent) -> None:
        """The result of a pass over drafts has come. What it accepted is followed with every event
        (``_follow_commits``).
        """

    def _follow_commits(self) -> None:
        """The law's steps for what has come to count as computed, where a server drafts: what its passes have accepted,
        in their order, and no more.
        """
        for request, counts in self.verifying.items():
            view = self.cache.rows_seen.requests.get(request)
            while view is not None and counts and view.lengths.committed >= self.calls.computed(request) + counts[0]:
                upto = in_pages(self.calls.computed(request) + counts.pop(0), self.calls.page_size)
                self.law.caller_step("commit", self.calls.row_of[request], upto)

    def _counts_launched(self, request: int, session: int, launched: int) -> None:
        """The law's step for a session that counts what is computed by passes in flight: so many tokens of a turn that
        leaves. They write before any later pass does.
        """
        slot, now = self.cache.rows_seen.sessions.get(session), self.calls.computed(request)
        upto = now if slot is None else min(slot.lengths.committed, now + launched)
        if upto > now:
            self.law.caller_step("commit", self.calls.row_of[request], in_pages(upto, self.calls.page_size))

    def _cached(self, event: ServerEvent) -> None:
        """A request that goes on put what it has computed into the tree."""
        for request in event.requests:
            self.calls.explain_shared(request, self.calls.row_of[request])

    def _left(self, event: ServerEvent) -> None:
        """A request gave up its row."""
        for request, known in event.requests.items():
            launched = sum(self.verifying.pop(request, ()))
            if request not in self.calls.row_of:
                self.cache.withdrawn(request)
                continue
            if known.sent is None and request not in self.sent_to:
                self.economy.retracts(request, self._pages_alone(request))
            asked = self.calls.requests[request]
            answer = len(known.sampled) if known.sent is None else known.sent
            text = asked.text[: len(known.tokens) + answer]  # the answer counts from before it was retracted
            self._counts_launched(request, asked.session, launched)
            self.calls.explain_left(request, text)
            if known.sent is None:
                # A prefill server that takes a prompt back computes all of it again.
                again = [*known.tokens, *(known.sampled if SENDS in self.lacks else ())]
                self.calls.requests[request] = RunRequest(known.session, again, asked.fork)  # it may have left it
                self.calls.retracted.add(request)
                self.cut.add(request)
            else:
                self.calls.passes.ended(request)
                self.here.discard(request)
                self._ended(request, asked.session, text)

    @property
    def _named_states(self) -> Mapping[int, SlotNames]:
        """The state slots of requests; none in a model without states."""
        return {} if self.seen.states is None else self.seen.states.requests

    def _has_row(self, session: int) -> bool:
        """The session has a row."""
        return bool(session and self.cache.rows.slot(session))

    def _pages_alone(self, request: int) -> int:
        """How many pages of the full pool a request that runs has and the tree has not."""
        row, size = self.calls.row_of[request], self.calls.page_size
        known = lengths_of(self.cache.rows, row)
        first = max(known.protected, known.cursor) if is_all_sliding(self.engine.shape) else known.protected
        return -(-known.allocated // size) - first // size

    def _ended(self, request: int, session: int, text: list[int]) -> None:
        """A turn ended: well, where its session keeps it."""
        if self.calls.texts.get(session) == text and self.cache.rows.slot(session):
            self.said[session] = text
            self.spoiled.discard(session)
        elif request in self.cut:
            self.spoiled.add(session)

    def _closed(self, event: ServerEvent) -> None:
        """A session ended."""
        self.cache.follow_tree()
        if self.cache.rows.slot(event.session):
            self.cache.close_slot(event.session)
        self.calls.texts.pop(event.session, None)
        self.said.pop(event.session, None)
        self.spoiled.discard(event.session)
        self.sessions.discard(event.session)

    def _evicted(self, _: ServerEvent) -> None:
        """The tree made room."""
        self.cache.follow_tree()

    def _flushed(self, _: ServerEvent) -> None:
        """The cache was emptied. An idle session loses its memory, too; its text stays."""
        for session in self.sessions_that_hold_memory():
            self.cache.close_slot(session)
        self.cache.follow_tree()

    def _group_begun(self, _: ServerEvent) -> None:
        self.law.caller_step("free_group_begin", True)

    def _group_ended(self, _: ServerEvent) -> None:
        self.law.caller_step("free_group_end")

    def _tracks(self, _: ServerEvent) -> None:
        """Track buffers got or gave back slots: that is followed after every event."""

    def _states_begun(self, event: ServerEvent) -> None:
        """State slots were set aside for the requests that wait."""
        self.cache.states.group_begun(event.wanted)

    def _states_ended(self, _: ServerEvent) -> None:
        """The slots that nobody took are free again, and so are those of requests that go on waiting."""
        self.cache.states.group_ended()

    def _polls(self, event: ServerEvent) -> None:
        """The server reads its messages next. Requests that are gone were taken back while they waited."""
        for request in [r for r in self.calls.requests if r not in event.requests]:
            if request not in self.calls.row_of:
                del self.calls.requests[request]
                self.calls.turned_away.pop(request, None)
                if request in self.sent_to:
                    self.spoiled.add(self.sent_to[request])
        self.economy.waits([r for r in event.waiting if r not in self.sent_to], self._named_states)
        self.here = set(event.requests)
        self._still = self._still + 1 if self._stands(event) else 0
        if self._still >= STILL:
            self._still = 0
            self._stands_still(event)
        if all(known.sent is not None for known in event.requests.values()) and (amiss := self.engine.idle_problems()):
            raise Finding(AGREES, AGREES_SENTENCE, "; ".join(amiss), kind=INVARIANT)
        if not event.requests:
            self.sendings.idle()

    def _stands(self, event: ServerEvent) -> bool:
        """The server has requests and computed none, and nobody else has to do anything first. A request that has ended
        and has its row waits for the prefill server to stop writing into it, or for the end of a time.
        """
        if not event.requests or event.batch or self.paused:
            return False
        ending = any(known.sent is not None for known in event.requests.values())
        others = any({*steps} - {*WAITS} for steps in self.transfer_steps().values())
        return not ending and not others and not self.sendings.unheard_of()

    def _stands_still(self, event: ServerEvent) -> None:
        """Raises ``Finding`` unless the first request that waits has no room beside what idle sessions hold."""
        first = next(iter(event.waiting), None)
        if first is None:
            why = f"requests {sorted(event.requests)} have rows and are in no batch"
        elif self.engine.grants_alone(first):
            why = f"request {first}, alone in the queue, is admitted"
        elif not self.sessions_that_hold_memory():
            why = f"no session holds memory, and request {first} is not admitted"
        else:
            return
        raise Finding(SERVES, SERVES_SENTENCE, f"for {STILL} turns nothing was computed, and {why}", kind=INVARIANT)

    def stuck(self) -> list[int]:
        """See ``ServedClients``."""
        if TRANSFER in self.lacks or not self._still:
            return []
        return sorted(request for request in self.calls.retracted & self.here if request not in self.calls.row_of)

    def text_of(self, session: int) -> list[int]:
        """See ``ServedClients``."""
        return list(self.calls.texts.get(session, []))

    def sessions_that_hold_memory(self) -> list[int]:
        """The sessions that have a row."""
        rows = self.cache.rows
        return [session for session in rows.sessions.items() if rows.slot(session)]

    # What the driver needs: as in a run of ``cache``.

    @property
    def seen(self) -> CacheSnapshot:
        """The last snapshot."""
        return self.cache.seen

    @seen.setter
    def seen(self, snapshot: CacheSnapshot) -> None:
        self.cache.seen = snapshot

    def snapshot(self) -> CacheSnapshot:
        """Everything, in one read."""
        return self.cache.snapshot()

    def follow(self) -> None:
        """See ``CacheRun``."""
        self.cache.follow()

    def project(self) -> CacheState:
        """See ``CacheRun``."""
        return self.cache.project()

    def hidden(self, change: FieldDifference) -> bool:
        """See ``CacheRun``."""
        return self.cache.hidden(change)

    def beyond_state(self) -> list[str]:
        """See ``CacheRun``."""
        return self.cache.beyond_state()

    def judge(self) -> None:
        """See ``CacheRun``."""
        self.cache.judge()
