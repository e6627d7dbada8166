"""The forward passes of the rows of a caller of allocators, in runs of ``allocator`` and ``swa_mapping``.

These rows have no tokens. So each token of a row is a text of its own: a row, a position, and the operation in which
the row got its slot. A row that grows writes its new slots. Then it reads all slots that it still owns, and the SWA
slots to which they are mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from conformance.driver.shadow import FULL, SWA, Shadow

HOLE = -1  # in a table of slots: the row does not own the slot of this token
NOTHING = 0  # the text of a token that a row does not own


class Growth(NamedTuple):
    """A row that grows: the slots that it had, ``HOLE`` where it does not own one, and its new slots."""

    row: int
    before: Sequence[int]
    new: Sequence[int]


class RowPasses:
    """What rows have in their slots. ``texts``: by row the text of each token. ``last``: the batch that has grown last.

    ``swa_slot(slot)``: the SWA slot that the engine shows for a full slot, 0 for none. ``has_swa(slot)``: whether a
    slot that a row owns has its SWA slot still, as the law has it.
    """

    def __init__(self, shadow: Shadow, swa_slot: Callable[[int], int], has_swa: Callable[[int], bool]) -> None:
        self.shadow, self._swa_slot, self._has_swa = shadow, swa_slot, has_swa
        self.texts: dict[int, list[int]] = {}
        self.last: Sequence[Growth] = ()
        self._count = 0

    def grow(self, batch: Sequence[Growth]) -> None:
        """One pass computes the new tokens of a batch of rows: all of them are written, then each row reads its own.

        Called before the law takes its steps for the rows.
        """
        self.last = batch
        for row, before, new in batch:
            self._write(row, len(before), new)
        for row, before, new in batch:
            texts = self.texts[row]
            self._read(row, before, texts, 0, [self._has_swa(slot) for slot in before])
            self._read(row, new, texts[len(before) :], len(before), [self._swa_slot(slot) > 0 for slot in new])

    def _write(self, row: int, start: int, new: Sequence[int]) -> None:
        fresh = list(range(self._count + 1, self._count + len(new) + 1))
        self._count += len(new)
        known = self.texts.get(row, [])[:start]
        self.texts[row] = [*known, *[NOTHING] * (start - len(known)), *fresh]
        self.shadow.write(FULL, new, fresh, _name(row))
        self.shadow.write(SWA, map(self._swa_slot, new), fresh, _name(row))

    def _read(self, row: int, slots: Sequence[int], texts: Sequence[int], start: int, swa: Sequence[bool]) -> None:
        """A row reads the slots that it owns, and their SWA slots where ``swa`` says so."""
        shadow = self.shadow
        for at, (slot, text, has) in enumerate(zip(slots, texts, swa, strict=False), start=start):
            if slot == HOLE:
                continue
            shadow.note(shadow.read(FULL, [slot], [text], _name(row), at))
            if has:
                shadow.note(shadow.read(SWA, [self._swa_slot(slot)], [text], _name(row), at))

    def cut(self, row: int, tokens: int) -> None:
        """A row has only its first ``tokens`` tokens now."""
        self.texts[row] = self.texts.get(row, [])[:tokens]

    def adopt(self, row: int, tokens: int) -> None:
        """An empty row begins with ``tokens`` tokens whose slots it does not own."""
        self.texts[row] = [NOTHING] * tokens

    def hand_over(self, row: int, to: int, first: int, last: int) -> None:
        """The tokens ``[first, last)`` of a row are those of another row from now on, which may be shorter."""
        given, taken = self.texts.get(row, []), self.texts.get(to, [])
        taken = taken + [NOTHING] * (last - len(taken))
        self.texts[to] = [*taken[:first], *given[first:last], *taken[last:]]

    def saved(self) -> dict[int, list[int]]:
        """The texts of all rows, to be put back with the caller's tables."""
        return {row: list(texts) for row, texts in self.texts.items()}


def _name(row: int) -> str:
    return f"row {row}"
