"""Checks of what a caller passes in, and the page counts that follow from the lengths.

Every function here raises before anything has changed. Lengths are read from host tensors only. The functions that read
device tensors (on CUDA the host waits for that) are called on CPU, or if the user asked for it with ``debug=True``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

HOST = torch.device("cpu")

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def integer(name: str, value: int, least: int) -> int:
    """``value``, an integer of at least ``least``. TypeError for anything else, ValueError for a smaller one.

    post: __return__ == value >= least
    raises: ValueError
    """
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def pool_sizes(size_name: str, size: int, page_size: int) -> int:
    """The pages in a pool of ``size`` tokens, 0 for a pool that holds nothing. ValueError for part of one page.

    post: page_size >= 1 and __return__ * page_size <= size < (__return__ + 1) * page_size
    post: (__return__ == 0) == (size == 0)
    raises: ValueError
    """
    integer("page_size", page_size, 1)
    integer(size_name, size, 0)
    if 0 < size < page_size:
        raise ValueError(f"{size_name} must be 0 or hold at least one page of {page_size} tokens, got {size}")
    return size // page_size


def page_multiple(name: str, tokens: int, page_size: int) -> int:
    """The pages in ``tokens``. ValueError unless that is a non-negative multiple of the page size.

    pre: page_size >= 1
    post: __return__ * page_size == tokens >= 0
    raises: ValueError
    """
    integer(name, tokens, 0)
    if tokens % page_size:
        raise ValueError(f"{name} must be a multiple of the page size {page_size}, got {tokens}")
    return tokens // page_size


def int_tensor(name: str, value: Tensor, device: torch.device, length: int | None = None) -> None:
    """``value`` must be a one-dimensional integer tensor on ``device``, with ``length`` entries if that is given."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in _INTEGERS:
        raise TypeError(f"{name} must hold integers, got {value.dtype}")
    if value.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(value.shape)}")
    if value.device != device and not same_device(value.device, device):
        raise ValueError(f"{name} must be on {device}, got {value.device}")
    if length is not None and value.numel() != length:
        raise ValueError(f"{name} must have {length} entries (one for each row), got {value.numel()}")


def same_device(found: torch.device, wanted: torch.device) -> bool:
    """Both name one device; ``cuda`` without an index stands for any of the CUDA devices."""
    return found.type == wanted.type and (wanted.index is None or found.index in (None, wanted.index))


def part(name: str, **fields: tuple[object, object]) -> None:
    """A part given to a constructor must fit. ``fields``: what the part has and what it must have, by attribute."""
    for field, (found, expected) in fields.items():
        if found != expected:
            raise ValueError(f"{name} must have {field} {expected}, got {found}")


class Rows(NamedTuple):
    """The rows of one allocation: lengths on the device and on the host, and the slot of each row's last token.

    ``prefix`` and ``prefix_cpu`` (the lengths before the allocation) are None for a decode step: it adds one token.
    """

    seq: Tensor
    seq_cpu: Tensor
    last_loc: Tensor
    prefix: Tensor | None = None
    prefix_cpu: Tensor | None = None

    def check(self, device: torch.device, *, content: bool) -> None:
        """The device tensors have one entry for each row; with ``content`` they must also equal the host's lengths."""
        rows = self.seq_cpu.numel()
        for name, value in (("seq_lens", self.seq), ("last_loc", self.last_loc), ("prefix_lens", self.prefix)):
            if value is not None:
                int_tensor(name, value, device, rows)
        if content:
            same_lengths("seq_lens", self.seq, self.seq_cpu)
            if self.prefix is not None and self.prefix_cpu is not None:
                same_lengths("prefix_lens", self.prefix, self.prefix_cpu)

    def before(self) -> Tensor:
        """``[rows]``: the lengths before the allocation."""
        return self.seq - 1 if self.prefix is None else self.prefix

    def fills(self, page_size: int) -> Tensor:
        """``[rows]`` bool: the row's new tokens begin in the partly filled page of ``last_loc``."""
        return (self.before() % page_size != 0) & (self.seq > self.before())


