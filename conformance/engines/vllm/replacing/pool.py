"""Our block pool in the place of a release's own, so that the release's managers and its own tests run on it.

``pool_class(imported)`` makes a class with two parents: ``OurCalls``, then the release's ``BlockPool``. Who holds
a block, the order in which blocks are handed out, and which hash finds which block is then what
``impl.block_pool.BlockPool`` keeps. What the release's class still does by itself: it makes the hashes of a request's
blocks, and the KV events.

The blocks that callers get are the release's own kind of block, which reads its holders, its hash and its place in the
free queue from our tables (``conformance.engines.vllm.replacing.views``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from conformance.engines.importing import Imported
from conformance.engines.vllm.replacing.views import BlockView, FreeQueue, Further, HashMap, block_class
from impl.block_pool import BlockPool

POOL, UTILS = "v1.core.block_pool", "v1.core.kv_cache_utils"


class OurCalls:
    """The calls of a release's ``BlockPool``, answered by ours. The second parent has what is not here."""

    block_kind: type[Any]  # the class of its blocks
    cleared_event: Callable[[], Any]

    def __init__(self, num_gpu_blocks: int, *args: Any, **options: Any) -> None:
        super().__init__(num_gpu_blocks, *args, **options)  # type: ignore[call-arg]
        me: Any = self
        self.impl = BlockPool(max(1, num_gpu_blocks - 1), nameless_first=True)
        me.blocks = [self.block_kind(number, me) for number in range(num_gpu_blocks)]
        me.null_block = me.blocks[0]
        me.null_block.is_null = True
        me.free_block_queue = FreeQueue(self.impl, me.blocks)
        me.cached_block_hash_to_block = HashMap(self.impl, me.blocks)
        me.cached_block_hashes_by_block = Further(self.impl)
        # Older releases have neither.
        me._reuse_watchers = {}
        vars(me).setdefault("metrics_collector", None)

    # Holders.

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        """``alloc``. What the blocks were found by is announced as removed first."""
        me: Any = self
        if num_blocks > me.get_num_free_blocks():
            raise ValueError(f"{num_blocks} blocks are asked for, and {me.get_num_free_blocks()} are free")
        for number in list(islice(self.impl.queue(), num_blocks)):
            me._maybe_evict_cached_block(me.blocks[number])
        taken = [me.blocks[number] for number in self.impl.alloc(num_blocks) or []]
        if me._reuse_watchers:
            me._notify_reuse(taken)
        for block in taken if me.metrics_collector else ():
            me.metrics_collector.on_block_allocated(block)
        return taken

    def touch(self, blocks: Iterable[Any]) -> None:
        """``touch``."""
        named = [block for block in blocks if not block.is_null]
        self.impl.touch([block.block_id for block in named])
        collector: Any = vars(self)["metrics_collector"]
        for block in named if collector else ():
            collector.on_block_accessed(block)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """``free``; blocks of another pool go back to that one."""
        mine, others = self._by_pool(ordered_blocks)
        self.impl.free([block.block_id for block in mine])
        for pool, blocks in others.items():
            pool.free_blocks(blocks)

    def unpin_blocks(self, blocks: Iterable[Any], on_reuse: Callable[[Any], None]) -> None:
        """``free``, with all of them kept: somebody reads them until they are handed out again."""
        me: Any = self
        named = list(blocks)
        self.impl.free([block.block_id for block in named], kept=True)
        me._reuse_watchers.update({block.block_id: on_reuse for block in named})

    def get_num_free_blocks(self) -> int:
        """``available_size``; a pool of the null block alone has none."""
        me: Any = self
        return self.impl.available_size() if me.num_gpu_blocks > 1 else 0

    # The prefix cache. A block that a test has made itself is in no pool, and stays with the release's class.

    def _remove_cached_block_hashes(self, block: Any) -> list[Any]:
        """``evict``. Returns what the block was found by."""
        if not isinstance(block, self.block_kind):
            theirs: Any = super()
            return list(theirs._remove_cached_block_hashes(block))
        first = self.impl.hash_of[block.block_id]
        if first is None:
            return []
        removed = [first, *self.impl.more.get(block.block_id, ())]
        self.impl.evict([block.block_id])
        block.tokens_of_hash = None
        return removed

    def _insert_block_hash(self, block_hash_with_group_id: Any, block: Any, num_tokens: int | None) -> None:
        """``cache``, or ``cache_also`` for a block that has a hash."""
        if not isinstance(block, self.block_kind):
            theirs: Any = super()
            theirs._insert_block_hash(block_hash_with_group_id, block, num_tokens=num_tokens)
            return
        number, known = block.block_id, block_hash_with_group_id
        if self.impl.hash_of[number] is None:
            self.impl.cache([number], [known])
            block.tokens_of_hash = num_tokens
        else:
            self.impl.cache_also(number, known)

    def reset_prefix_cache(self) -> bool:
        """``reset``."""
        me: Any = self
        if not self.impl.reset():
            return False
        if me._reuse_watchers:
            me._notify_reuse([me.blocks[number] for number in list(me._reuse_watchers)])
        for block in me.blocks:
            block.tokens_of_hash = None
        if me.metrics_collector:
            me.metrics_collector.reset()
        if me.enable_kv_cache_events:
            me.kv_event_queue.append(type(self).cleared_event())
        return True

    def _by_pool(self, blocks: Iterable[Any]) -> tuple[list[Any], dict[Any, list[Any]]]:
        mine: list[Any] = []
        others: dict[Any, list[Any]] = {}
        for block in blocks:
            if block.is_null:
                continue
            if not isinstance(block, BlockView):
                block.ref_cnt -= 1  # a test has made it itself: it is in no pool
            elif block.pool is self:
                mine.append(block)
            else:
                others.setdefault(block.pool, []).append(block)
        return mine, others


def pool_class(imported: Imported) -> type[Any]:
    """The class to use in the place of the release's ``BlockPool``."""
    theirs = imported.find_class("BlockPool", (POOL,))
    members = {
        "block_kind": block_class(imported.find_class("KVCacheBlock", (UTILS,))),
        "cleared_event": imported.module("distributed.kv_events").AllBlocksCleared,
        "__doc__": OurCalls.__doc__,
    }
    return type(theirs.__name__, (OurCalls, theirs), members)


def put_in_place(imported: Imported) -> None:
    """From now on modules of the release that are imported get our class: to be called before any of its managers
    is imported.
    """
    imported.module(POOL).BlockPool = pool_class(imported)
