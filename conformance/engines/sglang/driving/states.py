"""Mamba state slots of a release, as a ``MambaSlotsEngine``: one pool with the rows, the tree and the sessions over it.

Every decision is the release's own: the pool of slots, the rows, the tree, the streaming sessions, the release of a
request (``release_kv_cache``). Stood in for are requests and sessions (``request.py``) and what the scheduler does
between these calls: it evicts for a batch, flips the next track slot, moves the window, and resets a retracted
request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from conformance.driver.protocol import Json, Key, OutOfMemory, Unsupported
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.driving.reading import slot_names, slots_in_row, text
from conformance.engines.sglang.driving.recorded_states import RecordedStates
from conformance.engines.sglang.driving.request import Session, StandInRequest
from conformance.engines.sglang.driving.scheduler import OUT_OF_STATES, after_boundary, before_boundary, track
from conformance.engines.sglang.kinds import WITH_STATES
from conformance.engines.sglang.releases import cores
from conformance.engines.sglang.releases.release import Release, TrackBuffers
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot

TOKENS, WINDOW = 512, 4  # of each pool and of the window, so that slots of tokens are never lacking
NO_STATES_FOR_ROWS = "Not enough space for mamba"  # how the assertion of a batch that lacks state slots begins


def state_memory(release: Release, config: Json, core: str = cores.DEFAULT) -> SGLangMemory:
    """The memory of a server with so many state slots; Unsupported if the release has no such tree or buffers."""
    if config["tree"] not in WITH_STATES:
        raise Unsupported(f"SGLang has no tree of kind {config['tree']} with states")
    kind, components = WITH_STATES[config["tree"]]
    return SGLangMemory(
        release,
        kind,
        components,
        2 if config["buffered"] else 1,
        size=TOKENS,
        size_swa=TOKENS,
        window=WINDOW,
        row_count=config["requests"] + config["sessions"],
        states=config["size"],
        buffers=TrackBuffers(*(bool(config[name]) for name in TrackBuffers._fields)),
        core=core,
    )


def lacking(memory: SGLangMemory) -> Collection[str]:
    """The calls that an engine over this memory does not have."""
    buffers, groups = memory.buffers, memory.release.has_state_groups(memory.state_slots)
    has = {
        "track": buffers.buffered,
        "boundary": buffers.lazy,
        "settle": buffers.lazy,
        "slide": "swa" in memory.components,
        "begin_group": groups,
        "end_group": groups,
        "bad": False,
    }
    return frozenset(name for name, offered in has.items() if not offered)


def state_engine(release: Release, config: Json, core: str = cores.DEFAULT) -> DrivenMambaSlots | RecordedStates:
    """The engine for a configuration: with the release's own requests, where these keep records."""
    memory = state_memory(release, config, core)
    if release.serving.keeps_records:
        return RecordedStates(memory, lacking(memory))
    return DrivenMambaSlots(memory, config["sessions"])


