"""What SGLang's scheduler does between its calls of the memory classes, for a few requests and sessions on CPU.

The requests (``Req``), the sessions and their controller, the cache of sessions, the tree, the pools and the
functions of ``mem_cache.common`` are the release's own. Stood in for are the batch (an object with the fields that
these functions read), the messages of clients, and the loop of the scheduler: its steps before and after each call
are done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from conformance.engines.protocol import Admission
from conformance.engines.sglang.memory import SGLangMemory
from spec.lengths import pages_needed

ENDLESS = 1 << 20  # the longest answer of a request: it ends when the driver says so
OUT_OF_STATES = "Can not alloc mamba cache"  # the assertion of a match that finds no slot for the copy of a state


class _Message(SimpleNamespace):
    """A message of a client; what it does not say is ``None``."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Scheduler:
    """The scheduler of one server. ``checks_rows``: it matches a request only if there is a row for it."""

    def __init__(self, memory: SGLangMemory, checks_rows: bool) -> None:
        self.memory, self.release, self.checks_rows = memory, memory.release, checks_rows
        self.page_size, self.server = memory.page_size, memory.server
        self.common, self.batches = self.release.common, self.release.schedule_batch
        self.cache = self.release.session_cache(memory.tree, memory.kind)
        self.sessions = self.release.session_controller(self.cache)
        self._count = 0

    @property
    def slots(self) -> dict[Any, Any]:
        """The slots of the sessions, by the engine's name of the session."""
        return self.release.session_slots(self.cache, self.memory.kind)

    # Requests arrive.

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def plain(self, tokens: Sequence[int]) -> Any:
        """A request of no session."""
        params = self.release.sampling_params(max_new_tokens=ENDLESS)
        return self.batches.Req(self._name(), None, self.release.tokens(tokens), params)

    def turn(self, session: str, new: Sequence[int], replaces: bool = False) -> Any:
        """A request of a session (``Session.create_req``): the engine puts the session's text before the new tokens.

        A request that ``replaces`` the text is of a kind that streaming sessions do not serve.
        """
        message = _Message(
            rid=self._name(),
            input_ids=self.release.tokens(new),
            sampling_params=self.release.sampling_params(max_new_tokens=ENDLESS),
            session_params=_Message(replace=replaces),
        )
        return self._session(session).create_req(message, None, None)

    def _session(self, session: str) -> Any:
        if session not in self.sessions.sessions:
            self.sessions.open(_Message(session_id=session, capacity_of_str_len=0, streaming=True))
        return self.sessions.sessions[session]

    def length_of_session(self, session: str) -> int:
        """How many tokens the engine puts before the new tokens of the session's next request."""
        return self.release.length_of_session(self._session(session))

    # They are matched and admitted.

    def look(self, request: Any, has_slot: bool) -> int:
        """The prefix of a request that is matched and not admitted. ``has_slot``: its session has a slot."""
        found = self._match(request, has_slot)
        self._take_copy_back(request)
        return found or 0

    def admit(self, request: Any, has_slot: bool, most: int) -> Admission:
        """A request is matched and, if there is room for its next ``most`` tokens, admitted."""
        found = self._match(request, has_slot)
        if found is None:
            self._take_copy_back(request)
            return Admission(0, False)
        locked = self.release.lock(self.cache, request)
        upto = min(found + most, len(request.origin_input_ids) + len(request.output_ids))
        if self._has_room_for(request, upto) and self._has_states_for(request):
            self.extend(request, upto)
            return Admission(found, True)
        self.cache.dec_lock_ref(request.last_node, self.release.unlock_params(locked, all_of_it=True))
        self._take_copy_back(request)
        return Admission(found, False)

    def _match(self, request: Any, has_slot: bool) -> int | None:
        """The prefix at which a request goes on; ``None``: there is no row, or no state slot for its copy."""
        if self.checks_rows and not has_slot and self.memory.rows.available_size() <= 0:
            return None
        try:
            request.init_next_round_input(self.cache)
        except AssertionError as error:
            if self.memory.state_slots is None or str(error) != OUT_OF_STATES:
                raise
            return None
        return len(request.prefix_indices)

    def _take_copy_back(self, request: Any) -> None:
        """The scheduler frees the copy of a state that a match has made for a request that it does not admit."""
        slots = self.memory.state_slots
        if slots is not None and request.session is None and request.mamba_pool_idx is not None:
            slots.free(request.mamba_pool_idx.unsqueeze(-1))
            request.mamba_pool_idx = None

    def _has_room_for(self, request: Any, upto: int) -> bool:
        """There is a row, and room for the request's tokens up to ``upto``."""
        row = request.req_pool_idx is not None or self.memory.rows.available_size() > 0
        return row and self.has_room([(len(request.prefix_indices), upto)])

    def _has_states_for(self, request: Any) -> bool:
        """There are state slots for what the request does not have yet; the tree is asked to free some for it."""
        slots = self.memory.state_slots
        if slots is None:
            return True
        tracks = self.memory.buffers.slots
        need = (request.mamba_pool_idx is None) + tracks * (request.mamba_ping_pong_track_buffer is None)
        if need > slots.available_size():
            self.evict(0, 0, need - int(slots.available_size()))
        return bool(need <= slots.available_size())

    def has_room(self, growth: Sequence[tuple[int, int]], decodes: bool = False) -> bool:
        """The tree frees what rows need to grow from so many tokens to so many; whether there is enough then.

        A scheduler asks before it allocates. For each row of a prefill some releases want a page more than it needs. A
        call of their kernels with an empty free list is a finding of the stem ``allocator``, so it is not made here.
        """
        page = self.page_size
        tokens, spare = sum(b - a for a, b in growth), len(growth) * page if page > 1 else 0
        asked = spare if decodes and page > 1 else tokens + spare
        self.common.evict_from_tree_cache(self.cache, asked)
        pages = sum(pages_needed(a, b, page) for a, b in growth)
        exact = decodes or self.release.counts_needed_pages
        pools = self.memory.pools.engine
        sides = pools.full_attn_allocator, pools.swa_attn_allocator
        if page > 1 and not pages and not all(len(side.free_pages) for side in sides):
            return False
        available = min(int(pools.full_available_size()), int(pools.swa_available_size()))
        return available >= (pages * page if exact else asked)

    # They grow.

    def extend(self, request: Any, upto: int) -> None:
        """``alloc_for_extend``: the request gets slots for its input up to ``upto``."""
        start = len(request.prefix_indices)
        self.release.limit_input(request, upto)
        batch = self._batch([request], decodes=False)
        batch.prefix_lens, batch.extend_lens, batch.extend_num_tokens = [start], [upto - start], upto - start
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([upto])
        self.common.alloc_for_extend(batch)
        request.extend_batch_idx += 1
        request.kv_committed_len = request.kv_allocated_len = upto

    def chunk(self, request: Any, most: int) -> bool:
        """The next chunk of a prompt; false: out of memory."""
        request.init_next_round_input()
        start = len(request.prefix_indices)
        upto = min(start + most, len(request.origin_input_ids) + len(request.output_ids))
        if not self.has_room([(start, upto)]):
            return False
        self.extend(request, upto)
        return True

    def computed(self, request: Any, sampled: int | None) -> None:
        """A prefill is computed: the prompt goes to the cache. ``sampled``: the first token of the answer, if any."""
        if sampled is not None:
            request.output_ids.append(sampled)
        if request.to_finish is None:
            self.release.cache_unfinished(request, self.cache, **({} if sampled is not None else {"chunked": True}))

    def decode(self, requests: Sequence[Any]) -> None:
        """``alloc_for_decode``: one more slot for each request."""
        batch = self._batch(requests, decodes=True)
        batch.maybe_evict_swa = lambda: None  # the window moves in ``slide``
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([r.kv_committed_len for r in requests])
        batch.req_pool_indices = torch.tensor([r.req_pool_idx for r in requests])
        self.common.alloc_for_decode(batch, 1)
        for request in requests:
            request.decode_batch_idx += 1
            request.kv_committed_len += 1
            request.kv_allocated_len += 1

    def reserve(self, request: Any, more: int) -> None:
        """Slots for draft tokens, as ``prepare_for_decode`` of EAGLE allocates them."""
        now, row = request.kv_allocated_len, self.memory.rows.req_to_token[request.req_pool_idx]
        if self.page_size == 1:
            slots = self.common.alloc_token_slots(self.cache, more)
        else:
            old, new = torch.tensor([now]), torch.tensor([now + more])
            last = row[now - 1 : now].long()
            slots = self.common.alloc_paged_token_slots_extend(self.cache, old, old, new, new, last, more)
        row[now : now + more] = slots.to(row.dtype)
        request.kv_allocated_len += more

    def slide(self, request: Any) -> None:
        """``maybe_evict_swa``: the window of a request moves. Releases do that in one of several decode steps; here the
        step counts as that one.
        """
        batch, steps = self._batch([request], decodes=True), request.decode_batch_idx
        request.decode_batch_idx = 1
        batch.maybe_evict_swa()
        request.decode_batch_idx = steps

    def _batch(self, requests: Sequence[Any], decodes: bool) -> SimpleNamespace:
        """A ScheduleBatch, as far as the functions of ``mem_cache.common`` read one."""
        batch = SimpleNamespace(
            reqs=list(requests),
            device="cpu",
            req_to_token_pool=self.memory.rows,
            token_to_kv_pool_allocator=self.memory.pools.engine,
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
        """The result of a step says that the request has ended, and what it has is released."""
        self.release.update_finish_state(request)
        self._release_memory(request)

    def abort(self, request: Any, prefilling: bool) -> None:
        """The request is aborted: its next result ends it, or (``prefilling``) its next chunk is not computed."""
        reason = request.to_finish or self.batches.FINISH_ABORT("aborted")
        if prefilling:
            request.finished_reason, request.to_finish = reason, None
            self._release_memory(request, insert=False)
        else:
            request.to_finish = reason
            self.finish(request)

    def retract(self, request: Any) -> None:
        """The request gives up its memory, and waits again."""
        self._release_memory(request, insert=False)
        request.reset_for_retract()

    def cancel(self, request: Any) -> None:
        """A request that waits is taken off the queue; of its memory the scheduler frees the mamba state alone."""
        if self.memory.state_slots is not None and request.req_pool_idx is None and request.mamba_pool_idx is not None:
            self._release_memory(request, insert=False)

    def _release_memory(self, request: Any, insert: bool = True) -> None:
        """``release_kv_cache``. A draft tail is there only if the server has a draft model, so it gets one then."""
        tail = request.kv_allocated_len > request.kv_committed_len
        self.server.speculative_algorithm = "EAGLE" if tail else None
        self.common.release_kv_cache(request, self.cache, is_insert=insert)

    # Sessions and the tree.

    def close(self, session: str) -> bool:
        """The session is closed, at once or when the scheduler looks for sessions whose close was put off; false: it
        is still there after that, and its close is taken back.
        """
        if session not in self.sessions.sessions:
            return True
        self.sessions.close(_Message(session_id=session))
        if session in self.sessions.sessions:
            self.sessions._last_reap_time = 0.0
            self.sessions.maybe_reap(2.0)
        if session in self.sessions.sessions:
            self.sessions.sessions[session].close_on_finish = False
            return False
        return True

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """The tree frees so many tokens of each pool, and states, as far as nobody holds them."""
        self.release.evict(self.cache, full, swa, states)


# Mamba states: what the scheduler does at page boundaries.


def track(memory: SGLangMemory, request: Any) -> None:
    """A boundary: the state was written to the next track slot; if the buffer is not lazy, the other slot is next."""
    request.mamba_last_track_seqlen = request.kv_committed_len // memory.page_size * memory.page_size
    if not memory.buffers.lazy:
        request.mamba_next_track_idx = memory.rows.get_mamba_ping_pong_other_idx(request.mamba_next_track_idx)


def before_boundary(memory: SGLangMemory, session_cache: Any, request: Any) -> None:
    """Before a step that tracks, a lazy buffer gets its second slot, if there is room."""
    batch = SimpleNamespace(
        req_to_token_pool=memory.rows,
        reqs=[request],
        seq_lens_cpu=torch.tensor([memory.page_size]),
        tree_cache=session_cache,
    )
    memory.release.before_boundary(batch, memory.page_size)


def after_boundary(memory: SGLangMemory, request: Any) -> None:
    """After the step a lazy buffer gives one slot back."""
    memory.release.after_boundary(request, SimpleNamespace(req_to_token_pool=memory.rows))
