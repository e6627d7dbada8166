"""What an engine's own code does with our allocators beside allocating: copies, settable state, sizes, transfers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.states import MambaSlotAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator

COMMON = (torch.float16, "cpu")


def token(size: int = 8, cache: Any = None, **options: Any) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(size, *COMMON, cache, False, **options)


def paged(size: int = 8, page: int = 2, cache: Any = None, need_sort: bool = False) -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(size, page, *COMMON, cache, need_sort)


def pair(size: int = 8, swa: int = 8, page: int = 2, cache: Any = None) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(size, swa, page, *COMMON, cache, False)


KINDS: list[Callable[..., Any]] = [token, paged, pair]


class Cache:
    """A KV cache that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def get_cpu_copy(self, indices: torch.Tensor, mamba_indices: Any = None, **more: Any) -> str:
        self.asked.append((indices.tolist(), mamba_indices, more))
        return "content"

    def load_cpu_copy(self, content: str, indices: torch.Tensor, mamba_indices: Any = None, **more: Any) -> str:
        self.asked.append((content, indices.tolist(), mamba_indices, more))
        return "loaded"


@pytest.mark.parametrize("kind", KINDS)
def test_content_is_copied_by_the_cache(kind: Callable[..., Any]) -> None:
    cache = Cache()
    ours = kind(cache=cache)
    slots = ours.alloc(2)
    assert slots is not None
    content = ours.get_cpu_copy(slots, mamba_indices=7, req_pool_index=None)
    assert ours.load_cpu_copy(content, slots, mamba_indices=None, req_pool_index=3) == "loaded"
    named = slots.tolist()
    assert cache.asked == [(named, 7, {}), ("content", named, None, {"req_pool_index": 3})]
    with pytest.raises(RuntimeError, match="without a KV cache"):
        kind().get_cpu_copy(slots)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_of_size_0_hands_out_nothing(kind: Callable[..., Any]) -> None:
    ours = kind(0)
    assert (ours.size, ours.available_size(), ours.full_available_size()) == (0, 0, 0)
    assert ours.alloc(2) is None
    assert ours.alloc(0).tolist() == []
    ours.clear()
    assert ours.available_size() == 0


@pytest.mark.parametrize("size", [-1, 1])
def test_a_pool_of_part_of_a_page_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match="size must be"):
        paged(size)


def test_a_subclass_takes_pages_by_itself() -> None:
    ours = paged()
    first = ours.alloc(2)
    taken, ours.free_pages = ours.free_pages[:2].clone(), ours.free_pages[2:]
    assert (ours.free_pages.tolist(), ours.available_size()) == ([4], 2)
    ours.free(ours.slots(taken))
    assert first is not None
    ours.free(first)
    assert sorted(ours.free_pages.tolist()) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="free already"):
        ours.free(ours.slots(taken))


