"""Each script that shows a finding on vLLM alone shows it on the newest release that has the bug, and not where the bug
is repaired. Every known difference of any release has a script.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from driven import sampled

from conformance.driver.protocol import EngineError
from conformance.engines import scripts_alone
from conformance.engines.vllm import PLUGIN, RELEASES, alone
from conformance.engines.vllm.download import WHEELS
from conformance.traces import cause_files, known
from conformance.traces.cause_files import Cause

FILES = sorted(alone.SCRIPTS.glob("*.py"))
MOST_LINES = 115  # of a text that is pasted into an issue


def _repair(cause: Cause) -> str:
    return f"from {cause.module.__name__} import repair\nrepair()"


# By script a few lines that repair its bug in this process. They show where the bug is, and are no patches for vLLM.
REPAIRS = {
    **{
        name: _repair(cause)
        for cause in cause_files.every()
        if cause.engine == PLUGIN.name
        for name in cause.names_of_traces
    },
    # Requests that have blocks are computed before others.
    "loaded_requests_wait_for_each_other": """
from vllm.v1.core.sched.scheduler import Scheduler
def repaired(self):
    return self.skipped_waiting or self.waiting
Scheduler._select_waiting_queue_for_scheduling = repaired
""",
    # Blocks are given back when the step in flight is done.
    "aborted_step_writes_into_load": """
from vllm.v1.core.sched.scheduler import Scheduler
free, update, later = Scheduler._free_blocks, Scheduler.update_from_output, []
def repaired(self, *step):
    while later:
        free(self, later.pop())
    return update(self, *step)
Scheduler._free_blocks, Scheduler.update_from_output = lambda self, request: later.append(request), repaired
""",
    # Blocks into which a transfer is under way are kept.
    "abort_frees_while_loading": """
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus
finish, finished, loading = Scheduler.finish_requests, Scheduler._connector_finished, set()
def repaired(self, names, status):
    waits = RequestStatus.WAITING_FOR_REMOTE_KVS
    loading.update(name for name, request in self.requests.items() if request.status == waits)
    finish(self, names, status)
def is_kept(self, request):
    kept, told = finished(self, request)
    return kept or request.request_id in loading, told
Scheduler.finish_requests, Scheduler._connector_finished = repaired, is_kept
""",
    # What a step samples for a request that is preempted meanwhile is dropped.
    "stale_output_stops_scheduler": """
from vllm.v1.core.sched.scheduler import Scheduler
preempt = Scheduler._preempt_request
def repaired(self, request, timestamp):
    preempt(self, request, timestamp)
    request.async_tokens_to_discard, request.num_output_placeholders = request.num_output_placeholders, 0
Scheduler._preempt_request = repaired
""",
    # A step from before a preemption leaves the count of computed tokens as it is.
    "refused_drafts_are_counted": """
from vllm.v1.core.sched.scheduler import Scheduler
schedule, update = Scheduler.schedule, Scheduler.update_from_output
def noted(self):
    output = schedule(self)
    output.starts = {name: request.num_preemptions for name, request in self.requests.items()}
    return output
def repaired(self, output, result):
    requests = [request for name, request in self.requests.items() if request.num_preemptions > output.starts[name]]
    counts = [request.num_computed_tokens for request in requests]
    done = update(self, output, result)
    for request, count in zip(requests, counts):
        request.num_computed_tokens = count
    return done
Scheduler.schedule, Scheduler.update_from_output = noted, repaired
""",
    # A window moves on by tokens that no step in flight computes.
    "window_slides_by_drafts": """
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
allocate, remove, waits = KVCacheManager.allocate_slots, KVCacheCoordinator.remove_skipped_blocks, {}
def noted(self, request, *more, **named):
    waits[request.request_id] = request.num_output_placeholders
    return allocate(self, request, *more, **named)
def repaired(self, name, computed, *more):
    return remove(self, name, max(0, computed - waits[name]), *more)
KVCacheManager.allocate_slots, KVCacheCoordinator.remove_skipped_blocks = noted, repaired
""",
    # A chunk that does not end its prompt ends with a block.
    "state_inside_a_block": """
from vllm.v1.core.sched.scheduler import Scheduler
split = Scheduler._mamba_block_aligned_split
def repaired(self, request, count, found=0, *more):
    count = split(self, request, count, found, *more)
    end = request.num_computed_tokens + found + count
    return count if end >= request.num_tokens else max(0, count - end % self.block_size)
Scheduler._mamba_block_aligned_split = repaired
""",
    # Tokens that are cut off do not count as computed.
    "tokens_past_the_end_are_told": """
from vllm.v1.core.sched.scheduler import Scheduler
update = Scheduler._update_request_with_output
def repaired(self, request, tokens, **more):
    before = len(tokens)
    kept, stopped = update(self, request, tokens, **more)
    request.num_computed_tokens -= before - len(kept)
    return kept, stopped
