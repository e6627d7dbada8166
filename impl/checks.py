"""What a caller may hand to an allocator, and the page counts that follow from it.

Everything here raises before an allocator has changed anything. Lengths are read from host tensors only; functions
that look into device tensors are called where the host need not wait for them: on CPU, or when the user asked for it
with ``debug=True``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import NamedTuple

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Plan(NamedTuple):
    """The host's knowledge of one batch of rows: token and page totals, and the longest row's new tokens."""

    tokens: int
    pages: int
    longest: int


def whole(name: str, value: int, least: int) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def pool_sizes(size_name: str, size: int, page_size: int) -> int:
    """Pages in a pool of ``size`` tokens; a pool that cannot hold one page is refused."""
    whole("page_size", page_size, 1)
    whole(size_name, size, 1)
    if size < page_size:
        raise ValueError(f"{size_name} must hold at least one page of {page_size} tokens, got {size}")
    return size // page_size


def page_multiple(name: str, tokens: int, page_size: int) -> int:
    """Pages in ``tokens``, which must be whole pages."""
    whole(name, tokens, 0)
    if tokens % page_size:
        raise ValueError(f"{name} must be a multiple of the page size {page_size}, got {tokens}")
    return tokens // page_size


def index(name: str, value: Tensor, device: torch.device, length: int | None = None) -> None:
    """``value`` must be a one-dimensional integer tensor on ``device`` (of ``length`` entries, where given)."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype not in _INTEGERS:
        raise TypeError(f"{name} must hold integers, got {value.dtype}")
    if value.dim() != 1:
        raise ValueError(f"{name} must have one dimension, got shape {tuple(value.shape)}")
    found = value.device
    if found.type != device.type or (device.index is not None and found.index != device.index):
        raise ValueError(f"{name} must be on {device}, got {found}")
    if length is not None and value.numel() != length:
        raise ValueError(f"{name} must have {length} entries (one a row), got {value.numel()}")


_HOST = torch.device("cpu")


class Rows(NamedTuple):
    """The rows of one call: lengths on the device and on the host, and each row's last slot. A decode has no prefix."""

    seq: Tensor
    seq_cpu: Tensor
    last_loc: Tensor
    prefix: Tensor | None = None
    prefix_cpu: Tensor | None = None

    def check(self, device: torch.device, *, look: bool) -> None:
        """The device tensors fit the host's, and (``look``) hold the same lengths: the kernels index by them."""
        rows = self.seq_cpu.numel()
        for name, value in (("seq_lens", self.seq), ("last_loc", self.last_loc), ("prefix_lens", self.prefix)):
            if value is not None:
                index(name, value, device, rows)
        if look:
            same_lengths("seq_lens", self.seq, self.seq_cpu)
            if self.prefix is not None and self.prefix_cpu is not None:
                same_lengths("prefix_lens", self.prefix, self.prefix_cpu)

    def before(self) -> Tensor:
        """The lengths without the new tokens."""
        return self.seq - 1 if self.prefix is None else self.prefix

    def fills(self, page_size: int) -> Tensor:
        """The rows that go on in a page they have."""
        return (self.before() % page_size != 0) & (self.seq > self.before())


