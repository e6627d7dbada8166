"""A pool of mamba state slots.

A *slot* holds one recurrent state. Slot 0 is padding and never handed out. The free slots lie on the device; how many
there are the host knows, so that no call waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl import checks


class MambaSlotAllocator:
    """Slots ``1..size``. The free ones are ``_stack[_top:]``; those of open groups are ``group_slots``.

    Content is checked on CPU, and everywhere with ``debug``; every error is raised before anything changes.
    """

    def __init__(self, size: int, device: str | torch.device = "cpu", *, debug: bool = False) -> None:
        self.size, self.device = checks.whole("size", size, 1), torch.device(device)
        self._looks = debug or self.device.type == "cpu"
        self.clear()

    @property
    def free_slots(self) -> Tensor:
        """``[n]`` int64, next to be handed out first. A view: clone it to keep it."""
        return self._stack[self._top :]

    def available_size(self) -> int:
        """How many slots are free; those that are set aside are not."""
        return self.size - self._top

    def clear(self) -> None:
        """Every slot free, every group forgotten."""
        self._stack = torch.arange(1, self.size + 1, dtype=torch.int64, device=self.device)
        self._top, self._depth = 0, 0
        self.group_slots = self._stack[:0]
        self.held = torch.zeros(self.size + 1 if self._looks else 0, dtype=torch.bool, device=self.device)

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Set ``num_reqs`` slots aside, none where there are too few. Groups nest; none forgets another's slots."""
        count = checks.whole("num_reqs", num_reqs, 0)
        aside = self.free_slots[: count if count <= self.available_size() else 0]
        self.group_slots = torch.cat([self.group_slots, aside])
        self._top += aside.numel()
        self._depth += 1

    def alloc_group_end(self) -> None:
        """End a group; the end of the outermost one gives back what nobody asked for. RuntimeError without a begin."""
        if self._depth == 0:
            raise RuntimeError("alloc_group_end without alloc_group_begin")
        self._depth -= 1
        if self._depth == 0:
            self._put(self.group_slots)
            self.group_slots = self._stack[:0]

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 slots, those set aside first, or None if there are too few."""
        need = checks.whole("need_size", need_size, 0)
        aside = min(need, self.group_slots.numel())
        if need - aside > self.available_size():
            return None
        chosen = torch.cat([self.group_slots[:aside], self.free_slots[: need - aside]])
        self.group_slots = self.group_slots[aside:]
        self._top += need - aside
        self._mark(chosen, held=True)
        return chosen

    def free(self, free_index: Tensor) -> None:
        """Give back distinct slots that were handed out. ValueError for any other."""
        checks.index("free_index", free_index, self.device)
        if free_index.numel() == 0:
            return
        slots = free_index.to(torch.int64)
        if self._looks:
            checks.held_pages("free_index", slots, self.held, 1)
        if slots.numel() > self._top - self.group_slots.numel():
            raise RuntimeError("more slots given back than were handed out")
        self._mark(slots, held=False)
        self._put(slots)

    def _put(self, slots: Tensor) -> None:
        self._top -= slots.numel()
        self._stack[self._top : self._top + slots.numel()] = slots

    def _mark(self, slots: Tensor, *, held: bool) -> None:
        if self._looks:
            self.held.index_fill_(0, slots, held)
