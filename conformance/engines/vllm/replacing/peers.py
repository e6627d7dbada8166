"""The tests of a release of vLLM that ``slotproof compat vllm --tests`` runs on our block pool, and why some fail."""

from __future__ import annotations

from pathlib import Path

from conformance.driver.protocol import EngineError
from conformance.engines import source_tests
from conformance.engines.peer_tests import Named, Peer
from conformance.engines.vllm.download import WHEELS

FOLDER = "tests/v1/core"
# The tests of the block pool and of the managers that call it.
FILES = (
    f"{FOLDER}/test_prefix_caching.py",
    f"{FOLDER}/test_single_type_kv_cache_manager.py",
    f"{FOLDER}/test_kv_cache_utils.py",
    f"{FOLDER}/test_kv_cache_metrics.py",
    f"{FOLDER}/test_mamba_align_chunk_split.py",
    f"{FOLDER}/prefix_cache/test_partial_prefix_cache_primitives.py",
    f"{FOLDER}/prefix_cache/test_partial_prefix_cache_hits.py",
    f"{FOLDER}/prefix_cache/test_mamba_eagle_resume_checkpoint.py",
)
_NEVER_FOUND = Named(
    "deliberate",
    "the test passes free blocks without a hash as hits, and our pool refuses to touch such a block: nobody can have "
    "found it, and a manager that touches one shares a block whose contents nobody knows",
)
_NULL_HASH = Named(
    "internals",
    "the test writes hashes into the pool's own map, one of them for the null block, which our pool never finds",
)
# By FILE::TEST, without folders and parameters: why a test fails on ours alone.
NAMED: dict[str, Named] = {
    "test_single_type_kv_cache_manager.py::test_evictable_cached_blocks_not_double_allocated": _NEVER_FOUND,
    **{
        f"test_prefix_caching.py::test_cache_hit_local_and_external{case}": _NEVER_FOUND
        for case in (
            "",
            "_three_groups",
            "_three_groups_preempt_and_reallocate",
            "_two_groups_preempt_and_reallocate",
        )
    },
    "test_prefix_caching.py::test_maybe_evict_cached_block": _NULL_HASH,
}


def peer(release: str | None, source: Path | None, files: tuple[str, ...] = FILES) -> Peer:
    """The tests of a release, or of a checkout. Raises ``EngineError`` if there are none."""
    root, label = WHEELS.chosen(release, source, ())
    if source is None:
        tests = source_tests.released(WHEELS.package, label, FOLDER)
    else:
        tests = source_tests.of_checkout(source, WHEELS.title, FOLDER)
    there = tuple(file for file in files if (tests / file).is_file())
    if not there:
        raise EngineError(f"{WHEELS.package} {label}: none of the tests of its block pool that are known is there")
    return Peer(f"{__package__}.peer_run", root, label, tests, there)
