"""Tells which calls a server makes that change who has which memory, in order, and hands control back after each.

What is watched are the release's own functions at the borders of a change: slots for a batch, a prefix put into the
tree, the memory of a request given back. They run unchanged. Beside them each call to the pools and rows is watched:
one that is made outside of all of them has no explanation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from conformance.engines.sglang.releases.server_parts import (
    ALL,
    Releases,
    calls,
    function,
    modules_with,
    names_tree,
    part,
)
from conformance.recording.server_records import STRAYED
from conformance.stems.server.protocol import ADMITTED

if TYPE_CHECKING:
    from conformance.engines.importing import Imported


class WatchedFunction(NamedTuple):
    """A function of the release after which control goes back to the run.

    ``kind``: what it does, as ``conformance.stems.server.protocol`` has it. ``whom`` finds the requests, or the
    session, in its arguments. ``places``: its module and name, in the newest release first; a method has the name of
    its class before a dot. ``only``: the releases that must have it; in others it is not watched. ``changes``: it may
    change pools and rows itself; of one that may not, such a call within it is not a part.
    """

    kind: str
    whom: Callable[..., tuple[Any, ...]]
    places: tuple[tuple[str, str], ...]
    only: Releases = ALL
    changes: bool = True


def _batch(batch: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return tuple(batch.reqs)


def _request(req: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return (req,)


def _second(_: Any, req: Any, *__: Any, **___: Any) -> tuple[Any, ...]:
    return (req,)


def _admitted(adder: Any, req: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return (req,) if any(one is req for one in adder.can_run_list) else ()


def _third(_: Any, __: Any, batch: Any, *___: Any, **____: Any) -> tuple[Any, ...]:
    return tuple(batch.reqs)


def _of_transfer(_: Any, transfer: Any, *__: Any, **___: Any) -> tuple[Any, ...]:
    return (transfer.req,)


def _receiver(receiver: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return (receiver,)


def _message(_: Any, message: Any, *__: Any, **___: Any) -> tuple[Any, ...]:
    return (message,)


def _nobody(*_: Any, **__: Any) -> tuple[Any, ...]:
    return ()


STATES_BEGUN, STATES_ENDED = "states_begun", "states_ended"
RESULTED, LOADED_BACK = "resulted", "loaded_back"
EVICTED = "evicted"
BATCH, RESULTS = "managers.schedule_batch", "managers.scheduler_components.batch_result_processor"
PROCESSOR = "SchedulerBatchResultProcessor"
VERIFIED = f"{PROCESSOR}._resolve_spec_v2_tokens"
UNDO = "ScheduleBatch.mamba_lazy_undo_prealloc_at_boundary"
COMMON = "mem_cache.common"
DECODE = "disaggregation.decode"
ASKED = "transfer_begun"
DECODES = Releases(DECODE, "DecodeTransferQueue.resolve_deferred_releases")
WATCHED: tuple[WatchedFunction, ...] = (
    WatchedFunction("arrived", _message, (("managers.scheduler", "Scheduler.handle_generate_request"),)),
    WatchedFunction("flushed", _nobody, (("managers.scheduler", "Scheduler.flush_cache"),)),
    WatchedFunction("closed", _message, (("session.streaming_session", "StreamingSession.release_session"),)),
    WatchedFunction(
        "matched",
        _request,
        ((COMMON, "match_kv_cache"), (BATCH, "Req.init_next_round_input")),
    ),
    WatchedFunction(
        "matched",
        _second,
        (("managers.schedule_policy", "match_prefix_for_req"),),
        Releases(COMMON, "match_kv_cache", lacking=True),  # there the order of the queue has a match of its own
    ),
    # The lock is taken here, and the next request of the batch may split the nodes that it holds.
    WatchedFunction(ADMITTED, _admitted, (("managers.schedule_policy", "PrefillAdder.add_one_req"),), changes=False),
    WatchedFunction("extended", _batch, ((BATCH, "ScheduleBatch.prepare_for_extend"),)),
    WatchedFunction("decoded", _batch, ((BATCH, "ScheduleBatch.prepare_for_decode"),)),
    WatchedFunction("cached", _request, ((COMMON, "checkpoint_kv_cache"), (COMMON, "maybe_cache_unfinished_req"))),
    WatchedFunction("left", _request, ((COMMON, "release_kv_cache"),)),
    WatchedFunction("verified", _third, ((RESULTS, VERIFIED),), Releases(RESULTS, VERIFIED)),
    WatchedFunction("tracks", _batch, ((BATCH, "ScheduleBatch.mamba_lazy_prealloc_at_boundary"),)),
    WatchedFunction("tracks", _batch, ((BATCH, UNDO),), Releases(BATCH, UNDO)),
    WatchedFunction("tracks", _second, ((RESULTS, f"{PROCESSOR}.mamba_lazy_post_decode_at_boundary"),)),
    WatchedFunction(
        ADMITTED, _second, ((DECODE, "DecodePreallocQueue._match_prefix_and_lock"),), DECODES, changes=False
    ),
    WatchedFunction("preallocated", _second, ((DECODE, "DecodePreallocQueue._pre_alloc"),), DECODES),
    # Here the prefill server has the message that says where it is to write.
    WatchedFunction(
        ASKED,
        _receiver,
        (
            ("disaggregation.mooncake.conn", "MooncakeKVReceiver.send_metadata"),
            ("disaggregation.common.conn", "CommonKVReceiver.send_metadata"),
        ),
        DECODES,
        changes=False,
    ),
    WatchedFunction(
        "transfer_ended", _of_transfer, ((DECODE, "DecodeTransferQueue._commit_transfer_to_req"),), DECODES
    ),
)
# While a batch has state slots set aside, a request that is not admitted gives back its copy of a state by this call;
# the end of the group tells it.
TOLD_LATER = ("req_to_token_pool.mamba_allocator", "free")
# The calls that change the pools and the rows, by the attribute of the scheduler that has the object.
CHANGING = {
    "token_to_kv_pool_allocator": (
        *("alloc", "alloc_extend", "alloc_decode", "alloc_extend_swa_tail", "free", "free_swa", "free_full"),
        *("free_segment", "free_segments", "free_swa_segment", "free_full_segments", "clear", "restore_state"),
    ),
    "req_to_token_pool": (
        *("alloc", "free", "clear", "free_mamba_cache", "set_mamba_ping_pong_slot", "donate_mamba_ping_pong_slot"),
    ),
    "req_to_token_pool.mamba_allocator": ("alloc", "free", "clear"),
}
# Calls to one object of a server that are watched, by the attribute of the scheduler that has it.
TELLING = {
    "token_to_kv_pool_allocator": {"free_group_begin": "group_begun", "free_group_end": "group_ended"},
    "req_to_token_pool.mamba_allocator": {"alloc_group_begin": STATES_BEGUN, "alloc_group_end": STATES_ENDED},
    "tree_cache": {"evict": EVICTED, "evict_for_alloc": EVICTED, "init_load_back": LOADED_BACK},
}


IN_PLACE: set[Callable[..., Any]] = set()  # the functions that watch, in the place of those of the release


class Told(Protocol):
    """Who is told what a server did."""

    def tell(self, kind: str, answer: Any, *whom: Any) -> None:
        """Control goes to the run, and comes back when the run goes on. ``answer``: what the watched call returned."""

    def raised(self, kind: str, error: Exception) -> None:
        """A watched call of this kind has raised an exception, which goes on."""

    def strays(self, what: str) -> None:
        """The call ``what`` to pools or rows is made next, outside of every watched call. ``STRAYED`` is told after it,
        unless this raises.
        """


class ServerWatch:
    """The watch of one server. ``told``: who is told. While the server runs, ``ServerWatch.now`` is its watch.
    ``tree``: that of the server, where others may run meanwhile in this process; what they do is not told.
    ``changes``: how many calls were made so far that change pools or rows. ``tree_changes``: how many that evict.
    """

    now: ServerWatch | None = None

    def __init__(self, told: Told, tree: Any = None) -> None:
        self._told, self._tree, self._depth, self._grouped = told, tree, 0, False
        self.changes = self.tree_changes = 0

    def within(
        self, call: Callable[[], Any], kind: str, whom: Callable[[], tuple[Any, ...]], changes: bool = True
    ) -> Any:
        """Makes a watched call. What it calls itself is a part of it, where it ``changes`` pools and rows. An exception
        goes on: that it was raised is all that is told.
        """
        self._depth += changes
        try:
            answer = call()
        except Exception as error:
            self._told.raised(kind, error)
            raise
        finally:
            self._depth -= changes
        if not self._depth:
            self._told.tell(kind, answer, *whom())
        return answer

    def is_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """A call with these arguments is one of this server."""
        return self._tree is None or names_tree((*args, *kwargs.values()), self._tree)

    @contextmanager
    def off(self) -> Iterator[None]:
        """While this lasts, nothing is told."""
        before, ServerWatch.now, self._depth = ServerWatch.now, None, self._depth + 1
        try:
            yield
        finally:
            ServerWatch.now, self._depth = before, self._depth - 1

    def watch(self, scheduler: Any) -> None:
        """Watches the objects of this server."""
        for attribute, names in CHANGING.items():
            thing = part(scheduler, attribute)
            for name, real in calls(thing, names).items():
                later = (attribute, name) == TOLD_LATER
                setattr(thing, name, self._checked(real, f"{type(thing).__name__}.{name}", later))
        for attribute, kinds in TELLING.items():
            thing = part(scheduler, attribute)
            for name, real in calls(thing, kinds).items():
                setattr(thing, name, self._telling(real, kinds[name]))

    def watch_results(self, scheduler: Any) -> None:
        """Tells before this server processes the result of a step: the passes of the step are done then."""
        real = scheduler.process_batch_result

        @functools.wraps(real)
        def call(batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            self._told.tell(RESULTED, None, result)
            return real(batch, result, *args, **kwargs)

        scheduler.process_batch_result = call

    def _checked(self, real: Callable[..., Any], what: str, later: bool) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.changes += 1
            if not self._depth and not (later and self._grouped):
                self._told.strays(what)
                return self.within(lambda: real(*args, **kwargs), STRAYED, lambda: (what,))
            self._depth += 1
            try:
                return real(*args, **kwargs)
            finally:
                self._depth -= 1

        return call

    def _telling(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.changes += 1
            self.tree_changes += kind == EVICTED
            self._grouped = kind == STATES_BEGUN or (self._grouped and kind != STATES_ENDED)
            return self.within(lambda: real(*args, **kwargs), kind, lambda: args)

        return call


def watch_functions(imported: Imported) -> None:
    """Puts the watched functions of a release in place, in each module that has them by name. In a process in which
    they are in place nothing happens.

    ``EngineError`` names the one that the release has not.
    """
    for one in [one for one in WATCHED if one.only.include(imported)]:
        home, name, real = function(imported, one.places)
        if real in IN_PLACE:
            continue
        watched = _watched(real, one)
        IN_PLACE.add(watched)
        setattr(home, name, watched)
        for module in modules_with(name):
            if vars(module)[name] is real:
                setattr(module, name, watched)


def _watched(real: Callable[..., Any], one: WatchedFunction) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        watch = ServerWatch.now
        if watch is None or not watch.is_of(args, kwargs):
            return real(*args, **kwargs)
        return watch.within(lambda: real(*args, **kwargs), one.kind, lambda: one.whom(*args, **kwargs), one.changes)

    return call
