"""A pool of slots for recurrent (mamba) states.

A *slot* holds one recurrent state. Slot 0 is padding and is never handed out. The free slots lie on the device; how
many there are is known on the host, so no call waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl import checks
from impl.host import StreamOrder


class MambaSlotAllocator:
    """The slots ``1..size``. The free ones are ``_stack[_top:]``; ``group_slots`` are set aside for open groups.

    ``held``: ``[size + 1]`` bool, which slots are handed out (empty where content is not checked). Content is checked
    on CPU, and with ``debug`` also on CUDA. Every error is raised before anything changes.
    """

    held: Tensor
    group_slots: Tensor
    _stack: Tensor
    _top: int

    def __init__(self, size: int, device: str | torch.device = "cpu", *, debug: bool = False) -> None:
        self.size, self.device = checks.integer("size", size, 1), torch.device(device)
        self._check_content = debug or self.device.type == "cpu"
        self._order = StreamOrder(self.device)
        self.clear()

    @property
    def free_slots(self) -> Tensor:
        """``[n]`` int64; the first is handed out next. A view: clone it to keep it.

        A subclass may set it: slots that are no longer in it count as handed out. ValueError, with nothing changed, for
        more slots than the pool has, and (on CPU, or with ``debug``) for slots out of range, there twice, or set aside.
        """
        return self._stack[self._top :]

    @free_slots.setter
    def free_slots(self, slots: Tensor) -> None:
        checks.int_tensor("free_slots", slots, self.device)
        lists = [slots.to(torch.int64), self.group_slots]
        count = sum(given.numel() for given in lists)
        if count > self.size:
            raise ValueError(f"free_slots: more slots ({count}) than the pool has ({self.size})")
        if self._check_content and count:
            checks.sorted_slots("free_slots", torch.cat(lists), 1, self.size)
        self._in_order()
        self._top = self.size - slots.numel()
        self._stack = torch.cat([lists[0].new_zeros(self._top), lists[0]])
        if self._check_content:
            self.held.fill_(True)[0] = False
            self._mark(torch.cat(lists), held=False)

    def schedulable_available_size(self) -> int:
        """How many slots a scheduler may plan with: ``available_size``."""
        return self.available_size()

    def available_size(self) -> int:
        """How many slots are free. Those that are set aside for a group are not counted."""
        return self.size - self._top

    def _in_order(self) -> None:
        """A call begins that reads or writes the free list on the current stream."""
        self._order.follow(lambda: [self._stack, self.group_slots, self.held])

    def clear(self) -> None:
        """Make every slot free and forget every group."""
        self._in_order()
        self._stack = torch.arange(1, self.size + 1, dtype=torch.int64, device=self.device)
        self._top, self._depth = 0, 0
        self.group_slots = self._stack[:0]
        self.held = torch.zeros(self.size + 1 if self._check_content else 0, dtype=torch.bool, device=self.device)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Set ``num_reqs`` slots aside for the next ``alloc`` calls, or none if there are too few.

        Groups nest: the slots that an outer group has set aside stay in ``group_slots``.
        """
        count = checks.integer("num_reqs", num_reqs, 0)
        self._in_order()
        aside = self.free_slots[: count if count <= self.available_size() else 0]
        self.group_slots = torch.cat([self.group_slots, aside])
        self._top += aside.numel()
        self._depth += 1

    def alloc_group_end(self) -> None:
        """End a group; the end of the outermost one frees the slots that nobody asked for.

        RuntimeError if no group is open.
        """
        if self._depth == 0:
            raise RuntimeError("alloc_group_end without alloc_group_begin")
        self._depth -= 1
        if self._depth == 0:
            self.put(self.group_slots)
            self.group_slots = self._stack[:0]

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 slots, those that are set aside first. None, with nothing changed, if too few."""
        need = checks.integer("need_size", need_size, 0)
        aside = min(need, self.group_slots.numel())
        if need - aside > self.available_size():
            return None
        self._in_order()
        chosen = torch.cat([self.group_slots[:aside], self.free_slots[: need - aside]])
        self.group_slots = self.group_slots[aside:]
        self._top += need - aside
        self._mark(chosen, held=True)
        return chosen

    def free(self, free_index: Tensor) -> None:
        """Give back slots (``[n]`` integers on the device, all different) that were handed out.

        ValueError for any other slot, where content is checked; RuntimeError for more slots than are handed out.
        """
        checks.int_tensor("free_index", free_index, self.device)
        if free_index.numel() == 0:
            return
        slots = free_index.to(torch.int64)
        if self._check_content:
            checks.held_pages("free_index", slots, self.held, 1)
        if slots.numel() > self._top - self.group_slots.numel():
            raise RuntimeError("free_index: more slots given back than were handed out")
        self._mark(slots, held=False)
        self.put(slots)

    def put(self, slots: Tensor) -> None:
        """Add ``slots`` (``[n]`` int64) to the free ones, unchecked."""
        self._in_order()
        self._top -= slots.numel()
        self._stack[self._top : self._top + slots.numel()] = slots

    def _mark(self, slots: Tensor, *, held: bool) -> None:
        if self._check_content:
            self.held.index_fill_(0, slots, held)
