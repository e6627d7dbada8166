"""vLLM's prefix cache where it finds parts of blocks, and states that passes leave inside their tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from parts_edits import BUGS, BUGS_OF_PLACES, HARMLESS
from test_vllm_runs import answer

from conformance.engines.vllm import RELEASES
from conformance.engines.vllm.moves import Moves
from conformance.stems.block_cache.memory import BlockMemory
from conformance.stems.block_cache.protocol import Launched, RequestPass
from conformance.stems.block_cache.worker import Workers

NEWEST = RELEASES[-1]
QUICK = ("copies_are_given_back_at_once", "checkpoint_between_those_of_kernels")  # the others in `make soak`
FOUND = """
    import parts_edits
    parts_edits.main(sys.argv[1], sys.argv[2:])
"""


def found(*names: str) -> dict[str, str | None]:
    """For each edit the law that is found broken in the newest release with it."""
    answered: dict[str, str | None] = answer(NEWEST, FOUND, *names)
    return answered


@pytest.mark.engine
def test_a_planted_bug_in_a_hit_of_a_part_is_found() -> None:
    assert all(found(*QUICK).values())


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("bug", [bug for bug in (*BUGS, *BUGS_OF_PLACES) if bug not in QUICK])
def test_another_planted_bug_is_found(bug: str) -> None:
    assert found(bug)[bug] is not None


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("edit", HARMLESS)
def test_a_harmless_edit_shows_nothing(edit: str) -> None:
    assert found(edit) == {edit: None}


def test_all_sources_of_copies_are_read_before_a_target_is_written() -> None:
    memory = BlockMemory([2])
    memory.write(0, [1], 0, memory.prefixes([7, 8], 0))
    memory.copy_all([(1, 2), (2, 3)])
    assert memory.wrong(0, [2], memory.prefixes([7, 8], 0), 0) is None
    assert memory.wrong(0, [3], memory.prefixes([7, 8], 0), 0) == (0, 3, 0)


def test_a_checkpoint_is_the_state_after_its_own_tokens() -> None:
    workers = Workers({"block_size": 2, "layers": [{"kind": "mamba"}], "caching": True})
    workers.comes(1, 0)
    workers.comes(2, 0)
    text = (1, 2, 3, 4, 5)
    workers.launched(Launched({1: RequestPass(0, 5, 0, False, "new", ((0, 3, 4),), text, checkpoint=(4, 1))}))
    assert workers.completed({}, {1}) is None
    workers.launched(Launched({2: RequestPass(4, 1, 0, False, "new", ((0, 3, 5),), text)}))
    assert workers.completed({}, {2}) is None
    workers.launched(Launched({2: RequestPass(2, 1, 0, False, "new", ((3, 6),), text)}))
    misread = workers.completed({}, {2})
    assert misread is not None
    assert (misread.is_state, misread.token, misread.block) == (True, 2, 6)


class Pool:
    """A pool of blocks whose methods do nothing."""

    def get_new_blocks(self, count: int) -> list[Any]:
        return [block(number) for number in range(7, 7 + count)]

    def touch(self, blocks: list[Any]) -> None:
        del blocks

    def free_blocks(self, blocks: Any) -> None:
        del blocks

    def move_block_hashes(self, source: Any, target: Any) -> None:
        del source, target


def block(number: int) -> Any:
    return SimpleNamespace(block_id=number, is_null=not number)


class Single:
    """A manager of one group of layers, as far as copies of blocks go."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._pending_cow_copies: list[tuple[Any, Any]] = []

    def admit(self, request_id: str) -> None:
        self.pool.touch([block(1), block(2)])
        blocks = self.pool.get_new_blocks(2)
        self._apply_cow(request_id, 1, block(2), blocks[0])

    def keep(self, request_id: str) -> None:
        assert request_id
        self.pool.move_block_hashes(block(2), self.pool.get_new_blocks(1)[0])

    def _apply_cow(self, request_id: str, block_idx: int, source: Any, target: Any) -> None:
        del request_id, block_idx
        self._pending_cow_copies.append((source, target))


class Manager:
    """The manager of all groups of layers."""

    def __init__(self, single: Single, pool: Pool) -> None:
        self.block_pool, self.coordinator = pool, SimpleNamespace(single_type_managers=[single])


class Scheduler:
    """A scheduler that gives back with a step what copies held."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.single = Single(self.pool)
        self.kv_cache_manager = Manager(self.single, self.pool)
        self.deferred_frees: list[tuple[int, list[Any]]] = []

    def _free_cow_retained_blocks(self, blocks: list[Any], fence_seq: int) -> None:
        self.deferred_frees.append((fence_seq, blocks[::-1]))

    def _drain_deferred_frees(self) -> None:
        while self.deferred_frees:
            self.pool.free_blocks(reversed(self.deferred_frees.pop(0)[1]))


def test_a_request_has_the_copy_in_which_it_goes_on_and_not_what_was_found() -> None:
    scheduler = Scheduler()
    moves = Moves(scheduler, copies=True)
    scheduler.single.admit("5")
    assert [(move.kind, move.blocks, move.request, move.group) for move in moves.moves] == [
        ("touch", (1,), 5, 0),
        ("get", (7,), 5, 0),
        ("get", (8,), 5, 0),
    ]
    assert moves.held() == {2: 1, 7: 1}


def test_a_request_that_keeps_its_block_gets_no_copy() -> None:
    scheduler = Scheduler()
    moves = Moves(scheduler, copies=True)
    scheduler.single.keep("5")
    assert [(move.kind, move.blocks) for move in moves.moves] == [("evict", (7,)), ("move_hashes", (2, 7))]


def test_what_copies_hold_is_given_back_by_nobody() -> None:
    scheduler = Scheduler()
    moves = Moves(scheduler, copies=True)
    scheduler.deferred_frees.append((1, [block(4)]))
    scheduler._free_cow_retained_blocks([block(2), block(7)], 1)
    assert (moves.held(), moves.deferred(blocks for _, blocks in scheduler.deferred_frees), moves.moves) == (
        {2: 1, 7: 1},
        [4],
        [],
    )
    scheduler._drain_deferred_frees()
    assert [(move.kind, move.blocks) for move in moves.moves] == [("free", (4,))]
    assert moves.held() == {}
