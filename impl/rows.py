"""The table of token slots of request rows (``req_to_token``), and the phases of a row.

The slots lie on the device. Row numbers and lengths are known on the host, so reading and writing slots never waits: no
call here makes the host wait for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.host import Numbers, StreamOrder, upload

__all__ = ["IDLE", "LEAVING", "PHASES", "RUNNING", "SAVED", "Numbers", "TokenSlots"]

# The phases of a row. IDLE: nobody has it. RUNNING: a request runs on it. SAVED: it is in its session's slot, between
# two turns. LEAVING: its request has ended and reads nothing any more; ``release`` is next.
IDLE, RUNNING, SAVED, LEAVING = range(4)
PHASES = ("idle", "running", "saved", "leaving")


class TokenSlots:
    """The full slot of each token of each row.

    ``table``: ``[rows, max_tokens]`` int32 on the device, SGLang's ``req_to_token``. What lies beyond a row's allocated
    length is left from earlier and means nothing. Whoever reads it on another CUDA stream than the calls that write it
    puts the streams in order.

    ``rows`` and lengths of the methods: ``[n]`` int64 on the host.
    """

    def __init__(self, rows: int, max_tokens: int, device: torch.device) -> None:
        self.table = torch.zeros((rows, max_tokens), dtype=torch.int32, device=device)
        self.max_tokens, self.device, self._order = max_tokens, device, StreamOrder(device)

    @property
    def flat(self) -> Tensor:
        """The table as ``[rows * max_tokens]``, a view."""
        self._order.follow(lambda: [self.table])
        return self.table.view(-1)

    def places(self, rows: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """``[sum(stop - start)]`` int64 on the device: where in ``flat`` the tokens ``start..stop`` stand, by row."""
        if len(rows) == 1:
            ((row, first, last),) = zip(rows.tolist(), start.tolist(), stop.tolist(), strict=True)
            base = row * self.max_tokens
            return torch.arange(base + first, base + last, device=self.device)
        lens = stop - start
        firsts = rows * self.max_tokens + start
        total = sum(lens.tolist())
        shift, counts = upload(torch.stack([firsts - lens.cumsum(0) + lens, lens]), self.device)
        return torch.arange(total, device=self.device) + torch.repeat_interleave(shift, counts, output_size=total)

    def heads(self, rows: Tensor, start: Tensor, stop: Tensor, page_size: int) -> Tensor:
        """``[pages]`` int64 on the host: where in ``flat`` the first token of each page of ``start..stop`` stands, by
        row. Each ``start`` is whole pages.
        """
        pages = (stop - start + page_size - 1) // page_size
        count = sum(pages.tolist())
        shift = rows * self.max_tokens + start - (pages.cumsum(0) - pages) * page_size
        return torch.arange(count) * page_size + torch.repeat_interleave(shift, pages, output_size=count)

    def read(self, rows: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """``[sum(stop - start)]`` int64: a copy of the slots of the tokens ``start..stop``, row after row."""
        if len(rows) == 1:
            ((row, first, last),) = zip(rows.tolist(), start.tolist(), stop.tolist(), strict=True)
            base = row * self.max_tokens
            return self.flat[base + first : base + last].to(torch.int64)
        return self.flat[self.places(rows, start, stop)].to(torch.int64)

    def before(self, places: Tensor, lengths: Tensor) -> Tensor:
        """``[n]`` int64: the slot just before each place, -1 for a row of length 0. All ``[n]`` on the device."""
        # Place 0 has none before it; there the index -1 reads some entry, which is not used, since the length is 0.
        slots = self.flat[places - 1].to(torch.int64)
        return torch.where(lengths > 0, slots, -1)

    def write(self, places: Tensor, slots: Tensor) -> None:
        """Store ``slots`` (``[n]`` integers) at ``places`` (``[n]``, both on the device)."""
        self.flat[places] = slots.to(self.table.dtype)
