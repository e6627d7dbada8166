"""vLLM's own managers of host memory, driven at random and with planted bugs: each release in a process of its own."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from driven import SOAK, sampled
from test_vllm_runs import answer as of_release

from conformance.driver.lockstep import CONFORMS
from conformance.engines.vllm import RELEASES
from conformance.stems.host_tier.run import STAYS
from spec.host_tier import stem as law

RUNS = 400 if SOAK else 60
NEWEST = RELEASES[-1]
pytestmark = pytest.mark.engine


def answer(release: str, script: str, *arguments: str) -> Any:
    """The last line that a script printed, as JSON. It finds the maker of the stem as ``make``."""
    before = """
        from conformance.search.check import Search, check
        make = makers["host_tier"]
    """
    return of_release(release, textwrap.dedent(before) + textwrap.dedent(script), *arguments)


DRIVEN = """
    found = check("host_tier", make, Search(examples=int(sys.argv[2]), seed=int(sys.argv[3])))
    print(json.dumps([found.verdict, f"{found.law}: {found.detail} {found.trace}", found.transitions]))
"""


@pytest.mark.soak
@pytest.mark.parametrize("release", RELEASES[-4:] if SOAK else RELEASES[-1:])
def test_a_newer_release_conforms_and_takes_every_transition(release: str) -> None:
    verdict, said, transitions = answer(release, DRIVEN, str(RUNS), "4")
    assert verdict == CONFORMS, said
    often = {name: transitions.get(f"{name} done", 0) for name in law.transitions}
    assert min(often.values()) > 20, often
    assert transitions["reserve refused"] > 20


# Bugs that are planted in the newest release. Each: what the patched manager does, and the laws of which one breaks.
PLANTED: dict[str, tuple[str, set[str]]] = {
    "a load is not protected": (
        """
        def prepare_load(self, keys, req_context):
            return self._get_load_store_spec(keys, [self._policy.get(key) for key in keys])
        manager.prepare_load = prepare_load
        """,
        {"promise"},
    ),
    "a store that failed is published": (
        """
        right = manager.complete_store
        def complete_store(self, keys, req_context, success=True):
            right(self, keys, req_context, success=True)
        manager.complete_store = complete_store
        """,
        {"found_holds_its_text"},
    ),
    "a key is found while it is written": (
        """
        def lookup(self, key, req_context):
            return results.MISS if self._policy.get(key) is None else results.HIT
        manager.lookup = lookup
        """,
        {"find"},
    ),
    "eviction does not ask for readers": (
        """
        def evict(self, n, protected):
            gone = [(key, one) for key, one in self.chunks.items() if one.ref_cnt >= 0 and key not in protected][:n]
            if len(gone) < n:
                return None
            for key, _ in gone:
                self.remove(key)
            return gone
        def prepare_store(self, keys, req_context):
            own, self._num_evictable_cache_chunks = self._num_evictable_cache_chunks, 99
            self._num_evictable_cache_chunks = 99
            try:
                return right(self, keys, req_context)
            finally:
                self._num_evictable_cache_chunks += own - 99
        right, manager.prepare_store, lru.evict = manager.prepare_store, prepare_store, evict
        """,
        {"evict"},
    ),
    "a slot is freed twice": (
        """
        def free(self, chunk):
            self._free_list += [chunk.chunk_id, chunk.chunk_id]
        manager._free_chunk = free
        """,
        {"available_counts", "evict", "reserve", "keys_and_slots"},
    ),
    "a store that failed keeps its slot": (
        """
        right = manager.complete_store
        def complete_store(self, keys, req_context, success=True):
            free = list(self._free_list)
            right(self, keys, req_context, success)
            self._free_list[:] = free
        manager.complete_store = complete_store
        """,
        {"available_counts"},
    ),
    "the end of a load counts twice": (
        """
        right = manager.complete_load
        def complete_load(self, keys, req_context):
            right(self, keys, req_context)
            for key in keys:
                self._policy.get(key).ref_cnt -= 1
        manager.complete_load = complete_load
        """,
        {"withdraw", "promised_is_there", "loads_are_promised", "seen_is_there", "a_copy_is_of_its_key"},
    ),
    "a reset forgets the free list": (
        """
        right = manager.reset_cache
        def reset_cache(self):
            free, given = list(self._free_list), self._num_allocated_chunks
            right(self)
            self._free_list, self._num_allocated_chunks = free, given
        manager.reset_cache = reset_cache
        """,
        {"available_counts"},
    ),
    "an offer does not protect its own keys": (
        """
        for policy in (lru, arc):
            def evict(self, n, protected, right=policy.evict):
                return right(self, n, set())
            policy.evict = evict
        """,
        {STAYS},
    ),
}
FOUND = """
    from importlib import import_module
    place = "vllm.v1.kv_offload"
    manager = import_module(f"{place}.cpu.manager").CPUOffloadingManager
    results = import_module(f"{place}.base").LookupResult
    lru = import_module(f"{place}.cpu.policies.lru").LRUCachePolicy
    arc = import_module(f"{place}.cpu.policies.arc").ARCCachePolicy
    exec(sys.argv[2])
    for seed in range(1, 4):
        found = check("host_tier", make, Search(examples=100, seed=seed))
        if found.verdict != "conforms":
            break
    print(json.dumps([found.law, found.detail]))
"""


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("bug", sampled(PLANTED, 3))
def test_a_bug_that_is_planted_in_the_newest_release_is_found(bug: str) -> None:
    patch, laws = PLANTED[bug]
    name, detail = answer(NEWEST, FOUND, textwrap.dedent(patch))
    assert name in laws, (name, detail)
