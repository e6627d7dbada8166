"""A pool of blocks: eviction order, hashes, errors that change nothing, and what ``check`` finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from impl.block_pool import BlockPool


def taken(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.alloc(count)
    assert blocks is not None
    return blocks


def table_of(pool: BlockPool) -> tuple[Any, ...]:
    known = {block_hash: list(blocks) for block_hash, blocks in pool.known.items()}
    return list(pool.queue()), list(pool.refs), list(pool.hash_of), known, pool.available_size()


def test_blocks_are_taken_from_the_head_and_come_back_to_the_tail() -> None:
    pool = BlockPool(4, debug=True)
    assert taken(pool, 3) == [1, 2, 3]
    pool.free([3, 0, 1])
    assert list(pool.queue()) == [4, 3, 1]
    assert list(pool.queue_backward()) == [1, 3, 4]
    assert taken(pool, 2) == [4, 3]


def test_a_block_without_a_hash_comes_back_to_the_head_if_that_is_asked_for() -> None:
    pool = BlockPool(6, nameless_first=True, debug=True)
    pool.cache(taken(pool, 5)[:2], ["a", "b"])
    pool.free([3, 1, 4])
    assert list(pool.queue()) == [3, 4, 6, 1]
    pool.free([5, 2], kept=True)
    assert list(pool.queue()) == [3, 4, 6, 1, 5, 2]
    pool.touch([5])
    assert (pool.kept, list(pool.queue())) == ({2}, [3, 4, 6, 1, 2])


def test_a_block_is_found_by_each_of_its_hashes_until_it_loses_them_all() -> None:
    pool = BlockPool(2, debug=True)
    pool.cache(taken(pool, 2)[:1], ["abc"])
    pool.cache_also(1, "ab")
    pool.cache_also(1, "abc")
    assert (pool.find("abc"), pool.find("ab"), pool.more) == (1, 1, {1: {"ab": None}})
    pool.evict([1])
    assert (pool.known, pool.more) == ({}, {})


def test_a_call_that_does_not_fit_changes_nothing() -> None:
    pool = BlockPool(2, debug=True)
    before = table_of(pool)
    assert pool.alloc(3) is None
    assert table_of(pool) == before
    assert taken(pool, 0) == []
    assert taken(pool, 2) == [1, 2]
    assert list(pool.queue()) == []


def test_a_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(2, debug=True)
    taken(pool, 1)
    pool.touch([1, 1])
    pool.free([1, 1])
    assert (pool.refs[1], pool.available_size()) == (1, 1)
    pool.free([1])
    assert (pool.refs[1], list(pool.queue())) == (0, [2, 1])


def test_a_free_block_is_found_until_it_is_taken() -> None:
    pool = BlockPool(3, debug=True)
    pool.cache(taken(pool, 2), ["a", "b"])
    pool.free([2, 1])
    assert [pool.find(name) for name in "abc"] == [1, 2, None]
    pool.touch([2])
    assert list(pool.queue()) == [3, 1]
    assert taken(pool, 2) == [3, 1]
    assert [pool.find(name) for name in "ab"] == [None, 2]


def test_blocks_with_one_hash_lose_it_one_by_one() -> None:
    pool = BlockPool(3, debug=True)
    pool.cache(taken(pool, 2), ["a", "a"])
    pool.cache([0, 2], ["b", "a"])
    assert pool.find("a") == 1
    pool.evict([0, 1, 3])
    assert pool.find("a") == 2
    pool.evict([2])
    assert (pool.find("a"), pool.known) == (None, {})


def test_a_reset_waits_for_the_last_holder() -> None:
    pool = BlockPool(2, debug=True)
    pool.cache(taken(pool, 1), ["a"])
    assert not pool.reset()
    assert pool.find("a") == 1
    pool.free([1])
    assert pool.reset()
    assert pool.find("a") is None


ERRORS: list[tuple[Callable[[BlockPool], Any], str]] = [
    (lambda _: BlockPool(0), "size must be at least 1, got 0"),
    (lambda pool: pool.alloc(-1), "count must be at least 0, got -1"),
    (lambda pool: pool.touch([1, 4]), "block 4 is free and has no hash"),
    (lambda pool: pool.touch([1, 5]), r"blocks must lie in 1\.\.4 \(0 is the null block\), got 5"),
    (lambda pool: pool.free([1, -1]), r"blocks must lie in 1\.\.4"),
    (lambda pool: pool.free([1, "x"]), r"blocks must lie in 1\.\.4 .* got x"),  # type: ignore[list-item]
    (lambda pool: pool.free([1, 3]), "block 3 has 0 holders, and is given back 1 times"),
    (lambda pool: pool.free([1, 1]), "block 1 has 1 holders, and is given back 2 times"),
    (lambda pool: pool.cache([2, 3], ["b", "c"]), "block 3 is free, and only who holds a block"),
    (lambda pool: pool.cache([2, 1], ["b", "b"]), "block 1 has another hash already: a"),
    (lambda pool: pool.cache([2], ["b", "c"]), "zip"),
    (lambda pool: pool.cache_also(2, "b"), "block 2 must have a holder and a hash"),
    (lambda pool: pool.cache_also(3, "b"), "block 3 must have a holder and a hash"),
    (lambda pool: pool.cache_also(0, "b"), "block 0 must have a holder and a hash"),
    (lambda pool: pool.evict([1, 5]), r"blocks must lie in 1\.\.4"),
]


@pytest.mark.parametrize(("call", "words"), ERRORS)
def test_bad_input_is_an_error_that_changes_nothing(call: Callable[[BlockPool], Any], words: str) -> None:
    pool = BlockPool(4, debug=True)
    taken(pool, 2)
    pool.cache([1], ["a"])
    before = table_of(pool)
    with pytest.raises(ValueError, match=words):
        call(pool)
    assert table_of(pool) == before


def test_a_count_must_be_a_number() -> None:
    with pytest.raises(TypeError, match="count must be an int, got str"):
        BlockPool(1).alloc("2")  # type: ignore[arg-type]


DAMAGE: list[tuple[Callable[[BlockPool], Any], str]] = [
    (lambda pool: pool.refs.__setitem__(1, 0), "the blocks in the free queue"),
    (lambda pool: pool.refs.__setitem__(3, 1), "the blocks in the free queue"),
    (lambda pool: pool._before.__setitem__(4, 4), "the free queue backward"),
    (lambda pool: pool._next.__setitem__(3, 3), "the blocks in the free queue"),
    (lambda pool: setattr(pool, "_free", 1), "the number of free blocks"),
    (lambda pool: pool.known.clear(), "the hashes by which blocks are found"),
    (lambda pool: pool.more.update({1: {"b": None}}), "the hashes by which blocks are found"),
    (lambda pool: pool.hash_of.__setitem__(1, "b"), "the hashes by which blocks are found"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_check_finds_tables_that_contradict_each_other(damage: Callable[[BlockPool], Any], words: str) -> None:
    pool = BlockPool(4)
    taken(pool, 2)
    pool.cache([1], ["a"])
    pool.check()
    damage(pool)
    with pytest.raises(AssertionError, match=words):
        pool.check()
