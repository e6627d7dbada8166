"""A decode server: it admits requests whose prompt a prefill server has computed.

The queue that matches, locks and allocates for such a request (``DecodePreallocQueue.pop_preallocated``), and the batch
that puts its prompt into the tree (``get_new_prebuilt_batch``), are the release's own. Stood in for is the prefill
server: it has always answered, and it gets no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError
from conformance.engines.sglang.driving.memory import SGLangMemory
from conformance.engines.sglang.releases.release import DECODE
from conformance.engines.sglang.releases.serving import MODEL, ignore


class NotTaken(RuntimeError):
    """The queue aborted a request after it had found room for it; the message is the engine's own."""


class DecodeServer:
    """The part of a decode server that admits requests, over one memory. ``session_cache``: the cache that requests
    reach the tree by.
    """

    def __init__(self, memory: SGLangMemory, session_cache: Any) -> None:
        self._settings, self._module = memory.release.settings, memory.release.imported.module(DECODE)
        self._engine_scheduler = memory.release.serving.scheduler(session_cache)
        vars(self._engine_scheduler).update(_batch_fields(memory))
        self._queue = _queue(memory, session_cache, self._module.DecodePreallocQueue)

    def admit(self, request: Any) -> bool:
        """``pop_preallocated`` of a queue that has this request alone; false: there is no room for it.

        No memory is kept back for answers that are still to come. That is a policy, and the length of the answer is
        the driver's decision: the queue is told that the request has none.
        """
        asked = self._module.DecodeRequest(req=request, kv_receiver=_Sender(), waiting_for_input=True)
        self._queue.queue = [asked]
        with self._settings.decode_server(), _no_answer(request):
            taken, failed = self._queue.pop_preallocated()
        if failed:
            raise NotTaken(request.finished_reason.message)
        return bool(taken)

    def start(self, request: Any, sampled: int) -> None:
        """The first token of the answer has come, and the request joins a batch: its prompt goes to the cache."""
        request.output_ids.append(sampled)
        self._engine_scheduler.waiting_queue = [request]
        with self._settings.decode_server():
            self._engine_scheduler.get_new_prebuilt_batch(StandIn(batch_size=lambda: 0))


class _Sender:
    """The connection to the prefill server, which takes every message."""

    send_metadata = clear = staticmethod(ignore)
    require_staging = supports_host_destination = False


def _queue(memory: SGLangMemory, session_cache: Any, queue: type[Any]) -> Any:
    """A ``DecodePreallocQueue`` over the memory; nobody answers it, and the answers that it waits for have come."""
    answered = {"_update_handshake_waiters": ignore, "__getattr__": _missing}
    found: Any = object.__new__(type(queue.__name__, (queue,), answered))
    pools = memory.pools.engine
    vars(found).update(
        req_to_token_pool=memory.rows,
        token_to_kv_pool_allocator=pools,
        token_to_kv_pool=pools.get_kvcache(),
        tree_cache=session_cache,
        scheduler=_beside_the_queue(memory),
        transfer_queue=StandIn(queue=[], enable_staging=False),
        req_to_metadata_buffer_idx_allocator=StandIn(available_size=lambda: 1, alloc=lambda: 0),
        kv_manager=StandIn(kv_args=StandIn(state_types=[])),
        num_reserved_decode_tokens=0,
        max_total_num_tokens=memory.size,
        retracted_queue=[],
        pending_reqs=[],
        _prefill_dp_rank_queries={},
        _num_published_destinations=0,
        pp_size=1,
        tp_rank=0,
    )
    return found


def _beside_the_queue(memory: SGLangMemory) -> Any:
    """What the queue, and a repair of it, read of the scheduler: the window, that no other request keeps memory back,
    and that no step is in flight.
    """
    return StandIn(
        sliding_window_size=memory.window,
        tp_worker=StandIn(is_hybrid_swa="swa" in memory.components),
        running_batch=StandIn(reqs=[]),
        last_batch=None,
        result_queue=(),
        waiting_queue=[],
        server_args=StandIn(disaggregation_decode_enable_radix_cache=True, disable_radix_cache=False),
        output_streamer=StandIn(stream_output=ignore),
        enable_hisparse=False,
        enable_decode_hicache=False,
        enable_priority_scheduling=False,
        enable_lora=False,
        enable_overlap=False,
    )


def _batch_fields(memory: SGLangMemory) -> dict[str, Any]:
    """What a ``Scheduler`` reads to make a batch of requests that are computed."""
    return {
        "req_to_token_pool": memory.rows,
        "token_to_kv_pool_allocator": memory.pools.engine,
        "max_running_requests": memory.row_count,
        "model_config": MODEL,
        "spec_algorithm": memory.release.serving.no_drafts,
        "grammar_manager": StandIn(has_waiting_grammars=lambda: False),
        "ngram_embedding_manager": StandIn(prepare_for_forward=ignore),
        "future_map": StandIn(stash=ignore),
        "kv_checksum_computer": None,
        "enable_priority_scheduling": False,
        "enable_overlap": False,
    }


def _missing(_: Any, name: str) -> Any:
    raise EngineError(f"the decode queue of the release reads {name}, which it was not given here")


@contextmanager
def _no_answer(request: Any) -> Iterator[None]:
    """While this lasts, the request asks for no answer."""
    longest, request.sampling_params.max_new_tokens = request.sampling_params.max_new_tokens, 0
    try:
        yield
    finally:
        request.sampling_params.max_new_tokens = longest