class Plan(NamedTuple):
    """What one allocation needs, counted on the host: tokens, pages, and the new tokens of the longest row."""

    tokens: int
    pages: int
    longest: int


def pages_between(prefix: int, seq: int, page_size: int) -> int:
    """The new pages of a row that grows from ``prefix`` to ``seq`` tokens.

    pre: 0 <= prefix <= seq and page_size >= 1
    post: __return__ >= 0
    post: -(-prefix // page_size) + __return__ == -(-seq // page_size)
    """
    return prefix // -page_size - seq // -page_size


def extend_plan(rows: Rows, tokens: int, new_pages: int | None, page_size: int) -> Plan:
    """Check the host lengths of an extend and count the tokens and pages that it needs."""
    prefix_cpu = rows.seq_cpu if rows.prefix_cpu is None else rows.prefix_cpu
    int_tensor("prefix_lens_cpu", prefix_cpu, HOST)
    int_tensor("seq_lens_cpu", rows.seq_cpu, HOST, prefix_cpu.numel())
    lens = list(zip(prefix_cpu.tolist(), rows.seq_cpu.tolist(), strict=True))
    for row, (prefix, seq) in enumerate(lens):
        if not 0 <= prefix <= seq:
            raise ValueError(
                f"prefix_lens_cpu[{row}], seq_lens_cpu[{row}]: expected 0 <= prefix <= seq, got {prefix} and {seq}"
            )
    integer("extend_num_tokens", tokens, 0)
    extended = sum(seq - prefix for prefix, seq in lens)
    if extended != tokens:
        raise ValueError(f"extend_num_tokens must be sum(seq - prefix) = {extended}, got {tokens}")
    pages = sum(pages_between(prefix, seq, page_size) for prefix, seq in lens)
    if new_pages is not None and new_pages != pages:
        raise ValueError(f"num_new_pages must be {pages} for these lengths, got {new_pages}")
    return Plan(tokens, pages, max((seq - prefix for prefix, seq in lens), default=0))


def decode_plan(rows: Rows, page_size: int) -> Plan:
    """Check the host lengths of a decode step (which count the new token) and count the pages that it needs."""
    int_tensor("seq_lens_cpu", rows.seq_cpu, HOST)
    lens = rows.seq_cpu.tolist()
    if lens and min(lens) < 1:
        raise ValueError(f"seq_lens_cpu must count the new token, so be at least 1, got {min(lens)}")
    pages = sum((seq - 1) % page_size == 0 for seq in lens)
    return Plan(len(lens), pages, 1)


def tail_start(rows: Rows, tokens: int, tail: int, page_size: int) -> int:
    """How many new tokens come before the SWA tail. ValueError unless there is one row, its prefix in whole pages."""
    integer("swa_tail_len", tail, 0)
    prefixes = [] if rows.prefix_cpu is None else rows.prefix_cpu.tolist()
    if len(prefixes) != 1:
        raise ValueError(f"prefix_lens: alloc_extend_swa_tail takes one row, got {len(prefixes)}")
    if prefixes[0] % page_size:
        raise ValueError(f"prefix_lens: expected a prefix of whole pages of {page_size}, got {prefixes[0]}")
    if tail > tokens:
        raise ValueError(f"swa_tail_len must be at most extend_num_tokens = {tokens}, got {tail}")
    return tokens - tail


def row_lengths(row_lens: Sequence[int] | None, swa_lens: Sequence[int] | None, tokens: int) -> None:
    """``row_lens`` must sum to ``tokens``; ``swa_lens[i]`` must be a length in ``0..row_lens[i]``."""
    if row_lens is None:
        if swa_lens is not None:
            raise ValueError("swa_lens needs row_lens")
        return
    if any(n < 0 for n in row_lens) or sum(row_lens) != tokens:
        raise ValueError(f"row_lens must be lengths that sum to len(free_index) = {tokens}, got {row_lens}")
    if swa_lens is None:
        return
    if len(swa_lens) != len(row_lens) or any(not 0 <= s <= n for s, n in zip(swa_lens, row_lens, strict=True)):
        raise ValueError(
            f"swa_lens must have one length in 0..row_lens[i] for each row, got {swa_lens} for row_lens {row_lens}"
        )


