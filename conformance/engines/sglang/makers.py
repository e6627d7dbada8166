"""For each stem, the function that builds a release's engine from a configuration.

Every function raises ``Unsupported`` if the release has nothing like the configuration. A stem that a release has no
classes for at all is left out: ``lock_ref`` needs the unified tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conformance.engines.protocol import EngineError, Json
from conformance.engines.sglang import pools
from conformance.engines.sglang.cache import CacheEngine, cache_memory, row_memory
from conformance.engines.sglang.release import Release
from conformance.engines.sglang.states import StateEngine, state_memory
from conformance.engines.sglang.tree import TreeEngine, tree_memory


def makers(
    release: Release, device: str = "cpu", options: Mapping[str, str] | None = None
) -> dict[str, Callable[[Json], Any]]:
    """The engines of a release. ``device``: where allocators keep their tensors; the other engines run on the CPU.
    ``options``: the values of the engine's options; the defaults for those that are missing.
    """
    if options and options.get("core", "default") != "default":
        raise EngineError(f"--option core={options['core']}: the engines of this version build the default core alone")
    made: dict[str, Callable[[Json], Any]] = {
        "allocator": lambda config: pools.pool(release, config, device),
        "swa_mapping": lambda config: pools.pair(release, config, device),
        "session_trim": lambda config: CacheEngine(row_memory(release, config), checks_rows=False),
        "mamba_slots": lambda config: StateEngine(state_memory(release, config), config["sessions"]),
        "cache": lambda config: CacheEngine(cache_memory(release, config), checks_rows=True),
    }
    if release.has_unified_tree:
        made["lock_ref"] = lambda config: TreeEngine(tree_memory(release, config))
    return made
