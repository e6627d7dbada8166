"""For each stem, the function that builds a release's engine from a configuration.

Every function raises ``Unsupported`` if the release has nothing like the configuration. A stem that a release has no
classes for at all is left out: ``lock_ref`` needs the unified tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from conformance.engines.protocol import Json
from conformance.engines.sglang import cores, pools
from conformance.engines.sglang.cache import CacheEngine, cache_memory, row_memory
from conformance.engines.sglang.release import Release
from conformance.engines.sglang.states import state_engine
from conformance.engines.sglang.tree import TreeEngine, tree_memory
from conformance.engines.side_by_side import Agreement, Side, SideBySide
from conformance.vetting import calls

CORES_AGREE = Agreement("cores_agree", "Both tree cores give one answer.", tuple(calls("lock_ref")))


def makers(
    release: Release, device: str = "cpu", options: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Callable[[Json], Any]]:
    """The engines of a release. ``device``: where allocators keep their tensors; the other engines run on the CPU.
    ``options``: the values of the engine's options, the defaults for those that are missing; ``core`` names the core
    of a unified tree, see ``cores``.
    """
    core = options.get("core", cores.DEFAULT)
    made: dict[str, Callable[[Json], Any]] = {
        "allocator": lambda config: pools.pool(release, config, device),
        "swa_mapping": lambda config: pools.pair(release, config, device),
        "session_trim": lambda config: CacheEngine(row_memory(release, config), checks_rows=False),
        "mamba_slots": lambda config: state_engine(release, config),
        "cache": lambda config: CacheEngine(cache_memory(release, config), checks_rows=True),
    }
    if release.has_unified_tree:
        made["lock_ref"] = lambda config: _tree(release, config, core)
    return made


def _tree(release: Release, config: Json, core: str) -> Any:
    """A tree with this core; with BOTH, a tree with each of the two cores, which must agree. An older tree has none."""
    if core != cores.BOTH or config["kind"] != "unified":
        return TreeEngine(tree_memory(release, config, cores.DEFAULT if core == cores.BOTH else core))
    rust, python = (Side(name, TreeEngine(tree_memory(release, config, name))) for name in (cores.RUST, cores.PYTHON))
    return SideBySide(rust, python, CORES_AGREE)
