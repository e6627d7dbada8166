"""What a prefill server sends to decode servers, beside the law: the right contents, and all of them.

A transfer reads the memory of the prefill server at some moment after the server has handed a part of a prompt to it.
What was read counts where a decode server is told that all is there. Nobody uses what is read for a transfer that
fails, or for one that the decode server does not want any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from conformance.driver.lockstep import INVARIANT, Calls, EngineCall, Finding
from conformance.driver.operations import operation
from conformance.driver.protocol import Misuse
from conformance.driver.shadow import FULL, STATES, SWA, Shadow
from conformance.stems.configs import is_windowed
from conformance.stems.server.protocol import SENDS, SendStep, Sent, TransferStep

SENDS_OWN = "decode_server_gets_own_content"
SENDS_OWN_SENTENCE = (
    "What a decode server has when it is told that all of a prompt is there was computed for the tokens of it: "
    "the KV cache of each token, that of sliding window layers in the window before its end, and the recurrent state "
    "after it."
)
GIVES_BACK = "metadata_buffers_come_back"
GIVES_BACK_SENTENCE = "When a prefill server has no requests, all of its buffers for first tokens are free, once each."
GOES: Collection[SendStep] = ("takes", "reads")  # what the worker does
WAITS: Sequence[TransferStep | SendStep] = ("cancels",)  # what nobody waits for


class Sending(Protocol):
    """What this asks of the run of a server."""

    engine: Any
    shadow: Shadow
    sent: dict[int, list[int]]
    forks: dict[int, int]
    batches: int
    lacks: Collection[str]
    here: set[int]
    coming: set[int]


Place = tuple[
    str, int
]  # a pool, and the place of a token in the prompt; in the pool of states, the last one of a state
NAMES = {FULL: ("token {}", "slot {}", "a token"), SWA: ("token {} in the SWA pool", "SWA slot {}", "a token")}
NAMES[STATES] = ("the state after token {}", "state slot {}", "a state")


@dataclass
class SentPrompt:
    """What a decode server gets. ``prefixes``: the numbers of the prefixes of the prompt. ``wrong``: of each place that
    was sent, what is wrong with it, ``""`` where nothing is. ``first``: likewise of the first token of the answer;
    ``None`` where none was sent.
    """

    prefixes: list[int]
    wrong: dict[Place, str] = field(default_factory=dict)
    first: str | None = None


class Sendings:
    """``open``: the prompts for which a decode server has asked, by request."""

    def __init__(self, run: Sending, sampled: Callable[[int, int], int]) -> None:
        self._run, self._sampled = run, sampled
        self.open: dict[int, SentPrompt] = {}
        self.asked: set[int] = set()  # all for which a decode server has ever asked
        self.early: set[int] = set()  # those that it did not want any more before the server had them
        self.hurried: set[int] = set()  # those whose parts are read as soon as they are handed over
        # Of each step in flight its number, and by pool and slot the request for which it writes.
        self._writing: deque[tuple[int, dict[tuple[str, int], int]]] = deque()

    def launched(self, written: Iterable[tuple[int, Iterable[tuple[str, int]]]]) -> None:
        """A step was launched. ``written``: of each request in it the pools and slots that it writes. Of a server that
        sends nothing, nobody asks which steps write.
        """
        if SENDS in self._run.lacks:
            return
        self._writing.append((self._run.batches, {slot: request for request, slots in written for slot in slots}))

    def waited(self, done: int) -> None:
        """The server has waited for so many of its steps."""
        while self._writing and self._writing[0][0] <= done:
            self._writing.popleft()

    @operation
    def send(self, request: int, step: SendStep) -> Calls:
        """A decode server does something for a request, or the worker that sends prompts goes on: see
        ``ServerEngine.send``.
        """
        if step == "hurries" and request in self.open:
            self.hurried.add(request)
            return
        if step not in self._run.engine.send_steps(request):
            raise Misuse(f"this cannot happen now for request {request}")
        sent = yield EngineCall("send", lambda: self._run.engine.send(request, step))
        self.does(request, step, sent)

    def hurries(self, midway: bool) -> Calls:
        """The server has done something, and the worker goes on at once. ``midway``: the server is in the middle of
        something.
        """
        while going := [one for one in sorted(self.hurried) if self._next(one) in GOES]:
            request, step = going[0], self._next(going[0])
            sent = yield EngineCall("send", partial(self._run.engine.send, request, step), unjudged=midway)
            self.does(request, step, sent)

    def _next(self, request: int) -> SendStep:
        """What can happen next for a request."""
        return next(iter(self._run.engine.send_steps(request)), "cancels")

    def steps(self) -> dict[int, Sequence[SendStep]]:
        """What can happen next, by request; those for which nothing can happen are left out."""
        if SENDS in self._run.lacks:
            return {}
        requests = sorted(self._run.here | self._run.coming | self.asked)
        known = {request: self._run.engine.send_steps(request) for request in requests}
        return {request: steps for request, steps in known.items() if steps}

    def unheard_of(self) -> set[int]:
        """The requests of a prefill server for which no decode server has asked. It waits for one, up to a time; and
        so it may where the decode server has taken its word back before the prefill server had the request.
        """
        return set() if SENDS in self._run.lacks else self._run.here - (self.asked - self.early)

    def does(self, request: int, step: SendStep, sent: Sent) -> None:
        """A decode server has done something, or the worker has gone on. Raises ``Finding`` where a decode server is
        told that all is there, and it is not.
        """
        if step in ("asks", "asks_rest"):
            self.asked.add(request)
            self.open[request] = SentPrompt(self._run.shadow.texts.prefixes(self._run.sent[request]))
        elif step == "cancels":
            self.open.pop(request, None)
            if request not in self._run.here:
                self.early.add(request)
        if request not in self.open:
            return
        self.waited(sent.done)
        prompt = self.open[request]
        last = len(prompt.prefixes) - 1
        states = [(last, sent.state)] if sent.state else []
        for pool, slots in ((FULL, sent.slots), (SWA, sent.swa_slots), (STATES, states)):
            for place, slot in slots:
                if place <= last:
                    prompt.wrong[pool, place] = self._wrong(prompt.prefixes[place], pool, slot)
        if sent.buffer is not None:
            prompt.first = self._wrong_first(request, sent)
        if sent.told is not None:
            del self.open[request]
        if sent.told:
            self._judge(request, prompt, sent.start)

    def _wrong(self, prefix: int, pool: str, slot: int) -> str:
        """What is wrong with the content of a slot that is read for a prefix."""
        _, name, content = NAMES[pool]
        writes = next((slots[pool, slot] for _, slots in self._writing if (pool, slot) in slots), None)
        if writes is not None:
            return f"{name.format(slot)}, which a step in flight still writes for request {writes}"
        held = self._run.shadow.holds(pool, slot)
        if held is None:
            return f"{name.format(slot)}, which nobody has written"
        return "" if held.prefix == prefix else f"{name.format(slot)}, which has {content} of {held.writer}"

    def _wrong_first(self, request: int, sent: Sent) -> str:
        expected = self._sampled(len(self._run.sent[request]), self._run.forks[request])
        if sent.request != request:
            return f"buffer {sent.buffer}, which is that of request {sent.request}"
        return "" if sent.first == expected else f"buffer {sent.buffer} with token {sent.first} in place of {expected}"

    def _needed(self, start: int, length: int) -> list[Place]:
        """What a decode server needs of a prompt of which it has ``start`` tokens."""
        shape = self._run.engine.shape
        windowed = range(max(start, length - int(shape["window"])), length) if is_windowed(shape) else ()
        states = [(STATES, length - 1)] if "size_mamba" in shape else []
        return [*((FULL, at) for at in range(start, length)), *((SWA, at) for at in windowed), *states]

    def _judge(self, request: int, prompt: SentPrompt, start: int) -> None:
        told = [
            f"{NAMES[pool][0].format(place)} was {f'read from {wrong}' if wrong else 'not sent'}"
            for pool, place in self._needed(start, len(prompt.prefixes))
            if (wrong := prompt.wrong.get((pool, place))) != ""
        ]
        if prompt.first != "":
            told.append(f"the first token of the answer was {'not sent' if prompt.first is None else 'read from '}")
            told[-1] += prompt.first or ""
        if told:
            detail = f"request {request} is there, a decode server is told; {told[0]}"
            raise Finding(SENDS_OWN, SENDS_OWN_SENTENCE, detail, kind=INVARIANT)

    def idle(self) -> None:
        """The server has no requests. Raises ``Finding`` where a prefill server has kept a buffer for first tokens."""
        if SENDS not in self._run.lacks and (kept := self._run.engine.kept_buffers()):
            raise Finding(GIVES_BACK, GIVES_BACK_SENTENCE, f"{kept} are not", kind=INVARIANT)
