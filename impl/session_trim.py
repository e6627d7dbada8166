"""The life of request rows and of streaming sessions' slots: batched growth, trims and releases over both pools.

A row is admitted with the tree's prefix, grows, moves its window and leaves, page by page to the tree or by one free.
A turn of a session leaves its row in the session's slot, cut to what was sent, and the next turn goes on there. Every
free is closed under pages: it takes whole pages beyond a cut, and a page that keeps a token stays, with its mapping.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from impl.rows import LEAVING, RUNNING, SAVED, Numbers, RowTable, names, numbers

__all__ = ["RequestRows"]


class RequestRows(RowTable):
    """What an engine has in place of its ``req_to_token`` bookkeeping and its session slots.

    ``rows``, ``to`` and other lengths: sequences of ints or ``[n]`` integer host tensors, one length a row, different
    rows. Bad input is a ValueError (TypeError for what is no integer) that names the argument and says what was
    expected; it, and a None for want of room, leave everything as it was. With the allocator's ``debug`` every call
    ends with ``check``.
    """

    # A request.

    def admit(self, prefixes: Sequence[Tensor], sessions: Sequence[Hashable] | None = None) -> list[int] | None:
        """A row for each request, or None if fewer are idle.

        ``prefixes``: device slots of whole pages that the tree has and keeps. ``sessions``: None for no session; one
        that has a row already is refused (its next turn resumes).
        """
        named = [None] * len(prefixes) if sessions is None else names("sessions", sessions)
        if len(named) != len(prefixes):
            raise ValueError(f"sessions must be as many as prefixes, {len(prefixes)}, got {len(named)}")
        for i, (prefix, session) in enumerate(zip(prefixes, named, strict=True)):
            self._admissible(i, prefix, session)
        if len(named) > len(self._idle):
            return None
        rows = [self._idle.pop() for _ in named]
        self._begin(numbers("rows", rows), prefixes, named)
        return rows

    def _admissible(self, i: int, prefix: Tensor, session: Hashable) -> None:
        self._tree_slots(f"prefixes[{i}]", prefix)
        if prefix.numel() > self.max_tokens:
            raise ValueError(f"prefixes[{i}]: expected at most {self.max_tokens} slots, got {prefix.numel()}")
        if session in self.slot:
            raise ValueError(f"sessions[{i}]: expected a session without a row, got {session!r}")

    def _begin(self, rows: Tensor, prefixes: Sequence[Tensor], sessions: Sequence[Hashable]) -> None:
        pages = numbers("prefixes", [prefix.numel() for prefix in prefixes])
        if any(pages.tolist()):
            self._write(self._places(rows, torch.zeros_like(pages), pages), torch.cat(list(prefixes)))
        self._set(rows, phase=RUNNING, protected=pages, committed=pages, allocated=pages)
        for row, session in zip(rows.tolist(), sessions, strict=True):
            self.session[row] = session
            if session is not None:
                self.slot[session] = row
        self._done()

    def reserve(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """Slots up to ``to`` that are not computed yet: ``[sum(to - allocated)]`` int64, or None, out of memory."""
        batch = self.batch(rows, RUNNING)
        return self._grow(batch, self._longer(batch, to), commit=False)

    def extend(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """As ``reserve``, and ``to`` is computed. Refused for a row with slots allocated beyond what is committed:
        they would be overwritten.
        """
        batch = self._without_tail(rows)
        return self._grow(batch, self._longer(batch, to), commit=True)

    def decode(self, rows: Numbers) -> Tensor | None:
        """One computed token more for each row: ``[n]`` int64 slots, or None, out of memory. Refused as ``extend``."""
        batch = self._without_tail(rows)
        return self._grow(batch, self._longer(batch, self.allocated[batch] + 1), commit=True, one=True)

    def commit(self, rows: Numbers, to: Numbers) -> None:
        """Allocated tokens up to ``to`` are computed, as when a draft is verified."""
        batch = self.batch(rows, RUNNING)
        most, why = self.allocated[batch], "what is committed and allocated"
        self._set(batch, committed=self._lengths("to", to, self.committed[batch], most, why))
        self._done()

    def slide(self, rows: Numbers) -> Tensor:
        """The window moves on, in one free: SWA pages are given back up to the window before the next token and a page
        of margin, none below the cursor or in the tree's part. ``[n]`` int64 on the host: the cursors.
        """
        batch = self.batch(rows, RUNNING)
        cursor = self.cursor[batch]
        reach = self._floor(self.committed[batch] - self.window - self.page_size)
        free = reach >= torch.maximum(cursor, self.protected[batch])
        return self._slide(batch, torch.where(free, reach, cursor))

    def slide_to(self, rows: Numbers, to: Numbers) -> Tensor:
        """As ``slide``, to where the caller says: whole pages, at most the committed length less the window."""
        batch = self.batch(rows, RUNNING)
        least, most = torch.maximum(self.cursor[batch], self.protected[batch]), self.committed[batch] - self.window
        cursor = self._lengths("to", to, least, most, "past cursor and tree's part, the window is kept")
        self._aligned("to", cursor)
        return self._slide(batch, cursor)

    def finish(self, rows: Numbers) -> None:
        """The requests end, are aborted or retracted: they read nothing any more, and may be released."""
        self._set(self.batch(rows, RUNNING), phase=LEAVING)
        self._done()

    def donate(self, row: int, upto: int) -> Tensor:
        """Committed whole pages up to ``upto`` are the tree's from now on: ``[upto - protected]`` int64 slots of them.

        Those below the cursor have no SWA slots.
        """
        rows, first, last = self._one(row, upto)
        slots = self._read(rows, first, last)
        self._set(rows, protected=last)
        self._done()
        return slots

    def dedupe(self, row: int, tree_slots: Tensor, upto: int) -> None:
        """The tree has the tokens from the row's tree part up to ``upto`` already, in ``tree_slots``: the row gives its
        own copies back and reads those.
        """
        rows, first, last = self._one(row, upto)
        own = self._read(rows, first, last)
        self._tree_slots("tree_slots", tree_slots, own)
        if tree_slots.numel() != own.numel():
            raise ValueError(f"tree_slots must be {own.numel()} slots, up to upto, got {tree_slots.numel()}")
        self._give_back(rows, first, last)
        self._write(self._places(rows, first, last), tree_slots)
        self._set(rows, protected=last)
        self._done()

    def release(self, rows: Numbers) -> None:
        """All that the finished requests own is given back in one free, partial pages too. A session starts anew."""
        self._drop(self.batch(rows, LEAVING))

    # A streaming session.

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """Turns end: each row goes to its session's slot, cut to ``agreed``, the input and the answer that was sent.

        What decoding ran past that is given back, in one free. Where the window before the cut is gone, the row is cut
        back to the tree's part, and its cursor with it.
        """
        batch = self.batch(rows, RUNNING)
        for i, row in enumerate(batch.tolist()):
            if self.session[row] is None:
                raise ValueError(f"rows[{i}]: expected a turn of a session, got row {row}, which has none")
        text = self._lengths("agreed", agreed, self.protected[batch], None, "the tree's part")
        over = text < self.committed[batch]
        committed, cursor = self._back_to(batch, torch.minimum(text, self.committed[batch]))
        allocated = torch.where(over, committed, torch.minimum(text, self.allocated[batch]))
        self._trim(batch, allocated)
        self._set(batch, phase=SAVED, cursor=cursor, committed=committed, allocated=allocated, text=text)
        self._done()

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """Turns are to go on at ``prefix``: what the slots have beyond is given back, in one free.

        ``[n]`` int64 on the host: the lengths where they do go on, shorter where the window before ``prefix`` is gone
        and so the row was cut back to the tree's part. May be done again, for as much as is still there.
        """
        rows = self._saved(sessions)
        most, why = self.committed[rows], "the tree's part and what is committed"
        committed, cursor = self._back_to(rows, self._lengths("prefix", prefix, self.protected[rows], most, why))
        self._trim(rows, committed)
        self._set(rows, cursor=cursor, committed=committed, allocated=committed)
        self._done()
        return committed

    def resume(self, sessions: Sequence[Hashable], given: Numbers) -> list[int]:
        """The next turns run on the slots' rows, which are returned. ``given``: their inputs' lengths, at least the
        text so far and one token more than is committed. Refused before ``restore`` gave back what is not committed.
        """
        rows = self._saved(sessions)
        self._untailed(rows, "sessions")
        least = torch.maximum(self.text[rows], self.committed[rows] + 1)
        self._lengths("given", given, least, None, "the text so far, and a token to compute")
        self._set(rows, phase=RUNNING)
        self._done()
        return [int(row) for row in rows.tolist()]

    def close(self, sessions: Sequence[Hashable]) -> None:
        """Sessions end between turns: all that their slots own is given back in one free."""
        self._drop(self._saved(sessions))

    # What they have in common.

    def _without_tail(self, rows: Numbers) -> Tensor:
        batch = self.batch(rows, RUNNING)
        self._untailed(batch, "rows")
        return batch

    def _untailed(self, rows: Tensor, name: str) -> None:
        for i, (committed, allocated) in enumerate(self.lengths[2:4, rows].T.tolist()):
            if committed != allocated:
                what = f"allocated {allocated}, committed {committed}"
                raise ValueError(f"{name}[{i}]: expected a row with nothing allocated beyond what is committed, {what}")

    def _longer(self, rows: Tensor, to: Numbers) -> Tensor:
        most = torch.full_like(rows, self.max_tokens)
        return self._lengths("to", to, self.allocated[rows], most, "no shorter than allocated, within max_tokens")

    def _grow(self, rows: Tensor, to: Tensor, *, commit: bool, one: bool = False) -> Tensor | None:
        prefix = self.allocated[rows]
        at = rows * self.max_tokens + prefix
        before, after, places = self._upload(torch.stack([prefix, to, at]))
        last = torch.where(before > 0, self._flat[(places - 1).clamp(min=0)].to(torch.int64), -1)
        if one:
            slots = self.allocator.alloc_decode(after, to, last)
        else:
            tokens = sum((to - prefix).tolist())
            slots = self.allocator.alloc_extend(before, prefix, after, to, last, tokens)
        if slots is None:
            return None
        self._write(places if one else self._places(rows, prefix, to), slots)
        self._set(rows, allocated=to, **({"committed": to} if commit else {}))
        self._done()
        return slots

    def _slide(self, rows: Tensor, to: Tensor) -> Tensor:
        start = torch.maximum(self.cursor[rows], self.protected[rows])
        stop = torch.maximum(start, to)
        self.allocator.free_swa(self._read(rows, start, stop), row_lens=(stop - start).tolist())
        self._set(rows, cursor=to)
        self._done()
        return to

    def _back_to(self, rows: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """Where rows that are cut to ``to`` go on, and their cursors then (``[n]`` each)."""
        cursor, protected = self.cursor[rows], self.protected[rows]
        kept = (cursor <= protected) | (cursor + self.window <= to)
        return torch.where(kept, to, protected), torch.where(kept, cursor, protected)

    def _trim(self, rows: Tensor, to: Tensor) -> None:
        """The pages without a token below ``to`` are given back; a page that keeps one stays."""
        self._give_back(rows, self._ceil(to), self.allocated[rows])

    def _give_back(self, rows: Tensor, start: Tensor, stop: Tensor) -> None:
        """The rows' own pages from ``start``, whole pages, up to ``stop``, in one free."""
        stop = torch.maximum(start, stop)
        mapped = (stop - torch.maximum(start, self.cursor[rows])).clamp(min=0)
        slots = self._read(rows, start, stop)
        self.allocator.free(slots, row_lens=(stop - start).tolist(), swa_lens=mapped.tolist())

    def _drop(self, rows: Tensor) -> None:
        self._give_back(rows, self.protected[rows], self.allocated[rows])
        self._emptied(rows)
        self._done()
