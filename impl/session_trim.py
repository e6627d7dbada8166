"""Request rows and the slots of streaming sessions: batched growth, trims and releases over one pool or both.

A row is admitted with a prefix whose pages the radix tree owns, grows, moves its attention window, and leaves: page by
page to the tree, or by one free. A turn of a streaming session leaves its row in the session's slot, cut to what was
sent to the client, and the next turn goes on there. A free takes whole pages: the page that a cut lies in keeps its
tokens before the cut, so it stays, with its SWA mapping.

Lengths are known on the host, only slots lie on the device. Everything in a call is checked before anything changes,
and a batch is one gather, one free or one scatter.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from impl import checks
from impl.allocator import Backup, SlotAllocator, mapped_spans
from impl.checks import expect
from impl.host import names, numbers, require, upload
from impl.rows import IDLE, LEAVING, PHASES, RUNNING, SAVED, Numbers, TokenSlots
from impl.swa_mapping import SWATokenToKVPoolAllocator

__all__ = ["LENGTHS", "RequestRows"]

LENGTHS = ("protected", "cursor", "committed", "allocated", "text", "gap")


class RequestRows:
    """The rows ``0..rows - 1`` of an engine's ``req_to_token`` table, and the rows in session slots.

    Stands in for SGLang's ``ReqToTokenPool`` and the session slots of its session-aware cache. ``max_tokens``: the
    length of a row of the table. ``window``: tokens of sliding window attention that the next token reads; 0 for a
    model without such layers, whose allocator has one pool. With a window and one pool every layer has this window: a
    token that left it keeps no slot at all. ``device``: that of the allocator.

    Tables to read, which only the calls write. ``req_to_token``: ``[rows, max_tokens]`` int32 on the device, the full
    slot of each token; beyond the allocated length it means nothing. On the host, ``[rows]`` int64: ``phase``, and
    lengths in tokens. ``protected``: the part that the tree owns (whole pages). ``cursor``: the tokens before it have
    no SWA slots of the row's own (whole pages). ``committed``: computed. ``allocated``: with slots. ``text``: what the
    next input of a saved session begins with. ``gap``: where every layer has a window, the tokens from ``gap`` to
    ``cursor`` gave their slots back (whole pages; none if both are equal). ``slot``: the row of each session that has
    one; ``session``: the session of each row, None for none.

    ``rows``, ``to`` and other lengths in arguments: sequences of ints, or ``[n]`` integer tensors on the host; the rows
    are different, and there is one length for each. Bad input is a ValueError (TypeError for what is not an integer)
    that names the argument and says what was expected. An error leaves everything as it was, and so does the answer
    None for want of memory. With the allocator's ``debug`` every call ends with ``check``.
    """

    def __init__(
        self, allocator: SlotAllocator, rows: int, max_tokens: int, window: int, device: str | torch.device
    ) -> None:
        self.allocator, self.page_size, self.device = allocator, allocator.page_size, torch.device(device)
        self.rows, self.max_tokens = checks.integer("rows", rows, 1), checks.integer("max_tokens", max_tokens, 1)
        self.window = checks.integer("window", window, 0)
        if not checks.same_device(torch.device(allocator.device), self.device):
            raise ValueError(f"device must be the allocator's, {allocator.device}, got {self.device}")
        self._check_content = allocator.debug or self.device.type == "cpu"
        self.token_slots = TokenSlots(rows, max_tokens, self.device)
        self.req_to_token = self.token_slots.table
        self.lengths = torch.zeros((len(LENGTHS), rows), dtype=torch.int64)
        self.protected, self.cursor, self.committed, self.allocated, self.text, self.gap = self.lengths.unbind(0)
        self.phase = torch.full((rows,), IDLE)
        self.slot: dict[Hashable, int] = {}
        self.session: list[Hashable] = [None] * rows
        self._idle = list(range(rows - 1, -1, -1))

    @property
    def pools(self) -> SWATokenToKVPoolAllocator:
        """The allocator of both pools. ValueError where the model has no SWA pool."""
        if not isinstance(self.allocator, SWATokenToKVPoolAllocator):
            raise ValueError("the allocator of these rows has no SWA pool, so no token can be in a window or leave it")
        return self.allocator

    @property
    def slides(self) -> bool:
        """Some layer has a window, so that tokens can leave it."""
        return self.window > 0 or self.allocator.windowed

    @property
    def has_gaps(self) -> bool:
        """Every layer has the window, over one pool: what leaves the window of a row is a gap in its slots."""
        return self.window > 0 and not self.allocator.windowed

    def donatable(self, rows: Tensor) -> Tensor:
        """How far the tree can get the tokens of ``rows``: ``[n]`` int64 on the host, whole pages in tokens.

        That is what is committed, and where every layer has a window, no token beyond the first that left it.
        """
        whole = self.page_floor(self.committed[rows])
        return torch.where(self.gap[rows] < self.cursor[rows], self.gap[rows], whole) if self.has_gaps else whole

    # A request.

    def admit(self, prefixes: Sequence[Tensor], sessions: Sequence[Hashable] | None = None) -> list[int] | None:
        """A row for each request, or None if too few rows are idle.

        ``prefixes``: for each request the slots of its cached prefix (``[n]`` integers on the device, whole pages),
        which the tree owns and keeps while the row reads them. ``sessions``: for each request its session, None for a
        request without one. A session that has a row already is refused: its next turn calls ``resume``.
        """
        named = [None] * len(prefixes) if sessions is None else names("sessions", sessions)
        if len(named) != len(prefixes):
            raise ValueError(f"sessions must be as many as prefixes, {len(prefixes)}, got {len(named)}")
        for i, (prefix, session) in enumerate(zip(prefixes, named, strict=True)):
            self._check_admissible(i, prefix, session)
        if len(named) > len(self._idle):
            return None
        rows = self._idle[len(self._idle) - len(named) :][::-1]
        lens = [prefix.numel() for prefix in prefixes]
        cached, batch = torch.tensor(lens, dtype=torch.int64), torch.tensor(rows, dtype=torch.int64)
        if any(lens):
            places = self.token_slots.places(batch, torch.zeros_like(cached), cached)
            self.token_slots.write(places, torch.cat(list(prefixes)))
        self._begin(rows, named, protected=cached, committed=cached, allocated=cached)
        return rows

    def admit_tail(self, prefix: Tensor, to: int, start: int, session: Hashable = None) -> tuple[int, Tensor] | None:
        """A row for a request whose first ``to`` tokens are computed elsewhere, as in disaggregated decode.

        Returns the row, and ``[to - len(prefix)]`` int64 slots on the device for the tokens that are sent here. None
        if no row is idle or memory is short. ``prefix``, ``session``: as for ``admit``. ``start``: the tokens before it
        get no SWA slots, since no later token reads them there; whole pages, from ``len(prefix)`` to ``to``. ValueError
        where the window before ``to`` begins before ``start``, unless ``start`` is the end of the prefix, and over an
        allocator without an SWA pool.
        """
        pools = self.pools
        self._check_admissible(0, prefix, session)
        cached, first, last = self._tail(prefix.numel(), start, to)
        if not self._idle:
            return None
        row, saved = self._idle[-1], self.allocator.backup_state()
        batch = torch.tensor([row], dtype=torch.int64)
        before, after, ends = upload(torch.stack([cached, last, cached]), self.device)
        ends = torch.where(ends > 0, prefix[-1:].to(torch.int64) if prefix.numel() else -1, -1)
        slots = pools.alloc_extend_swa_tail(
            before, cached, after, last, ends, int(last - cached), swa_tail_len=int(last - first)
        )
        if slots is None:
            return None
        with self._undone_on_error(saved, slots):
            self.token_slots.write(
                self.token_slots.places(batch, torch.zeros_like(last), last), torch.cat([prefix.to(torch.int64), slots])
            )
            self._begin([row], [session], protected=cached, cursor=first, committed=last, allocated=last)
        return row, slots

    def _tail(self, prefix: int, start: int, to: int) -> tuple[Tensor, Tensor, Tensor]:
        """The prefix, where the tail starts, and the length of the row (``[1]`` int64 on the host each), checked."""
        cached = torch.tensor([prefix], dtype=torch.int64)
        last = self._lengths("to", [to], cached, torch.tensor([self.max_tokens]), "the prefix, within max_tokens")
        first = self._lengths("start", [start], cached, last, "the prefix and the row's length")
        self._check_aligned("start", first)
        if start > prefix and start + self.window > to:
            raise ValueError(f"start: expected at most {to - self.window}, where the window begins, got {start}")
        return cached, first, last

    def _check_admissible(self, i: int, prefix: Tensor, session: Hashable) -> None:
        self._check_tree_slots(f"prefixes[{i}]", prefix)
        if prefix.numel() > self.max_tokens:
            raise ValueError(f"prefixes[{i}]: expected at most {self.max_tokens} slots, got {prefix.numel()}")
        if session in self.slot:
            raise ValueError(f"sessions[{i}]: expected a session without a row, got {session!r}")

    def _begin(self, rows: list[int], sessions: Sequence[Hashable], **lengths: Tensor) -> None:
        """The last idle rows run from now on, with these lengths (``[n]`` int64 on the host)."""
        del self._idle[len(self._idle) - len(rows) :]
        self._set(torch.tensor(rows, dtype=torch.int64), phase=RUNNING, **lengths)
        for row, session in zip(rows, sessions, strict=True):
            self.session[row] = session
            if session is not None:
                self.slot[session] = row
        self._done()

    def reserve(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """Allocate slots up to the length ``to`` without computing them, for instance for a draft.

        Returns ``[sum(to - allocated)]`` int64 slots on the device, row after row, or None if memory is short.
        """
        batch = self.batch(rows, RUNNING)
        return self._grow(batch, self._longer(batch, to), commit=False)

    def extend(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """Allocate slots up to the length ``to``, for tokens that are computed now: ``committed`` becomes ``to``.

        Returns ``[sum(to - allocated)]`` int64 slots on the device, row after row, or None if memory is short.
        ValueError for a row with slots that are allocated and not committed: they would be overwritten.
        """
        batch = self._without_tail(rows)
        return self._grow(batch, self._longer(batch, to), commit=True)

    def decode(self, rows: Numbers) -> Tensor | None:
        """Allocate one slot for each row, for a token that is computed now.

        Returns ``[n]`` int64 slots on the device, or None if memory is short. ValueError for a row with slots that are
        allocated and not committed.
        """
        batch = self._without_tail(rows)
        return self._grow(batch, self._longer(batch, self.allocated[batch] + 1), commit=True, one=True)

    def commit(self, rows: Numbers, to: Numbers) -> None:
        """The allocated tokens up to the length ``to`` are computed, for instance verified tokens of a draft."""
        batch = self.batch(rows, RUNNING)
        most, why = self.allocated[batch], "what is committed and allocated"
        self._set(batch, committed=self._lengths("to", to, self.committed[batch], most, why))
        self._done()

    def roll_back(self, rows: Numbers, to: Numbers) -> None:
        """Slots that were allocated are not used after all: give back the slots after ``to``, in one free.

        So ends a draft that is not accepted, and a step that failed before its tokens were computed. ``to``: at least
        the tree's part, at most what is allocated. What is committed after ``to`` is so no more. ValueError where the
        window before ``to`` has left the SWA pool.
        """
        batch = self.batch(rows, RUNNING)
        cut = self._lengths(
            "to", to, self.protected[batch], self.allocated[batch], "the tree's part and what is allocated"
        )
        committed = torch.minimum(cut, self.committed[batch])
        kept = (self.cursor[batch] <= self.protected[batch]) | (self.cursor[batch] + self.window <= committed)
        require(kept, "to", lambda i: f"expected a length whose window row {int(batch[i])} still has", cut)
        self.free_unused(batch, cut)
        self._set(batch, committed=committed, allocated=cut)
        self._done()

    def slide(self, rows: Numbers) -> Tensor:
        """Move the attention window on: give back the SWA pages before ``window_reach``, in one free.

        Nothing is given back before the cursor or of the tree's part. Returns ``[n]`` int64 on the host, the new
        cursors. Without a window nothing moves. Where every layer has a window, the full pages are given back.
        """
        batch = self.batch(rows, RUNNING)
        if not self.slides:
            return self.cursor[batch]
        cursor, reach = self.cursor[batch], self.window_reach(batch)
        moves = reach >= torch.maximum(cursor, self.protected[batch])
        return self._slide(batch, torch.where(moves, reach, cursor))

    def window_reach(self, rows: Tensor) -> Tensor:
        """How far ``slide`` may move the cursors of ``rows``: ``[n]`` int64 on the host, whole pages in tokens.

        The window before the next token stays, and a page of margin, as in SGLang. A subclass may override this;
        nothing after ``committed - window`` may be given back.
        """
        return self.page_floor(self.committed[rows] - self.window - self.page_size)

    def slide_to(self, rows: Numbers, to: Numbers) -> Tensor:
        """Move the attention window on: give back the SWA pages of the tokens before ``to``, in one free.

        ``to``: whole pages, at least the cursor and the tree's part, at most the committed length less the window.
        Where every layer has a window, the full pages are given back. Returns ``[n]`` int64 on the host, the new
        cursors. ValueError for rows without a window.
        """
        if not self.slides:
            raise ValueError("rows: expected rows with a window, these have none, so no token can leave it")
        batch = self.batch(rows, RUNNING)
        least, most = torch.maximum(self.cursor[batch], self.protected[batch]), self.committed[batch] - self.window
        cursor = self._lengths("to", to, least, most, "past cursor and tree's part, the window is kept")
        self._check_aligned("to", cursor)
        return self._slide(batch, cursor)

    def finish(self, rows: Numbers) -> None:
        """The requests end, are aborted or retracted: they read nothing any more. ``release`` comes next."""
        self._set(self.batch(rows, RUNNING), phase=LEAVING)
        self._done()

    def donate(self, row: int, upto: int) -> Tensor:
        """The tree becomes the owner of the row's pages from ``protected`` to ``upto``; the row goes on reading them.

        ``upto``: whole pages, at most what is committed. Returns ``[upto - protected]`` int64 slots on the device;
        those of tokens before the cursor have no SWA slots.
        """
        rows, first, last = self._part(row, upto)
        slots = self.token_slots.read(rows, first, last)
        self._set(rows, protected=last)
        self._done()
        return slots

    def donate_swa(self, row: int, tree_slots: Tensor, upto: int) -> None:
        """The tree has the tokens from ``protected`` to ``upto`` without SWA slots: it gets those of the row.

        The row's full copies are freed, and the row reads the tree's slots. ``upto``, ``tree_slots``: as for
        ``dedupe``. ValueError also where a token has left the row's window, or has SWA slots in the tree, and over an
        allocator without an SWA pool.
        """
        pools = self.pools
        rows, first, last = self._part(row, upto)
        own = self.token_slots.read(rows, first, last)
        self._check_tree_slots("tree_slots", tree_slots, own)
        if tree_slots.numel() != own.numel():
            raise ValueError(f"tree_slots must be {own.numel()} slots, up to upto, got {tree_slots.numel()}")
        if bool((self.cursor[rows] > first).any()):
            raise ValueError(f"row: tokens of row {row} have left its window, so it has no SWA slots for them")
        pools.move_swa(own, tree_slots)
        self.allocator.free(own, row_lens=[own.numel()], swa_lens=[0])
        self.token_slots.write(self.token_slots.places(rows, first, last), tree_slots)
        self._set(rows, protected=last)
        self._done()

    def dedupe(self, row: int, tree_slots: Tensor, upto: int) -> None:
        """The tree has the tokens from ``protected`` to ``upto`` already: free the row's copies and read the tree's.

        ``upto``: whole pages, at most what is committed. ``tree_slots``: ``[upto - protected]`` integers on the device.
        """
        rows, first, last = self._part(row, upto)
        own = self.token_slots.read(rows, first, last)
        self._check_tree_slots("tree_slots", tree_slots, own)
        if tree_slots.numel() != own.numel():
            raise ValueError(f"tree_slots must be {own.numel()} slots, up to upto, got {tree_slots.numel()}")
        self._give_back(rows, first, last)
        self.token_slots.write(self.token_slots.places(rows, first, last), tree_slots)
        self._set(rows, protected=last)
        self._done()

    def release(self, rows: Numbers) -> None:
        """Give back all that finished requests own, in one free, with partly filled pages; their rows become idle.

        A session whose row is released has no slot any more.
        """
        self._drop(self.batch(rows, LEAVING))

    # A streaming session.

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """Turns end: each row goes to its session's slot, cut to ``agreed`` tokens (input and answer as sent).

        What was decoded or allocated beyond is given back, in one free. A row whose window before the cut has left the
        SWA pool is cut back to the tree's part, see ``cut_back``.
        """
        batch = self.batch(rows, RUNNING)
        for i, row in enumerate(batch.tolist()):
            if self.session[row] is None:
                raise ValueError(f"rows[{i}]: expected a turn of a session, got row {row}, which has none")
        text = self._lengths("agreed", agreed, self.protected[batch], None, "the tree's part")
        over = text < self.committed[batch]
        committed, cursor = self.cut_back(batch, torch.minimum(text, self.committed[batch]))
        allocated = torch.where(over, committed, torch.minimum(text, self.allocated[batch]))
        self.trim_overshoot(batch, allocated)
        self._set(batch, phase=SAVED, committed=committed, allocated=allocated, text=text)
        self._set(batch, cursor=cursor, gap=torch.minimum(self.gap[batch], cursor))
        self._done()

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """The next turns of saved sessions are to go on after ``prefix`` tokens: give back the rest, in one free.

        Returns ``[n]`` int64 on the host: the lengths after which they do go on. These are shorter where the window
        before ``prefix`` has left the SWA pool, and the row was cut back to the tree's part (``cut_back``). ``restore``
        may be called again, for at most what it left.
        """
        rows = self._saved(sessions)
        most, why = self.committed[rows], "the tree's part and what is committed"
        committed, cursor = self.cut_back(rows, self._lengths("prefix", prefix, self.protected[rows], most, why))
        self.free_tail(rows, committed)
        self._set(rows, committed=committed, allocated=committed)
        self._set(rows, cursor=cursor, gap=torch.minimum(self.gap[rows], cursor))
        self._done()
        return committed

    def resume(self, sessions: Sequence[Hashable], given: Numbers) -> list[int]:
        """The next turns of saved sessions run on the rows in their slots, which are returned.

        ``given``: the lengths of their inputs, at least the text so far, and at least one token more than is committed.
        ValueError for a row with slots that are allocated and not committed: call ``restore`` first.
        """
        rows = self._saved(sessions)
        self._check_without_tail(rows, "sessions")
        least = torch.maximum(self.text[rows], self.committed[rows] + 1)
        self._lengths("given", given, least, None, "the text so far, and a token to compute")
        self._set(rows, phase=RUNNING)
        self._done()
        found: list[int] = rows.tolist()
        return found

    def begins_anew(self, session: Hashable, given: int) -> bool:
        """The tree has all ``given`` tokens of the input of the session's next turn, so the saved row is of no use.

        The last token of an input is computed again, and no page of the tree is written: ``close`` the session's row,
        and ``admit`` the turn. False for a session without a saved row.
        """
        row = self.slot.get(session)
        return row is not None and given <= int(self.protected[row])

    def close(self, sessions: Sequence[Hashable]) -> None:
        """Sessions end between turns: give back all that the rows in their slots own, in one free."""
        self._drop(self._saved(sessions))

    # Cutting a row. ``rows`` and lengths: ``[n]`` int64 on the host. A subclass may override these.

    def cut_back(self, rows: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """The lengths after which rows that are cut to ``to`` can go on, and their cursors then.

        A row whose window before ``to`` is still in the SWA pool goes on after ``to`` with the cursor it has. Any other
        row goes back to the tree's part, and its cursor too.
        """
        cursor, protected = self.cursor[rows], self.protected[rows]
        kept = (cursor <= protected) | (cursor + self.window <= to)
        return torch.where(kept, to, protected), torch.where(kept, cursor, protected)

    def trim_overshoot(self, rows: Tensor, to: Tensor) -> None:
        """``save`` gives back the pages that have no token before ``to``; a page that has one stays."""
        self._give_back(rows, self.page_ceil(to), self.allocated[rows])

    def free_tail(self, rows: Tensor, to: Tensor) -> None:
        """``restore`` gives back the pages that have no token before ``to``; a page that has one stays."""
        self._give_back(rows, self.page_ceil(to), self.allocated[rows])

    def free_unused(self, rows: Tensor, to: Tensor) -> None:
        """``roll_back`` gives back the pages that have no token before ``to``; a page that has one stays."""
        self._give_back(rows, self.page_ceil(to), self.allocated[rows])

    def free_left(self, rows: Tensor, start: Tensor, stop: Tensor) -> None:
        """``slide`` gives back the pages of the tokens ``start..stop``, which left the window of every layer."""
        self._free_spans(rows, start, stop)

    def undo(self, saved: Backup, slots: Tensor) -> None:
        """After an error: ``slots``, which were handed out since ``saved``, are free again. A subclass may override it.

        A page that had tokens before ``slots`` stays, with its mapping.
        """
        del slots
        self.allocator.restore_state(saved)

    @contextmanager
    def _undone_on_error(self, saved: Backup, slots: Tensor) -> Iterator[None]:
        """Where an error is raised inside, ``slots`` are given back; the error goes on."""
        try:
            yield
        except BaseException:
            self.undo(saved, slots)
            raise

    def window_is_own(self, rows: Tensor) -> Tensor:
        """``[n]`` bool on the host: no token of the tree's part is in the window before the row's next token."""
        return self.protected[rows] + self.window <= self.committed[rows]

    def page_floor(self, lengths: Tensor) -> Tensor:
        """Lengths rounded down to whole pages."""
        return lengths // self.page_size * self.page_size

    def page_ceil(self, lengths: Tensor) -> Tensor:
        """Lengths rounded up to whole pages."""
        return -(-lengths // self.page_size) * self.page_size

    # Changes.

    def _longer(self, rows: Tensor, to: Numbers) -> Tensor:
        most = torch.full_like(rows, self.max_tokens)
        return self._lengths("to", to, self.allocated[rows], most, "no shorter than allocated, within max_tokens")

    def _grow(self, rows: Tensor, to: Tensor, *, commit: bool, one: bool = False) -> Tensor | None:
        prefix, saved = self.allocated[rows], self.allocator.backup_state()
        before, after, places = upload(torch.stack([prefix, to, rows * self.max_tokens + prefix]), self.device)
        last = self.token_slots.before(places, before)
        if one:
            slots = self.allocator.alloc_decode(after, to, last)
        else:
            tokens = sum((to - prefix).tolist())
            slots = self.allocator.alloc_extend(before, prefix, after, to, last, tokens)
        if slots is None:
            return None
        with self._undone_on_error(saved, slots):
            self.token_slots.write(places if one else self.token_slots.places(rows, prefix, to), slots)
        self._set(rows, allocated=to, **({"committed": to} if commit else {}))
        self._done()
        return slots

    def _slide(self, rows: Tensor, to: Tensor) -> Tensor:
        start = torch.maximum(self.cursor[rows], self.protected[rows])
        stop = torch.maximum(start, to)
        if self.has_gaps:
            return self._slide_all(rows, start, stop)
        lens = (stop - start).tolist()
        if any(lens) and self.allocator.frees_in_one_launch:
            self.pools.free_swa_at(self.token_slots.flat, self.token_slots.heads(rows, start, stop, self.page_size))
        elif any(lens):
            self.pools.free_swa(self.token_slots.read(rows, start, stop), row_lens=lens)
        self._set(rows, cursor=to)
        self._done()
        return to

    def _slide_all(self, rows: Tensor, start: Tensor, stop: Tensor) -> Tensor:
        """``_slide`` where every layer has a window: the tokens ``start..stop`` give their slots back."""
        self.free_left(rows, start, stop)
        whole, moves = self.gap[rows] == self.cursor[rows], start < stop
        gap = torch.where(moves & whole, start, self.gap[rows])
        cursor = torch.where(moves, stop, self.cursor[rows])
        self._set(rows, gap=gap, cursor=cursor)
        self._done()
        return cursor

    def _give_back(self, rows: Tensor, start: Tensor, stop: Tensor) -> None:
        """Free the rows' own pages of the tokens ``start..stop`` at once; ``start`` is whole pages."""
        if self.has_gaps:  # each row in two parts: what is before its gap, and what is behind
            stop = torch.stack([torch.minimum(stop, self.gap[rows]), stop]).T.reshape(-1)
            start = torch.stack([start, torch.maximum(start, self.cursor[rows])]).T.reshape(-1)
            rows = rows.repeat_interleave(2)
        self._free_spans(rows, start, stop)

    def _free_spans(self, rows: Tensor, start: Tensor, stop: Tensor) -> None:
        """Free the pages of the tokens ``start..stop`` of ``rows`` at once; a row can be there twice."""
        stop = torch.maximum(start, stop)
        lens = (stop - start).tolist()
        if not any(lens):
            return
        mapped = lens
        if self.allocator.windowed:
            mapped = (stop - torch.maximum(start, self.cursor[rows])).clamp(min=0).tolist()
        if self.allocator.frees_in_one_launch:
            heads = self.token_slots.heads(rows, start, stop, self.page_size)
            self.allocator.free_at(self.token_slots.flat, heads, mapped_spans(lens, mapped, self.page_size))
        else:
            self.allocator.free(self.token_slots.read(rows, start, stop), row_lens=lens, swa_lens=mapped)

    def _drop(self, rows: Tensor) -> None:
        """Free all that the rows own; they become idle, and their sessions have no slots."""
        self._give_back(rows, self.protected[rows], self.allocated[rows])
        self.lengths[:, rows] = 0
        self.phase[rows] = IDLE
        for row in rows.tolist():
            self.slot.pop(self.session[row], None)
            self.session[row] = None
            self._idle.append(row)
        self._done()

    def _set(self, rows: Tensor, **tables: Tensor | int) -> None:
        for name, values in tables.items():
            getattr(self, name)[rows] = values

    # Checking arguments.

    def batch(self, rows: Numbers, *phases: int) -> Tensor:
        """``[n]`` int64 on the host: ``rows``, which must be different rows, each in one of the ``phases``."""
        batch = numbers("rows", rows)
        values = batch.tolist()
        if values and (min(values) < 0 or max(values) >= self.rows):
            at = next(i for i, row in enumerate(values) if not 0 <= row < self.rows)
            raise ValueError(f"rows[{at}]: expected a row in 0..{self.rows - 1}, got {values[at]}")
        if len(set(values)) < len(values):
            raise ValueError(f"rows must be different rows, got {values}")
        for i, phase in enumerate(self.phase[batch].tolist()):
            if phase not in phases:
                wanted = " or ".join(PHASES[p] for p in phases)
                raise ValueError(f"rows[{i}]: expected a row that is {wanted}, it is {PHASES[phase]}, got {values[i]}")
        return batch

    def _saved(self, sessions: Sequence[Hashable]) -> Tensor:
        """``[n]`` int64 on the host: the rows in the slots of different sessions, between two turns."""
        named = names("sessions", sessions)
        phases = self.phase.tolist()
        for i, session in enumerate(named):
            if session not in self.slot or phases[self.slot[session]] != SAVED:
                raise ValueError(f"sessions[{i}]: expected a session whose slot holds a row, got {session!r}")
        return self.batch([self.slot[session] for session in named], SAVED)

    def _lengths(self, name: str, lengths: Numbers, least: Tensor, most: Tensor | None, why: str) -> Tensor:
        """``[n]`` int64 on the host: one length for each row, from ``least`` to ``most`` (``[n]``, None: no end)."""
        found = numbers(name, lengths, least.numel())
        highest = [None] * found.numel() if most is None else most.tolist()
        for i, (low, length, high) in enumerate(zip(least.tolist(), found.tolist(), highest, strict=True)):
            if length < low or (high is not None and length > high):
                upper = "on" if high is None else f"to {high}"
                raise ValueError(f"{name}[{i}]: expected a length from {low} {upper} ({why}), got {length}")
        return found

    def _part(self, row: int, upto: int) -> tuple[Tensor, Tensor, Tensor]:
        """A row that runs or is leaving, the end of its tree's part, and ``upto``, the new one (``[1]`` each)."""
        rows = self.batch([row], RUNNING, LEAVING)
        why = "committed whole pages past the tree's part" + ", before those that left the window" * self.has_gaps
        first, last = self.protected[rows], self.donatable(rows)
        last = self._lengths("upto", [upto], first, last, why)
        self._check_aligned("upto", last)
        return rows, first, last

    def _without_tail(self, rows: Numbers) -> Tensor:
        batch = self.batch(rows, RUNNING)
        self._check_without_tail(batch, "rows")
        return batch

    def _check_without_tail(self, rows: Tensor, name: str) -> None:
        for i, (committed, allocated) in enumerate(self.lengths[2:4, rows].T.tolist()):
            if committed != allocated:
                what = f"allocated {allocated}, committed {committed}"
                raise ValueError(f"{name}[{i}]: expected a row with nothing allocated beyond what is committed, {what}")

    def _check_aligned(self, name: str, lengths: Tensor) -> None:
        require(lengths % self.page_size == 0, name, lambda _: f"expected whole pages of {self.page_size}", lengths)

    def _check_tree_slots(self, name: str, slots: Tensor, own: Tensor | None = None) -> None:
        """Slots of the tree must be whole pages; where content is checked also in order, handed out, not in ``own``."""
        checks.int_tensor(name, slots, self.device)
        checks.page_multiple(f"{name}: the number of slots", slots.numel(), self.page_size)
        if not self._check_content or slots.numel() == 0:
            return
        full, given = self.allocator.full_pool, slots.to(torch.int64)
        pages = checks.held_pages(name, given, full.held, self.page_size)
        if self.page_size > 1 and not torch.equal(full.slots(given[:: self.page_size] // self.page_size), given):
            raise ValueError(f"{name} must hold the slots of each page in order")
        if own is not None and bool(torch.isin(pages, own // self.page_size).any()):
            raise ValueError(f"{name} must be the tree's, not the pages that the row gives back")

    # Sizes that an engine adds up when it checks for leaks.

    def available_size(self) -> int:
        """How many rows are idle."""
        return len(self._idle)

    def session_held_tokens(self) -> int:
        """Full slots (whole pages, in tokens) that the rows in session slots own; the tree's part is not counted."""
        return self._held(self.protected)

    def session_held_swa_tokens(self) -> int:
        """SWA slots (whole pages, in tokens) that the rows in session slots own; the tree's part is not counted."""
        return self._held(torch.maximum(self.protected, self.cursor)) if self.allocator.windowed else 0

    def _held(self, start: Tensor) -> int:
        gaps = self.cursor - self.gap if self.has_gaps else torch.zeros_like(self.gap)
        return sum(((self.page_ceil(self.allocated) - start - gaps) * (self.phase == SAVED)).tolist())

    def session_held_req_count(self) -> int:
        """How many rows are in session slots."""
        return self.phase.tolist().count(SAVED)

    # Looking for errors.

    def check(self) -> None:
        """Count everything again from the slots of the rows (on CUDA the host waits). AssertionError if it differs."""
        owned: list[int] = []
        mapped: list[int] = []
        for row in range(self.rows):
            self._check_lengths(row)
            pages, swa = self._check_slots(row)
            owned += pages
            mapped += swa
        expect("number of pages that rows own, and of different ones", len(owned), len(set(owned)))
        expect("number of SWA pages that rows own, and of different ones", len(mapped), len(set(mapped)))
        held = self.allocator.full_pool.held.tolist()
        expect("pages of rows that are free", [p for p in owned if held and not held[p]], [])
        expect("idle rows", sorted(self._idle), [r for r, p in enumerate(self.phase.tolist()) if p == IDLE])
        inverse = {s: r for r, s in enumerate(self.session) if s is not None}
        expect("rows of sessions", self.slot, inverse)

    def _check_lengths(self, row: int) -> None:
        protected, cursor, committed, allocated, text, gap = self.lengths[:, row].tolist()
        phase = int(self.phase[row])
        idle = phase != IDLE or (not any(self.lengths[:, row].tolist()) and self.session[row] is None)
        expect(f"row {row}: if it is idle, it has nothing", idle, True)
        order = 0 <= cursor <= committed <= allocated <= self.max_tokens and 0 <= protected <= committed
        expect(f"row {row}: cursor, protected <= committed <= allocated <= max_tokens", order, True)
        rest = (protected % self.page_size, cursor % self.page_size, gap % self.page_size)
        expect(f"row {row}: tokens of protected, cursor and gap beyond whole pages", rest, (0, 0, 0))
        behind = not self.has_gaps or gap == cursor <= protected or protected <= gap < cursor
        expect(f"row {row}: its gap is behind the tree's part", behind, True)
        kept = phase == LEAVING or cursor <= protected or cursor + self.window <= committed
        expect(f"row {row}: its window has its slots", kept, True)
        saved = phase != SAVED or (self.session[row] is not None and committed <= text)
        expect(f"row {row}: if it is saved, it has a session, whose text it does not exceed", saved, True)

    def _check_slots(self, row: int) -> tuple[list[int], list[int]]:
        """The pages that the row owns in the full pool, and in the SWA pool."""
        protected, cursor, _, allocated, _, gap = self.lengths[:, row].tolist()
        slots = self.req_to_token[row, protected:allocated].to(torch.int64)
        if self.has_gaps and gap < cursor:
            slots = torch.cat([slots[: gap - protected], slots[cursor - protected :]])
        pages = slots[:: self.page_size] // self.page_size
        whole = self.allocator.full_pool.slots(pages)[: slots.numel()]
        expect(f"row {row}: slots of each page in order", slots.tolist(), whole.tolist())
        if not self.allocator.windowed:
            expect(f"row {row}: cursor of a row without a window", cursor * (self.window == 0), 0)
            return pages.tolist(), []
        swa = self.pools.translate_loc_from_full_to_swa(slots)
        lost = (torch.arange(protected, allocated, device=self.device) < cursor).tolist()
        expect(f"row {row}: tokens without SWA slots", [to == 0 for to in swa.tolist()], lost)
        return pages.tolist(), (swa[:: self.page_size][swa[:: self.page_size] > 0] // self.page_size).tolist()

    def _done(self) -> None:
        if self.allocator.debug:
            self.check()
