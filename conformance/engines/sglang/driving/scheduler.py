"""What SGLang's scheduler does between its calls of the memory classes, for a few requests and sessions on CPU.

The requests (``Req``), the sessions and their controller, the cache of sessions, the tree, the pools and the
functions of ``mem_cache.common`` are the release's own. Stood in for are the batch (an object with the fields that
these functions read), the messages of clients, and the loop of the scheduler: its steps before and after each call
are done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from conformance.driver.exception_origin import StandIn
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.driving.prebuilt import DecodeServer
from conformance.engines.sglang.driving.rehearsal import granted
from conformance.engines.sglang.releases import marks, records
from conformance.engines.sglang.releases.records import NEXT_TRACK, STATE, TRACKED, TRACKS
from conformance.stems.session_trim.protocol import Admission

ENDLESS = 1 << 20  # the longest answer of a request: it ends when the driver says so
OUT_OF_STATES = "Can not alloc mamba cache"  # the assertion of a match that finds no slot for the copy of a state


class _Message(SimpleNamespace):
    """A message of a client; what it does not say is ``None``."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class StandInScheduler:
    """The scheduler of one server.

    ``checks_rows``: it matches a request only if there is a row for it. ``prefill_aware``: its model is, see
    ``conformance.stems.configs``.
    """

    def __init__(self, memory: SGLangMemory, checks_rows: bool, prefill_aware: bool = False) -> None:
        self.memory, self.release, self.checks_rows = memory, memory.release, checks_rows
        self.serving, self.page_size = self.release.serving, memory.page_size
        self.windowed = "swa" in memory.components
        self.all_sliding = memory.kind == "pure_swa"  # every layer has a sliding window: one pool
        self.prefill_aware = prefill_aware
        self.batches = self.serving.schedule_batch
        self.cache = self.release.session_cache(memory.tree, memory.kind)
        self.sessions = self.serving.session_controller(self.cache)
        self.engine_scheduler = self.serving.scheduler(self.cache)
        self.in_group = False  # a free group is open
        self._count = 0

    @property
    def slots(self) -> dict[Any, Any]:
        """The slots of the sessions, by the engine's name of the session."""
        return self.release.session_slots(self.cache, self.memory.kind)

    # Requests arrive.

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def without_session(self, tokens: Sequence[int]) -> Any:
        """A request of no session."""
        return self.serving.request(self._name(), self.release.tokens(tokens), ENDLESS, **self.release.space(tokens))

    def turn(self, session: str, new: Sequence[int], replaces: bool = False) -> Any:
        """A request of a session (``Session.create_req``): the engine puts the session's text before the new tokens.

        A request that ``replaces`` the text is of a kind that streaming sessions do not serve.
        """
        message = _Message(
            rid=self._name(),
            input_ids=self.release.tokens(new),
            sampling_params=self.serving.sampling(ENDLESS),
            session_params=_Message(replace=replaces),
            return_hidden_states=False,
            return_logprob=False,
            stream=False,
        )
        return self._session(session).create_req(message, None, None)

    def _session(self, session: str) -> Any:
        if session not in self.sessions.sessions:
            self.sessions.open(_Message(session_id=session, capacity_of_str_len=0, streaming=True))
        return self.sessions.sessions[session]

    def length_of_session(self, session: str) -> int:
        """How many tokens the engine puts before the new tokens of the session's next request."""
        return self.serving.length_of_session(self._session(session))

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
        upto = min(found + most, len(request.origin_input_ids) + len(request.output_ids))
        with self.serving.hold(self.cache, request.last_node):
            room = self._has_room_for(request, upto) and self._has_states_for(request)
            if room:
                self.serving.lock(self.cache, request, self.windowed or self.all_sliding)
        if not room:
            self._take_copy_back(request)
            return Admission(found, False)
        self.extend(request, upto)
        return Admission(found, True)

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
        return records.prefix(request)

    def _take_copy_back(self, request: Any) -> None:
        """The scheduler frees the copy of a state that a match has made for a request that it does not admit."""
        slots = self.memory.state_slots
        if slots is not None:
            records.take_matched(request)
        state = None if slots is None or request.session is not None else records.read(request, STATE)
        if state is not None:
            slots.free(state.unsqueeze(-1))
            records.write(request, mamba_pool_idx=None)

    def _has_room_for(self, request: Any, upto: int) -> bool:
        """There is a row, and room for the request's tokens up to ``upto``."""
        row = records.row(request) is not None or self.memory.rows.available_size() > 0
        return row and self._grants(records.prefix(request), upto, self._last_slot(request))

    def _last_slot(self, request: Any) -> int:
        """The slot of the last token of a request's prefix; -1: it has none."""
        length = records.prefix(request)
        if not length:
            return -1
        if (slots := records.prefix_slots(request)) is not None:
            return int(slots[-1])
        if (row := records.row(request)) is not None:
            return int(self.memory.rows.req_to_token[row, length - 1])
        return int(self.cache.prefix_device_indices(request)[-1])

    def _has_states_for(self, request: Any) -> bool:
        """There are state slots for what the request does not have yet; the tree is asked to free some for it."""
        slots = self.memory.state_slots
        if slots is None:
            return True
        tracks = self.memory.buffers.slots
        lacks = {name: records.read(request, name) is None for name in (STATE, TRACKS)}
        need = lacks[STATE] + tracks * lacks[TRACKS]
        if need > slots.available_size():
            self.evict(0, 0, need - int(slots.available_size()))
        return bool(need <= slots.available_size())

    def _grants(self, before: int, after: int, last: int) -> bool:
        """A row can grow by a prefill or a draft: the release's own code says so, on a copy of its allocator."""
        return granted(self.memory.pools.engine, lambda: self._slots(before, after, last), self.memory.release.fragile)

    def _slots(self, before: int, after: int, last: int) -> Any:
        """Slots for a row that grows, as ``alloc_for_extend`` allocates them. The tree makes room for them."""
        if self.page_size == 1:
            return self.serving.allocation.alloc_token_slots(self.cache, after - before)
        old, new = torch.tensor([before]), torch.tensor([after])
        paged = self.serving.allocation.alloc_paged_token_slots_extend
        return paged(self.cache, old, old, new, new, torch.tensor([last]), after - before)

    @cached_property
    def decode_server(self) -> DecodeServer:
        """What admits requests whose prompt is computed elsewhere."""
        return DecodeServer(self.memory, self.cache)

    # They grow.

    def extend(self, request: Any, upto: int) -> None:
        """The request gets slots for its input up to ``upto``."""
        self.extend_batch([request], [upto])

    def extend_batch(self, requests: Sequence[Any], ends: Sequence[int]) -> None:
        """``alloc_for_extend``: the requests of a batch get slots for their input, up to these lengths."""
        for request, upto in zip(requests, ends, strict=True):
            records.limit_input(request, upto)
        batch = self.batch(requests, decodes=False)
        batch.prefix_lens = [records.prefix(request) for request in requests]
        batch.extend_lens = [upto - start for start, upto in zip(batch.prefix_lens, ends, strict=True)]
        batch.extend_num_tokens = sum(batch.extend_lens)
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor(ends)
        self.serving.allocation.alloc_for_extend(batch)
        for request in requests:
            self.memory.copy_matched(request)
        if self.prefill_aware:  # as ``get_new_batch_prefill`` does: no slot of the prompt leaves the window
            for request, upto in zip(requests, ends, strict=True):
                records.write(request, swa_evict_floor=upto)
        for request, upto in zip(requests, ends, strict=True):
            request.extend_batch_idx += 1
            request.is_retracted = False
            records.write(request, kv_committed_len=upto, kv_allocated_len=upto)

    def chunk(self, request: Any, most: int) -> bool:
        """The next chunk of a prompt; false: out of memory."""
        request.init_next_round_input()
        start = records.prefix(request)
        upto = min(start + most, len(request.origin_input_ids) + len(request.output_ids))
        if not self._grants(start, upto, self._last_slot(request)):
            return False
        self.extend(request, upto)
        return True

    def computed(self, request: Any, sampled: int | None) -> None:
        """A prefill is computed: the prompt goes to the cache. ``sampled``: the first token of the answer, if any."""
        if sampled is not None:
            request.output_ids.extend(marks.unmarked([sampled]))
        if request.to_finish is None:
            self.serving.cache_unfinished(request, self.cache, chunked=sampled is None)

    def checkpoint(self, request: Any, upto: int) -> None:
        """A request that goes on puts its first ``upto`` tokens into the cache, those of its answer among them. Where
        the tree has them all, nothing is sent: the release's callers send lengths that grow.
        """
        if upto < records.lengths(request).protected:
            return
        records.refresh_input(request)
        records.limit_input(request, upto)
        self.serving.cache_unfinished(request, self.cache, chunked=False)

    def decode(self, requests: Sequence[Any]) -> bool:
        """``prepare_for_decode``: one more slot for each request; false: out of memory (``check_decode_mem``)."""
        batch = self.batch(requests, decodes=True)
        if not batch.check_decode_mem():
            return False
        batch.maybe_evict_swa = lambda: None  # the window moves in ``slide``
        batch.seq_lens = batch.seq_lens_cpu = torch.tensor([records.committed(r) for r in requests])
        batch.req_pool_indices = batch.req_pool_indices_cpu = torch.tensor([records.row(r) for r in requests])
        decode = self.serving.allocation.alloc_for_decode
        if not granted(self.memory.pools.engine, lambda: decode(batch, 1), self.memory.release.fragile):
            return False
        lengths = [records.committed(r) + 1 for r in requests]
        decode(batch, 1)
        for request, length in zip(requests, lengths, strict=True):
            request.decode_batch_idx += 1
            records.write(request, kv_committed_len=length, kv_allocated_len=length)
        return True

    def reserve(self, request: Any, more: int) -> bool:
        """Slots for draft tokens, as ``prepare_for_decode`` of EAGLE allocates them; false: out of memory."""
        now, row = records.allocated(request), self.memory.rows.req_to_token[records.row(request)]
        last = int(row[now - 1])
        if not self._grants(now, now + more, last):
            return False
        row[now : now + more] = self._slots(now, now + more, last).to(row.dtype)
        records.write(request, kv_allocated_len=now + more)
        return True

    def slide(self, request: Any) -> None:
        """``maybe_evict_swa``: the window of a request moves. Releases do that in one of several decode steps; here the
        step counts as that one. Some releases open a free group for it; where one is open, that part is left out. A
        model without sliding-window layers has no window that moves.
        """
        batch, steps = self.batch([request], decodes=True), request.decode_batch_idx
        request.decode_batch_idx = 1
        with self.serving.windows_move_often():
            if self.in_group and (self.windowed or self.all_sliding):
                batch._evict_swa(request, request.seqlen - 1)
            else:
                batch.maybe_evict_swa()
        request.decode_batch_idx = steps

    def batch(self, requests: Sequence[Any], decodes: bool) -> Any:
        """A batch of requests that is about to prefill or to decode."""
        pools = self.memory.pools.engine
        return self.serving.batch(requests, self.memory.rows, pools, self.cache, decodes)

    # They leave.

    def finish(self, request: Any) -> None:
        """The result of a step says that the request has ended, and what it has is released."""
        self.serving.update_finish_state(request)
        self._drafts(request)
        self.serving.release_memory(request, self.cache, insert=True)

    def abort(self, request: Any, prefilling: bool) -> None:
        """The request is aborted: its next result ends it, or (``prefilling``) its next chunk is not computed."""
        if request.to_finish is not None:  # the engine itself has turned it away
            self.finish(request)
        elif prefilling:
            self._drafts(request)
            self.serving.abort_chunked(self.engine_scheduler, request)
        else:
            self.serving.abort_running(self.engine_scheduler, request)
            self.finish(request)

    def retract(self, request: Any) -> None:
        """The request gives up its memory, and waits again (``release_req``)."""
        self._drafts(request)
        self.serving.retract(self.batch([request], decodes=True))

    def cancel(self, request: Any) -> None:
        """A request that waits is taken off the queue."""
        self._drafts(request)
        self.serving.abort_waiting(self.engine_scheduler, request)

    def _drafts(self, request: Any) -> None:
        """A draft tail is there only if the server has a draft model, so it gets one then."""
        tail = records.row(request) is not None and records.allocated(request) > records.committed(request)
        self.release.settings.drafts(tail)

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
    written, before = records.read(request, NEXT_TRACK), records.read(request, TRACKED)
    records.write(request, **{TRACKED: records.committed(request) // memory.page_size * memory.page_size})
    # Which slot was written, and how long the text of the other one is, where a release keeps that.
    kept = {"mamba_last_track_idx": written, "mamba_prev_track_seqlen": None if memory.buffers.lazy else before}
    records.write_known(request, **kept)
    if not memory.buffers.lazy:
        records.write(request, **{NEXT_TRACK: memory.rows.get_mamba_ping_pong_other_idx(written)})


def before_boundary(memory: SGLangMemory, session_cache: Any, request: Any) -> None:
    """Before a step that tracks, a lazy buffer gets its second slot, if there is room."""
    batch = StandIn(
        req_to_token_pool=memory.rows,
        reqs=[request],
        seq_lens_cpu=torch.tensor([memory.page_size]),
        tree_cache=session_cache,
    )
    memory.release.serving.before_boundary(batch, memory.page_size)


def after_boundary(memory: SGLangMemory, request: Any) -> None:
    """After the step a lazy buffer gives one slot back."""
    memory.release.serving.after_boundary(request, StandIn(req_to_token_pool=memory.rows))
