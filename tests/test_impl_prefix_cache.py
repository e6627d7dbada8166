"""The prefix cache behind an engine's interface, called with types of no engine: what it answers, and what it refuses.

``test_sglang_droptree`` drives it beside the trees of SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.driver.protocol import PublishedEvents
from conformance.stems.kv_events.published import Listener
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.kv_events import Block, EventTypes, Publisher
from impl.prefix_cache import CacheNode, PrefixCache, Types
from impl.radix import Evicted, RadixTree
from impl.swa_mapping import SWATokenToKVPoolAllocator

SIZE, PAGE, WINDOW, LONGEST, STEPS = 40, 2, 3, 12, 200


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


def marked(swa_uuid_for_lock: int | None) -> Any:
    return SimpleNamespace(swa_uuid_for_lock=swa_uuid_for_lock)


def inserted(prefix_len: int, last_device_node: Any) -> Any:
    return SimpleNamespace(had=prefix_len, node=last_device_node)


def removed(block_hashes: list[int], medium: str) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": block_hashes, "medium": medium}


def cleared() -> dict[str, Any]:
    return {"type": "AllBlocksCleared"}


def stored(
    block_hashes: list[int], parent_block_hash: int | None, token_ids: list[Any], block_size: int, medium: str,
    cache_salt: str | None, lora_name: str | None, session_id: str | None,
) -> dict[str, Any]:  # fmt: skip
    return {"type": "BlockStored", **locals()}


SAID = EventTypes(stored, removed, cleared, "GPU", salt=b"a tag ", apart=lambda block, *space: hash((block, space)))
TYPES = Types(match=matched, insert=inserted, evict=evicted, lock=changed, unlock=changed, events=SAID)


def a_cache(types: Types = TYPES, *, window: int = 0, **more: Any) -> PrefixCache:
    pools = PagedTokenToKVPoolAllocator(SIZE, PAGE, torch.bfloat16, "cpu", None, False)
    known = {"req_to_token_pool": None, "token_to_kv_pool_allocator": pools, "page_size": PAGE, "disable": False}
    given = {**known, "is_eagle": False, "eviction_policy": "lru", "sliding_window_size": window, **more}
    return PrefixCache(SimpleNamespace(**given), types, window=window, debug=True)


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


# KV events.


def a_telling_cache(*, grouped: bool = True, window: int = 0, **more: Any) -> PrefixCache:
    types = replace(TYPES, lock=marked, events=replace(SAID, grouped=grouped))
    if window:
        pools = SWATokenToKVPoolAllocator(SIZE, SIZE, PAGE, torch.bfloat16, "cpu", None, False)
        more = {"token_to_kv_pool_allocator": pools, **more}
    return a_cache(types, window=window, enable_kv_cache_events=True, **more)


def told(cache: PrefixCache) -> PublishedEvents:
    """The events of a cache, and the texts of its pages."""
    pages: list[tuple[int, ...]] = []
    waiting: list[tuple[CacheNode, tuple[int, ...]]] = [(cache.root_node, ())]
    while waiting:
        node, above = waiting.pop()
        text = (*above, *node.key)
        pages += [text[:end] for end in range(len(text), len(above), -PAGE)]
        waiting += [(child, text) for child in node.children.values()]
    return PublishedEvents(cache.take_events(), pages=pages)


def drive(cache: PrefixCache, draws: Random, steps: int) -> tuple[str | None, int]:
    """Drawn calls, each judged as a router reads its events. Returns the law that is broken, and how many events there
    were.
    """
    locked: list[tuple[CacheNode, Any]] = []
    count = 0

    def ask() -> PublishedEvents:
        nonlocal count
        found = told(cache)
        count += len(found.events)
        return found

    listener = Listener(ask)
    for _ in range(steps):
        pages = [draws.randrange(2) for _ in range(draws.randrange(1, LONGEST // PAGE + 1))]
        tokens = [token for page in pages for token in (page, 0)]
        space = {"extra_key": draws.choice((None, None, "a", "b"))}
        call = draws.choice(("insert", "insert", "match", "lock", "unlock", "evict", "evict window", "reset"))
        if call == "insert" and free(cache) >= LONGEST:
            insert(cache, tokens, **space)
        elif call == "match":
            match(cache, tokens, **space)
        elif call == "lock" and len(locked) < 2:
            node = match(cache, tokens, **space).node
            locked.append((node, cache.inc_lock_ref(node)))
        elif call == "unlock" and locked:
            node, mark = locked.pop(0)
            cache.dec_lock_ref(node, mark)
        elif call == "reset" and not locked and draws.random() < 0.2:
            cache.token_to_kv_pool_allocator.clear()
            cache.reset()
        elif call.startswith("evict"):
            full = draws.randrange(SIZE // 2) if call == "evict" or not cache.window else 0
            cache.evict(SimpleNamespace(num_tokens=full, swa_num_tokens=draws.randrange(SIZE // 4)))
        if (wrong := listener.judge()) is not None:
            return wrong.law, count
    return None, count


@pytest.mark.parametrize("window", [0, WINDOW])
@pytest.mark.parametrize("grouped", [False, True])
def test_events_of_drawn_calls_keep_the_law_of_routers(window: int, grouped: bool) -> None:
    for seed in range(6):
        law, count = drive(a_telling_cache(grouped=grouped, window=window), Random(seed), STEPS)
        assert law is None
        assert count > STEPS // 4


Wrong = Callable[[Any], Callable[..., Any]]  # from the right function


def says_nothing(_right: Any) -> Any:
    return lambda *_: None


def says_a_cut(right: Any) -> Any:
    def end(self: PrefixCache, spans: Any) -> int:
        before = set(self.tree.entries)
        node: int = right(self, spans)
        if node not in before:
            self._announce(node, None)
        return node

    return end


def says_what_was_there(right: Any) -> Any:
    def insert(self: PrefixCache, *args: Any) -> tuple[int, int]:
        had, node = right(self, *args)
        if had == self.tree.entries[node].stop > 0:
            self._announce(node, None)
        return had, node

    return insert


def says_another_parent(right: Any) -> Any:
    return lambda self, tokens, after, origin: right(self, tokens, after and Block(after.digest, 7), origin)


def says_no_parent(right: Any) -> Any:
    return lambda self, tokens, _after, origin: right(self, tokens, None, origin)


def hashes_no_prefix(right: Any) -> Any:
    return lambda self, tokens, after, origin: right(self, tokens, after and Block(b"", after.hash), origin)


def removes_a_tombstone(right: Any) -> Any:
    def take_swa(self: RadixTree, node: int, gone: Evicted) -> None:
        right(self, node, gone)
        gone.names.append(self.entries[node].names)

    return take_swa


HELD, KNOWN = "believes_what_is_held", "removes_what_is_believed"
WRONG: list[tuple[type, str, Wrong, set[str]]] = [
    (Publisher, "removed", says_nothing, {HELD}),
    (Publisher, "cleared", says_nothing, {HELD}),
    (PrefixCache, "_end", says_a_cut, {HELD}),
    (PrefixCache, "_insert", says_what_was_there, {HELD}),
    (Publisher, "stored", says_another_parent, {"parent_is_believed"}),
    (Publisher, "stored", says_no_parent, {HELD, "one_text_for_a_hash"}),
    (Publisher, "stored", hashes_no_prefix, {HELD, "one_text_for_a_hash"}),
    (RadixTree, "_take_swa", removes_a_tombstone, {HELD, KNOWN}),
]


@pytest.mark.parametrize(("kind", "name", "wrong", "laws"), WRONG, ids=lambda one: getattr(one, "__name__", None))
def test_a_wrong_stream_is_told(
    kind: type, name: str, wrong: Wrong, laws: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, wrong(getattr(kind, name)))
    found = {drive(a_telling_cache(window=WINDOW), Random(seed), STEPS)[0] for seed in range(6)} - {None}
    assert found
    assert found <= laws


def test_names_of_pages_that_a_cut_does_not_divide_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RadixTree.cut

    def cut(self: RadixTree, child: int, at: int) -> int:
        names = self.entries[child].names
        above = right(self, child, at)
        self.entries[child].names = names
        return above

    monkeypatch.setattr(RadixTree, "cut", cut)
    cache = a_telling_cache()
    insert(cache, [1, 2, 3, 4])
    with pytest.raises(AssertionError, match="a name for each page"):
        match(cache, [1, 2, 5, 6])


def said(cache: PrefixCache, kind: str = "BlockStored") -> list[dict[str, Any]]:
    return [event for event in cache.take_events() if event["type"] == kind]


def test_one_event_for_a_node_or_one_for_each_page() -> None:
    for grouped, events in ((True, 1), (False, 2)):
        cache = a_telling_cache(grouped=grouped)
        insert(cache, [1, 2, 3, 4])
        pages = said(cache)
        assert [event["block_size"] for event in pages] == [PAGE] * events
        assert [token for event in pages for token in event["token_ids"]] == [1, 2, 3, 4]
        insert(cache, [1, 2, 3, 4, 5, 6])
        assert [event["parent_block_hash"] for event in said(cache)] == [pages[-1]["block_hashes"][-1]]
        cache.evict(SimpleNamespace(num_tokens=6, swa_num_tokens=0))
        assert len(said(cache, "BlockRemoved")) == events + 1


class Adapters:
    """The public names of adapters by the keys of their texts."""

    @staticmethod
    def get(extra_key: str | None) -> str | None:
        return {"a": "an adapter"}.get(extra_key or "")

    resolve = get


def hash_of(cache: PrefixCache, **named: Any) -> tuple[int, str | None, str | None]:
    insert(cache, [1, 2], **named)
    (event,) = said(cache)
    return event["block_hashes"][0], event["cache_salt"], event["lora_name"]


@pytest.mark.parametrize(("more", "alike"), [({}, True), ({"dynamo_kv_event_format": True}, False)])
def test_which_spaces_have_hashes_of_their_own(more: dict[str, Any], alike: bool) -> None:
    cache = a_telling_cache(kv_event_lora_names=Adapters(), **more)
    plain, *others = (
        hash_of(cache, **named)
        for named in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"}, {"extra_key": "b"})
    )
    assert [other[1:] for other in others] == [("a", None), ("b", None), (None, "an adapter"), (None, None)]
    assert len({plain[0], *(other[0] for other in others[:3])}) == 4
    assert (others[3][0] == plain[0]) == alike


def test_a_removal_has_the_hash_of_the_storing_even_if_the_adapter_got_its_name_in_between() -> None:
    names: dict[str | None, str] = {}
    cache = a_telling_cache(kv_event_lora_names=names)
    insert(cache, [1, 2], extra_key="a")
    names["a"] = "an adapter"
    insert(cache, [1, 2, 3, 4], extra_key="a")
    first, second = said(cache)
    assert second["parent_block_hash"] == first["block_hashes"][0]
    cache.evict(SimpleNamespace(num_tokens=4, swa_num_tokens=0))
    gone = {one for event in said(cache, "BlockRemoved") for one in event["block_hashes"]}
    assert gone == {*first["block_hashes"], *second["block_hashes"]}


def test_pairs_of_tokens_and_the_session_are_said() -> None:
    pools = TokenToKVPoolAllocator(SIZE, torch.bfloat16, "cpu", None, False)
    cache = a_telling_cache(is_eagle=True, page_size=1, token_to_kv_pool_allocator=pools)
    slots = pools.alloc(3)
    given = SimpleNamespace(key=Key([1, 2, 3]), value=slots, prev_prefix_len=0, priority=None, session_id="one")
    cache.insert(given)
    (event,) = said(cache)
    assert (event["token_ids"], event["session_id"]) == ([(1, 2), (2, 3)], "one")


def test_without_the_switch_nothing_is_said_and_with_it_the_types_are_needed() -> None:
    cache = a_cache()
    insert(cache, [1, 2])
    assert cache.take_events() == []
    with pytest.raises(ValueError, match=r"types\.events: expected"):
        a_cache(replace(TYPES, events=None), enable_kv_cache_events=True)
    with pytest.raises(ValueError, match=r"types\.apart: expected"):
        a_cache(
            replace(TYPES, events=replace(SAID, apart=None)), enable_kv_cache_events=True, dynamo_kv_event_format=True
        )
