"""The machine that draws runs of the room ``server``: what clients send, and the flags of the server.

Clients do what they like: they send prompts that share beginnings, abort at any moment, and send a session's turn
before its last one has ended. Pools are small, so that requests wait, are retracted and evict each other's prefixes.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.machine import StemMachine, started
from conformance.stems.requests.request import token
from conformance.stems.server.run import ServerRun

PRIORITY, FAR = "--enable-priority-scheduling", 20  # so far apart, one request takes the place of another
SPARE = 5  # a server keeps so many tokens of its longest text free
OPTIONS: dict[str, tuple[tuple[str, ...], ...]] = {  # what is drawn beside sizes; each option off, then on
    "overlap": (("--disable-overlap-schedule",), ()),
    "chunked": ((), ("--chunked-prefill-size", "4")),
    "mixed": ((), ("--enable-mixed-chunk",)),
    "policy": ((), ("--schedule-policy", "lpm")),
    "priority": ((), (PRIORITY,)),
}
# Windows move in each step, and not after hundreds of tokens, which no drawn text has.
OFTEN = {"SWA_EVICTION_INTERVAL": "1"}
SESSION_FLAG = "--enable-streaming-session"
MODELS = ("windowed", "full", "sliding")
SIZES = ((1, 16), (1, 20), (4, 8), (2, 12))  # each: tokens of a page, and pages
CONFIG = {
    "model": st.integers(0, len(MODELS) - 1),
    "size": st.integers(0, len(SIZES) - 1),
    "rows": st.sampled_from((3, 2, 4)),
    "sessions": st.sampled_from((0, 2, 1)),
    "often": st.booleans(),
    **{name: st.integers(0, len(each) - 1) for name, each in OPTIONS.items()},
}
lengths, answers = st.integers(1, 14), st.integers(1, 9)
forks, picks = st.integers(0, 6), st.integers(0, 23)
moves = st.lists(st.tuples(picks, lengths, answers, forks), min_size=1, max_size=6)


def flags(drawn: Json) -> list[str]:
    """The launch flags of a drawn server."""
    page, pages = SIZES[drawn["size"]]
    found = [
        *("--page-size", str(page), "--max-total-tokens", str(page * pages)),
        *("--context-length", str(page * pages * 3 // 4)),  # a text fits into the pool beside what it needs at its end
        *("--max-running-requests", str(drawn["rows"]), "--attention-backend", "triton"),
    ]
    for name, each in OPTIONS.items():
        found += each[drawn[name]]
    return found + ([SESSION_FLAG] if drawn["sessions"] else [])


class ServerMachine(StemMachine):
    """Clients of one server."""

    run: ServerRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """Launches a server with drawn flags; what the engine refuses is left out, one option after the other."""
        self.number = 0
        known = dict(config)
        for name in ("", *reversed(OPTIONS), "sessions", "model"):
            known |= {name: 0} if name else {}
            one = {"model": MODELS[known["model"]], "flags": flags(known), "sessions": known["sessions"]}
            one |= {"environment": OFTEN} if known["often"] else {}
            if self.begin(one):
                self.number = 1 + max((step.get("request", -1) for step in self.lock.trace.steps), default=-1)
                return

    @property
    def begun(self) -> ServerRun:
        """The run, which has begun."""
        assert self.run is not None, "rules are drawn after the start"
        return self.run

    @rule(sent=moves, turns=st.integers(1, 4))
    def serve(self, sent: list[tuple[int, int, int, int]], turns: int) -> None:
        """Clients send some messages before the server polls; then the server makes a few turns of its loop. It has no
        precondition, since Hypothesis needs one rule that can always be taken.
        """
        if not started(self):
            return
        for pick, length, answer, fork in sent:
            self._send(pick, length, answer, fork)
        self.do("turn", times=turns)

    @rule(turns=st.sampled_from((4, 12, 70)))
    @precondition(started)
    def serves_on(self, turns: int) -> None:
        """Nobody sends anything for a while."""
        self.do("turn", times=turns)

    def _send(self, pick: int, length: int, answer: int, fork: int) -> None:
        most = self.begun.config["sessions"]
        closed = [session for session in range(1, most + 1) if session not in self.begun.sessions]
        known = sorted(self.begun.here)
        if pick == 0 and known:
            self.do("abort", request=known[length % len(known)])
        elif pick == 1:
            self.do("flush")
        elif pick == 5 and not self.begun.paused:
            self.do("pause", mode="retract" if length % 2 else "in_place")
        elif self.begun.paused and pick % 3:
            self.do("resume")
        elif pick in (2, 3) and closed:
            self.do("open", session=closed[0])
        elif pick == 4 and self.begun.sessions:
            opened = sorted(self.begun.sessions)
            self.do("close", session=opened[length % len(opened)])
        else:
            self._generate(pick, length, answer, fork)

    def _generate(self, pick: int, length: int, answer: int, fork: int) -> None:
        opened = sorted(self.begun.sessions)
        session = opened[length % len(opened)] if opened and pick % 2 else 0
        first = len(self.begun.calls.texts.get(session, [])) if session else 0
        longest = max(1, self.begun.longest - SPARE)
        tokens = [token(first + n, fork) for n in range(min(length, longest))]
        stop = {"stop": first + length + answer // 2} if pick % 5 == 4 else {}
        if PRIORITY in self.begun.config["flags"]:
            stop |= {"priority": (0, FAR, -FAR)[length % 3]}
        self.do("generate", request=self.number, tokens=tokens, longest=answer, session=session, fork=fork, **stop)
        self.number += 1
