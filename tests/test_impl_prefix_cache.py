"""The prefix cache behind an engine's interface, called with types of no engine: what it answers, and what it refuses.

``test_sglang_droptree`` drives it beside the trees of SGLang.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.prefix_cache import CacheNode, PrefixCache, Types

SIZE, PAGE = 40, 2


class Key:
    """A text as SGLang's ``RadixKey`` has it."""

    def __init__(self, tokens: list[int], extra_key: str | None = None, cache_salt: str | None = None) -> None:
        self.tokens, self.extra_key, self.cache_salt = tokens, extra_key, cache_salt

    def raw_token_ids(self) -> list[int]:
        """The tokens."""
        return self.tokens


def matched(device_indices: Any, last_device_node: Any) -> Any:
    return SimpleNamespace(slots=device_indices, node=last_device_node)


def evicted(num_tokens_evicted: int) -> int:
    return num_tokens_evicted


def changed(delta: int) -> int:
    return delta


def inserted(prefix_len: int, last_device_node: Any) -> Any:
    return SimpleNamespace(had=prefix_len, node=last_device_node)


TYPES = Types(match=matched, insert=inserted, evict=evicted, lock=changed, unlock=changed)


def a_cache(**more: Any) -> PrefixCache:
    pools = PagedTokenToKVPoolAllocator(SIZE, PAGE, torch.bfloat16, "cpu", None, False)
    known = {"req_to_token_pool": None, "token_to_kv_pool_allocator": pools, "page_size": PAGE, "disable": False}
    given = {**known, "is_eagle": False, "eviction_policy": "lru", **more}
    return PrefixCache(SimpleNamespace(**given), TYPES, debug=True)


def insert(cache: PrefixCache, tokens: list[int], **named: Any) -> Any:
    slots = cache.token_to_kv_pool_allocator.alloc(-(-len(tokens) // PAGE) * PAGE)
    key = Key(tokens, **named)
    return cache.insert(SimpleNamespace(key=key, value=slots[: len(tokens)], prev_prefix_len=0, priority=None))


def match(cache: PrefixCache, tokens: list[int], **named: Any) -> Any:
    return cache.match_prefix(SimpleNamespace(key=Key(tokens, **named)))


def free(cache: PrefixCache) -> int:
    return int(cache.token_to_kv_pool_allocator.available_size())


def test_what_is_inserted_is_found_in_whole_pages_and_duplicates_are_freed() -> None:
    cache = a_cache()
    insert(cache, [1, 2, 3, 4, 5, 6])
    assert free(cache) == SIZE - 6
    again = insert(cache, [1, 2, 3, 4, 7, 8])
    assert (again.had, free(cache), cache.total_size()) == (4, SIZE - 8, 8)
    found = match(cache, [1, 2, 3, 4, 5, 9])
    assert found.slots.tolist() == cache.path_device_indices(found.node).tolist()
    assert len(found.slots) == 4


def test_a_locked_path_stays_and_the_rest_is_evicted() -> None:
    cache = a_cache()
    insert(cache, [1, 2, 3, 4])
    insert(cache, [1, 2, 5, 6])
    node = match(cache, [1, 2, 3, 4]).node
    assert cache.inc_lock_ref(node) == -4
    assert (cache.evictable_size(), cache.protected_size()) == (2, 4)
    assert cache.evict(SimpleNamespace(num_tokens=6, swa_num_tokens=0)) == 2
    assert (len(match(cache, [1, 2, 3, 4]).slots), free(cache)) == (4, SIZE - 4)
    assert cache.dec_lock_ref(node) == 4
    assert cache.evict(SimpleNamespace(num_tokens=6, swa_num_tokens=0)) == 4
    assert free(cache) == SIZE


@pytest.mark.parametrize("named", [{"extra_key": "a"}, {"cache_salt": "a"}])
def test_texts_of_two_spaces_share_nothing(named: dict[str, str]) -> None:
    cache = a_cache()
    insert(cache, [1, 2])
    assert len(match(cache, [1, 2], **named).slots) == 0
    assert insert(cache, [1, 2], **named).had == 0
    assert len(match(cache, [1, 2], **named).slots) == 2


def test_drafts_of_eagle_are_cached_in_pairs_of_tokens() -> None:
    pools = TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", None, False)
    cache = a_cache(is_eagle=True, page_size=1, token_to_kv_pool_allocator=pools)
    slots = pools.alloc(3)
    assert slots is not None
    cache.insert(SimpleNamespace(key=Key([1, 2, 3]), value=slots, prev_prefix_len=0, priority=None))
    assert (cache.total_size(), len(match(cache, [1, 2, 4]).slots)) == (2, 1)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="disabled"):
        a_cache(disable=True)
    cache, other = a_cache(), a_cache()
    insert(cache, [1, 2, 3, 4])
    node: CacheNode = match(cache, [1, 2, 3, 4]).node
    for wrong in (0, None, other.root_node):
        with pytest.raises(ValueError, match="expected a node that is in the tree of this cache"):
            cache.inc_lock_ref(wrong)
    with pytest.raises(ValueError, match="expected a node with such a lock"):
        cache.dec_lock_ref(node)
    with pytest.raises(ValueError, match="expected a slot for each of 4 tokens"):
        cache.insert(SimpleNamespace(key=Key([1, 2, 3, 4]), value=torch.arange(2), prev_prefix_len=0, priority=None))
    cache.sanity_check()
    cache.evict(SimpleNamespace(num_tokens=4, swa_num_tokens=0))
    with pytest.raises(ValueError, match="expected a node that is in the tree of this cache"):
        cache.inc_lock_ref(node)


def test_the_root_is_locked_by_nobody() -> None:
    cache = a_cache()
    assert cache.inc_lock_ref(cache.root_node) == cache.dec_lock_ref(cache.root_node) == 0
    assert cache.is_root(cache.root_node_handle())


def test_a_reset_forgets_the_tree() -> None:
    cache = a_cache()
    insert(cache, [1, 2])
    node = match(cache, [1, 2]).node
    cache.token_to_kv_pool_allocator.clear()
    cache.reset()
    assert (cache.total_size(), len(match(cache, [1, 2]).slots)) == (0, 0)
    with pytest.raises(ValueError, match="expected a node"):
        cache.inc_lock_ref(node)
