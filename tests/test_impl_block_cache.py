"""Which request of our scheduler gives up its blocks: the law leaves that open, so no run can say."""

from __future__ import annotations

import pytest

from impl.block_cache import Scheduler
from impl.block_pool import BlockPool


def computed(scheduler: Scheduler) -> list[int]:
    """The requests that a step computes; each samples a token."""
    step = scheduler.schedule()
    scheduler.complete({name: [7] for name, one in step.passes.items() if one.samples})
    return sorted(step.passes)


@pytest.mark.parametrize(("by_priority", "second"), [(False, [2]), (True, [3])])
def test_the_least_urgent_request_gives_up_its_blocks(by_priority: bool, second: list[int]) -> None:
    scheduler = Scheduler(
        BlockPool(3, debug=True), 2, [None], batch=16, requests=3, by_priority=by_priority, caching=False, debug=True
    )
    for name, priority in ((1, 0), (2, 2), (3, 1)):
        scheduler.add(name, [name, name], outputs=3, priority=priority)
    assert computed(scheduler) == [1, 2, 3]
    # Each has one full block, and none is left. The least urgent one makes room for the most urgent one's next block.
    step = scheduler.schedule()
    assert (step.preempted, [*step.passes]) == ((2 if by_priority else 3,), [1])
    scheduler.complete({1: [7]})
    assert computed(scheduler) == [1]  # its last token; then the blocks are enough for one of the others
    assert computed(scheduler) == second


def test_the_only_request_behind_gives_up_its_blocks() -> None:
    scheduler = Scheduler(BlockPool(2, debug=True), 2, [None], batch=16, requests=2, caching=False, debug=True)
    for name in (1, 2):
        scheduler.add(name, [name, name], outputs=2)
    assert computed(scheduler) == [1, 2]
    step = scheduler.schedule()
    assert (step.preempted, [*step.passes]) == ((2,), [1])


@pytest.mark.parametrize("priority", [1, -1], ids=["less urgent", "more urgent"])
def test_a_request_that_waits_with_transferred_blocks_makes_room_for_one_that_runs(priority: int) -> None:
    """Else the running request would wait for these blocks, and the waiting one for its turn, for ever."""
    pool = BlockPool(4, debug=True)
    scheduler = Scheduler(pool, 4, [None], batch=16, requests=2, by_priority=True, caching=False, debug=True)
    scheduler.add(1, list(range(8)), outputs=2)
    scheduler.add(2, list(range(8)), outputs=2, priority=priority, elsewhere=8)
    step = scheduler.schedule()
    assert ([*step.passes], [*step.loads]) == ([1], [2])
    scheduler.complete({1: [7]})
    scheduler.received(2, 8)
    assert pool.available_size() == 0
    assert computed(scheduler) == [1]  # its next token needs a third block
    assert computed(scheduler) == [2]  # its prompt is computed here, since the transferred blocks are gone


def test_a_step_of_one_token() -> None:
    scheduler = Scheduler(BlockPool(2, debug=True), 2, [None], batch=1, requests=1, debug=True)
    scheduler.add(1, [5, 6], outputs=1)
    assert [computed(scheduler), computed(scheduler)] == [[1], [1]]
    assert scheduler.known() == {}


def test_what_drafts_have_computed_is_found_when_their_request_has_ended() -> None:
    scheduler = Scheduler(BlockPool(4, debug=True), 4, [None], batch=16, requests=2, drafts=2, debug=True)
    scheduler.add(1, [1, 2], outputs=4)
    scheduler.schedule()
    scheduler.complete({1: [3]})
    scheduler.draft({1: [4, 5]})
    scheduler.schedule()
    assert scheduler.complete({1: [4, 5, 6]}) == ({1: [4, 5, 6]}, (1,))
    scheduler.add(2, [1, 2, 3, 4, 5], outputs=1)
    assert scheduler.schedule().passes[2].start == 4


def test_a_hit_needs_only_the_blocks_in_its_window() -> None:
    """Three blocks for a text of four and a half: those before the window are handed out again."""
    scheduler = Scheduler(BlockPool(3, debug=True), 2, [2], batch=4, requests=1, debug=True)
    for name, first in ((1, 0), (2, 8)):
        scheduler.add(name, list(range(9)), outputs=1)
        assert scheduler.schedule().passes[name].start == first
        while name in scheduler.known():
            scheduler.complete({name: [7]} if next(iter(scheduler.flying[0].values())).samples else {})
            if name in scheduler.known():
                scheduler.schedule()
