"""The mamba bookkeeping of a loaded SGLang release, driven by plain numbers.

Everything that decides is the release's own, also the release of a request. What the scheduler does between those
calls stands here: it evicts for a batch, flips the next track, moves the window, resets a retracted request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from conformance.subjects.engine_request import Request
from conformance.subjects.hybrid import after_boundary, before_boundary, track
from conformance.subjects.mamba_parts import WINDOW, EngineParts
from conformance.subjects.stateview import Key, OutOfSlots


class EngineStates(EngineParts):
    """One pool of a release with its rows, tree and sessions."""

    # A request comes.

    def match(self, request: int, tokens: Sequence[int], session: int, same: bool) -> Key | None:
        """A request comes and matches its prefix; the node of whose state it was given a slot for a copy."""
        if same:
            self.requests[request].begin_again()
            self.requests[request].session = None
        else:
            text = [*(self.sessions[session].text if session else ()), *tokens]
            self.requests[request] = Request(request, text, self.sessions.get(session), self.arrays)
        r = self.requests[request]
        had = r.mamba_pool_idx
        with _asserts("Can not alloc mamba cache"):
            found = self.tree.match_prefix(
                self.base.MatchPrefixParams(key=self.key(r.text[:-1]), cow_mamba=True, req=r)
            )
        r.prefix_indices, r.last_node = found.device_indices, found.last_device_node
        protected = getattr(found, "cache_protected_len", None)
        r.cache_protected_len = len(r.prefix_indices) if protected is None else protected
        copied = had is None and r.mamba_pool_idx is not None and r.req_pool_idx is None
        return self.path(r.last_node) if copied else None

    def admit(self, requests: Sequence[int]) -> None:
        """A batch gets rows and slots, as for a prefill; the tree gives up states for it first."""
        batch = [self.requests[r] for r in requests]
        each = 1 + (1 if self.lazy else 2 if self.doubled else 1) * self.buffered
        short = len(batch) * each - int(self.slots.available_size())
        if short > 0:
            self.tree.evict(self.base.EvictParams(num_tokens=0, mamba_num=short))
        for r in batch:
            if r.req_pool_idx is None:
                locked = self.tree.inc_lock_ref(r.last_node)
                r.swa_uuid_for_lock = getattr(locked, "swa_uuid_for_lock", None)
        with _asserts("Not enough space for mamba"):
            self.rows.alloc(batch)
        for r in batch:
            before = len(r.prefix_indices)
            self.rows.write((r.req_pool_idx, slice(0, before)), r.prefix_indices.to(torch.int32))
            r.kv_allocated_len = r.kv_committed_len = before
            self._grow(r, len(r.text) - before)

    def _grow(self, r: Request, count: int) -> None:
        """``count`` tokens are computed."""
        before = r.kv_allocated_len
        last = [int(self.rows.req_to_token[r.req_pool_idx, before - 1])] if before else [-1]
        after = before + count
        slots = self.pool.alloc(count) if self.page_size == 1 else self.pool.extend([before], [after], last)
        self.rows.write((r.req_pool_idx, slice(before, after)), torch.tensor(slots, dtype=torch.int32))
        r.kv_allocated_len = r.kv_committed_len = after
        r.output_ids.extend(range(len(r.text) + 1, after + 1))

    # A request works.

    def track(self, request: int) -> None:
        """A boundary: the state is written to the next track, and (unless it is lazy) the other one is next."""
        r = self.requests[request]
        if r.tracks:
            self._grow(r, self.page_size)
        r.tracks += 1
        track(self.rows, r, self.page_size, self.lazy)

    def boundary(self, request: int) -> None:
        """A lazy buffer gets its second slot before a step that tracks."""
        before_boundary(self.engine, self.rows, self.tree, self.requests[request], self.page_size)

    def settle(self, request: int) -> None:
        """A lazy buffer gives one slot back after the step."""
        r = self.requests[request]
        self._grow(r, self.page_size)
        r.mamba_last_track_seqlen = r.kv_committed_len // self.page_size * self.page_size
        after_boundary(self.engine, self.rows, r)

    def slide(self, request: int) -> None:
        """A long decode: the window moves on past what was tracked."""
        r = self.requests[request]
        self._grow(r, WINDOW + 2 * self.page_size)
        cursor = (r.kv_committed_len - WINDOW) // self.page_size * self.page_size
        first = max(r.swa_evicted_seqlen, r.cache_protected_len)
        self.pool.engine.free_swa(self.rows.req_to_token[r.req_pool_idx, first:cursor].long())
        r.swa_evicted_seqlen = max(cursor, r.swa_evicted_seqlen)

    def cache(self, request: int) -> None:
        """A request that goes on puts its state into the tree."""
        with _asserts("Can not alloc mamba cache"):
            self.tree.cache_unfinished_req(self.requests[request])

    # A request leaves.

    def finish(self, request: int) -> None:
        """A request ends well."""
        r = self.requests[request]
        if r.session is not None:
            r.session.text = list(r.text)
        self._release(r, True)

    def abort(self, request: int) -> None:
        """A running request is aborted."""
        r = self.requests[request]
        r.finished_reason = self.batch.FINISH_ABORT("aborted")
        if r.session is not None:
            r.session.text = []
        self._release(r, True)

    def withdraw(self, request: int) -> None:
        """A waiting request is aborted."""
        r = self.requests[request]
        if r.mamba_pool_idx is not None:
            self._release(r, False)

    def retract(self, request: int) -> None:
        """A running request makes room for others, and is made new before it is queued again."""
        r = self.requests[request]
        if r.session is not None:
            r.session.text = list(r.text)
        self._release(r, False)
        r.reset_for_retract()

    def _release(self, r: Request, insert: bool) -> None:
        self.engine.module("mem_cache.common").release_kv_cache(r, self.tree, is_insert=insert)

    def close(self, session: int) -> None:
        """A session ends."""
        self.sessions[session].text = []
        self.tree.release_session(session)

    # The pool and the tree.

    def evict(self, states: int) -> None:
        """The tree gives up states, as far as nobody holds them."""
        self.tree.evict(self.base.EvictParams(num_tokens=0, mamba_num=states))

    def begin(self, need: int) -> None:
        """A group sets slots aside."""
        self.slots.alloc_group_begin(need)

    def end(self) -> None:
        """A group ends."""
        self.slots.alloc_group_end()

    def clear(self) -> None:
        """Everything starts anew between requests."""
        self.tree.reset()
        self.rows.clear()
        self.pool.clear()
        for session in self.sessions.values():
            session.text = []


@contextmanager
def _asserts(words: str) -> Iterator[None]:
    """The engine says that it is out of slots by an assertion."""
    try:
        yield
    except AssertionError as error:
        if str(error).startswith(words):
            raise OutOfSlots(words) from error
        raise
