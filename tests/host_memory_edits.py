"""Edits of vLLM's connector to host memory and of its manager, each as a real bug would be made, and harmless ones.

``python tests/host_memory_edits.py RELEASE NAME ...`` prints for each edit, as JSON, the law that drawn runs of
``block_cache`` with host memory find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import inspect
import json
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from hypothesis import strategies as st

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.stems.block_cache import rules
from conformance.stems.block_cache.exclusions import BlockCacheExclusion
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import start

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
MANAGER = "vllm.v1.kv_offload.cpu.manager"
KNOWN = (  # of 0.33.0
    BlockCacheExclusion.PRIORITY,
    BlockCacheExclusion.STALLED_LOADS,
    BlockCacheExclusion.RESET_IN_FLIGHT,
    BlockCacheExclusion.HOST_RESET_AGAIN,
    BlockCacheExclusion.HOST_RESET_UNDER_LOAD,
    BlockCacheExclusion.HOST_RESET_OF_WINDOWS,
    BlockCacheExclusion.EVENTS_OF_PARTS,
    BlockCacheExclusion.EVENTS_OF_DEVICE_RESETS,
    BlockCacheExclusion.EVENTS_OF_REFUSED_RESETS,
    BlockCacheExclusion.EVENTS_OF_POOL_RESETS,
    BlockCacheExclusion.EVENTS_OF_POOLED_WINDOWS,
    BlockCacheExclusion.PARTS_IN_ONE_STEP,
    BlockCacheExclusion.CHECKPOINTS_AFTER_PARTS,
    BlockCacheExclusion.IDLE_COPIES,
    BlockCacheExclusion.RESET_OF_STORES,
    BlockCacheExclusion.WINDOW_BEFORE_LOADS,
    BlockCacheExclusion.BOTH_WAYS,
    BlockCacheExclusion.LARGE_STATES,
)
Drawn = Mapping[str, st.SearchStrategy[Any]]  # by choice of a configuration
EXAMPLES, SEEDS = 150, (1, 2, 3)


def with_host(hosts: Sequence[Json]) -> Drawn:
    """What is drawn of servers with one of these host memories."""
    return {"transfers": st.just(True), "host": st.sampled_from(hosts)}


OF_HOSTS = with_host(rules.HOSTS)


class Edit(NamedTuple):
    """In a class of a module, or in a method of one, one text is replaced. ``of``: the class, or class and method."""

    module: str
    of: str
    old: str
    new: str


def _connector(method: str, old: str, new: str) -> Edit:
    return Edit(CONNECTOR, f"OffloadingConnectorScheduler.{method}", old, new)


def _manager(method: str, old: str, new: str) -> Edit:
    return Edit(MANAGER, f"CPUOffloadingManager.{method}", old, new)


PENDING = "self._block_id_to_pending_jobs.setdefault(bid, set()).add(job_id)"
BUGS = {
    # A load does not keep its keys in host memory (a missing lock during a load: SGLang pull request 26728).
    "no_pin": _manager("_prepare_load", "chunk.ref_cnt += 1", "pass"),
    # Blocks of a request that has ended are handed out while a copy still reads them.
    "no_fence": _connector("request_finished", PENDING, "pass"),
    "no_late_fence": _connector("_build_store_jobs", "self._current_batch_jobs_to_flush.add(job_id)", "pass"),
    "no_flush_when_reallocated": _connector(
        "_build_connector_meta", "self._block_id_to_pending_jobs\n", "self._block_id_to_pending_jobs and False\n"
    ),
    "no_flush_when_preempted": _connector(
        "_build_connector_meta", "self._current_batch_jobs_to_flush.update(jobs_to_flush)", "pass"
    ),
    # A key is found while it is written (LMCache pull request 4068).
    "found_while_written": _manager("lookup", "if not chunk.is_ready:", "if False:"),
    # The slot of the token that was sampled last is copied (vLLM 0.27.1).
    "stores_the_last_token": _connector(
        "_build_store_jobs", "max(req.num_prompt_tokens, req.num_tokens - 1)", "req.num_tokens"
    ),
    "an_abort_stores_all": _connector(
        "_build_store_jobs",
        "num_tokens_after_batch = req.num_computed_tokens\n",
        "num_tokens_after_batch = req.num_tokens\n",
    ),
    # A slot is free twice.
    "frees_twice": _manager(
        "prepare_store", "self._free_chunk(chunk)", "self._free_chunk(chunk); self._free_chunk(chunk)"
    ),
    "counts_down_twice": _manager("complete_load", "chunk.ref_cnt -= 1", "chunk.ref_cnt = 0"),
    # A reset does not wait for the copies in flight.
    "reset_without_flush": _connector(
        "_reset_cache", "self._current_batch_jobs_to_flush.update(self._jobs.keys())", "pass"
    ),
    # A load that begins inside a slot reads from the beginning (SGLang pull request 25088).
    "loads_from_the_first_part": _connector(
        "update_state_after_alloc", "block_indices.append(load_start_gpu_block_idx)", "block_indices.append(0)"
    ),
}
HARMLESS = {
    # The least recently used key is not the first to go.
    "touches_nothing": _manager("touch", "self._policy.touch(keys, req_context)", "pass"),
    # More is waited for than is needed: all copies of earlier steps. (With those of the step itself it is a bug: the
    # workers begin a copy for which a step waits before they compute the step.)
    "waits_for_all": _connector(
        "_build_connector_meta",
        "partial_store_jobs = ",
        "self._current_batch_jobs_to_flush.update(j for j in self._jobs if self._jobs[j].is_store)\n"
        "    partial_store_jobs = ",
    ),
    # Nothing is found.
    "finds_nothing": _manager("lookup", "if chunk is None:", "if True:"),
}


@contextmanager
def made(edit: Edit) -> Iterator[None]:
    """The edit is made in this process."""
    module = import_module(edit.module)
    kind, _, method = edit.of.partition(".")
    holder, name = (getattr(module, kind), method) if method else (module, kind)
    real, kept = getattr(holder, name), inspect.getattr_static(holder, name)
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(real))).splitlines()
    text = "\n".join(line for line in lines if not (method and line.startswith("@"))) + "\n"
    assert edit.old in text, f"{edit.of} has no {edit.old!r}"
    names: dict[str, Any] = {}
    exec(text.replace(edit.old, edit.new, 1), module.__dict__, names)
    setattr(holder, name, classmethod(names[name]) if isinstance(kept, classmethod) else names[name])
    try:
        yield
    finally:
        setattr(holder, name, kept)


def law_broken_by(stem: str, make: Any, config: Json, steps: Sequence[Json]) -> str | None:
    """The law that a run of these steps finds broken; ``None``: none."""
    try:
        lock = start(stem, make, config)
        for step in steps:
            lock.do(**step)
    except Finding as finding:
        return finding.law
    return None


def broken(
    make: Any,
    seeds: Sequence[int] = SEEDS,
    drawn: Drawn = OF_HOSTS,
    known: Collection[BlockCacheExclusion] = KNOWN,
    examples: int = EXAMPLES,
) -> str | None:
    """The law that drawn runs find broken, with the first of the seeds that finds one. ``drawn``: what they draw in
    place of what runs draw else. ``known``: what they avoid. ``examples``: so many runs of each seed.
    """
    rules.CONFIG |= drawn
    for seed in seeds:
        sink = Sink()
        with suppress(Finding):
            draw("block_cache", make, sink, Search(examples=examples, seed=seed, exclude=known))
        if sink.failure is not None:
            return sink.failure[0].law
    return None


def main(
    release: str,
    names: list[str],
    edits: Mapping[str, Edit | tuple[Edit, ...]] = MappingProxyType({**BUGS, **HARMLESS}),
    drawn: Drawn = OF_HOSTS,
    known: Collection[BlockCacheExclusion] = KNOWN,
) -> None:
    """Prints what is found of each edit; some are made at several places. ``drawn``, ``known``: see ``broken``."""
    make = registry.load("vllm", release=release).makers["block_cache"]
    found = {}
    for name in names:
        edit = edits[name]
        with ExitStack() as places:
            for place in (edit,) if isinstance(edit, Edit) else edit:
                places.enter_context(made(place))
            found[name] = broken(make, drawn=drawn, known=known)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
