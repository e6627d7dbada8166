"""What the scheduler of a loaded SGLang release does with its requests and streaming sessions, at a tiny size on CPU.

The requests, the sessions and their controller, the session cache, the tree, the pools and the functions that move
slots between them are the release's own. Stood in for are the server's arguments (a few are read), the batch (a bag of
the fields that those functions read) and the scheduler's loop: what it does around each call is done here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from conformance.subjects.adapter import SwaSubject, Traits
from conformance.subjects.hybrid import server
from conformance.subjects.trees import Tree
from spec.lengths import pages_needed

ENDLESS = 1 << 20  # no limit on an answer: a request ends when the run says so
MEMORY = ("mem_cache.common", "managers.schedule_batch", "server_args")


class TurnedAway(RuntimeError):
    """The engine did not take a request; the message is its own."""


@dataclass
class Rooms(Tree):
    """A tree with more than one row."""

    need_sort: bool = False

    def _pool(self) -> SwaSubject:
        pools = self.engine.swa_allocator(self.size, self.size_swa, self.page_size, self.need_sort)
        return SwaSubject(pools, self.page_size, "cpu", Traits("sglang", self.engine.label, fragile=True))


class _Asked(SimpleNamespace):
    """A request as it arrives: what it does not say is ``None``."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Scheduler:
    """One engine. Requests are the release's own ``Req`` objects; ``rooms`` has its tree and its pools."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms, self.engine, self.page_size = rooms, rooms.engine, rooms.page_size
        self.server = server(self.page_size, rooms.buffers)
        self.common, self.batches, _ = (self._of_this_server(name) for name in MEMORY)
        self.batches.get_tensor_model_parallel_rank = lambda: 1  # only rank 0 logs
        self.params = self.engine.module("sampling.sampling_params").SamplingParams
        self.old = not self.engine.root.joinpath("sglang", "srt", "session").is_dir()
        self.control = self.engine.module(("managers." if self.old else "session.") + "session_controller")
        self.cache = self._cache()
        self.sessions = self.control.SessionController(self.cache)
        self._count = 0

    def _of_this_server(self, name: str) -> Any:
        module: Any = self.engine.module(name)
        module.get_global_server_args = lambda: self.server
        return module

    def _cache(self) -> Any:
        tree = self.rooms.tree
        if self.rooms.kind == "unified":
            return tree  # it has sessions of its own
        if self.old:
            return self.engine.module("mem_cache.session_aware_cache").SessionAwareCache(tree)
        return self.engine.module("session.streaming_session").StreamingSession(tree)

    @property
    def slots(self) -> dict[str, Any]:
        """The slots of the sessions."""
        owner = self.cache.session if self.rooms.kind == "unified" else self.cache
        found: dict[str, Any] = owner.slots
        return found

    @cached_property
    def aborts_chunked(self) -> bool:
        """A request is aborted between two of its chunks, not after the last."""
        text = self.engine.root.joinpath("sglang", "srt", "managers", "scheduler.py").read_text()
        return "def process_pending_chunked_abort" in text

    # Requests arrive.

    def _ids(self, tokens: Sequence[int]) -> Any:
        # From 0.5.13 on a request's tokens are an array.
        return array("q", tokens) if hasattr(self.batches.Req, "get_fill_ids") else list(tokens)

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def plain(self, tokens: Sequence[int]) -> Any:
        """A request of no session."""
        return self.batches.Req(self._name(), None, self._ids(tokens), self.params(max_new_tokens=ENDLESS))

    def turn(self, session: str, new: Sequence[int], replaces: bool = False) -> Any:
        """A request of a session: the engine puts the session's text before what the client sends.

        One that ``replaces`` the text is not for streaming sessions.
        """
        asked = _Asked(
            rid=self._name(),
            input_ids=self._ids(new),
            sampling_params=self.params(max_new_tokens=ENDLESS),
            session_params=_Asked(replace=replaces),
        )
        return self._session(session).create_req(asked, None, None)

    def _session(self, session: str) -> Any:
        if session not in self.sessions.sessions:
            self.sessions.open(_Asked(session_id=session, capacity_of_str_len=0, streaming=True))
        return self.sessions.sessions[session]

    def text(self, session: str) -> int:
        """How many tokens the engine puts before a turn's input."""
        found = self._session(session)
        last = [node.req for node in found.req_nodes.values()]
        if not last:
            return 0
        shared = getattr(found, "committed_origin_len", None)
        answer = last[0].output_ids[: last[0].sampling_params.max_new_tokens]
        return len(answer) + (len(last[0].origin_input_ids) if shared is None else int(shared))

    # They are admitted, and grow.

    def match(self, request: Any) -> int:
        """The prefix at which the request goes on."""
        request.init_next_round_input(self.cache)
        return len(request.prefix_indices)

    def lock(self, request: Any) -> Any:
        """Locks the prefix, for as long as the request runs."""
        held = self.cache.inc_lock_ref(request.last_node)
        request.swa_uuid_for_lock = held.swa_uuid_for_lock
        return held

    def unlock(self, request: Any, held: Any) -> None:
        """Gives the lock back: the request is not admitted."""
        params = self.rooms.base.DecLockRefParams(swa_uuid_for_lock=held.swa_uuid_for_lock)
        newer = hasattr(held, "to_dec_params")
        self.cache.dec_lock_ref(request.last_node, held.to_dec_params() if newer else params)

    def room(self, growth: Sequence[tuple[int, int]], decodes: bool = False) -> bool:
        """The engine makes room for rows that grow from so many tokens to so many; whether there is enough.

        A scheduler asks before it allocates. Some releases want a page more for each row of a prefill than it needs;
        and what an empty free list does to their kernels is a finding of the allocator.
        """
        page = self.page_size
        tokens, spare = sum(b - a for a, b in growth), len(growth) * page if page > 1 else 0
        asked = spare if decodes and page > 1 else tokens + spare
        self.common.evict_from_tree_cache(self.cache, asked)
        pages = sum(pages_needed(a, b, page) for a, b in growth)
        exact = decodes or hasattr(self.rooms.pool.engine, "new_pages_available")
        pool: Any = self.rooms.pool
        lists = pool.lists(), pool.swa_lists()
        if page > 1 and not pages and not all(pool.free for pool in lists):
            return False
        return bool(min(pool.available for pool in lists) >= (pages * page if exact else asked))

    def admissible(self, request: Any, upto: int) -> bool:
        """There is a row and room for the request's tokens up to ``upto``."""
        row = request.req_pool_idx is not None or self.rooms.rows.available_size() > 0
        return row and self.room([(len(request.prefix_indices), upto)])

    def extend(self, request: Any, upto: int) -> None:
        """The request gets slots for its input up to ``upto``."""
        start = len(request.prefix_indices)
        if hasattr(request, "fill_len"):
            request.fill_len = upto
        else:
            request.fill_ids = request.fill_ids[:upto]
        batch = self._batch([request], decodes=False)
        batch.prefix_lens, batch.extend_lens, batch.extend_num_tokens = [start], [upto - start], upto - start
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([upto])
        self.common.alloc_for_extend(batch)
        request.extend_batch_idx += 1
        request.kv_committed_len = request.kv_allocated_len = upto

    def computed(self, request: Any, sampled: int | None) -> None:
        """A prefill is done: the prompt goes to the cache."""
        if sampled is not None:
            request.output_ids.append(sampled)
        if request.to_finish is None:
            more = {} if sampled is not None else {"chunked": True}
            newer = getattr(self.common, "maybe_cache_unfinished_req", None)
            newer(request, self.cache, **more) if newer else self.cache.cache_unfinished_req(request, **more)

    def decode(self, requests: Sequence[Any]) -> None:
        """One more slot for each request."""
        batch = self._batch(requests, decodes=True)
        batch.maybe_evict_swa = lambda: None  # ``slide`` does that
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([r.kv_committed_len for r in requests])
        batch.req_pool_indices = torch.tensor([r.req_pool_idx for r in requests])
        self.common.alloc_for_decode(batch, 1)
        for request in requests:
            request.decode_batch_idx += 1
            request.kv_committed_len += 1
            request.kv_allocated_len += 1

    def reserve(self, request: Any, more: int) -> None:
        """Slots ahead of what is computed, as a draft needs them (``prepare_for_decode`` of EAGLE)."""
        now, row = request.kv_allocated_len, self.rooms.rows.req_to_token[request.req_pool_idx]
        if self.page_size == 1:
            slots = self.common.alloc_token_slots(self.cache, more)
        else:
            old, new = torch.tensor([now]), torch.tensor([now + more])
            last = row[now - 1 : now].long()
            slots = self.common.alloc_paged_token_slots_extend(self.cache, old, old, new, new, last, more)
        row[now : now + more] = slots.to(row.dtype)
        request.kv_allocated_len += more

    def slide(self, request: Any) -> None:
        """The window of a request that decodes; releases do that once in so many steps, as if this were one of them."""
        batch, steps = self._batch([request], decodes=True), request.decode_batch_idx
        request.decode_batch_idx = 1
        batch.maybe_evict_swa()
        request.decode_batch_idx = steps

    def _batch(self, requests: Sequence[Any], decodes: bool) -> SimpleNamespace:
        batch = SimpleNamespace(
            reqs=list(requests),
            device="cpu",
            req_to_token_pool=self.rooms.rows,
            token_to_kv_pool_allocator=self.rooms.pool.engine,
            tree_cache=self.cache,
            forward_iter=0,
            model_config=SimpleNamespace(is_encoder_decoder=False),
            forward_mode=SimpleNamespace(is_decode=lambda: decodes, is_extend=lambda: not decodes),
            enable_overlap=False,
        )
        for name in ("_evict_swa", "maybe_evict_swa"):
            setattr(batch, name, getattr(self.batches.ScheduleBatch, name).__get__(batch))
        return batch

    # They leave.

    def finish(self, request: Any) -> None:
        """The result of a step says that the request ends; what it has is released."""
        newer = getattr(request, "update_finish_state", None)
        (newer or request.check_finished)()
        self.release(request)

    def abort(self, request: Any, prefilling: bool) -> None:
        """The request is aborted: its next result ends it, or the next chunk is not launched."""
        reason = request.to_finish or self.batches.FINISH_ABORT("aborted")
        if prefilling:
            request.finished_reason, request.to_finish = reason, None
            self.release(request, insert=False)
        else:
            request.to_finish = reason
            self.finish(request)

    def retract(self, request: Any) -> None:
        """The request gives up what it has, and waits."""
        self.release(request, insert=False)
        request.reset_for_retract()

    def release(self, request: Any, insert: bool = True) -> None:
        """``release_kv_cache``. A server without a draft model takes no tail, one with a draft model does."""
        tail = request.kv_allocated_len > request.kv_committed_len
        self.server.speculative_algorithm = "EAGLE" if tail else None
        self.common.release_kv_cache(request, self.cache, is_insert=insert)

    def close(self, session: str) -> bool:
        """The session is closed, at once or by the scheduler's next look at what was put off."""
        if session not in self.sessions.sessions:
            return True
        self.sessions.close(_Asked(session_id=session))
        if session in self.sessions.sessions:
            self.sessions._last_reap_time = 0.0
            self.sessions.maybe_reap(2.0)
        return session not in self.sessions.sessions

    def reopen(self, session: str) -> None:
        """A close that was put off is taken back."""
        self.sessions.sessions[session].close_on_finish = False
