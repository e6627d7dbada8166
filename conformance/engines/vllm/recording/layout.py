"""What a recorder asks a scheduler of vLLM: which groups of layers it has, and what no recording says.

All that differs between releases, as far as a recorder needs it, is asked here of the scheduler itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

ENGINE = "vllm"
KNOWN = {"FullAttentionSpec": "full", "SlidingWindowSpec": "window", "MambaSpec": "mamba"}
NEEDED = ("add_request", "schedule", "update_from_output", "finish_requests", "reset_prefix_cache")
SEEN = ("_preempt_request", "_free_request")
STATUSES = {"RUNNING": "running", "PREEMPTED": "preempted"}


class NotRecordable(ValueError):
    """A scheduler is no scheduler of vLLM that can be recorded. The message says what it lacks."""


def must_be_known(scheduler: Any) -> None:
    """Raises ``NotRecordable`` if the scheduler has not what is recorded."""
    lacks = [name for name in (*NEEDED, *SEEN, "kv_cache_manager", "requests") if not hasattr(scheduler, name)]
    if lacks:
        raise NotRecordable(f"scheduler: {type(scheduler).__name__} has no {', '.join(lacks)}")


def version() -> str:
    """The version of the engine, empty where the package does not say it."""
    return str(getattr(sys.modules.get(ENGINE), "__version__", ""))


def text_of(pool: Any) -> Callable[[bytes], bytes]:
    """Takes the group of layers off a hash of the pool: what is left is the hash of the text. The release's function
    does it, or a slice, where the release puts the group behind.
    """
    own = type(pool).__init__.__globals__
    join, split = own["make_block_hash_with_group_id"], own["get_block_hash"]
    tried, more = bytes(range(32)), len(join(b"", 1))
    return (lambda key: key[:-more]) if more and join(tried, 7)[:-more] == tried else split


def group_of(pool: Any, key: bytes) -> int:
    """The group of layers of a hash of the pool."""
    return int(type(pool).__init__.__globals__["get_group_id"](key))


def status(request: Any) -> str:
    """``waiting``, ``running`` or ``preempted``."""
    return STATUSES.get(request.status.name, "waiting")


def gives_back_later(scheduler: Any) -> bool:
    """Blocks of requests that have left wait until a step in flight is done."""
    return bool(getattr(scheduler, "deferred_frees", ()))


class Layout:
    """The groups of layers of a scheduler, and its blocks.

    ``config``: as of ``BlockCacheEngine``, as far as a judge needs it. ``unknown``: what no recording says of this
    scheduler, as sentences; empty where its recording can be judged.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._pool = scheduler, scheduler.kv_cache_manager.block_pool
        specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
        self.unknown = [*self._unknown(specs)]
        self.config = {
            "block_size": specs[0].block_size,
            "blocks": len(self._pool.blocks) - 1,
            "layers": [self._layers(spec) for spec in specs],
            "caching": bool(self._pool.enable_caching),
            "requests": int(scheduler.max_num_running_reqs),
            "max_length": int(scheduler.max_model_len),
        }

    def _layers(self, spec: Any) -> dict[str, Any]:
        kind = KNOWN.get(type(spec).__name__, "full")
        return {"kind": kind, "window": int(spec.sliding_window)} if kind == "window" else {"kind": kind}

    def _unknown(self, specs: list[Any]) -> list[str]:
        kinds = sorted({type(spec).__name__ for spec in specs} - {*KNOWN})
        left = [f"layers of the kind {kind}" for kind in kinds]
        if len({spec.block_size for spec in specs}) > 1 or specs[0].block_size != self._pool.hash_block_size:
            left.append("groups of layers whose blocks or hashes have different sizes")
        if getattr(self._scheduler, "connector", None) is not None:
            left.append("a KV connector: its transfers are not recorded")
        ranks = [getattr(self._scheduler, f"{kind}_world_size", 1) for kind in ("dcp", "pcp")]
        if any(int(count or 1) > 1 for count in ranks):
            left.append("context parallel ranks, among which the tokens of a block are divided")
        return left
