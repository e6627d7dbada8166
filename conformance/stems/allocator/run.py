"""A run of the stem ``allocator``: one paged allocator beside the law."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import Ignores, Law, nothing
from conformance.driver.protocol import Json, lacking
from conformance.driver.shadow import Shadow
from conformance.stems.allocator.projection import list_problems, lists_released, project_pool
from conformance.stems.allocator.protocol import AllocatorEngine, AllocatorSnapshot
from conformance.stems.pools.calls import PoolCalls, send_each
from spec import allocator as law
from spec.finite import Seq
from spec.logic import but
from spec.pool import Pool, some_open


class AllocatorRun:
    """The operations of ``PoolCalls`` on one pool. Sizes in the configuration count pages."""

    def __init__(self, engine: AllocatorEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine: AllocatorEngine = engine
        self.lacks: Collection[str] = lacking(engine)
        state = law.initial(config["page_size"], config["size"], config["rows"], config["need_sort"])
        self.shadow = Shadow()
        self.law = Law(law.stem, state, strict, ignores)
        self.calls = PoolCalls(self, config)
        self.operations = self.calls.operations
        self.seen: AllocatorSnapshot = engine.snapshot()

    def pool_of(self, state: Any) -> Pool:
        """The only pool."""
        pool: Pool = state.now
        return pool

    def some_pages(self, state: Any, need: int) -> tuple[Seq, ...]:
        """Any ``need`` free pages."""
        return (some_open(state.now, need),)

    def chosen_pages(self, chosen: list[int]) -> tuple[Seq, ...]:
        """The pages that the engine chose."""
        return (Seq(chosen),)

    def sorted_as_now(self, before: Any) -> Any:
        """The pool ``before``; sorted if the engine has sorted its release list since."""
        done = lists_released(before.now) and not lists_released(self.calls.pool)
        return law.merge_and_sort_free(before).then if done else before

    def freeing(self, *parts: list[int]) -> Callable[[], None]:
        """Each part is freed by ``free``."""
        return send_each(self.engine.free, parts)

    def swa_slot(self, slot: int) -> int:
        """0: there is one pool."""
        del slot
        return 0

    def has_swa_slot(self, slot: int) -> bool:
        """False: there is one pool."""
        del slot
        return False

    def is_whole(self, page: int) -> bool:
        """True: a page of one pool has nothing that it could lack."""
        del page
        return True

    # What the driver needs.

    def snapshot(self) -> AllocatorSnapshot:
        """The lists and the available size."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """An engine may sort its release list into its free list at any time. The law takes this step when the
        snapshot shows it.
        """
        if not self.seen.released and lists_released(self.calls.pool):
            self.law.caller_step("merge_and_sort_free")

    def project(self) -> Any:
        """The pool as its lists show it."""
        pool = project_pool(self.calls.pool, self.seen)
        return self.law.state if pool is self.calls.pool else but(self.law.state, now=pool)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """Pages that are listed twice, and an available size that is wrong."""
        return list_problems("", self.calls.pool, self.seen)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""