def same_lengths(name: str, device_lens: Tensor, host_lens: Tensor) -> None:
    """The device copy of the lengths must equal the host copy: the kernels index by it."""
    if device_lens is not host_lens and device_lens.tolist() != host_lens.tolist():
        raise ValueError(f"{name} and {name}_cpu must hold the same lengths")


# Slots, on the device.


def sorted_slots(name: str, slots: Tensor, page_size: int, pages: int) -> Tensor:
    """``[n]`` int64: ``slots`` in ascending order.

    ValueError for a slot that is there twice, on the padding page, or beyond page ``pages``.
    """
    ordered = slots.to(torch.int64)
    if not bool((ordered[1:] > ordered[:-1]).all()):  # the slots of a row usually ascend: then nothing is sorted
        ordered = ordered.sort().values
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise ValueError(f"{name} must not hold a slot twice")
    low, high = int(ordered[0]), int(ordered[-1])
    if low < page_size or high >= (pages + 1) * page_size:
        last = (pages + 1) * page_size - 1
        raise ValueError(f"{name} must hold slots in {page_size}..{last} (page 0 is padding), got {low}..{high}")
    return ordered


def distinct(ordered: Tensor) -> Tensor:
    """The different values of a sorted tensor."""
    values: Tensor = torch.unique_consecutive(ordered)
    return values


def whole_pages(name: str, ordered: Tensor, page_size: int) -> Tensor:
    """The pages of sorted, different slots. ValueError for a page whose first slot is missing."""
    if page_size == 1:
        return ordered.clone()  # the pages may wait in a free group: they must not be the caller's memory
    heads = ordered[ordered % page_size == 0]
    touched = distinct(ordered // page_size)
    if len(heads) != len(touched):
        page = int(touched[~torch.isin(touched, heads // page_size)][0])
        raise ValueError(f"{name} starts inside page {page}: freeing it takes the page from under a live slot")
    return touched


def all_held(name: str, pages: Tensor, held: Tensor) -> None:
    """Each page must be handed out: not free, and not waiting in a free group. ``held``: ``[pages + 1]`` bool."""
    low, high = (int(bound) for bound in torch.aminmax(pages))
    if low < 1 or high >= len(held):
        raise ValueError(f"{name} must lie in pages 1..{len(held) - 1}, got {low}..{high}")
    of_pages = held[pages]
    if not bool(of_pages.all()):
        raise ValueError(f"{name}: page {int(pages[~of_pages][0])} is free already")


def held_pages(name: str, slots: Tensor, held: Tensor, page_size: int) -> Tensor:
    """The different pages of ``slots``: each handed out, and with its first slot among ``slots``."""
    pages = whole_pages(name, sorted_slots(name, slots, page_size, held.numel() - 1), page_size)
    all_held(name, pages, held)
    return pages


def last_slots(rows: Rows, held: Tensor, page_size: int) -> None:
    """``last_loc`` must hold the slot of the token before the new ones.

    That slot has the token's offset in its page. The page is handed out, if the new tokens begin in it; the full pages
    before may have been given back.
    """
    if not bool(((rows.last_loc + 1) % page_size == rows.before() % page_size).all()):
        raise ValueError("last_loc must have the offset of token prefix - 1 in its page: (last_loc + 1) % page_size")
    filling = rows.last_loc[rows.fills(page_size)]
    if filling.numel():
        all_held("last_loc", filling // page_size, held)


# Looking for errors.


def expect(what: str, found: object, expected: object) -> None:
    """AssertionError that says what differs; for the ``check`` methods, which count everything again."""
    if found != expected:
        raise AssertionError(f"{what}: {found}, but it must be {expected}")


def knowing(kind: Callable[..., Any]) -> Callable[..., Any]:
    """``kind``, called with named values of which it gets those that it has a parameter for."""
    known = frozenset(inspect.signature(kind).parameters)
    return lambda **values: kind(**{name: value for name, value in values.items() if name in known})