Scheduler._update_request_with_output = repaired
""",
    # A hit is as long as each group of layers has it.
    "hit_leaves_out_states": """
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
def repaired(self, hashes, most):
    blocks, length = self.find_longest_cache_hit(hashes, most)
    return blocks, [length for _ in blocks]
HybridKVCacheCoordinator.find_longest_cache_hit_per_group = repaired
""",
    # A prompt loses its last token when it comes.
    "prompt_is_cut_after_its_hit": """
from vllm.v1.core.sched.scheduler import Scheduler
add = Scheduler.add_request
def repaired(self, request):
    if request.kv_transfer_params.get("do_remote_decode"):
        self.connector._truncate_mamba_request_for_prefill(request)
    add(self, request)
Scheduler.add_request = repaired
""",
    # A request that needs no new block runs, too.
    "copy_takes_the_place_of_a_loaded_state": """
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
allocate = MambaManager.allocate_new_blocks
def repaired(self, request, *tokens):
    made = allocate(self, request, *tokens)
    self._allocated_block_reqs.add(request)
    return made
MambaManager.allocate_new_blocks = repaired
""",
    # A pass that is filled up with placeholders is not cut.
    "padding_is_cut_at_a_block": """
from vllm.v1.core.sched.scheduler import Scheduler
split = Scheduler._mamba_block_aligned_split
def repaired(self, request, count, *found):
    left = request.num_tokens - request.num_computed_tokens - sum(found)
    return count if count > left else split(self, request, count, *found)
Scheduler._mamba_block_aligned_split = repaired
""",
    # States behind null blocks are given back, too.
    "states_behind_gaps_stay": """
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
def repaired(self, request, first, last):
    blocks = self.req_to_blocks[request]
    idle = [at for at in range(first, min(last, len(blocks))) if not blocks[at].is_null]
    self.block_pool.free_blocks([blocks[at] for at in idle])
    for at in idle:
        blocks[at] = self._null_block
MambaManager._remove_blocks_in_range = repaired
""",
    # The look-up drops no block for the EAGLE head, so that it asserts nothing.
    "hit_stops_where_blocks_differ": """
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
find = SlidingWindowManager.find_longest_cache_hit.__func__
def repaired(cls, *hashes, use_eagle=False, **named):
    return find(cls, *hashes, use_eagle=False, **named)
