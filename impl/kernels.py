"""The tensor work of an allocation and a free: in plain torch, and the same function as one fused Triton launch.

``extend`` and ``decode`` turn page lists into slots and write the full-to-SWA mapping of these slots. ``detach`` reads
the SWA pages of full pages and unmaps them. ``release`` does that for the pages of rows, and writes the pages of both
pools to where they are free; ``put`` writes pages alone. The plain torch functions say what is right; the Triton ones
have their signatures and are tested against them. No Triton function makes the host wait for the device. The kernels
are told the length of every list that they index, so they do not read or write past one even if the row lengths are
wrong.

A kernel is compiled once for each combination of its ``tl.constexpr`` parameters and of the dtypes of its tensors, and
for nothing else: neither the size of a batch nor the place of a slice in memory compiles it again. ``warm_up`` compiles
all that an allocator can launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from itertools import product
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

tl: Any = None  # triton.language, once a kernel is used: see jit

BLOCK = 1024  # mapping entries (decode, detach, release) or pages (put) one program works on
TOKENS = 512  # tokens of one row that one program of an extend works on
ROWS, FEW_ROWS = 1024, 256  # rows whose lengths one program reads at a time


SERIAL = 1 << 32  # an entry of ``Freed.places``: the number of the free, times this, and a position in the list


class Freed(NamedTuple):
    """Where a free writes the numbers of its pages, and how it sees on the device that one of them was free already.

    ``pages``: int64, a list of free pages. The freed ones go to its positions ``first..first + given``; all behind are
    free. Without ``places`` nothing is looked at. ``places``: ``[pages of the pool + 1]`` int64, for each page
    ``SERIAL`` times the number of the free that gave it back last, plus the position where that free wrote it. An entry
    is not changed when the page is handed out: the page is free if the list still has it at that position, behind
    ``first + given``. To ``places[0]``, which is no page's, is added how many of the pages were free already, are in
    this free before, or are no pages of the pool. ``serial``: the number of this free, from 1.
    """

    pages: Tensor
    first: int
    given: int
    places: Tensor | None = None
    serial: int = 1

    @property
    def room(self) -> Tensor:
        """``[given]`` int64, a view: where the page numbers go."""
        return self.pages[self.first : self.first + self.given]

    @property
    def entry(self) -> int:
        """The entry of ``places`` of the first page; that of the next page is one more."""
        return self.serial * SERIAL + self.first


class Ops(NamedTuple):
    """The functions of one backend."""

    extend: Callable[..., None]
    decode: Callable[..., None]
    detach: Callable[..., None]
    release: Callable[..., None]
    put: Callable[..., None]
    warm_up: Callable[..., None]


class _Layout(NamedTuple):
    """Where the pages of an extend's tokens stand in a page table: for each row its partial page, then its new pages.

    A row whose prefix ends on a page boundary has no partial page; its place in the table is not used.
    """

    page: Tensor  # [tokens] index of the token's page in the table
    offset: Tensor  # [tokens] offset of the token in that page
    heads: Tensor  # [rows] indices of the partial pages
    body: Tensor  # [pages] indices of the new pages

    def pages(self, partial: Tensor, new: Tensor) -> Tensor:
        """``[tokens]``: each token's page. ``partial``: ``[rows]``, ``new``: ``[pages]``."""
        table = new.new_empty(partial.numel() + new.numel())
        table[self.heads] = partial.to(new.dtype)
        table[self.body] = new
        return table[self.page]


def _spread(values: Tensor, counts: Tensor, total: int) -> Tensor:
    """``values[i]``, repeated ``counts[i]`` times; a single value as it is, since broadcasting repeats it."""
    return values if values.numel() == 1 else torch.repeat_interleave(values, counts, output_size=total)


