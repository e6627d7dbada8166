"""Which blocks the workers' half of vLLM's connector between servers reads into which: the release's own function.

The workers are told two lists of blocks for each group of layers, one on each server, without places. Where the lists
of a group have not the same length, the release's function says which blocks belong together, or an assertion in it
stops the process of the server that reads. It needs no device, so it is called as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from conformance.driver.exception_origin import StandIn
from conformance.engines.vllm.settings import nothing

Lists = Sequence[Sequence[int]]  # by group of layers
Pairs = Callable[[Lists, Lists], tuple[Lists, Lists]]  # of the server that reads, and of the other one


def by_function(function: Callable[..., tuple[Lists, Lists]], specs: Sequence[Any], states: type, more: int) -> Pairs:
    """By the function that does nothing else. ``specs``: of the groups. ``states``: the class of those with states.
    ``more``: how many numbers it takes behind the lists, in how many blocks of a kernel a block of a server is.
    """
    worker = StandIn(
        _has_mamba=any(isinstance(spec, states) for spec in specs),
        _group_spec_types=tuple(map(type, specs)),
        _physical_blocks_per_logical_kv_block=1,
    )
    return lambda local, remote: function(worker, local, remote, *(1,) * more)


def by_reading(read: Callable[..., None], specs: Sequence[Any], states: type) -> Pairs:
    """By the function that also begins the transfer, where the release has no other."""

    def pairs(local: Lists, remote: Lists) -> tuple[Lists, Lists]:
        lists: dict[str, Lists] = {}

        def descriptors(server: str, blocks: Lists, **_: Any) -> list[int]:
            lists[server] = blocks
            return [*chain(*blocks)]

        worker = StandIn(
            transfer_topo=StandIn(
                get_engine_info=lambda _: StandIn(remote_block_size=0),
                block_size_ratio=lambda _: 1,  # blocks have one size on both servers
            ),
            **{"world_size": 1, "engine_id": "here", "kv_cache_config": StandIn(kv_cache_groups=specs)},
            _is_mamba_group=[isinstance(spec, states) for spec in specs],
            _get_block_descs_ids=descriptors,
            nixl_wrapper=StandIn(make_prepped_xfer=nothing, transfer=nothing),
            _recving_transfers=defaultdict(list),
        )
        read(worker, local, remote, "other", "request", "request", 0, 0, 0)
        return lists["here"], lists["other"]

    return pairs
