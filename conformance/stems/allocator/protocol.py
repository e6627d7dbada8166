"""What an engine must implement to be driven as the stem ``allocator``: one paged pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance.driver.protocol import Engine


@dataclass(frozen=True)
class AllocatorSnapshot:
    """One pool as it is now.

    ``free``, ``released``: the page numbers on the free list and on the release list, in list order. ``released`` is
    empty in an engine without a release list. ``available``: the available size that the engine reports, in tokens.
    """

    free: list[int]
    released: list[int]
    available: int


class AllocatorEngine(Engine, Protocol):
    """One paged allocator.

    Configuration: ``page_size`` (tokens), ``size`` (pages, without the padding page), ``rows`` (how many rows the
    caller has; an allocator need not know), and ``need_sort`` (true: freed pages go to a release list, which the
    engine sorts into the free list when it likes).
    """

    def alloc(self, tokens: int) -> list[int] | None:
        """Hands out whole pages for ``tokens`` tokens, a multiple of the page size.

        Sent for a row whose last page is full. Returns the slots, one for each token, page after page, or ``None`` if
        there are too few pages.
        """

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out slots for a batch of rows that grow by any number of tokens, as a prefill does.

        ``before``, ``after``: the length of each row in tokens, before and after the call. ``last``: the slot of each
        row's last token, -1 if the row is empty or has freed this slot. A row must first fill the page of its last
        token, and then new pages, in order. Returns the new slots of all rows, row after row, ``sum(after) -
        sum(before)`` in all, or ``None`` if there are too few pages for the whole batch.
        """

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out one slot for each row of a batch, as a decode step does.

        ``after``: the length of each row after the call, in tokens. ``last``: the slot of each row's last token, -1 if
        the row has freed this slot. Returns one slot for each row, or ``None`` if there are too few pages for the
        whole batch.
        """

    def free(self, slots: Sequence[int]) -> None:
        """Frees every page in which one of these slots lies.

        The caller owns these pages and names each page in one call only. Between ``begin_group`` and ``end_group`` the
        pages become available only when the group ends. Cannot be refused.
        """

    def free_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the pages of a segment of a row, as ``free`` does.

        Optional. ``slots``: those of the row's tokens from ``start`` on, in order and without a gap. ``start`` is a
        multiple of the page size; the segment may end inside a page, and this page is freed, too.
        """

    def overwrite(self, slots: Sequence[int]) -> None:
        """The caller writes ``slots`` into its own table of rows, where the slots of earlier calls of ``free`` stood.

        Optional. A class that turns numbers into tensors writes them into each tensor that it has passed to a call
        that frees, again and again from the first of ``slots`` on. The allocator must not notice: it may keep no view
        of a tensor of its caller.
        """

    def begin_group(self) -> None:
        """Opens a free group: pages that are freed from now on wait until the outermost open group ends.

        Groups may nest. An engine whose groups do not nest raises an ``AssertionError``, ``RuntimeError``,
        ``ValueError`` or ``TypeError`` with a message where a group is open, and changes nothing.
        """

    def end_group(self) -> None:
        """Ends the innermost free group. The end of the outermost group makes the waiting pages available.

        Sent also where no group is open, as after ``clear``: then it changes nothing, or raises as ``begin_group``.
        """

    def backup(self) -> None:
        """Saves the state of the pool inside the engine. A later backup replaces it."""

    def restore(self) -> None:
        """Restores the last backup: every page that was handed out since is free again.

        Sent only if no page was freed since the backup. The same backup may be restored again.
        """

    def clear(self) -> None:
        """Frees every page, as when the cache is flushed. Afterwards the pool is as it was before the first call."""

    def bad(self, kind: str, row: int) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: ``free_again`` (a
        page that is free already), ``free_padding`` (slot 0), ``alloc_negative`` (a negative number of tokens),
        ``free_outside`` (a slot beyond the pool), ``end_group`` (no group is open). ``row`` is a small number that
        varies the input. See ``BAD`` in conformance/stems/pools/rules.py.
        """

    def snapshot(self) -> AllocatorSnapshot:
        """Reads the pool as it is now, and changes nothing. Sent once after each call."""
