"""Drives an engine of requests on after a law was broken, as a scheduler would, to see whether a request reads wrong
contents.

The law's state means nothing any more, so what may be sent now is read from the engine's own snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from conformance.contents.forward import Pools, forward
from conformance.contents.moves import Move
from conformance.contents.shadow import Shadow, Wrong
from conformance.engines.protocol import Json, RowSnapshot, RowsSnapshot
from conformance.requests import Request, token

STRANGER = 5000  # the first fork of requests whose texts share nothing with any other


class OnwardRows:
    """The requests and sessions of a run of ``session_trim`` or ``cache``, driven without the law.

    ``requests``: those that run or wait, by number. ``old``: the texts of the requests that are gone, newest last.
    """

    def __init__(
        self,
        engine: Any,
        config: Json,
        shadow: Shadow,
        requests: dict[int, Request],
        texts: dict[int, list[int]],
        most_requests: int,
    ) -> None:
        self.engine, self.config, self.shadow = engine, config, shadow
        self.requests, self.texts, self.most = dict(requests), dict(texts), most_requests
        self.page_size: int = config["page_size"]
        self.old: list[tuple[list[int], int]] = [(r.text, r.fork) for r in requests.values()]
        self.strangers = 0
        self.moves: dict[str, Callable[[], Move]] = {
            "stranger": self.stranger,
            "decode": self.decode,
            "finish": self.finish,
            "again": self.again,
            "turn": self.turn,
            "evict": self.evict,
            "leave": self.leave,
        }

    def seen(self) -> RowsSnapshot:
        """The engine now."""
        found = self.engine.cache_snapshot().rows if hasattr(self.engine, "cache_snapshot") else self.engine.snapshot()
        rows: RowsSnapshot = found
        return rows

    def running(self) -> dict[int, RowSnapshot]:
        """The requests that run, with their rows."""
        return {n: row for n, row in self.seen().requests.items() if n in self.requests}

    # Moves.

    def stranger(self) -> Move:
        """A request comes whose text is like no other, as long as there is room for it."""
        pools, size = self.seen().pools, self.page_size
        room = pools.full.available if pools.swa.available == 0 else min(pools.full.available, pools.swa.available)
        self.strangers += 1
        fork = STRANGER + self.strangers
        tokens = max(1, min(room, self.config["size"] * size - size))
        yield from self._admit([token(n, 0) + 1000 * fork for n in range(tokens)], fork, 0)

    def again(self) -> Move:
        """A request comes with the text of one that is gone, or that runs, and one more token."""
        running = [(self.requests[n].text, self.requests[n].fork) for n in self.running()]
        for text, fork in [*reversed(self.old), *running][:2]:
            if len(text) < self.config["size"] * self.page_size:
                yield from self._admit([*text, token(len(text), STRANGER)], fork, 0)

    def turn(self) -> Move:
        """Each session whose slot has a row gets its next turn."""
        busy = {request.session for request in self.requests.values()}
        for session in self.seen().sessions:
            text = self.texts.get(session, [])
            if session not in busy and text and len(text) < self.config["size"] * self.page_size:
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
        for number in self.running():
            if self.requests[number].fork > STRANGER:
                yield from self._end(number)

    def evict(self) -> Move:
        """The tree gives back what nobody has locked."""
        most = self.config["size"] * self.page_size
        self._send("evict", lambda: self.engine.evict(most, most))
        yield "evict everything", None

    # Calls, each with the forward pass that follows it.

    def _send(self, name: str, call: Callable[[], Any]) -> Any:
        self.shadow.step += 1
        return call()

    def _admit(self, tokens: list[int], fork: int, session: int) -> Move:
        free = next((n for n in range(self.most) if n not in self.requests), None)
        seen = self.seen()
        if free is None or (not seen.free_rows and session not in seen.sessions):
            return
        answer = self._send("admit", lambda: self.engine.admit(free, session, list(tokens), len(tokens)))
        what = f"admit request {free} with {len(tokens)} tokens" + (f" of session {session}" if session else "")
        if not answer.granted:
            self._send("cancel", lambda: self.engine.cancel(free))
            yield f"{what}: no room", None
            return
        self.requests[free] = Request(session, list(tokens), fork)
        yield what, self._pass(free, answer.prefix, len(tokens))
        yield from self._cache(free)

    def _cache(self, number: int) -> Move:
        request = self.requests[number]
        prompt = self.running()[number].lengths.committed < len(request.tokens)
        sampled = None if prompt else request.next()[0]
        self._send("cache", lambda: self.engine.cache(number, sampled))
        request.sampled += [] if sampled is None else [sampled]
        yield f"put the prompt of request {number} into the tree", None

    def _goes_on(self, number: int) -> Move:
        request, row = self.requests[number], self.running().get(number)
        if row is None:
            return
        now, allocated = row.lengths.committed, row.lengths.allocated
        if now < len(request.tokens):
            if not self._send("chunk", lambda: self.engine.chunk(number, len(request.tokens))):
                return
            yield f"compute the rest of the prompt of request {number}", self._pass(number, now, len(request.tokens))
            yield from self._cache(number)
            return
        if allocated > now:
            accepted = request.next(allocated - now)
            self._send("commit", lambda: self.engine.commit(number, list(accepted)))
            request.sampled += accepted
            yield f"accept the draft of request {number}", self._pass(number, now, allocated)
            return
        if now >= self.config["size"] * self.page_size - 1:
            return
        sampled = request.next()
        self._send("slide", partial(self.engine.slide, number))
        if self._send("decode", lambda: self.engine.decode([number], list(sampled))):
            wrong = self._pass(number, now, now + 1)
            request.sampled += sampled
            yield f"decode request {number}", wrong

    def _end(self, number: int) -> Move:
        request, row = self.requests[number], self.running().get(number)
        if row is None or row.lengths.committed < len(request.tokens) or row.lengths.allocated > row.lengths.committed:
            return
        self._send("finish", lambda: self.engine.finish(number, len(request.sampled)))
        del self.requests[number]
        self.old.append((request.text, request.fork))
        if request.session:
            self.texts[request.session] = request.text
        yield f"end request {number}", None

    def _pass(self, number: int, computed: int, upto: int) -> Wrong | None:
        """The forward pass of a request after a granted call: the first wrong slot that it reads."""
        seen = self.seen()
        row = seen.requests.get(number)
        if row is None:
            return None
        known = [*self.requests[number].text, *self.requests[number].next(upto)][:upto]
        windowed = "swa" in self.config.get("components", ("swa",))
        pools = Pools(seen.pools.mapping if windowed else None, self.config["window"])
        prefixes = self.shadow.texts.prefixes(known)
        return forward(self.shadow, f"request {number}", prefixes, row.slots[:upto], computed, upto, pools)