SlidingWindowManager.find_longest_cache_hit = classmethod(repaired)
""",
    # The list that is sent ends with the last token that is computed.
    "list_has_a_block_for_drafts": """
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
finished = NixlConnectorScheduler.request_finished
def repaired(self, request, blocks):
    count = -(-request.num_computed_tokens // self.block_size)
    return finished(self, request, tuple(each[:count] for each in blocks))
NixlConnectorScheduler.request_finished = repaired
""",
    # A request whose transfer has failed is computed from its first token on.
    "failed_load_counts_as_done": """
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker
from vllm.v1.core.sched.scheduler import Scheduler
fail, update, failed = NixlConnectorWorker._handle_failed_transfer, Scheduler._update_waiting_for_remote_kv, set()
def noted(self, name, handle):
    failed.add(name)
    fail(self, name, handle)
def repaired(self, request):
    if request.request_id in failed:
        request.num_computed_tokens = 0
        self.failed_recving_kv_req_ids.add(request.request_id)
    update(self, request)
NixlConnectorWorker._handle_failed_transfer, Scheduler._update_waiting_for_remote_kv = noted, repaired
""",
    # A request that finds a state which this step computes waits for the next step.
    "state_read_in_its_step": """
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
schedule, cache, allocate = Scheduler.schedule, BlockPool.cache_full_blocks, KVCacheManager.allocate_slots
fresh = set()
def begun(self):
    fresh.clear()
    return schedule(self)
def cached(self, request, blocks, *more, **named):
    before = [block.block_hash for block in blocks]
    cache(self, request, blocks, *more, **named)
    fresh.update(block.block_id for block, old in zip(blocks, before) if block.block_hash != old)
def repaired(self, *more, new_computed_blocks=None, **named):
    found = [] if new_computed_blocks is None else new_computed_blocks.blocks
    waits = any(block.block_id in fresh for group in found for block in group)
    return None if waits else allocate(self, *more, new_computed_blocks=new_computed_blocks, **named)
Scheduler.schedule, BlockPool.cache_full_blocks, KVCacheManager.allocate_slots = begun, cached, repaired
""",
    # The hash of a block says of each name what it is the name of.
    "adapter_shares_hash_with_salt": """
from vllm.v1.core import kv_cache_utils
kv_cache_utils._gen_lora_extra_hash_keys = lambda request: (
    [("lora", request.lora_request.lora_name)] if request.lora_request else []
)
""",
    # A window gives up its blocks two blocks later: the parent of a block that gets its hash is still in the table.
    "event_names_null_block_as_parent": """
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
skipped = SlidingWindowManager.get_num_skipped_tokens
def repaired(self, computed):
    return max(0, skipped(self, computed) - 2 * self.block_size)
SlidingWindowManager.get_num_skipped_tokens = repaired
""",
    # A part of a prompt gets a hash once.
    "moved_hash_comes_back": """
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
cache, told = MambaManager._cache_partial_tail_block, set()
def repaired(self, request, tokens, *more, **named):
    if (request.request_id, tokens) in told:
        return None
    told.add((request.request_id, tokens))
    return cache(self, request, tokens, *more, **named)
MambaManager._cache_partial_tail_block = repaired
""",
    # The null block loses the hash that it got.
    "null_block_gets_a_hash": """
from vllm.v1.core.block_pool import BlockPool
cache = BlockPool.cache_full_blocks
def repaired(self, *blocks, **named):
    cache(self, *blocks, **named)
    self._maybe_evict_cached_block(self.null_block)
BlockPool.cache_full_blocks = repaired
""",
    # The token that was sampled last is not computed.
    "host_stores_uncomputed_slot": """
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
count = OffloadingConnectorScheduler._calc_num_offloadable_tokens
def repaired(self, status, tokens):
    ended = status.req.is_finished()
    return count(self, status, min(tokens, status.req.num_tokens - 1) if ended else tokens)
OffloadingConnectorScheduler._calc_num_offloadable_tokens = repaired
""",
    # The workers wait for no load that begins with the step itself.
    "host_reload_after_preemption": """
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
build = OffloadingConnectorScheduler.build_connector_meta
def repaired(self, output):
    loading = {job.req_id for job in self._current_batch_load_jobs.values()}
    output.preempted_req_ids = {name for name in output.preempted_req_ids or () if name not in loading}
    return build(self, output)
OffloadingConnectorScheduler.build_connector_meta = repaired
""",
    # Host memory says neither what is stored there nor what leaves it.
    "host_eviction_is_said_of_device": """
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
SimpleCPUOffloadScheduler.take_events = lambda self: []
""",
    # The copies for which the workers wait are those of both resets.
    "host_memory_reset_again": """
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
reset = OffloadingConnectorScheduler.reset_cache
def repaired(self):
    waits, self._current_batch_jobs_to_flush = self._current_batch_jobs_to_flush, set()
    reset(self)
    self._current_batch_jobs_to_flush |= waits
OffloadingConnectorScheduler.reset_cache = repaired
""",
    # The offered blocks that host memory has are promised to a load while the offer evicts.
    "host_offer_evicts_its_own_key": """
from vllm.v1.kv_offload.lru_manager import LRUOffloadingManager
store = LRUOffloadingManager.prepare_store
def repaired(self, hashes):
    hashes = list(hashes)
    kept = [one for one in hashes if self.lookup([one])]
    self.prepare_load(kept)
    stored = store(self, hashes)
    self.complete_load(kept)
    return stored
LRUOffloadingManager.prepare_store = repaired
""",
    # A block whose copy is under way moves to the end of the list in which it stands.
    "host_touch_while_written": """
from vllm.v1.kv_offload.arc_manager import ARCOffloadingManager
touch = ARCOffloadingManager.touch
def repaired(self, hashes):
    for one in reversed(list(hashes)):
        if one in self.t1 and not self.t1[one].is_ready:
            self.t1.move_to_end(one)
        else:
            touch(self, [one])
ARCOffloadingManager.touch = repaired
""",
    # A refused offer leaves the lists of the policy and the free slots as they were.
    "host_refused_offer_evicts": """
from vllm.v1.kv_offload.arc_manager import ARCOffloadingManager
store = ARCOffloadingManager.prepare_store
def repaired(self, hashes):
    lists = [self.t1, self.t2, self.b1, self.b2, self.backend.allocated_blocks_free_list]
    before = [one.copy() for one in lists]
    stored = store(self, hashes)
    if stored is None:
        self.t1, self.t2, self.b1, self.b2, self.backend.allocated_blocks_free_list = before
    return stored
ARCOffloadingManager.prepare_store = repaired
""",
    # Where the list t2 has too few blocks to evict, the list t1 is looked at whatever its target is.
    "host_offer_refused_with_room": """
from vllm.v1.kv_offload.cpu.policies.arc import ARCCachePolicy
evict = ARCCachePolicy.evict
def repaired(self, count, protected):
    evicted = evict(self, count, protected)
    if evicted is None:
        target, self.target_t1_size = self.target_t1_size, 0.0
        evicted = evict(self, count, protected)
        self.target_t1_size = target
    return evicted
ARCCachePolicy.evict = repaired
""",
    # Every block that is given to a request is noted.
    "copy_reads_what_a_load_has_written": """
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
told = OffloadingConnectorScheduler.update_state_after_alloc
def repaired(self, request, blocks, count):
    self._current_batch_allocated_block_ids.update(one for group in blocks.get_block_ids() for one in group if one)
    told(self, request, blocks, count)
OffloadingConnectorScheduler.update_state_after_alloc = repaired
""",
    # The workers wait for the loads that a reset gave up, and then begin copies to the slots that it gave back.
    "host_slot_written_under_load": """
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
begin = OffloadingConnectorWorker.handle_preemptions
def repaired(self, copied):
    self.worker.wait(copied.jobs_to_flush - copied.store_jobs.keys())
    begin(self, copied)
OffloadingConnectorWorker.handle_preemptions = repaired
""",
}


# By release without the bug: scripts that run on it.
KEEPS = {
    "0.16.0": ["abort_frees_while_loading"],
    "0.27.1": [
        *("refused_drafts_are_counted", "stale_output_stops_scheduler"),
        *("state_inside_a_block", "window_slides_by_drafts", "hit_leaves_out_states"),
        "list_has_a_block_for_drafts",
    ],
    "0.20.2": ["hit_stops_where_blocks_differ"],
    "0.18.1": ["host_offer_evicts_its_own_key", "host_touch_while_written", "state_read_in_its_step"],
    "0.30.0": [
        *("host_stores_uncomputed_slot", "host_offer_refused_with_room"),
        *("prompt_is_cut_after_its_hit", "states_behind_gaps_stay", "padding_is_cut_at_a_block"),
        *("copy_takes_the_place_of_a_loaded_state", "host_eviction_is_said_of_device"),
    ],
    "0.31.0": ["loaded_requests_wait_for_each_other", "adapter_shares_hash_with_salt"],
    "0.32.0": ["moved_hash_comes_back"],
    "0.33.0": [
        *("host_reload_after_preemption", "tokens_past_the_end_are_told"),
        "copy_reads_what_a_load_has_written",
    ],
}
# Each kept trace that a release breaks, with the newest release that lists it as known.
LISTED = {found.trace: release for release in RELEASES for found in known.of_release(PLUGIN.folder, release)}


def needs(release: str) -> None:
    """Skips the test where the release is not there and cannot be downloaded."""
    try:
        WHEELS.release(release)
    except EngineError as error:
        pytest.skip(str(error))


def started(*command: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since one process holds one release."""
    paths = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=paths)


