"""The tensor work of an allocation and a free: in plain torch, and the same function as one fused Triton launch.

``extend`` and ``decode`` turn page lists into slots and write the full-to-SWA mapping of these slots. ``detach`` reads
the SWA pages of full pages and unmaps them. ``release`` does that for the pages of rows, and writes the pages of both
pools to where they are free. The plain torch functions say what is right; the Triton ones have their
signatures and are tested against them. The host never waits for a value of the device. The kernels are told the length
of every list that they index, so they do not read or write past one even if the row lengths are wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

tl: Any = None  # triton.language, once a kernel is used: see jit

BLOCK = 1024  # tokens (extend) or mapping entries (decode, detach) one program works on


class Ops(NamedTuple):
    """The functions of one backend."""

    extend: Callable[..., None]
    decode: Callable[..., None]
    detach: Callable[..., None]
    release: Callable[..., None]


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
    slots: Tensor, heads: Tensor | None, into: Tensor | None, mapping: Tensor | None, full_out: Tensor | None,
    swa_out: Tensor | None, page_size: int,
) -> None:  # fmt: skip
    """Write the full pages of rows to ``full_out`` and their SWA pages to ``swa_out``, and unmap these pages.

    ``slots``: integers, among them the first slot of each page. ``heads``: ``[n]`` int64, where in ``slots`` those are;
    None if ``slots`` are those of the ``n`` pages. ``full_out``: ``[n]`` int64, None if it is not wanted. ``mapping``
    is None without an SWA pool. ``swa_out``: int64, None if no page has an SWA page. ``into``: ``[n]`` int64, where in
    ``swa_out`` the SWA page of each page goes, -1 for a page that has none; None if each has one, in this order.
    """
    first = slots if heads is None else slots.index_select(0, heads)
    pages = first.to(torch.int64) // page_size
    if full_out is not None:
        full_out.copy_(pages)
    if mapping is None:
        return
    swa = torch.empty_like(pages)
    detach_torch(mapping, pages, swa, page_size)
    if swa_out is not None and into is not None:
        swa_out[into[into >= 0]] = swa[into >= 0]
    elif swa_out is not None:
        swa_out.copy_(swa)


def swa_pages_of(mapping: Tensor, pages: Tensor, page_size: int) -> Tensor:
    """``[n]`` int64: the SWA page of each full page, 0 for none. All mapped entries of a page tell the same one."""
    return page_rows(mapping, page_size)[pages].amax(1) // page_size


def page_rows(mapping: Tensor, page_size: int) -> Tensor:
    """The mapping as ``[pages, page_size]``: a view, without the last entries, which belong to no whole page."""
    pages = (mapping.numel() - 1) // page_size
    return mapping[: pages * page_size].view(pages, page_size)


def _extend_kernel(  # type: ignore[no-untyped-def]
    prefix_ptr, seq_ptr, last_ptr, full_ptr, swa_ptr, map_ptr, out_ptr, n_full, n_swa, n_map, n_out, swa_start,
    HAS_SWA: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    others = tl.arange(0, ROWS)
    seqs = tl.load(seq_ptr + others, mask=others < row, other=0).to(tl.int64)
    prefixes = tl.load(prefix_ptr + others, mask=others < row, other=0).to(tl.int64)
    out_base = tl.sum(seqs - prefixes)
    page_base = tl.sum((seqs + P - 1) // P - (prefixes + P - 1) // P)

    prefix = tl.load(prefix_ptr + row).to(tl.int64)
    seq = tl.load(seq_ptr + row).to(tl.int64)
    last = tl.load(last_ptr + row).to(tl.int64)
    step = tl.program_id(1) * TILE + tl.arange(0, TILE) + 1  # tokens after the last one
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
    others = tl.arange(0, ROWS)
    seqs = tl.load(seq_ptr + others, mask=others < first, other=0).to(tl.int64)
    taken = tl.sum(((others < first) & ((seqs - 1) % P == 0)).to(tl.int64))
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


def _release_kernel(  # type: ignore[no-untyped-def]
    slots_ptr, heads_ptr, into_ptr, map_ptr, full_ptr, swa_ptr, n_pages, n_map, n_swa, HEADS: tl.constexpr,
    INTO: tl.constexpr, FULL: tl.constexpr, HAS_SWA: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    nth = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = nth < n_pages
    at = nth
    if HEADS:
        at = tl.load(heads_ptr + nth, mask=live, other=0)
    page = tl.load(slots_ptr + at, mask=live, other=0).to(tl.int64) // P
    if FULL:
        tl.store(full_ptr + nth, page, mask=live)
    if HAS_SWA:
        offset = tl.arange(0, WIDTH)
        slot = page[:, None] * P + offset[None, :]
        inside = live[:, None] & (offset < P)[None, :] & (slot >= 0) & (slot < n_map)
        target = tl.load(map_ptr + slot, mask=inside, other=0)
        to = nth
        if INTO:
            to = tl.load(into_ptr + nth, mask=live, other=-1)
        tl.store(swa_ptr + to, tl.max(target, axis=1) // P, mask=live & (to >= 0) & (to < n_swa))
        tl.store(map_ptr + slot, tl.zeros_like(target), mask=inside)


_COUNTS = [
    "n_full", "n_swa", "n_map", "n_out", "n_rows", "n_pages", "swa_start", "n_nodes", "revivals", "window", "width",
]  # fmt: skip


@functools.cache
def jit(kernel: Callable[..., None]) -> Any:
    """The compiled kernel, whose module has the name ``tl``. Triton is imported at first use: torch alone works without
    it, and tests can interpret.
    """
    import triton
    import triton.language

    kernel.__globals__["tl"] = triton.language
    names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    return triton.jit(kernel, do_not_specialize=[name for name in _COUNTS if name in names])


def pow2(n: int) -> int:
    """The least power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def extend_triton(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None,
    mapping: Tensor | None, out: Tensor, page_size: int, longest: int, swa_start: int = 0,
) -> None:  # fmt: skip
    """``extend_torch`` in one launch, with a program for every ``BLOCK`` tokens of every row."""
    if longest == 0:
        return
    swa, to, has_swa = (out, out, False) if swa_pages is None or mapping is None else (swa_pages, mapping, True)
    tile = min(BLOCK, max(16, pow2(longest)))
    jit(_extend_kernel)[(seq_lens.numel(), -(-longest // tile))](
        prefix_lens, seq_lens, last_loc, full_pages, swa, to, out,
        full_pages.numel(), swa.numel(), to.numel() - 1, out.numel(), swa_start,
        HAS_SWA=has_swa, P=page_size, WIDTH=pow2(page_size), ROWS=pow2(seq_lens.numel()), TILE=tile,
    )  # fmt: skip


def decode_triton(
    seq_lens: Tensor, last_loc: Tensor, full_pages: Tensor, swa_pages: Tensor | None, mapping: Tensor | None,
    out: Tensor, page_size: int,
) -> None:  # fmt: skip
    """``decode_torch`` in one launch, with a program for every ``BLOCK`` mapping entries that are read."""
    if out.numel() == 0:
        return
    swa, to, has_swa = (out, out, False) if swa_pages is None or mapping is None else (swa_pages, mapping, True)
    width, rows = pow2(page_size), pow2(out.numel())
    tile = max(16, min(rows, BLOCK // width))
    jit(_decode_kernel)[(-(-out.numel() // tile),)](
        seq_lens, last_loc, full_pages, swa, to, out,
        out.numel(), full_pages.numel(), swa.numel(), to.numel() - 1,
        HAS_SWA=has_swa, P=page_size, WIDTH=width, ROWS=rows, TILE=tile,
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
    slots: Tensor, heads: Tensor | None, into: Tensor | None, mapping: Tensor | None, full_out: Tensor | None,
    swa_out: Tensor | None, page_size: int,
) -> None:  # fmt: skip
    """``release_torch`` in one launch."""
    pages = (slots if heads is None else heads).numel()
    if pages == 0:
        return
    width = pow2(page_size)
    tile = max(1, BLOCK // width)
    # A tensor that is not there is never read or written: the kernel gets another one in its place.
    to = slots if mapping is None else mapping
    jit(_release_kernel)[(-(-pages // tile),)](
        slots, slots if heads is None else heads, slots if into is None else into, to,
        slots if full_out is None else full_out, slots if swa_out is None else swa_out,
        pages, to.numel() - 1, 0 if swa_out is None else swa_out.numel(),
        HEADS=heads is not None, INTO=into is not None, FULL=full_out is not None, HAS_SWA=mapping is not None,
        P=page_size, WIDTH=width, TILE=tile,
    )  # fmt: skip


_BACKENDS = {
    "torch": Ops(extend_torch, decode_torch, detach_torch, release_torch),
    "triton": Ops(extend_triton, decode_triton, detach_triton, release_triton),
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
