"""Row numbers, lengths and session names that a caller passes as host data, and their way to the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from impl import checks

Numbers = Sequence[int] | Tensor  # a tensor must be on the host: the values are read


def numbers(name: str, values: Any, count: int | None = None) -> Tensor:
    """``[n]`` int64 on the host, from a host tensor or a sequence of ints; exactly ``count`` of them, if given.

    TypeError for what is not an integer, ValueError for another shape or device.
    """
    if not isinstance(values, Tensor):
        values = torch.tensor(values) if len(values) else torch.zeros(0, dtype=torch.int64)
    found: Tensor = values
    checks.int_tensor(name, found, checks.HOST, count)
    return found if found.dtype == torch.int64 else found.to(torch.int64)


def names(name: str, values: Sequence[Hashable]) -> list[Hashable]:
    """A list of different session names; None (no session) may be there several times."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of sessions, got one string")
    found = [value for value in values if value is not None]
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must be different sessions, got {found}")
    return list(values)


def require(valid: Tensor, name: str, expected: Callable[[int], str], found: Tensor) -> None:
    """ValueError for the first entry of ``found`` (``[n]``) that is not ``valid`` (``[n]`` bool on the host)."""
    flags = valid.tolist()
    if not all(flags):
        at = flags.index(False)
        raise ValueError(f"{name}[{at}]: {expected(at)}, got {int(found[at])}")


def upload(host: Tensor, device: torch.device) -> Tensor:
    """The host tensor on ``device``. On CUDA through pinned memory, so that the host does not wait for the copy."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def row_pages(slots: Tensor, row_lens: Sequence[int], page_size: int) -> Tensor:
    """The pages of rows that each begin on a page boundary: every ``page_size``-th slot. Reads nothing on the host."""
    if page_size == 1:
        return slots.to(torch.int64, copy=True)  # the pages may wait in a free group: not the caller's memory
    if len(row_lens) == 1:
        return slots[::page_size].to(torch.int64) // page_size
    heads = row_heads(row_lens, page_size)
    return slots.index_select(0, upload(heads, slots.device)).to(torch.int64) // page_size


def row_heads(row_lens: Sequence[int], page_size: int) -> Tensor:
    """``[pages]`` int64 on the host: where the first slot of each page stands among the slots of rows that each begin
    on a page boundary and have so many slots, row after row.
    """
    lens = torch.tensor(row_lens, dtype=torch.int64)
    pages = (lens + page_size - 1) // page_size
    count = sum(pages.tolist())
    # Page k of the batch begins at slot k * page_size, less what the last pages of the rows before it lack.
    lack = (pages * page_size - lens).cumsum(0).sub_(pages * page_size - lens)
    return torch.arange(count) * page_size - torch.repeat_interleave(lack, pages, output_size=count)
