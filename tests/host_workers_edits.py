"""Edits of what vLLM makes of the answers of several workers, each as a real bug would be made, and harmless ones.

Two workers copy their parts of a block apart. The connectors to host memory count the answers of all workers for each
copy, and ``KVOutputAggregator`` of the executor those for each request into whose blocks something was copied.

``main(RELEASE, [NAME])`` prints for an edit, as JSON, the law that drawn runs of ``block_cache`` with two
workers find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import host_memory_edits
from host_memory_edits import CONNECTOR, Edit, made
from hypothesis import strategies as st

from conformance.driver.lockstep import Finding
from conformance.engines import registry
from conformance.stems.block_cache import rules
from conformance.stems.stem_registry import start

SIMPLE = "vllm.v1.simple_kv_offload.manager"
TOLD = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.common"
UTILS = "vllm.distributed.kv_transfer.kv_connector.utils"


def _connector(method: str, old: str, new: str) -> Edit:
    return Edit(CONNECTOR, f"OffloadingConnectorScheduler.{method}", old, new)


def _simple(method: str, old: str, new: str) -> Edit:
    return Edit(SIMPLE, f"SimpleCPUOffloadScheduler.{method}", old, new)


def _counted(old: str, new: str) -> Edit:
    return Edit(UTILS, "KVOutputAggregator.aggregate", old, new)


OF_A_JOB = "job_status = self._jobs[job_id]\n        job_status.pending_count -= count\n"
OF_A_LATE_JOB = "job_status = self._jobs.get(job_id)\n        if job_status is None:\n            continue\n"
OF_A_REQUEST = (
    "if remaining_count_dict[req_id] == 0:\n"
    "                finished_set.add(req_id)\n"
    "                del remaining_count_dict[req_id]\n"
)
BUGS = {
    # A copy counts as done after the first worker's answer, and later answers are not minded.
    "first_answer_ends_a_copy": _connector(
        "_update_connector_output", OF_A_JOB, f"{OF_A_LATE_JOB}        job_status.pending_count = 0\n"
    ),
    # What is left of one copy's count counts for the next: from the second copy on the first answer is enough.
    "answers_are_counted_on": _connector(
        "_update_connector_output",
        OF_A_JOB,
        f"{OF_A_LATE_JOB}"
        "        self.answers = getattr(self, 'answers', 0) + count\n"
        "        job_status.pending_count = max(0, self.config.num_workers - self.answers)\n",
    ),
    # Two answers that come with one step count as one, so that the copy never ends.
    "answers_of_one_step_are_one": Edit(TOLD, "OffloadingWorkerMetadata.aggregate", "merged.get(job_id, 0) + v", "v"),
    # After a reset the workers' answers that came before it are waited for once more.
    "reset_forgets_answers": _connector(
        "_reset_cache", "(job_id, job.pending_count) for", "(job_id, self.config.num_workers) for"
    ),
    # The same four with blocks in host memory.
    "first_answer_ends_a_store": _simple(
        "update_connector_output", "if total >= self._expected_worker_count:", "if True:"
    ),
    "answers_for_stores_are_counted_on": _simple(
        "update_connector_output",
        "total = self._store_event_pending_counts.get(event_idx, 0) + count",
        "total = self._all = getattr(self, '_all', 0) + count",
    ),
    "answers_for_stores_of_one_step_are_one": Edit(
        "vllm.v1.simple_kv_offload.metadata", "SimpleCPUOffloadWorkerMetadata.aggregate", "merged.get(k, 0) + v", "v"
    ),
    "reset_forgets_answers_for_stores": _simple(
        "reset", "if event_idx in self._abandoned_store_event_to_blocks\n", "if False\n"
    ),
    # A request has its blocks after the first worker's answer.
    "first_answer_ends_a_load": _counted(
        OF_A_REQUEST,
        "if remaining_count_dict[req_id] == self._expected_finished_count - 1:\n"
        "                finished_set.add(req_id)\n"
        "            if remaining_count_dict[req_id] == 0:\n"
        "                del remaining_count_dict[req_id]\n",
    ),
    # The count of a request is not reset: its next load is done after the first answer, or never.
    "next_load_ends_early": _counted("del remaining_count_dict[req_id]", "remaining_count_dict[req_id] = 1"),
    "next_load_never_ends": _counted("del remaining_count_dict[req_id]", "pass"),
    # What only one worker could not load is not said.
    "only_the_last_loss_counts": _counted(
        "invalid_block_ids |= kv_output.invalid_block_ids", "invalid_block_ids = kv_output.invalid_block_ids"
    ),
    # What could not be loaded counts as computed.
    "a_loss_is_not_minded": Edit(
        "vllm.v1.core.sched.scheduler",
        "Scheduler._handle_invalid_blocks",
        "should_fail = not self.recompute_kv_load_failures",
        "return set()",
    ),
    # The failure of a worker is forgotten where another one ends the load later, and well.
    "only_the_last_failure_counts": _counted(
        "self._failed_recving_pending |= kv_output.failed_recving",
        "self._failed_recving_pending = kv_output.failed_recving",
    ),
    # The blocks of a request that a failed load ends are given back while the second worker still writes them.
    "blocks_of_a_failed_load_are_freed_early": Edit(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.finish_requests",
        "request.request_id not in self.finished_recving_kv_req_ids",
        "False",
    ),
}
HARMLESS = {
    # The count of a copy that is done is kept: the number of a copy comes once.
    "keeps_a_count": _simple(
        "update_connector_output", "self._store_event_pending_counts.pop(event_idx, None)", "pass"
    ),
    # A set without elements is told in place of nothing.
    "tells_an_empty_set": _counted("finished_sending or None", "finished_sending"),
    # A failure is said to the scheduler before all workers have told, and then forgotten: the scheduler minds it then,
    # too, and keeps the blocks until the last one has told. It was written down as a bug, and is none.
    "failure_is_told_too_early": _counted(
        "failed_recving = self._failed_recving_pending & finished_recving\n"
        "    self._failed_recving_pending -= failed_recving\n",
        "failed_recving, self._failed_recving_pending = self._failed_recving_pending, set()\n",
    ),
    # The answers of one step are added in the other order.
    "aggregates_the_other_way": Edit(
        TOLD, "OffloadingWorkerMetadata.aggregate", "merged.get(job_id, 0) + v", "v + merged.get(job_id, 0)"
    ),
}
WITH_SERVERS = (
    *("only_the_last_loss_counts", "a_loss_is_not_minded", "failure_is_told_too_early"),
    *("only_the_last_failure_counts", "blocks_of_a_failed_load_are_freed_early"),
)
TWO = {"transfers": st.just(True), "workers": st.just(2)}


CONFIG = {
    **{"block_size": 4, "blocks": 14, "layers": [{"kind": "full"}], "caching": True, "batch": 16, "requests": 3},
    **{"drafts": 0, "eagle": False, "steps_in_flight": 1, "threshold": 0, "policy": "fcfs", "max_length": 40},
    **{"events": False, "transfers": True, "reoffers": False, "failure": "recompute", "workers": 2},
}
PROMPT = list(range(1, 10))


def _steps(lock: Any, count: int) -> None:
    for _ in range(count):
        lock.do(op="schedule")
        for request in lock.run.exchange.incoming():
            lock.do(op="arrive", request=request)
        lock.do(op="complete")


def _steps_alone(lock: Any, count: int) -> None:
    """Steps in which no load is done."""
    for _ in range(count):
        lock.do(op="schedule")
        lock.do(op="complete")


def _load_begins(lock: Any) -> None:
    """A prompt is asked for, and 8 of its tokens are loaded from another server with a step that is in flight."""
    lock.do(op="add", request=1, tokens=PROMPT, outputs=1, elsewhere=8)
    lock.do(op="schedule")


def _copies(lock: Any, worker: int | None = None) -> None:
    """The copies to host memory are done on one worker, or on both."""
    for job in lock.run.exchange.storing(worker):
        lock.do(op="stored", job=job, **({} if worker is None else {"worker": worker}))


def _asks_while_the_second_copies(lock: Any, before: int) -> None:
    """``before`` prompts are copied by both workers, and the next one by the first worker alone. The device forgets
    this prompt, and then it is asked for again.
    """
    for request in range(1, before + 2):
        lock.do(op="add", request=request, tokens=[100 * request + n for n in PROMPT], outputs=1)
        _steps(lock, 2)
        _copies(lock, None if request <= before else 0)
        _steps(lock, 1)
    lock.do(op="reset", preempt=False)
    lock.do(op="add", request=before + 2, tokens=[100 * (before + 1) + n for n in PROMPT], outputs=1)
    _steps(lock, 3)
    _copies(lock)
    _steps(lock, 4)


def copied(lock: Any) -> None:
    """A prompt that one of two workers has copied is asked for."""
    _asks_while_the_second_copies(lock, 0)


def copied_after_others(lock: Any) -> None:
    """The prompt that is asked for comes after two that both workers have copied."""
    _asks_while_the_second_copies(lock, 2)


def loaded(lock: Any) -> None:
    """A load from another server is done on one of two workers, and the scheduler makes steps."""
    _load_begins(lock)
    lock.do(op="arrive", request=1, worker=1)
    lock.do(op="complete")
    _steps_alone(lock, 2)
    lock.do(op="arrive", request=1, worker=0)
    _steps(lock, 3)


def lost_on_one(lock: Any) -> None:
    """A load has failed on the worker that ends it first, and not on the other one."""
    _load_begins(lock)
    lock.do(op="arrive", request=1, worker=0, lost=1)
    lock.do(op="complete")
    lock.do(op="schedule")
    lock.do(op="arrive", request=1, worker=1)
    lock.do(op="complete")
    _steps(lock, 3)


def lost_in_one_step(lock: Any) -> None:
    """Both workers end a load in one step, and it has failed on the first one alone."""
    _load_begins(lock)
    lock.do(op="arrive", request=1, worker=0, lost=1)
    lock.do(op="arrive", request=1, worker=1)
    lock.do(op="complete")
    _steps(lock, 3)


def failed_on_one(lock: Any) -> None:
    """A load into two groups of layers has failed on the worker that ends it first, and not on the other one. The
    scheduler makes a step in between, and another prompt needs blocks.
    """
    prompt = [*PROMPT, 10]
    lock.do(op="add", request=1, tokens=prompt, outputs=2, elsewhere=len(prompt))
    lock.do(op="schedule")
    lock.do(op="arrive", request=1, worker=0, lost=1)
    lock.do(op="complete")
    lock.do(op="add", request=2, tokens=[50 + token for token in prompt], outputs=2)
    lock.do(op="schedule")
    lock.do(op="complete")
    lock.do(op="arrive", request=1, worker=1)
    _steps(lock, 5)
    assert not lock.run.waiting()
    lock.do(op="audit")


def told_together(lock: Any) -> None:
    """Both workers end their copies in one step, and then host memory must rest."""
    lock.do(op="add", request=1, tokens=PROMPT, outputs=1)
    _steps(lock, 2)
    _copies(lock)
    _steps(lock, 2)
    lock.do(op="audit")


def reset_between(lock: Any) -> None:
    """Host memory is reset when one of two workers has told of a copy; the other one tells later."""
    lock.do(op="add", request=1, tokens=PROMPT, outputs=1)
    _steps(lock, 2)
    _copies(lock, 0)
    _steps(lock, 1)
    lock.do(op="reset", preempt=False, host=True)
    _steps(lock, 1)
    _copies(lock)
    _steps(lock, 2)
    lock.do(op="audit")


def loaded_again(lock: Any) -> None:
    """A request is loaded from host memory, preempted, and loaded again: the second time one worker is late."""
    lock.do(op="add", request=1, tokens=PROMPT, outputs=1)
    _steps(lock, 2)
    _copies(lock)
    _steps(lock, 2)
    lock.do(op="reset", preempt=False)
    lock.do(op="add", request=2, tokens=PROMPT, outputs=8)
    _steps(lock, 3)
    lock.do(op="reset", preempt=True)
    lock.do(op="schedule")
    assert lock.run.exchange.incoming() == [2]
    lock.do(op="arrive", request=2, worker=0)
    lock.do(op="complete")
    _steps_alone(lock, 2)
    _steps(lock, 12)
    assert not lock.run.waiting()


Scene = Callable[[Any], None]
SCENES: Mapping[Scene, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    # Each with what it configures beside, and edits that it breaks.
    copied: ({"host": rules.HOSTS[0]}, ("first_answer_ends_a_copy",)),
    copied_after_others: ({"host": rules.HOSTS[0]}, ("first_answer_ends_a_copy", "answers_are_counted_on")),
    told_together: ({"host": rules.HOSTS[0]}, ("answers_of_one_step_are_one",)),
    reset_between: ({"host": rules.HOSTS[0]}, ("reset_forgets_answers",)),
    loaded_again: (
        {"host": rules.HOSTS[0]},
        ("next_load_ends_early", "next_load_never_ends", "first_answer_ends_a_load"),
    ),
    loaded: ({}, ("first_answer_ends_a_load",)),
    failed_on_one: (
        {"layers": [{"kind": "full"}, {"kind": "window", "window": 6}], "both_ways": False},
        ("only_the_last_failure_counts",),
    ),
    lost_on_one: ({}, ("a_loss_is_not_minded",)),
    lost_in_one_step: ({}, ("only_the_last_loss_counts", "a_loss_is_not_minded")),
}


# Of these scenes, where the server ends a request with an error, each edit that it breaks.
OF_ENDS: Mapping[Scene, tuple[str, ...]] = {
    failed_on_one: ("blocks_of_a_failed_load_are_freed_early",),
    lost_on_one: ("blocks_of_a_failed_load_are_freed_early",),
}
# Of these scenes, with a pool of blocks as host memory, each edit that it breaks.
OF_POOLS: Mapping[Scene, tuple[str, ...]] = {
    copied: ("first_answer_ends_a_store",),
    copied_after_others: ("first_answer_ends_a_store", "answers_for_stores_are_counted_on"),
    told_together: ("answers_for_stores_of_one_step_are_one",),
    reset_between: ("reset_forgets_answers_for_stores",),
}


def law_of(make: Any, scene: Scene, config: Mapping[str, Any]) -> str | None:
    """The law that a scene finds broken; ``None``: none."""
    try:
        scene(start("block_cache", make, {**CONFIG, **config}))
    except Finding as finding:
        return finding.law
    return None


def scenes(release: str) -> None:
    """Prints as JSON of each scene, and of each with a pool, the law that it finds broken: without an edit, by edit
    that it must break, and by harmless edit.
    """
    make = registry.load("vllm", release=release).makers["block_cache"]
    played = [(scene.__name__, scene, *of) for scene, of in SCENES.items()]
    pool = {"host": rules.HOST_POOLS[0]}
    played += [(f"{scene.__name__}, a pool", scene, pool, names) for scene, names in OF_POOLS.items()]
    ends = {scene: {**SCENES[scene][0], "failure": "fail"} for scene in OF_ENDS}
    played += [(f"{scene.__name__}, an error", scene, ends[scene], names) for scene, names in OF_ENDS.items()]
    found: dict[str, dict[str, str | None]] = {}
    for said, scene, config, names in played:
        found[said] = {"": law_of(make, scene, config)}
        for name in (*names, *HARMLESS):
            with made({**BUGS, **HARMLESS}[name]):
                found[said][name] = law_of(make, scene, config)
    print(json.dumps(found))


def drawn(name: str) -> Mapping[str, st.SearchStrategy[object]]:
    """What runs draw for an edit, in place of what they draw else."""
    edit = {**BUGS, **HARMLESS}[name]
    if name in WITH_SERVERS:
        return {**TWO, "host": st.none()}
    if edit.module == UTILS:
        return {**TWO, "host": st.sampled_from((*rules.HOSTS, *rules.HOST_POOLS))}
    return {**TWO, "host": st.sampled_from(rules.HOST_POOLS if "simple" in edit.module else rules.HOSTS)}


def main(release: str, names: list[str]) -> None:
    """Prints what is found of an edit."""
    (name,) = names
    host_memory_edits.main(release, names, {**BUGS, **HARMLESS}, drawn(name))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
