"""What an engine must implement to be driven as the stem ``swa_mapping``: two pools, and the mapping between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance.driver.protocol import Engine
from conformance.stems.allocator.protocol import AllocatorSnapshot


@dataclass(frozen=True)
class SwaMappingSnapshot:
    """Two pools and the mapping as they are now.

    ``mapping``: full_to_swa_index_mapping, the SWA slot of each full slot, by full slot number from 0 on; 0 where
    there is none.
    """

    full: AllocatorSnapshot
    swa: AllocatorSnapshot
    mapping: list[int]

    @classmethod
    def without_swa(cls, full: AllocatorSnapshot) -> SwaMappingSnapshot:
        """One pool, as the memory of a model without sliding-window layers: the SWA pool has no page, and no slot is
        mapped.
        """
        return cls(full, AllocatorSnapshot([], [], 0), [])


class SwaMappingEngine(Engine, Protocol):
    """One allocator of a full pool and a sliding-window (SWA) pool, and the mapping from full slots to SWA slots.

    Calls take and return full slots; the engine looks up the SWA slots in its mapping. Configuration: that of
    ``AllocatorEngine``, with ``size`` the pages of the full pool and ``size_swa`` the pages of the SWA pool.
    """

    def alloc(self, tokens: int) -> list[int] | None:
        """Hands out whole pages in both pools for ``tokens`` tokens, a multiple of the page size, and maps them.

        Each full page is mapped to one SWA page, each slot to the slot with its offset. Sent for a row whose last page
        is full. Returns the full slots, page after page, or ``None`` if either pool has too few pages.
        """

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out slots in both pools for a batch of rows that grow by any number of tokens, as a prefill does.

        Every new full slot is mapped to an SWA slot. ``before``, ``after``: the length of each row in tokens, before
        and after the call. ``last``: the full slot of each row's last token, -1 if the row is empty or does not own
        this slot. A row must first fill the full page and the SWA page of its last token, and then new pages. Returns
        the new full slots of all rows, row after row, or ``None`` if either pool has too few pages for the whole
        batch.
        """

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out one slot in both pools for each row of a batch, and maps it.

        ``after``: the length of each row after the call, in tokens. ``last``: the full slot of each row's last token,
        -1 if the row does not own this slot. Returns one full slot for each row, or ``None`` if either pool has too
        few pages for the whole batch.
        """

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """Hands out slots for a new row of ``tokens`` tokens, of which only the last ``tail`` get SWA slots.

        Disaggregated decode does this: only the window of the prompt was transferred. The earlier tokens must map to
        nothing (0). ``tail`` is between 0 and ``tokens`` and may start inside a page; a mapped slot keeps its offset.
        Returns ``tokens`` full slots, or ``None`` if either pool has too few pages.
        """

    def free(self, slots: Sequence[int]) -> None:
        """Frees the full pages in which these full slots lie, and the SWA pages that they map to.

        Free full slots map to nothing. In a free group the pages become available only when the outermost group ends.
        The SWA page of a slot may be gone already. An engine whose contract excludes such slots has the word
        ``free_unmapped`` in ``lacks``: pages without an SWA page are then sent to ``free_full`` instead, and never to
        ``free_swa``.
        """

    def free_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the pages of a segment of a row in both pools, as ``free`` does.

        Optional. ``slots``: those of the row's tokens from ``start`` on, in order and without a gap. ``start`` is a
        multiple of the page size; the segment may end inside a page, and this page is freed, too. The first slot of
        each page is mapped.
        """

    def free_swa(self, slots: Sequence[int]) -> None:
        """Frees the SWA pages that these full slots map to.

        The full pages stay with their row. Sent when these tokens have left the window. The slots fill whole full
        pages. They may be unmapped already (but see ``free``), and then nothing happens. In a free group the engine
        chooses when the SWA pages become available, and when their full slots map to nothing: now, or when the
        outermost group ends. It frees the pages that the slots map to now, whatever is mapped until the end.
        """

    def free_swa_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the SWA pages of a segment of a row, as ``free_swa`` does.

        Optional. ``slots``, ``start``: as for ``free_segment``; the segment ends on a page boundary.
        """

    def free_full(self, slots: Sequence[int]) -> None:
        """Frees the full pages of these full slots, as a tree evicts a tombstone.

        Sent only for full pages whose SWA pages were freed before. In a free group the engine chooses when the pages
        become available: now, or when the outermost group ends.
        """

    def overwrite(self, slots: Sequence[int]) -> None:
        """The caller writes ``slots`` into its own table of rows, where the slots of earlier calls of ``free`` stood.

        Optional. A class that turns numbers into tensors writes them into each tensor that it has passed to a call
        that frees, again and again from the first of ``slots`` on. The allocator must not notice: it may keep no view
        of a tensor of its caller.
        """

    def begin_group(self) -> None:
        """Opens a free group: what ``free`` frees from now on waits until the outermost open group ends.

        Groups may nest. An engine whose groups do not nest raises an ``AssertionError``, ``RuntimeError``,
        ``ValueError`` or ``TypeError`` with a message where a group is open, and changes nothing.
        """

    def end_group(self) -> None:
        """Ends the innermost free group. The end of the outermost group makes the waiting pages of both pools
        available.

        Sent also where no group is open, as after ``clear``: then it changes nothing, or raises as ``begin_group``.
        """

    def backup(self) -> None:
        """Saves both pools and the mapping inside the engine. A later backup replaces it."""

    def restore(self) -> None:
        """Restores the last backup of both pools and of the mapping.

        Every page that was handed out since is free again and maps to nothing. Sent only if no page was freed since
        the backup. The same backup may be restored again.
        """

    def clear(self) -> None:
        """Frees every page of both pools, as when the cache is flushed. Afterwards nothing is mapped."""

    def bad(self, kind: str, row: int) -> None:
        """Makes one call of its own with bad input, with the kinds and the answer of ``AllocatorEngine.bad``."""

    def snapshot(self) -> SwaMappingSnapshot:
        """Reads both pools and the mapping as they are now, and changes nothing. Sent once after each call."""
