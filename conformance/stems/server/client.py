"""What clients of a server send, from drawn numbers: one client for runs that Hypothesis draws and for benchmarks.

Clients do what they like: they send prompts that share beginnings, abort at any moment, and send a session's turn
before its last one has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, get_args

from conformance.driver.protocol import Json
from conformance.stems.requests.request import token
from conformance.stems.server.exclusions import (
    ServerExclusion,
    lawful_steps,
    may_ask_for,
    may_ask_for_turn,
    may_flush,
    may_release_memory,
    may_retract,
    may_say_priority,
    may_send_empty_turn,
    may_share_prompt,
    may_stop,
    may_take_back,
    may_update_weights,
    turns_before_release,
    turns_before_update,
)
from conformance.stems.server.protocol import SENDS, TRANSFER, SendStep, TransferStep
from conformance.stems.server.sendings import WAITS
from conformance.stems.server.served import ServedClients

# Of 24 draws, which are a turn without a new token, or one for which no answer is asked, where a session goes on.
ADDS_NOTHING, WANTS_NOTHING = 9, (11, 13)
RESUMES = 8  # of 24 draws: how many leave a paused server paused
FAR = 20  # so far apart in priority, one request takes the place of another
ABORTS = 8  # of 24 draws: the one that also takes a request back, where a prefill server computes prompts
OFTEN = (14, 15)  # of 24 draws: those that also do where prompts go to decode servers
GOES_WELL = 2  # below this number of a draw's text, a prefill server may also fail
GOES_ON = 3  # times
ASKS: Collection[SendStep] = ("asks", "asks_rest")
FEW = 4  # turns, after which a prefill server goes on
SOME = 20  # turns, after which clients look whether their requests go on
SPARE = 5  # a server keeps so many tokens of its longest text free


class Drawn(NamedTuple):
    """The drawn numbers of one message, each from 0 or 1 to the number that ``MOST`` has for it.

    ``pick``: which message. ``length``: of the prompt, in tokens. ``answer``: the longest answer, in tokens. ``fork``:
    which text, so that texts of different numbers share no token.
    """

    pick: int
    length: int
    answer: int
    fork: int


LEAST = Drawn(pick=0, length=1, answer=1, fork=0)
MOST = Drawn(pick=23, length=14, answer=9, fork=6)


@dataclass
class Client:
    """A client of one server.

    ``do`` sends an operation with its arguments. ``exclude``: the known differences to avoid. ``number``: the number of
    the next request. ``avoided``: how many messages each of the known differences has changed.
    """

    do: Callable[..., object]
    exclude: Collection[StrEnum] = ()
    number: int = 0
    avoided: Counter[str] = field(default_factory=Counter)

    def send(self, run: ServedClients, drawn: Drawn) -> None:
        """One message, after the prefill server of a decode server has gone on with something. A paused server, and one
        that has given its memory back, hears of few things.
        """
        pick, length, answer, _ = drawn
        transfers = self._transfers(run, drawn)
        closed = [n for n in range(1, run.config["sessions"] + 1) if n not in run.sessions]
        opened, known = sorted(run.sessions), sorted(run.here)
        if run.released:
            self.do("resume_memory")
        elif run.paused and pick > RESUMES:
            self.do("resume")
        elif (pick == 0 or (pick == ABORTS and transfers) or (pick in OFTEN and SENDS not in run.lacks)) and known:
            self.do("abort", request=known[length % len(known)])
        elif pick == 1 and self._may(may_flush, run):
            self.do("flush")
        elif pick in (2, 3) and closed:
            self.do("open", session=closed[0], **({"turns": 8 * length} if answer == 1 else {}))
        elif pick == 4 and opened:
            self.do("close", session=opened[length % len(opened)])
        elif pick == 5 and not run.paused:
            self.do("pause", mode="retract" if length % 2 and self._may(may_retract, run) else "in_place")
        elif pick == 6 and self._may(may_update_weights, run):
            self._later("update_weights", turns_before_update)
        elif pick == 7 and self._may(may_release_memory, run):
            self._later("release_memory", turns_before_release)
        elif not run.paused:
            self._generate(run, drawn)

    def turns(self, run: ServedClients, times: int) -> None:
        """The server makes so many turns. For a known difference it makes some at a time, and clients take back what it
        would not go on with.
        """
        most = SOME if may_take_back(run, self.exclude) else times
        for first in range(0, times, most):
            for request, steps in run.transfer_steps().items():
                if "stops" in steps and ServerExclusion.LATE_WRITES in self.exclude:
                    self._does(request, steps, 0)
            self.do("turn", times=min(times - first, most))
            for request in run.stuck() if may_take_back(run, self.exclude) else ():
                self.avoided[ServerExclusion.RETRACTED_BEHIND_ARRIVED] += 1
                self.do("abort", request=request)

    def waits(self, run: ServedClients, times: int) -> None:
        """Clients of a decode server send nothing for so many turns, and its prefill server does what it can."""
        for first in range(0, times, FEW):
            self.settle(run)
            self.turns(run, min(times - first, FEW))

    def settle(self, run: ServedClients) -> None:
        """The prefill server of a decode server does for each request what it can. The worker of a prefill server goes
        on more than once.
        """
        for _ in range(1 if SENDS in run.lacks else GOES_ON):
            for request, steps in run.transfer_steps().items():
                if steps[0] not in WAITS:
                    self._does(request, steps, 0)

    def _does(self, request: int, steps: Sequence[TransferStep | SendStep], number: int) -> None:
        """The prefill server, or a decode server, does one of these things for a request."""
        allowed = lawful_steps(steps, self.exclude)
        if allowed != steps:
            self.avoided[ServerExclusion.LATE_WRITES] += 1
        step = allowed[number % len(allowed)]
        self.do(SENDS if step in get_args(SendStep) else TRANSFER, request=request, step=step)
        if step in ASKS and request % 2:
            self.do(SENDS, request=request, step="hurries")

    def _transfers(self, run: ServedClients, drawn: Drawn) -> bool:
        """The server on the other side does something for a request. Whether there is one for which it can."""
        well = drawn.fork >= GOES_WELL
        known = {one: steps for one, steps in run.transfer_steps().items() if not well or steps[0] not in WAITS}
        if known:
            request = sorted(known)[drawn.length % len(known)]
            self._does(request, known[request], 0 if well else drawn.answer)
        return bool(known)

    def _may(self, rule: Callable[..., bool], run: ServedClients, *more: int) -> bool:
        """What the rule says of a message. One that is refused for a known difference is counted."""
        if rule(run, self.exclude, *more):
            return True
        if rule(run, (), *more):
            self.avoided.update(one for one in self.exclude if not rule(run, {one}, *more))
        return False

    def _later(self, what: str, turns_before: Callable[[Collection[StrEnum]], int]) -> None:
        """A message that comes after as many turns as known differences ask for, which are counted."""
        if turns := turns_before(self.exclude):
            self.avoided.update(one for one in self.exclude if turns_before({one}))
            self.do("turn", times=turns)
        self.do(what)

    def _generate(self, run: ServedClients, drawn: Drawn) -> None:
        pick, length, answer, fork = drawn
        opened = sorted(run.sessions)
        session = opened[length % len(opened)] if opened and pick % 2 else 0
        if session and not self._may(may_ask_for_turn, run, session, length + answer):
            session = 0
        first = len(run.text_of(session)) if session else 0
        longest = max(1, run.longest - SPARE)
        adds_nothing, wants_nothing = pick == ADDS_NOTHING and first > 0, pick in WANTS_NOTHING
        if session and (adds_nothing or wants_nothing) and self._may(may_send_empty_turn, run):
            length = 0 if adds_nothing else length
            answer = 0 if wants_nothing else answer
        length = min(length, longest)
        if not self._may(may_ask_for, run, length):
            length = max(n for n in range(1, length) if may_ask_for(run, self.exclude, n))
        begins_with = run.text_of(session)[0] if first else token(0, fork)
        if not self._may(may_share_prompt, run, begins_with):
            return
        tokens = [token(first + n, fork) for n in range(length)]
        stops = pick % 5 == 4 and self._may(may_stop, run)
        stop = {"stop": first + length + answer // 2} if stops else {}
        urgent = pick % 4 and self._may(may_say_priority, run)
        more = {"priority": (FAR, 2 * FAR, 0)[length % 3]} if urgent else {}
        known: Json = {"request": self.number, "tokens": tokens, "longest": answer, "session": session, "fork": fork}
        self.do("generate", **known, **stop, **more)
        self.number += 1
