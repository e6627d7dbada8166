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


def group_of(pool: Any) -> Callable[[bytes], int]:
    """Says the group of layers of a hash of the pool."""
    found: Callable[[bytes], int] = type(pool).__init__.__globals__["get_group_id"]
    return found


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
        self._size = int(specs[0].block_size)
        self.unknown = [*self._unknown(specs)]
        self.config = {
            "block_size": self._size,
            "blocks": len(self._pool.blocks) - 1,
            "layers": [self._layers(spec) for spec in specs],
            "caching": bool(self._pool.enable_caching),
            "requests": int(scheduler.max_num_running_reqs),
            "max_length": int(scheduler.max_model_len),
            "unit": int(self._pool.hash_block_size),
        }

    def _layers(self, spec: Any) -> dict[str, Any]:
        kind = KNOWN.get(type(spec).__name__, "full")
        size = {"block_size": int(spec.block_size)} if spec.block_size != self._size else {}
        window = {"window": int(spec.sliding_window)} if kind == "window" else {}
        return {"kind": kind, **size, **window}

    def _unknown(self, specs: list[Any]) -> list[str]:
        kinds = sorted({type(spec).__name__ for spec in specs} - {*KNOWN})
        left = [f"layers of the kind {kind}" for kind in kinds]
        if any(spec.block_size % self._pool.hash_block_size for spec in specs):
            left.append("blocks that end inside what a hash covers")
        if getattr(self._scheduler, "connector", None) is not None:
            left.append("a KV connector: its transfers are not recorded")
        ranks = [getattr(self._scheduler, f"{kind}_world_size", 1) for kind in ("dcp", "pcp")]
        if any(int(count or 1) > 1 for count in ranks):
            left.append("context parallel ranks, among which the tokens of a block are divided")
        return left


class Hashes:
    """What the blocks of a scheduler are found for, where a hash may cover less than a block, and where passes leave
    states. ``are_of_parts``: a block may be found for a part of it.
    """

    def __init__(self, scheduler: Any) -> None:
        manager = scheduler.kv_cache_manager
        self._pool, self._singles = manager.block_pool, manager.coordinator.single_type_managers
        self._unit = int(getattr(self._pool, "hash_block_size", 0) or self._singles[0].block_size)
        self._sizes = [single.block_size for single in self._singles]
        self._group_of = group_of(self._pool)
        self._each = [max(1, size // self._unit) for size in self._sizes]
        self.are_of_parts = any(each > 1 for each in self._each)
        self._apart = [(group, single) for group, single in enumerate(self._singles)
                       if getattr(single, "has_prefill_checkpoint_blocks", False)]  # fmt: skip

    def each(self, group: int | None) -> int:
        """How many hashes cover a block of a group."""
        return 1 if group is None else self._each[group]

    def count(self, tokens: int) -> int:
        """How many hashes cover so many tokens."""
        return tokens // self._unit

    def is_of_part(self, block: Any) -> bool:
        """The first hash of a block, which has one, is of a part of it."""
        return self.are_of_parts and bool(block.block_hash_num_tokens % self._size_of(block))

    def _size_of(self, block: Any) -> int:
        """The tokens of a block that has a hash."""
        return int(self._sizes[self._group_of(block.block_hash)])

    def of_parts(self, block: Any) -> list[bytes]:
        """The hashes of parts of a block. Beside its first hash a block has those of parts alone."""
        more = self._pool.cached_block_hashes_by_block.get(block.block_id, ())
        return [block.block_hash, *more] if block.block_hash is not None and self.is_of_part(block) else [*more]

    def with_parts(self) -> list[Any]:
        """The blocks that are found for parts."""
        return [block for block in self._pool.blocks if self.of_parts(block)] if self.are_of_parts else []

    @staticmethod
    def copies(output: Any) -> list[tuple[int, int]]:
        """The blocks that the workers copy before a step, each as source and target."""
        told = getattr(output, "kv_cache_block_copies", None)
        return [(int(source), int(target)) for source, target in told] if told else []

    def states_inside(self) -> list[tuple[str, tuple[int, int, int]]]:
        """The requests whose passes leave a state inside their tokens: the group, after how many tokens, and the place
        of the table. A request that is not computed now may be among them.
        """
        return [(name, (group, *where)) for group, single in self._apart for name, where in single._checkpoints.items()]

    def states_apart(self) -> list[tuple[str, tuple[int, int, int]]]:
        """The blocks of states that stand behind their own place in the table of a request: its group, the block, and
        its own place.
        """
        return [
            (name, (group, block.block_id, block.block_hash_num_tokens // single.block_size - 1))
            for group, single in self._apart
            for name, blocks in single.req_to_blocks.items()
            for column, block in enumerate(blocks)
            if block.block_hash is not None
            and not self.is_of_part(block)
            and block.block_hash_num_tokens != (column + 1) * single.block_size
        ]


def gives_back_copies(scheduler: Any) -> Callable[..., Any] | None:
    """The method by which copies give back the blocks that they hold; ``None`` where the release makes no copies."""
    function: Callable[..., Any] | None = getattr(scheduler, "_free_cow_retained_blocks", None)
    return function