class DrivenMambaSlots:
    """Requests and sessions, by number, that get, track, cache and give back state slots."""

    def __init__(self, memory: SGLangMemory, sessions: int) -> None:
        self.fragile, self.ran = memory.release.fragile, memory.ran
        self.memory, self.sglang, self.pools, self.rows = memory, memory.release, memory.pools, memory.rows
        self.page_size, self.slots = memory.page_size, memory.state_slots
        self.tree = self.sglang.session_cache(memory.tree, memory.kind)
        # The tree imports this module when it first needs it. It must be here by then: imports without stubs fail.
        self.batches = self.sglang.serving.schedule_batch
        self.lacks = lacking(memory)
        self.requests: dict[int, StandInRequest] = {}
        self.sessions = {number: Session(number) for number in range(1, sessions + 1)}

    # A request comes.

    def match(self, request: int, tokens: Sequence[int], session: int, again: bool) -> Key | None:
        """``match_prefix`` with ``cow_mamba`` for a request that comes, or comes again as the same object."""
        if again:
            self.requests[request].start()
            self.requests[request].session = None
        else:
            whole = [*(self.sessions[session].text if session else ()), *tokens]
            self.requests[request] = StandInRequest(request, whole, self.sessions.get(session), self.sglang.tokens)
        r = self.requests[request]
        had = r.mamba_pool_idx
        with _out_of_memory(OUT_OF_STATES):
            found = self.sglang.match(self.tree, r.text[:-1], cow_mamba=True, req=r)
        self.memory.copy_matched(r)
        r.prefix_indices, r.last_node = found.device_indices, found.last_device_node
        r.cache_protected_len = self.sglang.protected_length(found)
        copied = had is None and r.mamba_pool_idx is not None and r.req_pool_idx is None
        return tuple(text(self.memory.reader.path(r.last_node))) if copied else None

    def admit(self, requests: Sequence[int]) -> None:
        """A batch gets locks, and then rows and slots, as for a prefill; the tree is asked to free states for them."""
        batch = [self.requests[r] for r in requests]
        for r in batch:
            if r.req_pool_idx is None:
                self.sglang.serving.lock(self.tree, r, "swa" in self.memory.components)
        short = len(batch) * (1 + self.memory.buffers.slots) - int(self.slots.available_size())
        if short > 0:
            self.evict(short)
        with _out_of_memory(NO_STATES_FOR_ROWS):
            self.rows.alloc(batch)
        for r in batch:
            before = len(r.prefix_indices)
            self.rows.write((r.req_pool_idx, slice(0, before)), r.prefix_indices.to(torch.int32))
            r.kv_allocated_len = r.kv_committed_len = before
            self._grow(r, len(r.text) - before)

    def _grow(self, r: StandInRequest, count: int) -> None:
        """So many more tokens of the request get slots and are computed."""
        before = r.kv_allocated_len
        last = [int(self.rows.req_to_token[r.req_pool_idx, before - 1])] if before else [-1]
        after = before + count
        slots = self.pools.alloc(count) if self.page_size == 1 else self.pools.extend([before], [after], last)
        self.rows.write((r.req_pool_idx, slice(before, after)), torch.tensor(slots, dtype=torch.int32))
        r.kv_allocated_len = r.kv_committed_len = after
        r.output_ids.extend(range(len(r.text) + 1, after + 1))

    # A request works.

    def track(self, request: int) -> None:
        """A boundary: the state was written to the next track slot. The request decodes a page before each but the
        first.
        """
        r = self.requests[request]
        if r.tracks:
            self._grow(r, self.page_size)
        r.tracks += 1
        track(self.memory, r)

    def boundary(self, request: int) -> None:
        """Before a step that tracks, a lazy buffer gets its second slot, if there is room."""
        before_boundary(self.memory, self.tree, self.requests[request])

    def settle(self, request: int) -> None:
        """After the step a lazy buffer gives one slot back."""
        r = self.requests[request]
        self._grow(r, self.page_size)
        r.mamba_last_track_seqlen = r.kv_committed_len // self.page_size * self.page_size
        after_boundary(self.memory, r)

    def slide(self, request: int) -> None:
        """A long decode: the window moves past what was tracked, and ``free_swa`` frees the SWA slots before it."""
        r = self.requests[request]
        self._grow(r, WINDOW + 2 * self.page_size)
        cursor = (r.kv_committed_len - WINDOW) // self.page_size * self.page_size
        first = max(r.swa_evicted_seqlen, r.cache_protected_len)
        self.pools.engine.free_swa(self.rows.req_to_token[r.req_pool_idx, first:cursor].long())
        r.swa_evicted_seqlen = max(cursor, r.swa_evicted_seqlen)

    def cache(self, request: int) -> None:
        """``cache_unfinished_req``: a request that goes on puts its state into the tree."""
        with _out_of_memory(OUT_OF_STATES):
            self.tree.cache_unfinished_req(self.requests[request])

    # A request leaves.

    def finish(self, request: int) -> None:
        """A request ends well."""
        r = self.requests[request]
        if r.session is not None:
            r.session.text = list(r.text)
        self._release_memory(r, True)

    def abort(self, request: int) -> None:
        """A running request is aborted."""
        r = self.requests[request]
        r.finished_reason = self.batches.FINISH_ABORT("aborted")
        if r.session is not None:
            r.session.text = []
        self._release_memory(r, True)

    def withdraw(self, request: int) -> None:
        """A waiting request is aborted; it may have a state."""
        r = self.requests[request]
        if r.mamba_pool_idx is not None:
            self._release_memory(r, False)

    def retract(self, request: int) -> None:
        """A running request makes room for others, and is reset before it is queued again."""
        r = self.requests[request]
        if r.session is not None:
            r.session.text = list(r.text)
        self._release_memory(r, False)
        r.reset_for_retract()

    def _release_memory(self, r: StandInRequest, insert: bool) -> None:
        self.sglang.serving.release_memory(r, self.tree, insert)

    def close(self, session: int) -> None:
        """``release_session``."""
        self.sessions[session].text = []
        self.tree.release_session(session)

    # The pool and the tree.

    def evict(self, states: int) -> None:
        """``evict``: the tree gives up so many states, as far as nobody holds them."""
        self.sglang.evict(self.tree, 0, 0, states)

    def begin_group(self, need: int) -> None:
        """``alloc_group_begin``: slots are set aside for a batch."""
        self.slots.alloc_group_begin(need)

    def end_group(self) -> None:
        """``alloc_group_end``."""
        self.slots.alloc_group_end()

    def clear(self) -> None:
        """``reset`` of the tree and ``clear`` of the rows and pools, as when the cache is flushed between requests."""
        self.tree.reset()
        self.rows.clear()
        self.pools.clear()
        for session in self.sessions.values():
            session.text = []

    def bad(self, kind: str) -> None:
        """Lacking: releases answer bad input in many ways."""
        raise Unsupported(f"no release is sent bad input ({kind})")

    def snapshot(self) -> MambaSlotsSnapshot:
        """The free list, the slots of a group, and the slots that requests, rows, sessions and nodes name."""
        sessions = self.sglang.session_slots(self.tree, self.memory.kind)
        rows = {n: r.req_pool_idx for n, r in self.requests.items() if r.req_pool_idx is not None}
        return MambaSlotsSnapshot(
            free=self.slots.free_slots.tolist(),
            available=int(self.slots.available_size()),
            waiting=self.sglang.grouped_states(self.slots),
            requests={number: slot_names(request) for number, request in self.requests.items()},
            rows={n: slots_in_row(self.rows, row, self.memory.buffers.buffered) for n, row in rows.items()},
            sessions={number: slot_names(slot) for number, slot in sessions.items()},
            nodes=self.memory.reader.states(),
            **self.memory.copies()._asdict(),
        )


@contextmanager
def _out_of_memory(words: str) -> Iterator[None]:
    """SGLang says that state slots are lacking by an assertion whose message begins with these words."""
    try:
        yield
    except AssertionError as error:
        if str(error).startswith(words):
            raise OutOfMemory(words) from error
        raise
