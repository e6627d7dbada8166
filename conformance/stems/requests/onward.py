"""Drives an engine of requests on after a law was broken, as a scheduler would, to see whether a request reads wrong
contents.

The law's state means nothing any more, so what may be sent now is read from the engine's own snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver.onward import Move, send
from conformance.stems.requests.calls import RequestCalls
from conformance.stems.requests.request import MARK, RunRequest, token
from conformance.stems.session_trim.protocol import RowSnapshot, SessionTrimSnapshot

ANOTHER = 700  # the fork of a request that is there from the first operation on, and makes room when it ends
STRANGER = 5000  # the first fork of requests whose texts share nothing with any other


class OnwardRows:
    """The requests and sessions of a run of ``session_trim`` or ``cache``, driven without the law.

    ``requests``: those that run or wait, by number. ``old``: the texts of the requests that are gone, newest last.
    """

    def __init__(self, run: Any) -> None:
        calls: RequestCalls = run.calls
        self.run, self.engine, self.passes, self.shadow = run, run.engine, calls.passes, run.shadow
        self.size: int = calls.config["page_size"]
        self.most: int = calls.config["size"] * self.size
        self.requests = {n: r for n, r in calls.requests.items() if n not in calls.turned_away}
        self.taken = {*calls.requests}
        self.texts, self.old = dict(calls.texts), [r.text for r in calls.requests.values()]
        self.strangers = [n for n, request in self.requests.items() if request.fork == ANOTHER]
        self.open = int(run.rows.pools.group)
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": self.begin,
            "guest": self.guest,
            "stranger": self.stranger,
            "decode": self.decode,
            "finish": self.finish,
            "again": self.again,
            "turn": self.turn,
            "evict": self.evict,
            "leave": self.leave,
        }

    @property
    def seen(self) -> SessionTrimSnapshot:
        """The engine as it was after the last call."""
        rows: SessionTrimSnapshot = self.run.rows_seen
        return rows

    def running(self) -> dict[int, RowSnapshot]:
        """The requests that run, with their rows."""
        return {n: row for n, row in self.seen.requests.items() if n in self.requests}

    # Moves.

    def begin(self) -> Move:
        """Free groups that are open end, and each request that decodes knows its next token."""
        for number in self.running():
            request, computed = self.requests[number], self.passes.computed.get(number, 0)
            missing = computed + 1 - len(request.text) if computed >= len(request.tokens) else 0
            request.sampled += request.next(max(missing, 0))
        while self.open:
            self.open -= 1
            send(self.run, self.engine.end_group)
            yield "end the free group", None
        yield from self.leave()

    def stranger(self) -> Move:
        """A request comes whose text is like no other, as long as there is room for it."""
        yield from self._comes(max(1, min(self._room(), self.most - self.size)))

    def guest(self) -> Move:
        """A request of one token comes whose text is like no other."""
        yield from self._comes(1)

    def _comes(self, tokens: int) -> Move:
        fork = STRANGER + len(self.strangers)
        yield from self._admit([1000 * fork + n for n in range(tokens)], fork, 0)

    def again(self) -> Move:
        """A request comes with the text of one that is gone, or that runs, and one more token."""
        running = [self.requests[n].text for n in self.running()]
        for text in [*reversed(self.old), *running][:2]:
            if len(text) < self.most:
                yield from self._admit([*text, token(len(text), STRANGER)], STRANGER, 0)

    def turn(self) -> Move:
        """Each session whose slot has a row gets its next turn."""
        busy = {request.session for request in self.requests.values()}
        for session in list(self.seen.sessions):
            text = self.texts.get(session, [])
            if session not in busy and text and len(text) < self.most:
                yield from self._admit([*text, token(len(text), 0)], 0, session)

    def decode(self) -> Move:
        """Each request that runs computes the rest of its prompt, or one more token."""
        for number in self.running():
            yield from self._goes_on(number)

    def finish(self) -> Move:
        """The request that has run for the longest time ends."""
        for number in list(self.running())[:1]:
            yield from self._end(number)

    def leave(self) -> Move:
        """The strangers end."""
        for number in self.strangers:
            if number in self.requests:
                yield from self._end(number)

    def evict(self) -> Move:
        """The tree gives back what nobody has locked."""
        send(self.run, lambda: self.engine.evict(self.most, self.most))
        yield "evict everything", None

    def _room(self) -> int:
        """How many tokens both pools have available."""
        pools = self.seen.pools
        return min(pools.full.available, pools.full.available if self.passes.window is None else pools.swa.available)

    # Calls, each with the forward pass that follows it.

    def _admit(self, tokens: list[int], fork: int, session: int) -> Move:
        free = next((n for n in range(self.run.most_requests) if n not in self.taken), None)
        if free is None or not (self.seen.free_rows or session in self.seen.sessions):
            return
        request = RunRequest(session, list(tokens), fork, mark=tokens[0] // MARK)
        answer = send(self.run, lambda: self.engine.admit(free, session, list(tokens), len(tokens)))
        what = f"admit request {free} with {len(tokens)} tokens" + (f" of session {session}" if session else "")
        if not answer.granted:
            send(self.run, lambda: self.engine.cancel(free))
            yield f"{what}: there is no room", None
            return
        self.requests[free] = request
        self.taken.add(free)
        self.strangers += [free] if fork >= STRANGER else []
        self.passes.begin(free, request, answer.prefix)
        self.passes.prefill(free, request, len(tokens))
        yield f"{what}, {answer.prefix} of them cached", self.shadow.wrong
        yield from self._cache(free)

    def _cache(self, number: int) -> Move:
        request = self.requests[number]
        sampled = request.next()
        send(self.run, lambda: self.engine.cache(number, sampled[0]))
        request.sampled += sampled
        yield f"put the prompt of request {number} into the tree", None

    def _goes_on(self, number: int) -> Move:
        request, row = self.requests[number], self.running().get(number)
        if row is None:
            return
        now, allocated = self.passes.computed.get(number, 0), row.lengths.allocated
        if now < len(request.tokens):
            if send(self.run, lambda: self.engine.chunk(number, len(request.tokens))):
                self.passes.prefill(number, request, len(request.tokens))
                yield f"compute the rest of the prompt of request {number}", self.shadow.wrong
                yield from self._cache(number)
        elif allocated > now:
            yield from self._accept(number, allocated - now)
        elif now < self.most:
            yield from self._decode(number)

    def _accept(self, number: int, count: int) -> Move:
        request = self.requests[number]
        accepted = request.next(count)
        request.sampled += accepted
        self.shadow.begin(self.shadow.step + 1)
        self.passes.verified(number, request, count)
        wrong = self.shadow.wrong
        send(self.run, lambda: self.engine.commit(number, list(accepted)))
        yield f"accept the draft of request {number}", wrong

    def _decode(self, number: int) -> Move:
        request = self.requests[number]
        sampled = request.next()
        if self.passes.computed[number] % self.size or self._room() >= self.size:
            send(self.run, lambda: self.engine.slide(number))
            yield f"slide the window of request {number}", None
        if send(self.run, lambda: self.engine.decode([number], list(sampled))):
            self.passes.decode([(number, request)])
            wrong = self.shadow.wrong
            request.sampled += sampled
            yield f"decode request {number}", wrong

    def _end(self, number: int) -> Move:
        request, row = self.requests[number], self.running().get(number)
        if row is None or row.lengths.allocated > row.lengths.committed or row.lengths.committed < len(request.tokens):
            return
        send(self.run, lambda: self.engine.finish(number, len(request.sampled)))
        self.passes.ended(number)
        del self.requests[number]
        self.taken.discard(number)
        self.old.append(request.text)
        if request.session:
            self.texts[request.session] = request.text
        yield f"end request {number}", None
