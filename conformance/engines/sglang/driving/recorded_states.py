"""Mamba state slots of a release whose requests keep them in a record, as a ``MambaSlotsEngine``.

Requests, sessions, batches and the scheduler's calls are the release's own (``StandInScheduler``). A request that comes
again is the same object only after a retract: no other object of the release comes twice. Requests that are gone are
not shown, since nothing of the release reads them any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from conformance.driver.protocol import Key, OutOfMemory, Unsupported
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.driving.reading import slot_names, slots_in_row, text
from conformance.engines.sglang.driving.scheduler import (
    OUT_OF_STATES,
    StandInScheduler,
    after_boundary,
    before_boundary,
    track,
)
from conformance.engines.sglang.releases import records
from conformance.engines.sglang.releases.records import STATE
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot

OUT_OF_MEMORY = (OUT_OF_STATES, "Not enough space for mamba", "alloc_req_slots runs out of memory")
WINDOWS = 2  # pages that a long decode computes beyond a window


class RecordedStates:
    """Requests and sessions, by number, that get, track, cache and give back state slots."""

    def __init__(self, memory: SGLangMemory, lacks: Collection[str]) -> None:
        self.fragile, self.lacks = memory.release.fragile, lacks
        self.memory, self.sglang, self.slots = memory, memory.release, memory.state_slots
        self.page_size, self.rows, self.ran = memory.page_size, memory.rows, memory.ran
        self.scheduler = StandInScheduler(memory, checks_rows=False)
        self.requests: dict[int, Any] = {}
        self.turns: dict[int, str] = {}
        self.matched: dict[int, ExitStack] = {}  # the locks on what waiting requests have matched
        self.waiting: set[int] = set()  # requests that gave their row up, and may come again
        self.tracked: set[int] = set()  # requests whose state was tracked

    # A request comes.

    def match(self, request: int, tokens: Sequence[int], session: int, again: bool) -> Key | None:
        """``init_next_round_input`` of a request that comes, or comes again after a retract. A turn that was retracted
        does not come again as a request of no session, since its record is the session's: a new request comes.

        A scheduler locks the matched node in the step that matches. Here other calls may come before ``admit``, so the
        node is locked from now on until then.
        """
        if not (again and request in self.waiting and not self.turns[request]):
            self.requests[request] = self._new(tokens, session)
            self.turns[request] = str(session) if session else ""
        self.waiting.discard(request)
        self.tracked.discard(request)
        known = self.requests[request]
        had = records.read(known, STATE)
        with _out_of_memory():
            known.init_next_round_input(self.scheduler.cache)
        self.memory.copy_matched(known)
        self.matched[request] = lock = ExitStack()
        lock.enter_context(self.scheduler.serving.hold(self.scheduler.cache, known.last_node))
        copied = had is None and records.read(known, STATE) is not None and records.row(known) is None
        return tuple(text(self.memory.reader.path(known.last_node))) if copied else None

    def _new(self, tokens: Sequence[int], session: int) -> Any:
        """A request whose whole text is matched: one token more is left to compute."""
        if not session:
            return self.scheduler.without_session([*tokens, len(tokens) + 1])
        before = self.scheduler.length_of_session(str(session))
        return self.scheduler.turn(str(session), [*tokens, before + len(tokens) + 1])

    def admit(self, requests: Sequence[int]) -> None:
        """A batch gets locks, rows and slots, as for a prefill (``alloc_for_extend``)."""
        known_ones = [self.requests[r] for r in requests]
        batch = [known for known in known_ones if records.prefix(known) < _length(known)]
        for known in batch:
            if records.row(known) is None:
                self.scheduler.serving.lock(self.scheduler.cache, known, self.scheduler.windowed)
        for request in requests:
            self._unlock_match(request)
        if not batch:
            return
        with _out_of_memory():
            self.scheduler.extend_batch(batch, [_length(known) for known in batch])

    def _unlock_match(self, request: int) -> None:
        """Gives back the lock on what a request has matched, if it has not gone yet."""
        if lock := self.matched.pop(request, None):
            lock.close()

    # A request works.

    def track(self, request: int) -> None:
        """A boundary: the state was written to the next track slot. The request decodes a page before each but the
        first.
        """
        if request in self.tracked:
            self._decode(request, self.page_size)
        self.tracked.add(request)
        track(self.memory, self.requests[request])

    def boundary(self, request: int) -> None:
        """Before a step that tracks, a lazy buffer gets its second slot, if there is room."""
        before_boundary(self.memory, self.scheduler.cache, self.requests[request])

    def settle(self, request: int) -> None:
        """After the step a lazy buffer gives one slot back."""
        self._decode(request, self.page_size)
        known = self.requests[request]
        tracked = records.committed(known) // self.page_size * self.page_size
        records.write(known, mamba_last_track_seqlen=tracked)
        after_boundary(self.memory, known)

    def slide(self, request: int) -> None:
        """A long decode: the window moves past what was tracked."""
        self._decode(request, self.memory.window + WINDOWS * self.page_size)
        self.scheduler.slide(self.requests[request])

    def _decode(self, request: int, steps: int) -> None:
        known = self.requests[request]
        for _ in range(steps):
            known.output_ids.append(records.committed(known) + 1)
            if not self.scheduler.decode([known]):
                raise OutOfMemory("tokens")

    def cache(self, request: int) -> None:
        """A request that goes on puts what it has computed into the tree, with its state."""
        known = self.requests[request]
        records.refresh_input(known)
        records.limit_input(known, records.committed(known))
        with _out_of_memory():
            self.scheduler.serving.cache_unfinished(known, self.scheduler.cache, chunked=False)

    # A request leaves.

    def finish(self, request: int) -> None:
        """A request ends well. Its answer is as long as what is computed."""
        known = self.requests.pop(request)
        known.sampling_params.max_new_tokens = len(known.output_ids)
        self.scheduler.finish(known)

    def abort(self, request: int) -> None:
        """A running request is aborted."""
        self.scheduler.abort(self.requests.pop(request), prefilling=False)

    def withdraw(self, request: int) -> None:
        """A waiting request is aborted; it may have a state."""
        self._unlock_match(request)
        self.scheduler.cancel(self.requests.pop(request))

    def retract(self, request: int) -> None:
        """A running request makes room for others, and is reset before it is queued again."""
        self.scheduler.retract(self.requests[request])
        self.waiting.add(request)

    def close(self, session: int) -> None:
        """``release_session``, as a close does it once no turn waits: a retracted turn does not come again here."""
        self.scheduler.cache.release_session(str(session))
        self.scheduler.sessions.sessions.pop(str(session), None)

    # The pool and the tree.

    def evict(self, states: int) -> None:
        """``evict``: the tree gives up so many states, as far as nobody holds them."""
        self.scheduler.evict(0, 0, states)

    def begin_group(self, need: int) -> None:
        """``alloc_group_begin``: slots are set aside for a batch."""
        self.slots.alloc_group_begin(need)

    def end_group(self) -> None:
        """``alloc_group_end``."""
        self.slots.alloc_group_end()

    def clear(self) -> None:
        """``reset`` of the tree and ``clear`` of the rows and pools, as when the cache is flushed between requests."""
        for name in list(self.scheduler.sessions.sessions):
            del self.scheduler.sessions.sessions[name]
        self.scheduler.cache.reset()
        self.rows.clear()
        self.memory.pools.clear()

    def bad(self, kind: str) -> None:
        """Lacking: releases answer bad input in many ways."""
        raise Unsupported(f"no release is sent bad input ({kind})")

    def snapshot(self) -> MambaSlotsSnapshot:
        """The free list, the slots of a group, and the slots that requests, rows, sessions and nodes name. Where a
        request runs on its session's own record, the request is shown with it.
        """
        slots = self.scheduler.slots
        shared = {name for name, slot in slots.items() if any(records.shared(r, slot) for r in self.requests.values())}
        rows = {n: row for n, known in self.requests.items() if (row := records.row(known)) is not None}
        return MambaSlotsSnapshot(
            free=self.slots.free_slots.tolist(),
            available=int(self.slots.available_size()),
            waiting=self.sglang.grouped_states(self.slots),
            requests={number: slot_names(known) for number, known in self.requests.items()},
            rows={n: slots_in_row(self.rows, row, self.memory.buffers.buffered) for n, row in rows.items()},
            sessions={int(name): slot_names(slot) for name, slot in slots.items() if name not in shared},
            nodes=self.memory.reader.states(),
            **self.memory.copies()._asdict(),
        )


@contextmanager
def _out_of_memory() -> Iterator[None]:
    """SGLang says by an error whose message begins with certain words that state slots are lacking."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if str(error).startswith(OUT_OF_MEMORY):
            raise OutOfMemory(str(error)) from error
        raise


def _length(known: Any) -> int:
    """How long the text of a request is."""
    return len(known.origin_input_ids) + len(known.output_ids)
