"""What a manager of host memory shows: its keys, their slots and counts, as each release of vLLM names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from conformance.stems.host_tier.protocol import HostTierSnapshot


def shown(manager: Any, number: Callable[[bytes], int]) -> HostTierSnapshot:
    """The fields of a manager, of its policy and of its pool of slots. ``number``: the number of a key."""
    known, keys = chunks(manager), listed(manager)
    return HostTierSnapshot(
        slots={number(key): slot for key, (slot, _) in known.items()},
        refs={number(key): count for key, (_, count) in known.items()},
        free=free(manager),
        available=available(manager),
        evictable=evictable(manager),
        listed=None if keys is None else frozenset(map(number, keys)),
        writing=writing(manager),
    )


def chunks(manager: Any) -> dict[bytes, tuple[int, int]]:
    """For each key that the manager has its slot, from 1 on, and its count."""
    found: dict[bytes, Any] = {}
    for known in _maps(_holder(manager)):
        found |= known
    return {key: (int(_one_of(one, "chunk_id", "block_id")) + 1, int(one.ref_cnt)) for key, one in found.items()}


def free(manager: Any) -> list[int]:
    """The free slots, from 1 on: those that were given back, and those that nobody had yet."""
    pool = _pool(manager)
    back = _one_of(pool, "_free_list", "allocated_blocks_free_list")
    first = _one_of(pool, "_num_allocated_chunks", "_num_allocated_blocks", "num_allocated_blocks")
    size = _one_of(pool, "_num_chunks", "_num_blocks", "num_blocks")
    return [*(int(slot) + 1 for slot in back), *range(first + 1, size + 1)]


def available(manager: Any) -> int:
    """How many slots are free, as the manager counts them."""
    count = _one_of(_pool(manager), "_get_num_free_chunks", "_get_num_free_blocks", "get_num_free_blocks")
    return int(count())


def evictable(manager: Any) -> int | None:
    """How many keys are evictable, as the manager counts them; ``None`` where it does not."""
    names = ("_num_evictable_cache_chunks", "_num_evictable_cache_blocks")
    found: int | None = _one_of(_whole(manager), *names, default=None)
    return found


def listed(manager: Any) -> Iterable[bytes] | None:
    """The keys in the policy's list of evictable keys; ``None`` where it has none."""
    found: Iterable[bytes] | None = _one_of(_holder(manager), "_evictable", "evictable_blocks", default=None)
    return found


def writing(manager: Any) -> int | None:
    """How many keys are not published, as the manager counts them; ``None`` where it does not."""
    names = ("_num_write_pending_chunks", "_num_write_pending_blocks")
    found: int | None = _one_of(_whole(manager), *names, default=None)
    return found


def _whole(manager: Any) -> Any:
    """The manager itself, behind one that counts look-ups."""
    return getattr(manager, "_backing", manager)


def _holder(manager: Any) -> Any:
    """What has the keys: the policy, or the manager."""
    whole = _whole(manager)
    return getattr(whole, "_policy", whole)


def _pool(manager: Any) -> Any:
    """What has the slots: the backend, or the manager."""
    whole = _whole(manager)
    return getattr(whole, "backend", whole)


def _maps(holder: Any) -> list[Mapping[bytes, Any]]:
    if hasattr(holder, "t1"):
        return [holder.t1, holder.t2]
    return [_one_of(holder, "chunks", "blocks")]


_NOTHING = object()


def _one_of(owner: Any, *names: str, default: Any = _NOTHING) -> Any:
    """The first of these attributes that the owner has."""
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    if default is _NOTHING:
        raise AttributeError(f"{type(owner).__name__} has none of {', '.join(names)}")
    return default