def _layout(prefix: Tensor, seq: Tensor, tokens: int, pages: int, page_size: int) -> _Layout:
    first_new = (prefix + page_size - 1) // page_size
    new = (seq + page_size - 1) // page_size - first_new
    lens = seq - prefix
    rows = torch.arange(seq.numel(), device=seq.device)
    heads = rows + new.cumsum(0) - new
    # Token k of the batch stands at position k + shift, if the table's pages are laid out one after the other.
    shift = (heads + 1 - first_new) * page_size + prefix - (lens.cumsum(0) - lens)
    flat = torch.arange(tokens, device=seq.device) + _spread(shift, lens, tokens)
    page = flat // page_size
    body = torch.arange(pages, device=seq.device) + _spread(rows + 1, new, pages)
    return _Layout(page, flat - page * page_size, heads, body)


def extend_torch(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None,
    mapping: Tensor | None, out: Tensor, page_size: int, longest: int, swa_start: int = 0,
) -> None:  # fmt: skip
    """Write the slots of the tokens ``prefix..seq`` of each row to ``out``, and their SWA slots into ``mapping``.

    ``prefix_lens``, ``seq_lens``, ``last_loc``: ``[rows]`` integers. ``full_pages``, ``swa_pages``: ``[n]`` int64 new
    pages, row after row (``swa_pages`` and ``mapping`` are None without an SWA pool). ``out``: ``[sum(seq - prefix)]``
    int64. ``longest``: the maximum of seq - prefix. ``swa_start``: so many of the new tokens map to nothing; if it
    is not 0, there is one row, whose prefix is whole pages, and ``swa_pages`` begin with the page of the next token.

    Tokens in a row's partial page map to the SWA page of any mapped slot of that page, or to nothing if there is none.
    """
    if longest == 0:
        return
    if swa_pages is not None and swa_start:
        swa_pages = torch.cat([swa_pages.new_zeros(full_pages.numel() - swa_pages.numel()), swa_pages])
    if page_size == 1:
        _single_tokens(full_pages, swa_pages, mapping, out)
        return
    layout = _layout(prefix_lens, seq_lens, out.numel(), full_pages.numel(), page_size)
    partial = last_loc.clamp(min=0) // page_size
    torch.add(layout.offset, layout.pages(partial, full_pages), alpha=page_size, out=out)
    if mapping is None or swa_pages is None:
        return
    pages = layout.pages(swa_pages_of(mapping, partial, page_size), swa_pages)
    target = torch.where(pages > 0, pages * page_size + layout.offset, 0)
    target[:swa_start] = 0
    mapping[out] = target