def test_a_subclass_gives_pages_back_by_itself() -> None:
    ours = paged(need_sort=True)
    slots = ours.alloc(8)
    assert slots is not None
    ours.release_pages = torch.tensor([3, 1])
    assert (ours.available_size(), ours.release_pages.tolist()) == (4, [3, 1])
    again = ours.alloc(4)
    assert again is not None
    assert sorted({slot // 2 for slot in again.tolist()}) == [1, 3]


@pytest.mark.parametrize("pages", [[1, 1], [0, 2], [5], [1, 2, 3, 4, 1], [1, 4]])
def test_wrong_free_pages_change_nothing(pages: list[int]) -> None:
    ours = paged(need_sort=True)
    slots = ours.alloc(8)
    assert slots is not None
    ours.free(slots[-2:])  # page 4 is on the release list
    with pytest.raises(ValueError, match="pages"):
        ours.free_pages = torch.tensor(pages)
    assert (ours.available_size(), ours.release_pages.tolist()) == (2, [4])
    with pytest.raises(TypeError):
        ours.free_pages = None  # type: ignore[assignment]


def test_after_a_list_is_set_no_backup_can_be_restored() -> None:
    ours = token()
    state = ours.backup_state()
    ours.free_pages = ours.free_pages[1:]
    with pytest.raises(RuntimeError):
        ours.restore_state(state)


def test_pages_that_wait_stay_apart_from_a_list_that_is_set() -> None:
    ours = token(4)
    slots = ours.alloc(3)
    assert slots is not None
    ours.free_group_begin()
    ours.free(slots[:1])
    with pytest.raises(ValueError, match="twice"):
        ours.free_pages = torch.tensor([1, 4])
    ours.free_pages = torch.tensor([4, 3])
    ours.free_group_end()
    assert sorted(ours.free_pages.tolist()) == [1, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["is_not_in_free_group", "None", "[]"])
def test_a_group_ends_where_its_state_is_set(kind: Callable[..., Any], end: str) -> None:
    ours = kind()
    slots = ours.alloc(4)
    ours.free_group_begin()
    ours.free_group_begin()
    ours.free(slots)
    assert ours.available_size() == 4
    if end == "is_not_in_free_group":
        ours.is_not_in_free_group = True
    else:
        ours.free_group = None if end == "None" else []
    assert (ours.available_size(), ours.is_not_in_free_group, ours.free_group) == (8, True, [])
    ours.is_not_in_free_group = False
    ours.is_not_in_free_group = False
    assert not ours.is_not_in_free_group
    ours.free_group_end()
    with pytest.raises(RuntimeError):
        ours.free_group_end()
    with pytest.raises(ValueError, match="free_group"):
        ours.free_group = [slots]


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_side_of_segments_is_freed(kind: Callable[..., Any]) -> None:
    ours = kind()
    slots = ours.alloc(8)
    assert ours.available_size() == 0
    if kind is pair:
        with pytest.raises(ValueError, match="still has its SWA page"):
            ours.free_full_segment(slots[:2], start_pos=0)
        ours.free_swa(slots)
    ours.free_full_segment(slots[:2], start_pos=2)
    ours.free_full_segments([(slots[2:4], 0), (slots[:0], 4), (slots[6:7] if ours.page_size > 1 else slots[6:8], 4)])
    assert ours.full_available_size() == 6
    ours.free_full(slots[4:6])
    assert ours.full_available_size() == 8


def test_a_segment_starts_on_a_page() -> None:
    ours = paged()
    slots = ours.alloc(8)
    assert slots is not None
    with pytest.raises(ValueError, match="start_pos"):
        ours.free_full_segment(slots[1:], start_pos=1)
    with pytest.raises(ValueError, match="start_pos"):
        ours.free_full_segments([(slots[:2], 0), (slots[3:], 3)])
    assert ours.available_size() == 0


def test_sizes_follow_a_resize() -> None:
    ours = paged()
    ours.alloc(2)
    ours.resize(SimpleNamespace(max_total_num_tokens=4))
    assert (ours.size, ours.size_full, ours.num_pages, ours.free_pages.tolist()) == (4, 4, 2, [1, 2])
    with pytest.raises(ValueError, match="size"):
        ours.resize(SimpleNamespace(max_total_num_tokens=1))
    assert ours.size == 4


def test_a_resize_keeps_the_mapping() -> None:
    ours = pair(8, 6)
    mapping = ours.full_to_swa_index_mapping
    assert (ours.size, ours.size_full, ours.size_swa) == (6, 8, 6)
    assert ours.alloc(4) is not None
    ours.resize(SimpleNamespace(full_max_total_num_tokens=6, swa_max_total_num_tokens=2))
    assert (ours.size, ours.size_full, ours.size_swa, ours.full_available_size()) == (2, 6, 2, 6)
    assert ours.full_to_swa_index_mapping is mapping
    assert (mapping[:-1].tolist(), int(mapping[-1])) == ([0] * 10, -1)
    slots = ours.alloc(2)
    assert slots is not None
    ours.free(slots)
    assert ours.swa_available_size() == 2
    for full, swa in ((10, 2), (1, 2), (2, 1)):
        with pytest.raises(ValueError, match="max_total_num_tokens"):
            ours.resize(SimpleNamespace(full_max_total_num_tokens=full, swa_max_total_num_tokens=swa))
    assert (ours.size_full, ours.size_swa) == (6, 2)
    ours.resize(SimpleNamespace(full_max_total_num_tokens=8, swa_max_total_num_tokens=6))  # as large as the mapping
    assert (ours.size_full, ours.full_available_size(), ours.swa_available_size()) == (8, 8, 6)


def test_a_ring_of_each_row_is_refused() -> None:
    with pytest.raises(ValueError, match="ring"):
        pair(cache=SimpleNamespace(swa_req_ring_size=4))
    ours = pair(cache=SimpleNamespace(swa_req_ring_size=None))
    assert (ours.swa_req_ring, ours.swa_ring_cost_tokens) == (False, 0)


def test_slots_are_moved_to_another_machine_by_their_own_number() -> None:
    ours = pair()
    slots = ours.alloc(4)
    assert slots is not None
    assert ours.translate_kv_indices_for_transfer(slots) is slots
    assert ours.translate_swa_indices_for_transfer(slots).tolist() == ours.full_to_swa_index_mapping[slots].tolist()


def test_a_mapping_is_cleared_and_nothing_freed() -> None:
    ours = pair()
    slots = ours.alloc(4)
    assert slots is not None
    state = ours.backup_state()
    ours.clear_full_to_swa_mapping(slots[:0])
    ours.restore_state(state)
    ours.clear_full_to_swa_mapping(slots[:2])
    assert (ours.full_to_swa_index_mapping[slots] > 0).tolist() == [False, False, True, True]
    assert (ours.full_available_size(), ours.swa_available_size()) == (4, 4)
    with pytest.raises(RuntimeError):
        ours.restore_state(state)
    for wrong in ([0], [10], [2, 2]):
        with pytest.raises(ValueError, match="full_indices"):
            ours.clear_full_to_swa_mapping(torch.tensor(wrong))


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_that_engines_use(kind: Callable[..., Any]) -> None:
    ours = kind()
    ours.alloc(2)
    assert ours.debug_mode is ours.debug is False
    pages = ours.get_all_free_pages()
    assert pages is None if kind is pair else pages.numel() * ours.page_size == ours.available_size()


def test_state_slots_that_a_subclass_sets() -> None:
    ours = MambaSlotAllocator(4)
    taken, ours.free_slots = ours.free_slots[:2].clone(), ours.free_slots[2:]
    assert (ours.available_size(), ours.schedulable_available_size()) == (2, 2)
    ours.free(taken)
    assert sorted(ours.free_slots.tolist()) == [1, 2, 3, 4]
    for wrong in ([1, 1], [5], [0], [1, 2, 3, 4, 1]):
        with pytest.raises(ValueError, match="free_slots"):
            ours.free_slots = torch.tensor(wrong)
    ours.alloc_group_begin(2)
    aside = ours.group_slots.tolist()
    with pytest.raises(ValueError, match="twice"):
        ours.free_slots = torch.tensor(aside[:1])
    ours.free_slots = torch.tensor([slot for slot in (1, 2, 3, 4) if slot not in aside])
    ours.alloc_group_end()
    assert sorted(ours.free_slots.tolist()) == [1, 2, 3, 4]
