"""A server of SGLang without the law, for scripts that show a finding to SGLang's developers.

The release's own ``Scheduler`` runs. Slotproof stands in for the model, the device and the sockets (``docs/server.md``)
and notes what each forward pass computes: the text whose KV cache is in each slot, in the pool of the sliding windows
too, and the text after which each recurrent state is. A pass that reads anything else than its own text ends the script
with an ``AssertionError``, and so does a turn whose input is not what its session's turns have said, and then its
client. Before the error the script tells what happened to the slot or the state that was read, or what the server did
last.

A decode server tells its prefill server where to write a prompt, which writes there and nowhere else. Nothing says when
that is written, so the script also ends where a step in flight still writes one of these KV slots. It ends, too, where
a decode server computes nothing, though neither its prefill server nor a client has to do anything first; and where a
reader of the server's KV events does not know what the server has cached.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import deque
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any

from conformance.driver.shadow import FULL, STATES, SWA
from conformance.engines import registry
from conformance.engines.sglang.server.histories import NAMES, Histories
from conformance.stems.host_server.protocol import HostStep, StorageOutcome, StorageThread
from conformance.stems.kv_events.published import Listener, publishing_call
from conformance.stems.requests.request import token
from conformance.stems.server.arrivals import ENDS, WRITES, copied_slots, written
from conformance.stems.server.protocol import (
    POLL,
    TRANSFER,
    Destination,
    Pause,
    ServedRequest,
    ServerEvent,
    ServerPass,
    TransferStep,
)
from conformance.stems.server.run import STILL

Text = tuple[int, ...]
WITH_HOST = "--enable-hierarchical-cache"  # the launch flag of a server with host memory


class Server:
    """A server of a release. ``model``: ``full``, ``windowed``, ``sliding`` or ``recurrent``. ``flags``: its launch
    flags. ``environment``: variables of its environment, without ``SGLANG_``.

    What clients send has the names of ``conformance.stems.server.protocol``, and is there at the next poll.
    """

    def __init__(
        self,
        release: str,
        model: str,
        flags: Sequence[str],
        environment: dict[str, str] | None = None,
        sessions: int = 0,
    ) -> None:
        logging.disable()
        loaded = registry.load("sglang", release=release)
        config = {"model": model, "flags": [*flags], "environment": environment or {}, "sessions": sessions}
        self._hosts = WITH_HOST in flags
        self.engine: Any = loaded.makers["host_server" if self._hosts else "server"](config)
        # By pool, what is in a slot: the text up to the token whose KV cache it is, or after which a state is.
        self.held: dict[str, dict[int, Text]] = {FULL: {}, SWA: {}, STATES: {}}
        self.on_host: dict[tuple[str, int], list[Text]] = {}  # by pool, what a slot of host memory was copied from
        self.copies: dict[int, HostStep] = {}  # those in flight between device and host memory
        self.said: dict[int, list[int]] = {}  # the text of each session: of its turns that ended well
        self._sent: dict[int, tuple[int, list[int]]] = {}  # of each request its session, and what its client sent
        self._forks: dict[int, int] = {}
        self._coming: dict[int, tuple[Destination, Text]] = {}  # what a prefill server writes, and where
        self._kept: dict[int, list[list[Text]]] = {}  # by pool, copies of what a request had when it gave its row up
        self._paused = False
        self._still = 0  # steps of the loop since something was computed
        self._launched = 0  # steps
        self._in_flight: deque[Sequence[ServerPass]] = deque()  # steps that may still write, the oldest first
        self._histories, self._router = Histories(), Listener(publishing_call(self.engine))
        self._page_size: int = self.engine.shape["page_size"]
        sys.excepthook = partial(_end_script, self._histories)

    def __getattr__(self, name: str) -> Any:
        """A message of a client."""
        return getattr(self.engine, name)

    def generate(
        self, request: int, tokens: list[int], longest: int, session: int = 0, fork: int = 0, **more: Any
    ) -> None:
        """A client sends a request: at the position n of its text ``token(n, fork)`` is sampled. ``stop``: the position
        whose token ends the answer. ``priority``: of the request.
        """
        self._forks[request], self._sent[request] = fork, (session, tokens)
        stop = more.get("stop")
        more = {"priority": more.get("priority"), "stop": None if stop is None else token(stop, fork)}
        self.engine.generate(request=request, session=session, tokens=tokens, longest=longest, fork=fork, **more)

    def open(self, session: int, turns: int | None = None) -> None:
        """A client opens a streaming session."""
        self.engine.open(session, turns)

    def pause(self, mode: Pause) -> None:
        """A client has the server compute nothing until it is told to go on."""
        self.engine.pause(mode)
        self._paused = True

    def resume(self) -> None:
        """A client has a paused server go on."""
        self.engine.resume()
        self._paused = False

    def transfer(self, request: int, step: TransferStep) -> None:
        """The prefill server of a decode server does something for a request (``ServerEngine.transfer``)."""
        self.engine.transfer(request, step)
        if step in ENDS:
            destination, text = self._coming.pop(request)
            if step in WRITES:
                self._arrives(request, destination, text)

    def _arrives(self, request: int, destination: Destination, text: Text) -> None:
        for pool, start, slots in written(destination, len(text)):
            for at, slot in zip(range(start, len(text)), slots, strict=False):
                what = "the state after" if pool == STATES else "token"
                who = f"the prefill server writes {what} {at} of the text of request {request}"
                self._writes(pool, slot, text[: at + 1], who)

    def _writes(self, pool: str, slot: int, text: Text, what: str) -> None:
        """What is written to slot 0 of a pool is lost."""
        if slot:
            self.held[pool][slot] = text
            self._histories.note(pool, slot, what)

    def steps(self, times: int = 1) -> None:
        """The server reads its messages, and makes so many steps of its loop."""
        for _ in range(times):
            self._histories.step += 1
            while (event := self.engine.go_on()).kind != POLL:
                self._histories.at(event)
                self._follows_copies()
                self._follows_owners()
                self._follows_steps(event)
                self._follows_prefill_server(event)
                for one in event.passes:
                    self._passes(one)
                self._follows_sessions(event)
            self._histories.at(event)
            self._follows_copies()
            self._follows_owners()
            self._serves(event)
            self._publishes()

    def _publishes(self) -> None:
        """Raises ``AssertionError`` where a router that reads all KV events of the server, and counts how often each
        block was stored and removed, does not know what the server has cached.
        """
        if (wrong := self._router.judge()) is not None:
            raise AssertionError(f"a router that reads all KV events: {wrong.detail}")

    def _serves(self, event: ServerEvent) -> None:
        """Raises ``AssertionError`` where a decode server has computed nothing for long, and neither the prefill server
        nor a client has to do anything first.
        """
        if TRANSFER in self.engine.lacks:
            return
        known = event.requests
        others = self._paused or any(self.engine.transfer_steps(request) for request in known)
        ending = any(one.sent is not None for one in known.values())
        idles = known and not (event.batch or others or ending)
        self._still = self._still + 1 if idles else 0
        first = next(iter(event.waiting or known), None)
        assert self._still < STILL, f"request {first} waits: in {STILL} steps of its loop the server computed nothing"

    def _follows_prefill_server(self, event: ServerEvent) -> None:
        """Where it will write, and what a request had when it gave its row up."""
        for copy in event.backups:
            parts = copied_slots(copy)
            if copy.saved:
                self._kept[copy.copy] = [[self.held[pool].get(slot, ()) for slot in slots] for pool, slots in parts]
            else:
                for (pool, slots), kept in zip(parts, self._kept[copy.copy], strict=True):
                    for slot, text in zip(slots, kept, strict=False):
                        self._writes(pool, slot, text, "what its request had is copied back into it")
        for request, known in event.requests.items() if event.destination is not None else ():
            assert event.destination is not None
            self._coming[request] = event.destination, (*known.tokens, *known.sampled)
            self._is_told(request, event.destination)

    def _follows_steps(self, event: ServerEvent) -> None:
        """Which forward passes may still write: those for which a decode server has not waited."""
        while len(self._in_flight) > self._launched - event.done:
            self._in_flight.popleft()
        if event.kind == "passed":
            self._launched += 1
            self._in_flight.append(event.passes)

    def _is_told(self, request: int, to: Destination) -> None:
        """Raises ``AssertionError`` where a step in flight writes what the prefill server of a request may write."""
        told = {slot: at for at, slot in enumerate(to.slots, start=to.start)}
        for one in (one for step in self._in_flight for one in step):
            for slot in told.keys() & {*one.slots}:
                wrong = f"the prefill server may write token {told[slot]} of request {request} into KV slot {slot} now"
                what = f"{wrong}; the step in flight still writes a token of request {one.request} there"
                self._right(False, what, FULL, slot)

    def copies_end(self, stores: bool, count: int = 1) -> None:
        """So many copies between device and host memory are done, in their order. ``stores``: those to the host."""
        self.engine.end_copies(stores, count)
        self._follows_copies()

    def storage_goes_on(self, thread: StorageThread, outcome: StorageOutcome = "well") -> None:
        """A thread of the server between host memory and storage goes on, up to its next call of the storage.
        ``outcome``: what becomes of the call before which it stands now.
        """
        self.engine.storage_goes_on(thread, outcome)
        self._follows_copies()

    def _follows_copies(self) -> None:
        """What copies between device and host memory, and of states, have moved."""
        for step in self.engine.host_steps() if self._hosts else ():
            if step.kind in ("stores", "loads"):
                self.copies[step.copy] = step
            elif step.kind == "copied":
                for source, target in step.pairs:
                    self._copies_state(source, target)
            elif step.kind == "ended":
                self._copied(self.copies.pop(step.copy))

    def _follows_owners(self) -> None:
        """Notes who owns each KV slot and each mamba state, and which states were copied on the device."""
        seen = self.engine.cache_snapshot()
        self._histories.owned(seen, self._page_size)
        if seen.states is not None and not self._hosts:
            for source, target in seen.states.copies or ():
                self._copies_state(source, target)

    def _copies_state(self, source: int, target: int) -> None:
        has = self.held[STATES][target] = self.held[STATES].get(source, ())
        self._histories.copied(source, target, len(has))

    def _copied(self, copy: HostStep) -> None:
        held = self.held.get(copy.pool, {})
        size = self.engine.host_pages[copy.pool]
        for slot, block in copy.pairs:
            places = range(block * size, (block + 1) * size)
            if copy.kind == "stores":
                self.on_host[copy.pool, slot] = [held.get(place, ()) for place in places]
            else:
                held.update(zip(places, self.on_host.get((copy.pool, slot), [()] * size), strict=True))
                for place in places if copy.pool in NAMES else ():
                    self._histories.note(copy.pool, place, f"slot {slot} of host memory is loaded into it")

    def _follows_sessions(self, event: ServerEvent) -> None:
        if event.kind == "closed":
            self.said.pop(event.session, None)
        for request, known in event.requests.items():
            if event.kind == "arrived" and known.session and not known.turned_away:
                self._goes_on(request, known)
            elif event.kind == "left" and known.sent is not None:
                self._ends(known)

    def _goes_on(self, request: int, known: ServedRequest) -> None:
        session, sent = self._sent[request]
        if not any(self._sent[other][0] == session for other in self.engine.requests if other != request):
            text = self.said.get(session, []) + sent
            assert list(known.tokens) == text, f"request {request}: its input is {list(known.tokens)}, not {text}"

    def _ends(self, known: ServedRequest) -> None:
        # A turn that ended well: its session keeps the row.
        if known.session and known.session in self.engine.cache_snapshot().rows.sessions:
            self.said[known.session] = [*known.tokens, *known.sampled[: known.sent]]

    def _passes(self, one: ServerPass) -> None:
        known = self.engine.requests[one.request]
        text: Text = (*known.origin_input_ids, *known.output_ids)
        text += tuple(token(n, self._forks[one.request]) for n in range(len(text), one.end))
        rows = self.engine.scheduler.req_to_token_pool
        mapping = self.engine.swa_mapping()  # None where there is one pool
        slots = rows.req_to_token[one.row, : one.start].tolist()
        self._reads(one, text, FULL, 0, slots)
        if mapping is not None:
            first = max(0, one.start - self.engine.shape["window"])
            self._reads(one, text, SWA, first, [mapping[slot] for slot in slots[first:]])
        for at, slot in enumerate(one.slots, start=one.start):
            has = text[: at + 1] if at < one.end else ()
            for pool, place in ((FULL, slot), (SWA, 0 if mapping is None else mapping[slot])):
                self._writes(pool, place, has, f"the pass writes token {at} of the text of request {one.request}")
        if state := self.engine.state_slot(one):
            self._runs_on(one, text, state)

    def _runs_on(self, one: ServerPass, text: Text, state: int) -> None:
        has = self.held[STATES].get(state, ())
        computes = f"request {one.request} computes token {one.start} of its text"
        of_own = "its own" if has == text[: len(has)] else "another"
        wrong = f"{computes} on a state after {len(has)} tokens of {of_own} text"
        self._right(has == text[: one.start] if one.start else not one.uncleared, wrong, STATES, state)
        self._leaves(one.request, state, text[: one.end])
        if one.tracked is not None:
            slot, upto = one.tracked
            self._leaves(one.request, slot, text[:upto])

    def _leaves(self, request: int, state: int, text: Text) -> None:
        self.held[STATES][state] = text
        what = f"the pass leaves the state after {len(text)} tokens of the text of request {request} in it"
        self._histories.note(STATES, state, what)

    def _reads(self, one: ServerPass, text: Text, pool: str, first: int, slots: Sequence[int]) -> None:
        """``slots``: of the tokens from ``first`` on."""
        for at, slot in enumerate(slots, start=first):
            has = self.held[pool].get(slot)
            of = "its own" if has and has == text[: len(has)] else "another"
            what = f"is of token {len(has) - 1} of {of} text" if has else "was never computed"
            who = f"request {one.request} goes on after {one.start} tokens of its text"
            where = "slot" if pool == FULL else NAMES[pool]
            wrong = f"{who}; the KV cache in {where} {slot}, of token {at}, {what}"
            self._right(has == text[: at + 1], wrong, pool, slot)

    def _right(self, holds: bool, wrong: str, pool: str, place: int) -> None:
        """Raises ``AssertionError`` with what is ``wrong`` and the history of the place, unless it ``holds``."""
        if not holds:
            error = AssertionError(wrong)
            error.add_note(self._histories.of(pool, place))
            raise error


def _end_script(
    histories: Histories, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Ends the script at once, so that nothing stands behind its error, which is the last line."""
    print("Traceback (most recent call last):", file=sys.stderr)
    print("".join(traceback.format_tb(trace)), end="", file=sys.stderr)
    for told in vars(error).get("__notes__", [histories.did()]):
        print(told, file=sys.stderr)
    print(f"{kind.__name__}: {error}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