def extend_plan(rows: Rows, tokens: int, new_pages: int | None, page_size: int) -> Plan:
    """Check the host lengths of an extend and count what it needs."""
    prefix_cpu = rows.seq_cpu if rows.prefix_cpu is None else rows.prefix_cpu
    index("prefix_lens_cpu", prefix_cpu, _HOST)
    index("seq_lens_cpu", rows.seq_cpu, _HOST, prefix_cpu.numel())
    lens = list(zip(prefix_cpu.tolist(), rows.seq_cpu.tolist(), strict=True))
    for row, (prefix, seq) in enumerate(lens):
        if not 0 <= prefix <= seq:
            raise ValueError(f"row {row}: expected 0 <= prefix <= seq, got prefix {prefix}, seq {seq}")
    whole("extend_num_tokens", tokens, 0)
    extended = sum(seq - prefix for prefix, seq in lens)
    if extended != tokens:
        raise ValueError(f"extend_num_tokens must be sum(seq - prefix) = {extended}, got {tokens}")
    pages = sum(prefix // -page_size - seq // -page_size for prefix, seq in lens)
    if new_pages is not None and new_pages != pages:
        raise ValueError(f"num_new_pages must be {pages} for these lengths, got {new_pages}")
    return Plan(tokens, pages, max((seq - prefix for prefix, seq in lens), default=0))


def decode_plan(rows: Rows, page_size: int) -> Plan:
    """Check the host lengths of a decode step (lengths *with* the new token) and count its pages."""
    index("seq_lens_cpu", rows.seq_cpu, _HOST)
    lens = rows.seq_cpu.tolist()
    if lens and min(lens) < 1:
        raise ValueError(f"seq_lens_cpu must count the new token, so be at least 1, got {min(lens)}")
    pages = sum((seq - 1) % page_size == 0 for seq in lens)
    return Plan(len(lens), pages, 1)


def tail_start(rows: Rows, tokens: int, tail: int) -> int:
    """Position of the first tail token; a tail allocation is for one row without a prefix."""
    whole("swa_tail_len", tail, 0)
    prefixes = [] if rows.prefix_cpu is None else rows.prefix_cpu.tolist()
    if len(prefixes) != 1:
        raise ValueError(f"alloc_extend_swa_tail takes one row, got {len(prefixes)}")
    if prefixes[0]:
        raise ValueError(f"alloc_extend_swa_tail takes a row without prefix, got {prefixes[0]}")
    if tail > tokens:
        raise ValueError(f"swa_tail_len must be at most extend_num_tokens = {tokens}, got {tail}")
    return tokens - tail


def cuts(row_lens: Sequence[int] | None, swa_lens: Sequence[int] | None, tokens: int) -> None:
    """``row_lens`` cut ``tokens`` slots into rows; ``swa_lens`` says how long each row's mapped tail is."""
    if row_lens is None:
        if swa_lens is not None:
            raise ValueError("swa_lens needs row_lens")
        return
    if any(n < 0 for n in row_lens) or sum(row_lens) != tokens:
        raise ValueError(f"row_lens must be lengths that sum to len(free_index) = {tokens}, got {row_lens}")
    if swa_lens is None:
        return
    if len(swa_lens) != len(row_lens) or any(not 0 <= s <= n for s, n in zip(swa_lens, row_lens, strict=True)):
        raise ValueError(f"swa_lens must be one length in 0..row_len a row, got {swa_lens} for {row_lens}")


def same_lengths(name: str, device_lens: Tensor, host_lens: Tensor) -> None:
    """The device copy of the lengths must say what the host copy says: the kernels index by it."""
    if device_lens is not host_lens and not bool((device_lens.cpu() == host_lens).all()):
        raise ValueError(f"{name} and {name}_cpu must hold the same lengths")


def sorted_slots(name: str, slots: Tensor, page_size: int, pages: int) -> Tensor:
    """``slots`` in order; out of range, on the padding page or twice is refused."""
    ordered = slots.to(torch.int64)
    if not bool((ordered[1:] > ordered[:-1]).all()):  # rows usually arrive in order: then no sort
        ordered = ordered.sort().values
        if bool((ordered[1:] == ordered[:-1]).any()):
            raise ValueError(f"{name} must not hold a slot twice")
    low, high = int(ordered[0]), int(ordered[-1])
    if low < page_size or high >= (pages + 1) * page_size:
        last = (pages + 1) * page_size - 1
        raise ValueError(f"{name} must hold slots in {page_size}..{last} (page 0 is padding), got {low}..{high}")
    return ordered


def consecutive(ordered: Tensor) -> Tensor:
    distinct: Tensor = torch.unique_consecutive(ordered)
    return distinct


def closed_pages(name: str, ordered: Tensor, page_size: int) -> Tensor:
    """Pages of sorted distinct slots, each of which must be there from its first slot on."""
    if page_size == 1:
        return ordered.clone()  # may wait in a group: must not be the caller's memory
    heads = ordered[ordered % page_size == 0]
    touched = consecutive(ordered // page_size)
    if len(heads) != len(touched):
        page = int(touched[~torch.isin(touched, heads // page_size)][0])
        raise ValueError(f"{name} starts inside page {page}: freeing it takes the page from under a live slot")
    return touched


def all_held(name: str, pages: Tensor, held: Tensor) -> None:
    """No page of ``pages`` may be free (or waiting in a free group) already."""
    low, high = torch.aminmax(pages)
    if int(low) < 1 or int(high) >= len(held):
        raise ValueError(f"{name} must lie in pages 1..{len(held) - 1}, got {int(low)}..{int(high)}")
    if not bool(held[pages].all()):
        raise ValueError(f"{name}: page {int(pages[~held[pages]][0])} is free already")


def last_slots(rows: Rows, held: Tensor, page_size: int) -> None:
    """``last_loc`` must be the slot of the token before the new ones: at its place, in a page that is held where the
    row goes on in that page (a row may have given back the full pages before).
    """
    if not bool(((rows.last_loc + 1) % page_size == rows.before() % page_size).all()):
        raise ValueError("last_loc must have the offset of token prefix - 1 in its page: (last_loc + 1) % page_size")
    filling = rows.last_loc[rows.fills(page_size)]
    if filling.numel():
        all_held("last_loc", filling // page_size, held)


def held_pages(name: str, slots: Tensor, held: Tensor, page_size: int) -> Tensor:
    """The distinct pages of ``slots``, each held and named from its first slot on."""
    pages = closed_pages(name, sorted_slots(name, slots, page_size, held.numel() - 1), page_size)
    all_held(name, pages, held)
    return pages


Span = tuple[int, int]


@dataclass(frozen=True)
class FreeBatch:
    """The pages of one ``free``: distinct if ``exact``; ``mapped`` are the spans of them that have SWA pages."""

    pages: Tensor
    exact: bool
    mapped: tuple[Span, ...] | None = None

    @staticmethod
    def join(batches: Sequence[FreeBatch]) -> FreeBatch:
        pages = torch.cat([batch.pages for batch in batches])
        if not all(batch.exact for batch in batches):
            return FreeBatch(torch.unique(pages), exact=False)
        if any(batch.mapped is None for batch in batches):
            return FreeBatch(pages, exact=True)
        starts = accumulate((batch.pages.numel() for batch in batches), initial=0)
        spans = ((at + a, at + b) for at, own in zip(starts, batches, strict=False) for a, b in own.mapped or ())
        return FreeBatch(pages, exact=True, mapped=tuple(spans))


def row_pages(slots: Tensor, row_lens: Sequence[int], page_size: int) -> Tensor:
    """Pages of rows that each begin on a page boundary: every ``page_size``-th slot, no device read."""
    if page_size == 1:
        return slots.to(torch.int64, copy=True)  # may wait in a group: must not be the caller's memory
    heads = [slots[end - n : end : page_size] for n, end in zip(row_lens, accumulate(row_lens), strict=True)]
    return torch.cat(heads).to(torch.int64) // page_size


def mapped_spans(row_lens: Sequence[int], swa_lens: Sequence[int], page_size: int) -> tuple[Span, ...]:
    """Which of ``row_pages`` carry an SWA page, when the last ``swa_lens[i]`` tokens of row ``i`` do."""
    spans, base = [], 0
    for tokens, tail in zip(row_lens, swa_lens, strict=True):
        pages = -(-tokens // page_size)
        if tail:
            spans.append((base + (tokens - tail) // page_size, base + pages))
        base += pages
    return tuple(spans)


@dataclass(frozen=True)
class Backup:
    """What every backup knows: whose it is, and which one."""

    owner: object
    serial: int


class Backups:
    """Which backups of ``owner`` can be restored: those with nothing freed, nor an earlier one restored, since."""

    _serials = count()

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._usable: list[int] = []

    def new(self) -> tuple[object, int]:
        self._usable.append(next(self._serials))
        return self._owner, self._usable[-1]

    def void(self) -> None:
        self._usable.clear()

    def require(self, state: object, kind: type[Backup]) -> None:
        if not isinstance(state, kind):
            raise TypeError(f"restore_state takes what backup_state returned, got {type(state).__name__}")
        if state.owner is not self._owner:
            raise ValueError("restore_state: this state was taken from another allocator")
        if state.serial not in self._usable:
            raise RuntimeError("restore_state: pages were freed since this backup, or an earlier one was restored")

    def back_to(self, state: Backup) -> None:
        del self._usable[self._usable.index(state.serial) + 1 :]