def decode_torch(
    seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None, mapping: Tensor | None,
    out: Tensor, page_size: int,
) -> None:  # fmt: skip
    """Write the slot of token ``seq - 1`` of each row to ``out``, and its SWA slot into ``mapping``.

    ``seq_lens``, ``last_loc``: ``[rows]`` integers. ``out``: ``[rows]`` int64. A row whose last page is full takes the
    next page of ``full_pages`` and ``swa_pages`` (``[n]`` int64; None without an SWA pool); any other row goes on in
    the page of its ``last_loc``.
    """
    if page_size == 1:
        _single_tokens(full_pages, swa_pages, mapping, out)
        return
    fresh = (seq_lens - 1) % page_size == 0
    nth = fresh.cumsum(0).sub_(1).clamp_(min=0)
    torch.add(last_loc, 1, out=out)
    if full_pages.numel():
        torch.where(fresh, full_pages[nth] * page_size, out, out=out)
    if mapping is None or swa_pages is None:
        return
    pages = swa_pages_of(mapping, last_loc.clamp(min=0) // page_size, page_size)
    if swa_pages.numel():
        pages = torch.where(fresh, swa_pages[nth], pages)
    mapping[out] = torch.where(pages > 0, pages * page_size + out % page_size, 0)


def _single_tokens(full_pages: Tensor, swa_pages: Tensor | None, mapping: Tensor | None, out: Tensor) -> None:
    """``extend`` and ``decode`` at page size 1, where pages are slots."""
    out.copy_(full_pages)
    if mapping is not None and swa_pages is not None:
        mapping[out] = swa_pages


def detach_torch(mapping: Tensor, pages: Tensor, swa_pages: Tensor, page_size: int) -> None:
    """Write the SWA page of each full page (0 for none) to ``swa_pages``, and set the pages' mapping entries to 0.

    ``pages``, ``swa_pages``: ``[n]`` int64.
    """
    if page_size == 1:
        torch.index_select(mapping, 0, pages, out=swa_pages)
        mapping.index_fill_(0, pages, 0)
        return
    rows = page_rows(mapping, page_size)
    torch.div(rows[pages].amax(1), page_size, rounding_mode="floor", out=swa_pages)
    rows.index_fill_(0, pages, 0)


def release_torch(
    slots: Tensor, heads: Tensor | None, into: Tensor | None, mapping: Tensor | None, full: Freed | None,
    swa: Freed | None, page_size: int,
) -> None:  # fmt: skip
    """Write the full pages of rows to the list ``full`` and their SWA pages to the list ``swa``, and unmap these pages.

    ``slots``: integers, among them the first slot of each page. ``heads``: ``[n]`` int64, where in ``slots`` those are;
    None if ``slots`` are those of the ``n`` pages. ``full``: room for ``n`` pages, None if they are not wanted.
    ``mapping`` is None without an SWA pool. ``swa``: None if no page has an SWA page. ``into``: ``[n]`` int64, where
    in the room of ``swa`` the SWA page of each page goes, -1 for a page that has none; None if each has one, in this
    order.
    """
    first = slots if heads is None else slots.index_select(0, heads)
    pages = first.to(torch.int64) // page_size
    if full is not None:
        put_torch(pages, full)
    if mapping is None:
        return
    found = torch.empty_like(pages)
    detach_torch(mapping, pages, found, page_size)
    if swa is not None and into is not None:
        found = torch.empty_like(swa.room).index_copy_(0, into[into >= 0], found[into >= 0])
    if swa is not None:
        put_torch(found, swa)


def put_torch(pages: Tensor, freed: Freed) -> None:
    """Write ``pages`` (``[given]`` integers) to their room, and count those that were free already."""
    pages = pages.to(torch.int64)
    freed.room.copy_(pages)
    if freed.places is None:
        return
    known = (pages > 0) & (pages < freed.places.numel())
    at, entries = pages[known], torch.arange(freed.entry, freed.entry + freed.given, device=pages.device)[known]
    position = freed.places[at] % SERIAL
    behind = (position >= freed.first + freed.given) & (position < freed.pages.numel())
    free = behind & (freed.pages[torch.where(behind, position, 0)] == at)
    freed.places[at] = entries
    freed.places[0] += (~known).sum() + (free | (freed.places[at] != entries)).sum()


def swa_pages_of(mapping: Tensor, pages: Tensor, page_size: int) -> Tensor:
    """``[n]`` int64: the SWA page of each full page, 0 for none. All mapped entries of a page tell the same one."""
    return page_rows(mapping, page_size)[pages].amax(1) // page_size


def page_rows(mapping: Tensor, page_size: int) -> Tensor:
    """The mapping as ``[pages, page_size]``: a view, without the last entries, which belong to no whole page."""
    pages = (mapping.numel() - 1) // page_size
    return mapping[: pages * page_size].view(pages, page_size)


def _extend_kernel(  # type: ignore[no-untyped-def]
    prefix_ptr, seq_ptr, last_ptr, full_ptr, swa_ptr, map_ptr, out_ptr, n_rows, n_full, n_swa, n_map, n_out, swa_start,
    HAS_SWA: tl.constexpr, SHORT: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = program  # where every row is SHORT, each has one program
    step = 1 + tl.arange(0, TILE)  # tokens after the last one
    if not SHORT:
        # A row has a program for every TILE of its tokens. Which row this program works on is found from the lengths.
        row = program * 0
        of_rows_before = program * 0
        looked_at = program * 0
        for first in range(0, n_rows, ROWS):
            others = first + tl.arange(0, ROWS)
            seqs = tl.load(seq_ptr + others, mask=others < n_rows, other=0).to(tl.int64)
            prefixes = tl.load(prefix_ptr + others, mask=others < n_rows, other=0).to(tl.int64)
            programs = ((seqs - prefixes + TILE - 1) // TILE).to(tl.int32)
            ends = looked_at + tl.cumsum(programs, 0)
            before = (others < n_rows) & (ends <= program)
            row += tl.sum(before.to(tl.int32), axis=0)
            of_rows_before = tl.maximum(of_rows_before, tl.max(tl.where(before, ends, 0), axis=0))
            looked_at = tl.max(ends, axis=0)
        step += (program - of_rows_before) * TILE
    out_base = program.to(tl.int64) * 0
    page_base = program.to(tl.int64) * 0
    for first in range(0, row, ROWS):
        others = first + tl.arange(0, ROWS)
        seqs = tl.load(seq_ptr + others, mask=others < row, other=0).to(tl.int64)
        prefixes = tl.load(prefix_ptr + others, mask=others < row, other=0).to(tl.int64)
        out_base += tl.sum(seqs - prefixes, axis=0)
        page_base += tl.sum((seqs + P - 1) // P - (prefixes + P - 1) // P, axis=0)

    # The grid may have more programs than the rows need: those have the row n_rows, without a token.
    prefix = tl.load(prefix_ptr + row, mask=row < n_rows, other=0).to(tl.int64)
    seq = tl.load(seq_ptr + row, mask=row < n_rows, other=0).to(tl.int64)
    last = tl.load(last_ptr + row, mask=row < n_rows, other=-1).to(tl.int64)
    pos = prefix + step - 1
    at = out_base + step - 1
    live = (pos < seq) & (at < n_out)
    offset = pos % P
    first_new = (prefix + P - 1) // P
    fresh = pos // P >= first_new
    nth = page_base + pos // P - first_new
    page = tl.load(full_ptr + nth, mask=live & fresh & (nth < n_full), other=0)
    slot = tl.where(fresh, page * P + offset, last + step)
    tl.store(out_ptr + at, slot, mask=live)
    if HAS_SWA:
        nth -= swa_start // P
        page = tl.load(swa_ptr + nth, mask=live & fresh & (nth >= 0) & (nth < n_swa), other=0)
        # Another program may write mapping entries of the partial page meanwhile, but only slots of its one SWA page.
        within = tl.arange(0, WIDTH)
        entry = last // P * P + within
        inside = (within < P) & (entry >= 0) & (entry < n_map)
        partial = tl.max(tl.load(map_ptr + entry, mask=inside, other=0), axis=0) // P
        page = tl.where(fresh, page, partial)
        target = tl.where((page > 0) & (step > swa_start), page * P + offset, 0)
        tl.store(map_ptr + slot, target, mask=live & (slot >= 0) & (slot < n_map))


def _decode_kernel(  # type: ignore[no-untyped-def]
    seq_ptr, last_ptr, full_ptr, swa_ptr, map_ptr, out_ptr, n_rows, n_full, n_swa, n_map, HAS_SWA: tl.constexpr,
    P: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TILE
    taken = first.to(tl.int64) * 0
    for start in range(0, first, ROWS):
        others = start + tl.arange(0, ROWS)
        seqs = tl.load(seq_ptr + others, mask=others < first, other=0).to(tl.int64)
        taken += tl.sum(((others < first) & ((seqs - 1) % P == 0)).to(tl.int64))
    row = first + tl.arange(0, TILE).to(tl.int64)
    live = row < n_rows
    seq = tl.load(seq_ptr + row, mask=live, other=0).to(tl.int64)
    last = tl.load(last_ptr + row, mask=live, other=-1).to(tl.int64)
    fresh = live & ((seq - 1) % P == 0)
    nth = taken + tl.cumsum(fresh.to(tl.int64), 0) - 1
    page = tl.load(full_ptr + nth, mask=fresh & (nth < n_full), other=0)
    slot = tl.where(fresh, page * P, last + 1)
    tl.store(out_ptr + row, slot, mask=live)
    if HAS_SWA:
        page = tl.load(swa_ptr + nth, mask=fresh & (nth < n_swa), other=0)
        within = tl.arange(0, WIDTH)
        entry = (last // P * P)[:, None] + within[None, :]
        inside = (live & (fresh == 0) & (last >= 0))[:, None] & (within < P)[None, :] & (entry < n_map)
        partial = tl.max(tl.load(map_ptr + entry, mask=inside, other=0), axis=1) // P
        page = tl.where(fresh, page, partial)
        target = tl.where(page > 0, page * P + slot % P, 0)
        tl.store(map_ptr + slot, target, mask=live & (slot >= 0) & (slot < n_map))


def _detach_kernel(  # type: ignore[no-untyped-def]
    map_ptr, pages_ptr, swa_ptr, n_pages, n_map, P: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr
):
    nth = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = nth < n_pages
    page = tl.load(pages_ptr + nth, mask=live, other=0)
    offset = tl.arange(0, WIDTH)
    slot = page[:, None] * P + offset[None, :]
    inside = live[:, None] & (offset < P)[None, :] & (slot >= 0) & (slot < n_map)
    target = tl.load(map_ptr + slot, mask=inside, other=0)
    tl.store(swa_ptr + nth, tl.max(target, axis=1) // P, mask=live)
    tl.store(map_ptr + slot, tl.zeros_like(target), mask=inside)


def _count_free_already(  # type: ignore[no-untyped-def]
    list_ptr, places_ptr, page, live, position, entry, given, size
):
    """Keep ``Freed.places`` for the ``live`` of these pages, which this free has written to a list of ``size`` pages.

    ``position``: how far behind the first of its ``given`` pages each was written. ``entry``: ``Freed.entry``.
    """
    SERIAL: tl.constexpr = 4294967296
    known = live & (page > 0) & (page <= size)
    old = tl.atomic_xchg(places_ptr + page, entry + position, mask=known, sem="relaxed")
    place = old % SERIAL
    behind = known & (place >= entry % SERIAL + given) & (place < size)
    there = tl.load(list_ptr + place, mask=behind, other=0)
    again = (behind & (there == page)) | (known & (old // SERIAL == entry // SERIAL))
    wrong = tl.sum((again | (live & (known == 0))).to(tl.int64), axis=0)
    tl.atomic_add(places_ptr, wrong, mask=wrong > 0, sem="relaxed")


def _release_kernel(  # type: ignore[no-untyped-def]
    slots_ptr, heads_ptr, into_ptr, map_ptr, full_ptr, full_places_ptr, swa_ptr, swa_places_ptr, n_pages, n_map,
    full_entry, full_size, swa_entry, swa_size, n_swa, HEADS: tl.constexpr, INTO: tl.constexpr, FULL: tl.constexpr,
    SWA: tl.constexpr, LOOKS: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    SERIAL: tl.constexpr = 4294967296
    nth = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = nth < n_pages
    at = nth
    if HEADS:
        at = tl.load(heads_ptr + nth, mask=live, other=0)
    page = tl.load(slots_ptr + at, mask=live, other=0).to(tl.int64) // P
    if FULL:
        tl.store(full_ptr + full_entry % SERIAL + nth, page, mask=live)
        if LOOKS:
            _count_free_already(full_ptr, full_places_ptr, page, live, nth, full_entry, n_pages, full_size)  # type: ignore[no-untyped-call]
    if SWA:
        offset = tl.arange(0, WIDTH)
        slot = page[:, None] * P + offset[None, :]
        inside = live[:, None] & (offset < P)[None, :] & (slot >= 0) & (slot < n_map)
        target = tl.load(map_ptr + slot, mask=inside, other=0)
        page = tl.max(target, axis=1) // P
        to = nth
        if INTO:
            to = tl.load(into_ptr + nth, mask=live, other=-1)
        live = live & (to >= 0) & (to < n_swa)
        tl.store(swa_ptr + swa_entry % SERIAL + to, page, mask=live)
        tl.store(map_ptr + slot, tl.zeros_like(target), mask=inside)
        if LOOKS:
            _count_free_already(swa_ptr, swa_places_ptr, page, live, to, swa_entry, n_swa, swa_size)  # type: ignore[no-untyped-call]


def _put_kernel(  # type: ignore[no-untyped-def]
    pages_ptr, list_ptr, places_ptr, n_pages, entry, size, TILE: tl.constexpr
):
    SERIAL: tl.constexpr = 4294967296
    nth = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = nth < n_pages
    page = tl.load(pages_ptr + nth, mask=live, other=0).to(tl.int64)
    tl.store(list_ptr + entry % SERIAL + nth, page, mask=live)
    _count_free_already(list_ptr, places_ptr, page, live, nth, entry, n_pages, size)  # type: ignore[no-untyped-call]


@functools.cache
def jit(kernel: Callable[..., None]) -> Any:
    """The compiled kernel, whose module has the name ``tl``, with the functions of that module that it calls. Triton is
    imported at first use: torch alone works without it, and tests can interpret.

    Triton is told to compile nothing anew for a number that is 1 or divisible by 16, nor for a tensor that begins at
    such an address: lists of pages are slices, so they begin anywhere.
    """
    import triton
    import triton.language

    module = kernel.__globals__
    module["tl"] = triton.language
    for name in kernel.__code__.co_names:
        if isinstance(module.get(name), FunctionType):
            module[name] = triton.jit(module[name])
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    constants = kernel.__annotations__  # only the tl.constexpr parameters have one
    return triton.jit(kernel, do_not_specialize=[name for name in names if name not in constants])


def pow2(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def extend_triton(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None,
    mapping: Tensor | None, out: Tensor, page_size: int, longest: int, swa_start: int = 0,
) -> None:  # fmt: skip
    """``extend_torch`` in one launch, with a program for every ``TOKENS`` tokens of a row, and at most one for each row
    that has nothing to do.
    """
    if out.numel() == 0:
        return
    swa, to, has_swa = (out, out, False) if swa_pages is None or mapping is None else (swa_pages, mapping, True)
    short = longest <= TOKENS
    jit(_extend_kernel)[(seq_lens.numel() if short else programs(seq_lens.numel(), out.numel()),)](
        prefix_lens, seq_lens, last_loc, full_pages, swa, to, out,
        seq_lens.numel(), full_pages.numel(), swa.numel(), to.numel() - 1, out.numel(), swa_start,
        HAS_SWA=has_swa, SHORT=short, P=page_size, WIDTH=pow2(page_size),
        ROWS=ROWS if short else FEW_ROWS, TILE=TOKENS,
    )  # fmt: skip


def programs(rows: int, tokens: int) -> int:
    """Enough programs, of ``TOKENS`` tokens of one row each, for so many ``tokens`` in so many ``rows``, however long
    each row is: at most one for each row more than are needed.
    """
    return (tokens + rows * (TOKENS - 1)) // TOKENS


def decode_triton(
    seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None, mapping: Tensor | None,
    out: Tensor, page_size: int,
) -> None:  # fmt: skip
    """``decode_torch`` in one launch, with a program for every ``BLOCK`` mapping entries that are read."""
    if out.numel() == 0:
        return
    swa, to, has_swa = (out, out, False) if swa_pages is None or mapping is None else (swa_pages, mapping, True)
    width = pow2(page_size)
    tile = max(16, BLOCK // width)
    jit(_decode_kernel)[(-(-out.numel() // tile),)](
        seq_lens, last_loc, full_pages, swa, to, out,
        out.numel(), full_pages.numel(), swa.numel(), to.numel() - 1,
        HAS_SWA=has_swa, P=page_size, WIDTH=width, ROWS=ROWS, TILE=tile,
    )  # fmt: skip


def detach_triton(mapping: Tensor, pages: Tensor, swa_pages: Tensor, page_size: int) -> None:
    """``detach_torch`` in one launch."""
    if pages.numel() == 0:
        return
    width = pow2(page_size)
    tile = max(1, BLOCK // width)
    jit(_detach_kernel)[(-(-pages.numel() // tile),)](
        mapping, pages, swa_pages, pages.numel(), mapping.numel() - 1, P=page_size, WIDTH=width, TILE=tile
    )


def release_triton(
    slots: Tensor, heads: Tensor | None, into: Tensor | None, mapping: Tensor | None, full: Freed | None,
    swa: Freed | None, page_size: int,
) -> None:  # fmt: skip
    """``release_torch`` in one launch."""
    pages = (slots if heads is None else heads).numel()
    if pages == 0:
        return
    width = pow2(page_size)
    # A tensor that is not there is never read or written: the kernel gets another one in its place, of int64.
    other = full.pages if full is not None else swa.pages if swa is not None else slots
    to = other if mapping is None else mapping
    full_pages, full_places, full_entry = _parts(full, other)
    swa_pages, swa_places, swa_entry = _parts(swa, other)
    jit(_release_kernel)[(-(-pages // max(1, BLOCK // width)),)](
        slots, _or(heads, other), _or(into, other), to, full_pages, full_places, swa_pages, swa_places,
        pages, to.numel() - 1, full_entry, full_pages.numel(), swa_entry, swa_pages.numel(),
        0 if swa is None else swa.given,
        HEADS=heads is not None, INTO=into is not None, FULL=full is not None, SWA=mapping is not None,
        LOOKS=all(freed.places is not None for freed in (full, swa) if freed is not None),
        P=page_size, WIDTH=width, TILE=max(1, BLOCK // width),
    )  # fmt: skip


def _parts(freed: Freed | None, other: Tensor) -> tuple[Tensor, Tensor, int]:
    return (other, other, SERIAL) if freed is None else (freed.pages, _or(freed.places, other), freed.entry)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor


def put_triton(pages: Tensor, freed: Freed) -> None:
    """``put_torch`` in one launch."""
    if pages.numel() == 0:
        return
    if freed.places is None:
        freed.room.copy_(pages)
        return
    jit(_put_kernel)[(-(-pages.numel() // BLOCK),)](
        pages, freed.pages, freed.places, pages.numel(), freed.entry, freed.pages.numel(), TILE=BLOCK
    )


def warm_up_torch(device: torch.device, page_size: int, *, windowed: bool, release: bool, looks: bool) -> None:
    """Nothing: plain torch compiles nothing."""


def warm_up_triton(device: torch.device, page_size: int, *, windowed: bool, release: bool, looks: bool) -> None:
    """Compile all that an allocator can launch, by one launch of each on memory that is made here.

    ``windowed``: it has an SWA pool. ``release``: it frees by ``release``, with ``looks`` with ``Freed.places``.
    """
    long = partial(torch.zeros, dtype=torch.int64, device=device)
    pages, out = torch.ones_like(long(1)), long(1)
    mapping, swa = (long(2 * page_size + 1), pages) if windowed else (None, None)
    for lengths, last in product((torch.int64, torch.int32), repeat=2):
        none, before = long(1).to(lengths), (long(1) - 1).to(last)
        for longest in (1, TOKENS + 1):
            extend_triton(none, none + 1, before, pages, swa, mapping, out, page_size, longest)
        decode_triton(none + 1, before, pages, swa, mapping, out, page_size)
    if mapping is not None:
        detach_triton(mapping, pages, out, page_size)
    freed = Freed(long(1), 0, 1, long(2)) if looks else Freed(long(1), 0, 1)
    for given in (pages, pages.int()) if looks else ():
        put_triton(given, freed)
    for slots in (pages * page_size, (pages * page_size).int()) if release else ():
        for heads in (long(1), None) if page_size == 1 and windowed else (long(1),):
            release_triton(slots, heads, None, mapping, freed, freed if windowed else None, page_size)
            if windowed:
                release_triton(slots, heads, long(1), mapping, freed, freed, page_size)
                release_triton(slots, heads, None, mapping, None, freed, page_size)


_BACKENDS = {
    "torch": Ops(extend_torch, decode_torch, detach_torch, release_torch, put_torch, warm_up_torch),
    "triton": Ops(extend_triton, decode_triton, detach_triton, release_triton, put_triton, warm_up_triton),
}


def backend_name(device: torch.device, name: str | None = None) -> str:
    """The backend for ``device``: ``triton`` on CUDA, ``torch`` elsewhere, or ``name``, if given.

    ValueError for a name that is not a backend.
    """
    name = name or ("triton" if device.type == "cuda" else "torch")
    if name not in _BACKENDS:
        raise ValueError(f"backend must be one of {sorted(_BACKENDS)}, got {name!r}")
    return name


def backend(device: torch.device, name: str | None = None) -> Ops:
    """The functions of the backend for ``device``, see ``backend_name``."""
    return _BACKENDS[backend_name(device, name)]
