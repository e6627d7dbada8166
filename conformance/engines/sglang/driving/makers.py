"""For each stem, the function that builds a release's engine from a configuration.

Every function raises ``Unsupported`` if the release has nothing like the configuration. A stem that a release has no
classes for at all is left out: ``lock_ref`` needs the unified tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from conformance.driver.protocol import Json, Unsupported
from conformance.engines.sglang.driving import pools
from conformance.engines.sglang.driving.cache import DrivenCache, cache_memory, row_memory
from conformance.engines.sglang.driving.renaming import shape
from conformance.engines.sglang.driving.states import state_engine
from conformance.engines.sglang.driving.tree import DrivenLockRef, tree_memory
from conformance.engines.sglang.releases import cores
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.replacing import dropin, droptree
from conformance.engines.sglang.server.engine import make_host_server, make_server
from conformance.engines.side_by_side import Agreement, EngineSide, SideBySide
from conformance.stems.configs import is_prefill_aware, is_windowed
from conformance.stems.vetting import calls


class _Law(NamedTuple):
    """What two servers keep, one on parts of Slotproof and one on the release's own. ``stems``: those whose calls name
    no slot, so that both servers can get one call.
    """

    name: str
    sentence: str
    stems: tuple[str, ...]


LAWS = {  # by option
    "allocators": _Law(
        "allocators_agree", "Both allocators lead to one state, but for page numbers.", ("session_trim", "cache")
    ),
    "tree": _Law(
        "trees_agree", "Both trees lead to one state, but for page numbers.", ("session_trim", "cache", "lock_ref")
    ),
}


def makers(
    release: Release, device: str = "cpu", options: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Callable[[Json], Any]]:
    """The engines of a release. ``device``: where allocators keep their tensors; the other engines run on the CPU.
    ``options``: the values of the engine's options, the defaults for those that are missing; ``core`` names the core
    of a unified tree, see ``cores``; ``allocators`` and ``tree`` whose allocators and whose tree its servers have, see
    ``dropin`` and ``droptree``.
    """
    core = options.get("core", cores.DEFAULT)
    for option, law in LAWS.items():
        if options.get(option, dropin.OWN) == dropin.BOTH:
            first = {**options, option: dropin.STOOD_IN}
            if option == "tree":
                first.pop("core", None)  # our tree has no cores: the release's own is the one that is asked for
            each = [makers(release, device, one) for one in (first, {**options, option: dropin.OWN})]
            stems = [stem for stem in law.stems if stem in each[0]]
            return {stem: partial(_with_both, each[0][stem], each[1][stem], stem, law) for stem in stems}
    if options.get("allocators", dropin.OWN) == dropin.STOOD_IN:
        release = dropin.with_stand_ins(release)
    if options.get("tree", dropin.OWN) == dropin.STOOD_IN:
        release = droptree.with_our_tree(release)
    over_tree: dict[str, Callable[[Json, str], Any]] = {
        "session_trim": lambda config, core: DrivenCache(
            row_memory(release, config, core), checks_rows=False, prefill_aware=is_prefill_aware(config)
        ),
        "mamba_slots": lambda config, core: state_engine(release, config, core),
        "cache": lambda config, core: DrivenCache(
            cache_memory(release, config, core), checks_rows=True, prefill_aware=is_prefill_aware(config)
        ),
    }
    if release.has_unified_tree:
        over_tree["lock_ref"] = lambda config, core: DrivenLockRef(tree_memory(release, config, core))
    return {
        "allocator": lambda config: pools.pool(release, config, device),
        "swa_mapping": lambda config: pools.pair(release, config, device),
        **{stem: partial(_with_core, stem, make, core=core) for stem, make in over_tree.items()},
        "server": partial(make_server, release),
        "host_server": partial(make_host_server, release),
    }


def _with_both(stood_in: Callable[[Json], Any], own: Callable[[Json], Any], stem: str, law: _Law, config: Json) -> Any:
    """One server with our parts and one with the release's own, which must agree but for what an allocator may
    choose.
    """
    if law is LAWS["tree"] and is_windowed(config):
        raise Unsupported(
            "with sliding-window layers a tree chooses where a lock's window ends and which tombstones stay"
        )
    first, second = stood_in(config), own(config)
    events = ("published",) if law is LAWS["tree"] and first.memory.publishes and second.memory.publishes else ()
    agree = Agreement(law.name, law.sentence, (*calls(stem), *events))

    def shown(answer: Any) -> Any:
        grouped = stem != "lock_ref" and first.scheduler.in_group
        return shape(answer, config["page_size"], grouped=grouped)

    return SideBySide(EngineSide(dropin.STOOD_IN, first, shown), EngineSide(dropin.OWN, second, shown), agree)


def _with_core(stem: str, make: Callable[[Json, str], Any], config: Json, core: str) -> Any:
    """An engine whose tree has this core; with BOTH, an engine with each of the two cores, which must agree. A tree
    that is not the unified one has no core.
    """
    if core != cores.BOTH:
        return make(config, core)
    rust = make(config, cores.RUST)
    if not rust.ran:
        return rust
    agree = Agreement("cores_agree", "Both tree cores give one answer.", tuple(calls(stem)))
    return SideBySide(EngineSide(cores.RUST, rust), EngineSide(cores.PYTHON, make(config, cores.PYTHON)), agree)
