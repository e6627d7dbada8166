"""The code of a release that serves requests, as far as memory is concerned: requests, batches, sessions, admission.

Each difference between releases is a probe of the imported release, as in ``Release``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import torch

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported
from conformance.engines.sglang.releases import records
from conformance.engines.sglang.releases.records import NEXT_TRACK

SESSION_CONTROLLER = ("session.session_controller", "managers.session_controller")
ALLOCATION = ("mem_cache.allocation", "mem_cache.common")  # where slots for a batch are allocated
# Options of a server whose requests give the SWA part of their locks back early, and the calls for that.
EARLY_OPTIONS = ("SGLANG_OPT_RELEASE_PREFILL_SWA", "SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW")
EARLY_CALLS = ("release_swa_prefix_lock", "dec_swa_lock_only")
GIVES_BACK = re.compile(r"except \w+:\s+\S+\.free\(out_cache_loc\)")
AFTER_BOUNDARY = "mamba_lazy_post_decode_at_boundary"
# The model of a server, as far as batches read it.
MODEL = StandIn(is_encoder_decoder=False, vocab_size=1 << 20)


class Serving:
    """Requests, batches, sessions and admission of one imported release."""

    def __init__(self, imported: Imported) -> None:
        self.imported = imported

    @cached_property
    def common(self) -> Any:
        """``mem_cache.common``: ``evict_from_tree_cache``, ``release_kv_cache`` and others."""
        return self.imported.module("mem_cache.common")

    @cached_property
    def allocation(self) -> Any:
        """The module of ``alloc_for_extend`` and ``alloc_for_decode``."""
        return self.imported.module(next(name for name in ALLOCATION if self.imported.has(name)))

    @cached_property
    def schedule_batch(self) -> Any:
        """``managers.schedule_batch``: ``Req``, ``ScheduleBatch`` and ``FINISH_ABORT``."""
        module = self.imported.module("managers.schedule_batch")
        if hasattr(module, "get_tensor_model_parallel_rank"):
            module.get_tensor_model_parallel_rank = lambda: 1  # only rank 0 writes log messages
        return module

    @cached_property
    def keeps_records(self) -> bool:
        """A request keeps its row and lengths in a record (``ReqKvInfo``) that a session can take over."""
        return hasattr(self.schedule_batch, "ReqKvInfo")

    # Requests and sessions.

    def request(self, name: str, tokens: Any, longest: int, **space: str) -> Any:
        """A ``Req`` of no session, whose answer has at most ``longest`` tokens. ``space``: see ``Release.space``."""
        return self.schedule_batch.Req(name, None, tokens, self.sampling(longest), **space)

    def sampling(self, longest: int) -> Any:
        """``SamplingParams`` of an answer of at most so many tokens, as a server without a tokenizer completes them."""
        params = self._sampling_params(max_new_tokens=longest)
        params.normalize(None)
        return params

    def session_controller(self, session_cache: Any) -> Any:
        """A SessionController: it opens and closes sessions, and creates their requests."""
        return self.imported.find_class("SessionController", SESSION_CONTROLLER)(session_cache)

    @staticmethod
    def length_of_session(session: Any) -> int:
        """How many tokens of earlier turns the engine puts before the input of a session's next request."""
        last = [node.req for node in session.req_nodes.values()]
        if not last:
            return 0
        shared = getattr(session, "committed_origin_len", None)
        answer = last[0].output_ids[: last[0].sampling_params.max_new_tokens]
        return len(answer) + (len(last[0].origin_input_ids) if shared is None else int(shared))

    @cached_property
    def aborts_between_chunks(self) -> bool:
        """The scheduler aborts a request between two chunks of its prompt; others abort after the last chunk."""
        return "def process_pending_chunked_abort" in self.imported.text("managers.scheduler")

    # Requests that leave before their end.

    def scheduler(self, session_cache: Any) -> Any:
        """A ``Scheduler`` that only aborts requests: it has its queues and the cache, and nobody to answer to."""
        cls = self.imported.module("managers.scheduler").Scheduler
        found: Any = object.__new__(type(cls.__name__, (_Aborting, cls), {}))
        nobody = StandIn(send_output=ignore, abort_requests=ignore, retire_group=ignore)
        vars(found).update(
            tree_cache=session_cache,
            waiting_queue=[],
            chunked_req=None,
            _pending_chunked_abort_req=None,
            running_batch=StandIn(reqs=[]),
            cur_batch=None,
            last_batch=None,
            result_queue=(),
            send_abort_output=ignore,
            running_mbs=[],
            mbs=[],
            disaggregation_mode=self._modes.NULL,
            dllm_config=None,
            mm_receiver=None,
            enable_hicache_storage=False,
            enable_hisparse=False,
            enable_continuous_input_polling=False,
            ps=StandIn(pp_size=1),
            send_to_tokenizer=nobody,
            ipc_channels=StandIn(send_to_tokenizer=nobody),
            grammar_manager=nobody,
            beam_coordinator=nobody,
        )
        return found

    def abort_waiting(self, scheduler: Any, request: Any) -> None:
        """``Scheduler.abort_request`` of a request that waits."""
        scheduler.waiting_queue = [request]
        scheduler.abort_request(self._abort_message(request))

    def abort_running(self, scheduler: Any, request: Any) -> None:
        """``Scheduler.abort_request`` of a request that runs: its next result ends it."""
        scheduler.running_batch.reqs = [request]
        scheduler.abort_request(self._abort_message(request))
        scheduler.running_batch.reqs = []

    def abort_chunked(self, scheduler: Any, request: Any) -> None:
        """``Scheduler.abort_request`` of a request between two chunks of its prompt, and the step that ends it."""
        scheduler.chunked_req = request
        scheduler.abort_request(self._abort_message(request))
        scheduler.process_pending_chunked_abort()
        scheduler.chunked_req = None

    def _abort_message(self, request: Any) -> Any:
        return self.imported.module("managers.io_struct").AbortReq(rid=request.rid)

    def retract(self, batch: Any) -> None:
        """``ScheduleBatch.release_req`` of the one request of a batch: it gives its memory up and is reset."""
        known = inspect.signature(batch.release_req).parameters
        # Older releases ask the server's arguments whether its decode is disaggregated.
        more = {"server_args": StandIn(disaggregation_mode="null")} if "server_args" in known else {}
        batch.release_req(0, 0, **more)

    # Admission.

    def hold(self, session_cache: Any, node: Any) -> AbstractContextManager[None]:
        """``PrefillAdder._lock_node``: the lock on a matched node while the scheduler decides about its request."""
        held: AbstractContextManager[None] = self._adder._lock_node(StandIn(tree_cache=session_cache), node)
        return held

    def lock(self, session_cache: Any, request: Any, windowed: bool) -> None:
        """The lock that an admitted request takes on the node that it matched (``PrefillAdder``)."""
        if hasattr(self._adder, "_req_inc_lock_ref"):
            adder = StandIn(tree_cache=session_cache, is_hybrid_swa=windowed)
            self._adder._req_inc_lock_ref(adder, request)
        else:
            records.write(request, lock=session_cache.lock(request.last_node))

    # Batches.

    def batch(self, requests: Sequence[Any], rows: Any, allocator: Any, session_cache: Any, decodes: bool) -> Any:
        """A ScheduleBatch of these requests that is about to prefill or to decode."""
        batch = self.schedule_batch.ScheduleBatch.init_new(
            reqs=list(requests),
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
            tree_cache=session_cache,
            model_config=MODEL,
            enable_overlap=False,
            spec_algorithm=self.no_drafts,
        )
        modes = self._forward_modes
        batch.forward_mode = modes.DECODE if decodes else modes.EXTEND
        batch.forward_iter = 0
        return batch

    @contextmanager
    def windows_move_often(self) -> Iterator[None]:
        """While this lasts, a window moves in each step: releases since 0.5.14 wait for some tokens, an option."""
        interval = getattr(self._options, "SGLANG_SWA_EVICTION_INTERVAL", None)
        if interval is None:
            yield
        else:
            with interval.override(1):
                yield

    # What a running request gives back.

    def releases_windows_early(self, session_cache: Any) -> bool:
        """The release can give the SWA part of a lock back early, and the cache has the call for that."""
        has_call = any(hasattr(session_cache, call) for call in EARLY_CALLS)
        return self._early is not None and has_call

    def locks_end_early(self) -> AbstractContextManager[None]:
        """While this lasts, a decode step gives back the SWA part of a lock once the request has decoded a window."""
        assert self._early is not None, "asked of a release that has the option"
        found: AbstractContextManager[None] = self._early.override(True)
        return found

    @cached_property
    def _early(self) -> Any:
        """The option of releases since 0.5.12 to give locks back early; ``None``: there is none."""
        return next((getattr(self._options, name) for name in EARLY_OPTIONS if hasattr(self._options, name)), None)

    @cached_property
    def gives_slots_back(self) -> bool:
        """The release has code that gives the slots of a step back after an exception. That is where rows can have an
        auxiliary cache, and this cache is out of slots (since 0.5.19; MiniCPM, with pages of one token).
        """
        handles = GIVES_BACK.search(inspect.getsource(self.allocation)) is not None
        return handles and hasattr(self.imported.module("mem_cache.memory_pool").ReqToTokenPool, "attach_aux_cache")

    @cached_property
    def rejects_drafts(self) -> bool:
        """The release frees the slots of drafts that were not accepted after each check (up to 0.5.13); others keep
        them for the next drafts.
        """
        name = "speculative.ngram_info"
        return self.imported.has(name) and "def _free_cache(" in self.imported.text(name)

    def reject_drafts(self, batch: Any, count: int, page_size: int) -> None:
        """``NgramVerifyInput._free_cache`` for a batch of one request: of ``count + 1`` drafts the first is accepted.

        ``out_cache_loc`` of the batch has the slots of the drafts. No KV cache is moved, since there is none.
        """
        accepted, drafts = torch.zeros(1, dtype=torch.int64), torch.zeros(count + 1, dtype=torch.int64)
        names = dict.fromkeys(("accept_length", "num_accepted_drafts", "num_correct_drafts"), accepted)
        more = dict.fromkeys(("num_accepted_tokens", "num_accept_tokens"), accepted + 1)
        indices = dict.fromkeys(("accepted_indices", "accept_indices"), accepted)
        known = StandIn(draft_token=drafts, draft_token_num=count + 1, **names, **more, **indices)
        check, pools = self.imported.module("speculative.ngram_info").NgramVerifyInput, batch.token_to_kv_pool_allocator
        pools.get_kvcache = lambda: StandIn(move_kv_cache=ignore)
        try:
            check._free_cache(known, batch, page_size, accepted)
        finally:
            del pools.get_kvcache

    # Results.

    @cached_property
    def has_checkpoints(self) -> bool:
        """The cache of the release takes what a request has computed up to a length that the caller says."""
        return hasattr(self.common, "checkpoint_kv_cache")

    @cached_property
    def checkpoints_answers(self) -> bool:
        """A checkpoint may end anywhere in what a running request has computed. 0.5.22 looks for the node of the
        checkpoint by a match, which finds less where the window before that node is gone; older releases call what they
        have for prompts alone.
        """
        if not self.has_checkpoints:
            return False
        tree = self.imported.module("mem_cache.unified_radix_cache").UnifiedRadixCache
        return "_match_tree(" not in inspect.getsource(tree.checkpoint_into_tree)

    def cache_unfinished(self, request: Any, session_cache: Any, chunked: bool) -> None:
        """The prompt of a request that goes on is put into the cache, as the scheduler does after a prefill."""
        if self.has_checkpoints:
            self.common.checkpoint_kv_cache(request, session_cache)
            return
        more = {"chunked": True} if chunked else {}
        maybe = getattr(self.common, "maybe_cache_unfinished_req", None)
        if maybe is None:
            session_cache.cache_unfinished_req(request, **more)
        else:
            maybe(request, session_cache, **more)

    def release_memory(self, request: Any, session_cache: Any, insert: bool) -> None:
        """``release_kv_cache``. ``insert``: the tree may keep what the request has computed."""
        option = "checkpoint" if self.has_checkpoints else "is_insert"
        self.common.release_kv_cache(request, session_cache, **{option: insert})

    @staticmethod
    def update_finish_state(request: Any) -> None:
        """The request finds out whether it has ended (``check_finished`` in some releases)."""
        (getattr(request, "update_finish_state", None) or request.check_finished)()

    # Page boundaries of mamba states.

    def before_boundary(self, batch: Any, page_size: int) -> None:
        """``mamba_lazy_prealloc_at_boundary``: the requests of a batch get the second slots of lazy buffers."""
        self.schedule_batch.ScheduleBatch.mamba_lazy_prealloc_at_boundary(batch, page_size)

    def after_boundary(self, request: Any, batch: Any) -> None:
        """``mamba_lazy_post_decode_at_boundary``: the request gives one slot of its lazy buffer back."""
        call = getattr(self._result_processor, AFTER_BOUNDARY)
        # Some releases say which slot was written: the one that is next, since lazy buffers do not turn.
        more = (records.read(request, NEXT_TRACK),) if "track_idx" in inspect.signature(call).parameters else ()
        call(None, request, batch, *more)

    # Modules and classes that are used here alone.

    @cached_property
    def _sampling_params(self) -> Any:
        return self.imported.module("sampling.sampling_params").SamplingParams

    @cached_property
    def _modes(self) -> Any:
        return self.imported.module("disaggregation.utils").DisaggregationMode

    @cached_property
    def _adder(self) -> Any:
        return self.imported.module("managers.schedule_policy").PrefillAdder

    @cached_property
    def no_drafts(self) -> Any:
        return self.imported.module("speculative.spec_info").SpeculativeAlgorithm.NONE

    @cached_property
    def _forward_modes(self) -> Any:
        return self.schedule_batch.ForwardMode

    @cached_property
    def _options(self) -> Any:
        return self.imported.module("environ").envs

    @cached_property
    def _result_processor(self) -> Any:
        """The class of the scheduler that has the call after a boundary."""
        module = self.imported.module("managers.scheduler_components.batch_result_processor")
        return next(c for c in vars(module).values() if isinstance(c, type) and hasattr(c, AFTER_BOUNDARY))


class _Aborting:
    """Makes a field that a Scheduler reads and that it was not given an error of ours, never a verdict."""

    def __getattr__(self, name: str) -> Any:
        raise EngineError(f"the scheduler of the release reads {name}, which it was not given here")


def ignore(*_args: object, **_more: object) -> None:
    """Nobody listens."""