def told(file: Path) -> list[tuple[int, str]]:
    """What a script tells of the newest release that has the bug: as the release is, and with the bug repaired."""
    release = LISTED[file.stem]
    script = f"""
import json
from pathlib import Path
from conformance.engines import scripts_alone
from conformance.engines.vllm.download import WHEELS
from conformance.engines.vllm.release import load
load(WHEELS.release({release!r}), {release!r})
found = [scripts_alone.run({release!r}, Path({str(file)!r}))]
exec({REPAIRS[file.stem]!r}, {{}})
print(json.dumps([*found, scripts_alone.run({release!r}, Path({str(file)!r}))]))
"""
    done = started("-c", script)
    assert done.returncode == 0, done.stderr
    found: list[tuple[int, str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_known_difference_of_any_release_has_a_script_and_a_repair() -> None:
    assert {file.stem for file in FILES} == set(LISTED) == set(REPAIRS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_script_can_be_pasted(file: Path) -> None:
    """It imports nothing of ours, says in its first line what goes wrong, has one assertion, and fits into an issue."""
    text = file.read_text(encoding="utf-8")
    assert not [
        name for name in ("slotproof", "conformance", "spec.", "impl.") if f"{name}" in text.replace("_spec.", "")
    ]
    assert (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].endswith(".")
    assert len(text.splitlines()) <= MOST_LINES
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))) == 1, "one says what is wrong"


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("file", sampled(FILES, 2), ids=lambda file: file.stem)
def test_a_script_shows_its_finding_unless_the_bug_is_repaired(file: Path) -> None:
    needs(LISTED[file.stem])
    (shows, finding), (keeps, line) = told(file)
    assert (shows, finding.partition(":")[0]) == (scripts_alone.SHOWS, file.stem), finding
    assert keeps == scripts_alone.KEEPS, line


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize("release", sampled(KEEPS, 3))
def test_a_script_passes_on_the_release_that_has_repaired_the_bug(release: str) -> None:
    needs(release)
    files = [str(alone.SCRIPTS / f"{name}.py") for name in KEEPS[release]]
    done = started("-m", alone.__name__, release, *files)
    assert (done.returncode, done.stdout.count("nothing is wrong")) == (scripts_alone.KEEPS, len(files)), done.stdout
