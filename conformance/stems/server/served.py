"""What clients of a server send, and what they know of it: one part of the runs of all rooms for whole servers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from conformance.driver.lockstep import INVARIANT, Calls, EngineCall, Finding
from conformance.driver.operations import AnyTokens, Tokens, operation
from conformance.driver.protocol import Json, Misuse
from conformance.stems.requests.request import token
from conformance.stems.server.protocol import DEAF, POLL, Pause, SendStep, ServerEngine, ServerEvent, TransferStep

GOES_ON = "clients_never_stop_a_server"
GOES_ON_SENTENCE = "Whatever clients send, a server goes on: no message makes it end with an exception."
HEARS = "server_hears_of_requests"
HEARS_SENTENCE = "A server reads what its clients send: soon after a client has sent a request, the server has it."
ANSWERS = "requests_are_answered"
ANSWERS_SENTENCE = "A request leaves a server when its client has been told of its end, or has taken it back."
SOON = 50  # polls beyond those at which a server that reads one message at a time has read all that was sent
MOST_TURNS = 400


class ServedClients:
    """The clients of one server, and its turns. A number of a request comes once.

    ``forks`` and ``sent``: the fork and the input of each request, as its client sent it. ``sent_to``: the session of
    each request that is a turn. ``here``: the requests that the server has; ``coming``: those that were sent since it
    polled. ``sessions``: those that a client has opened; ``spoiled``: those of which a turn that was retracted, or one
    that waited, was aborted last. ``longest``: the tokens of the server's pool.
    """

    def __init__(self, engine: ServerEngine, config: Json) -> None:
        self.engine: Any = engine
        self.config = config
        self.lacks: Collection[str] = engine.lacks
        self.forks: dict[int, int] = {}
        self.sent_to: dict[int, int] = {}
        self.sent: dict[int, list[int]] = {}
        self.spoiled: set[int] = set()
        self.sessions: set[int] = set()
        self.here: set[int] = set()
        self.coming: set[int] = set()
        self.paused = self.released = False
        self._messages = self._unread = 0  # what clients have sent; the polls since the server had all requests
        self.longest: int = engine.shape["size"] * engine.shape["page_size"]

    # What a client sends.

    @operation
    def generate(
        self,
        request: int,
        tokens: AnyTokens,
        longest: Tokens,
        session: int = 0,
        fork: int = 0,
        stop: int | None = None,
        priority: int | None = None,
    ) -> Calls:
        """A client sends a request. ``stop``: the position whose token ends the answer, where it is sampled. A turn may
        add no token, and a client may ask for no answer.
        """
        if request in self.forks:
            raise Misuse("a number of a request comes once")
        if not tokens and not session:
            raise Misuse("an input has a token, unless a session goes on")
        if self.paused or self.released:
            raise Misuse("requests do not reach a server that is paused, or has given its memory back")
        self.forks[request] = fork
        self.coming.add(request)
        self.sent[request] = list(tokens)
        if session:
            self.sent_to[request] = session
        ends = None if stop is None else token(stop, fork)
        asked = partial(self.engine.generate, request, session, list(tokens), longest, fork, ends, priority)
        yield self._message("generate", asked)

    @operation
    def abort(self, request: int) -> Calls:
        """A client takes a request back, whatever it does then."""
        yield self._message("abort", partial(self.engine.abort, request))

    @operation
    def open(self, session: int, turns: int | None = None) -> Calls:
        """A client opens a streaming session, which may end after so many turns in which it is not used."""
        if not 1 <= session <= self.config["sessions"]:
            raise Misuse(f"there is no session {session}")
        self.sessions.add(session)
        yield self._message("open", partial(self.engine.open, session, turns))

    @operation
    def close(self, session: int) -> Calls:
        """A client closes a session."""
        self.sessions.discard(session)
        yield self._message("close", partial(self.engine.close, session))

    @operation
    def flush(self) -> Calls:
        """A client asks that the cache be emptied."""
        yield self._message("flush", self.engine.flush)

    @operation
    def pause(self, mode: Pause) -> Calls:
        """A client pauses the server."""
        self.paused = True
        yield self._message("pause", partial(self.engine.pause, mode))

    @operation
    def resume(self) -> Calls:
        """A client lets a paused server go on."""
        self.paused = False
        yield self._message("resume", self.engine.resume)

    @operation
    def update_weights(self) -> Calls:
        """A client loads new weights: on a paused server, or when all requests have ended."""
        if not self.paused and not self.quiet:
            raise Misuse("new weights are loaded when the server is paused, or has no requests")
        yield self._message("update_weights", self.engine.update_weights)

    @operation
    def release_memory(self) -> Calls:
        """A client has the server give its memory back, when all requests have ended."""
        if self.released or not self.quiet:
            raise Misuse("memory is given back once, when the server has no requests")
        self.released = True
        yield self._message("release_memory", self.engine.release_memory)

    @operation
    def resume_memory(self) -> Calls:
        """A client has the server take its memory again."""
        if not self.released:
            raise Misuse("the server has its memory")
        self.released = False
        yield self._message("resume_memory", self.engine.resume_memory)

    @property
    def quiet(self) -> bool:
        """The server has no requests, and none is on its way."""
        return not self.here and not self.coming

    @operation
    def turn(self, times: int = 1) -> Calls:
        """The server reads its messages, and makes so many turns of its loop; fewer where nothing is left to do."""
        if not 1 <= times <= MOST_TURNS:
            raise Misuse(f"a server makes 1 to {MOST_TURNS} turns at a time")
        for _ in range(times):
            event = yield from self._turn()
            if not event.requests and not self.coming:
                return

    def _message(self, name: str, send: Callable[[], Any]) -> EngineCall:
        """The call by which a client sends a message."""
        self._messages += 1
        return EngineCall(name, send)

    def hears(self, event: ServerEvent) -> None:
        """Raises ``Finding`` where a server does not read what its clients send. At each poll it reads a message at
        least, if there is one.
        """
        if event.kind == DEAF:
            raise Finding(HEARS, HEARS_SENTENCE, "its loop goes on, and reads no message", kind=INVARIANT)
        if event.kind != POLL:
            return
        if event.unanswered:
            detail = f"request {event.unanswered[0]} is no more there, and its client was not told"
            raise Finding(ANSWERS, ANSWERS_SENTENCE, detail, kind=INVARIANT)
        self.coming.difference_update(event.requests)
        self._unread = self._unread + 1 if self.coming else 0
        if self._unread > SOON + self._messages:
            detail = f"after {self._unread} polls it does not have request {min(self.coming)}"
            raise Finding(HEARS, HEARS_SENTENCE, detail, kind=INVARIANT)

    def _turn(self) -> Generator[EngineCall | None, Any, ServerEvent]:
        """One turn of the loop: what the server does, event by event. Returns the poll at its end."""
        raise NotImplementedError

    def transfer_steps(self) -> Mapping[int, Sequence[TransferStep | SendStep]]:
        """What the server on the other side of a decode server or a prefill server can do next, by request."""
        return {}

    def stuck(self) -> list[int]:
        """The requests of a decode server that wait after they gave their rows up, while nothing is computed."""
        return []

    def text_of(self, session: int) -> list[int]:
        """The text of a session, of the turns that it has kept."""
        raise NotImplementedError

    def begins_with(self, request: int) -> int | None:
        """The first token of what a request computes. ``None``: there is none yet."""
        return next(iter((*self.text_of(self.sent_to.get(request, 0)), *self.sent[request])), None)

    @property
    def settled(self) -> bool:
        """The server waits for nothing but its clients, as far as they can know."""
        return True

    def sessions_with_turns(self) -> set[int]:
        """The sessions of which a turn is on the server, or on its way to it."""
        return {self.sent_to[request] for request in self.here | self.coming if request in self.sent_to}
