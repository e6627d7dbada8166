"""Bugs that are planted into a release of SGLang while its server is recorded. Written down before the first run.

Each is a function of the release's classes (``Classes``) and of ``happens``, which the planted code asks each time
whether the bug happens now; the first time it does is the event that the judge must name. It returns class, name of the
method, and the method that takes its place. ``PLANTS`` has the load of each, and the engine's function after which it
must be named. With an empty name that is the event in which it happens, or the first one after it with which a batch is
put together: nothing is judged before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Happens = Callable[[], bool]


class Classes(NamedTuple):
    """The classes of a release that are edited."""

    tree: Any
    paged: Any
    rows: Any
    batch: Any
    swa: Any


Planted = tuple[Any, str, Any]
ServerPlant = Callable[[Classes, Happens], Planted]
MANY: dict[str, Any] = {"pages": 96, "requests": 5, "stems": 3}
SHORT: dict[str, Any] = {"pages": 24, "requests": 3}  # requests wait, and evict each other's prefixes


def cat(pool: Any, pages: Any) -> None:
    """These pages are free now, too."""
    pool.free_pages = pool.free_pages.new_tensor([*pages.tolist(), *pool.free_pages.tolist()])


def page_of_ended_request_stays(classes: Classes, happens: Happens) -> Planted:
    """A request that ends keeps its last page."""
    free = classes.tree.free_kv_row

    def free_kv_row(self: Any, kv: Any, ranges: Any) -> None:
        (start, end) = ranges[0]
        if end > start and happens():
            return
        free(self, kv, ranges)

    return classes.tree, "free_kv_row", free_kv_row


def page_is_freed_twice(classes: Classes, happens: Happens) -> Planted:
    """A page is on the free list twice."""
    release = classes.paged._release_page_ids

    def _release_page_ids(self: Any, *page_ids: Any) -> None:
        release(self, *page_ids)
        if happens():
            cat(self, page_ids[0][:1])

    return classes.paged, "_release_page_ids", _release_page_ids


def held_page_is_handed_out(classes: Classes, happens: Happens) -> Planted:
    """A request that decodes gets the page of another one in the place of a new page."""
    alloc = classes.paged.alloc_decode

    def alloc_decode(self: Any, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any) -> Any:
        slots, size = alloc(self, seq_lens, seq_lens_cpu, last_loc), self.page_size
        lengths = seq_lens_cpu.tolist()
        new = [at for at, length in enumerate(lengths) if (length - 1) % size == 0]
        if slots is not None and len(lengths) > 1 and new and happens():
            slots[new[0]] = last_loc[new[0] - 1] // size * size
        return slots

    return classes.paged, "alloc_decode", alloc_decode


def row_is_not_given_back(classes: Classes, happens: Happens) -> Planted:
    """A request that leaves does not give its row back."""
    free = classes.rows.free_rows

    def free_rows(self: Any, indices: Any) -> None:
        free(self, indices)
        if happens():
            self.free_slots.pop()

    return classes.rows, "free_rows", free_rows


def row_in_use_is_free(classes: Classes, happens: Happens) -> Planted:
    """A row that a request gets stays on the list of free rows."""
    alloc = classes.rows.alloc_rows

    def alloc_rows(self: Any, need_size: int) -> Any:
        found = alloc(self, need_size)
        if found and happens():
            self.free_slots.append(found[0])
        return found

    return classes.rows, "alloc_rows", alloc_rows


def row_names_another_slot(classes: Classes, happens: Happens) -> Planted:
    """The table of rows has another page for a new token than the request was given."""
    writes = classes.rows.write

    def write(self: Any, indices: Any, values: Any) -> None:
        if not isinstance(indices[1], slice) and values.numel() and happens():
            values = values.clone()
            values[0] = 3
        writes(self, indices, values)

    return classes.rows, "write", write


def lock_is_not_given_back(classes: Classes, happens: Happens) -> Planted:
    """A request that leaves keeps its lock on the tree."""
    unlocks = classes.tree.unlock

    def unlock(self: Any, lock: Any) -> None:
        if lock is not None and not self.is_root(lock.node) and happens():
            return
        unlocks(self, lock)

    return classes.tree, "unlock", unlock


def lock_is_given_back_twice(classes: Classes, happens: Happens) -> Planted:
    """A request gives back its lock on a node that another one holds, too, and once more."""
    unlocks = classes.tree.unlock

    def unlock(self: Any, lock: Any) -> None:
        unlocks(self, lock)
        if lock is None or self.is_root(lock.node):
            return
        if self.tree_core.node_by_id(lock.node).component_data[0].lock_ref > 0 and happens():
            unlocks(self, lock)

    return classes.tree, "unlock", unlock


def lock_does_not_last(classes: Classes, happens: Happens) -> Planted:
    """A lock that a request takes is given back at once."""
    locks = classes.tree.lock

    def lock(self: Any, node_id: Any, *args: Any, **kwargs: Any) -> Any:
        found = locks(self, node_id, *args, **kwargs)
        if found is not None and not self.is_root(node_id) and happens():
            self.dec_lock_ref(node_id, found.receipt)
        return found

    return classes.tree, "lock", lock


def locked_node_is_evicted(classes: Classes, happens: Happens) -> Planted:
    """The tree makes room with a leaf that a request holds: the leaf is gone, and its pages are free."""
    evict = classes.tree._evict

    def _evict(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = evict(self, *args, **kwargs)
        locked = [
            node
            for node in self.tree_core._node_arena.values()
            if node.parent is not None and node.component_data[0].lock_ref and not node.children
        ]
        if locked and happens():
            node = locked[0]
            del node.parent.children[node.key.child_key(self.page_size)]
            self.token_to_kv_pool_allocator.free(node.component_data[0].value)
        return found

    return classes.tree, "_evict", _evict


def locked_page_is_freed(classes: Classes, happens: Happens) -> Planted:
    """The tree makes room with the pages of a node that a request holds, and keeps the node."""
    evict = classes.tree._evict

    def _evict(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = evict(self, *args, **kwargs)
        nodes = self.tree_core._node_arena.values()
        locked = [node for node in nodes if node.parent is not None and node.component_data[0].lock_ref]
        if locked and happens():
            self.token_to_kv_pool_allocator.free(locked[0].component_data[0].value[: self.page_size])
        return found

    return classes.tree, "_evict", _evict


def evicted_pages_are_lost(classes: Classes, happens: Happens) -> Planted:
    """A leaf that is evicted does not give its pages back."""
    frees = classes.tree._free_values

    def _free_values(self: Any, device_frees: Any, host_frees: Any) -> None:
        if any(device_frees.values()) and happens():
            device_frees = {part: [] for part in device_frees}
        frees(self, device_frees, host_frees)

    return classes.tree, "_free_values", _free_values


def size_is_counted_wrong(classes: Classes, happens: Happens) -> Planted:
    """After a prompt was put into the tree, the tree counts a page too many as evictable."""
    checkpoints = classes.tree.checkpoint_into_tree

    def checkpoint_into_tree(self: Any, req: Any, *args: Any, **kwargs: Any) -> None:
        checkpoints(self, req, *args, **kwargs)
        if happens():
            self.tree_core.component_evictable_size_[self.tree_components[0]] += self.page_size

    return classes.tree, "checkpoint_into_tree", checkpoint_into_tree


def checkpoint_leaves_old_slots(classes: Classes, happens: Happens) -> Planted:
    """A prompt is put into the tree, which has a part of it: the row goes on with the duplicates, which were freed."""
    writes = classes.rows.write

    def write(self: Any, indices: Any, values: Any) -> None:
        row, places = indices
        if isinstance(places, slice) and not isinstance(row, slice) and values.numel():
            now = self.req_to_token[indices]
            if now.shape == values.shape and not now.eq(values).all() and now.all() and happens():
                return
        writes(self, indices, values)

    return classes.rows, "write", write


def pass_writes_another_slot(classes: Classes, happens: Happens) -> Planted:
    """A pass is told to write the KV cache of a token to a slot that its row does not have there."""
    prepares = classes.batch.prepare_for_decode

    def prepare_for_decode(self: Any) -> None:
        prepares(self)
        if happens():
            self.out_cache_loc = self.out_cache_loc.clone()
            self.out_cache_loc[0] = 5

    return classes.batch, "prepare_for_decode", prepare_for_decode


def window_keeps_its_mapping(classes: Classes, happens: Happens) -> Planted:
    """The window moves on: its SWA pages are given back, and the full slots stay mapped to them."""
    evicts = classes.tree.evict_sliding_windows

    def evict_sliding_windows(self: Any, *args: Any, **kwargs: Any) -> None:
        allocator = self.token_to_kv_pool_allocator
        clears = allocator.clear_full_to_swa_mapping

        def clear_full_to_swa_mapping(full_indices: Any) -> None:
            if full_indices.numel() and not happens():
                clears(full_indices)

        vars(allocator)["clear_full_to_swa_mapping"] = clear_full_to_swa_mapping
        try:
            evicts(self, *args, **kwargs)
        finally:
            del vars(allocator)["clear_full_to_swa_mapping"]

    return classes.tree, "evict_sliding_windows", evict_sliding_windows


def page_of_window_is_freed_twice(classes: Classes, happens: Happens) -> Planted:
    """An SWA page is on its free list twice."""
    frees = classes.swa._free_swa_pages

    def _free_swa_pages(self: Any, free_index: Any, start_pos: int) -> None:
        frees(self, free_index, start_pos)
        if happens():
            cat(self.swa_attn_allocator, self.swa_attn_allocator.free_pages[:1])

    return classes.swa, "_free_swa_pages", _free_swa_pages


def window_moves_too_far(classes: Classes, happens: Happens) -> Planted:
    """A request that decodes gives back SWA pages that its next tokens read."""
    evicts = classes.batch._evict_swa

    def _evict_swa(self: Any, req: Any, pre_len: int, **kwargs: Any) -> None:
        size = self.tree_cache.page_size
        evicts(self, req, pre_len + 2 * size if req.output_ids and happens() else pre_len, **kwargs)

    return classes.batch, "_evict_swa", _evict_swa


WINDOWS: dict[str, Any] = MANY | {"model": "windowed", "environment": {"SWA_EVICTION_INTERVAL": "1"}}
PLANTS: dict[ServerPlant, tuple[dict[str, Any], str]] = {
    page_of_ended_request_stays: (MANY, "free_group_end"),  # what is freed until then is free at its end
    page_is_freed_twice: (MANY, ""),
    held_page_is_handed_out: (MANY, ""),
    row_is_not_given_back: (MANY, ""),
    row_in_use_is_free: (MANY, ""),
    row_names_another_slot: (MANY, ""),
    lock_is_not_given_back: (MANY, ""),
    lock_is_given_back_twice: (MANY, ""),
    lock_does_not_last: (MANY, ""),
    locked_node_is_evicted: (SHORT, ""),
    locked_page_is_freed: (SHORT, ""),
    evicted_pages_are_lost: (SHORT | {"pages": 40}, ""),
    size_is_counted_wrong: (MANY, ""),
    checkpoint_leaves_old_slots: (MANY | {"overlap": False}, ""),
    pass_writes_another_slot: (MANY, "forward_batch_generation"),
    window_keeps_its_mapping: (WINDOWS, ""),
    page_of_window_is_freed_twice: (WINDOWS, ""),
    window_moves_too_far: (WINDOWS, ""),
}
