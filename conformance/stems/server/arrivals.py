"""What the transfers of a decode server write into shadow memory, and what is copied when a request leaves its row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from conformance.driver.shadow import FULL, STATES, SWA, Shadow, SlotContent
from conformance.stems.server.protocol import Destination, RowCopy, ServedRequest, TransferStep

WRITES: Collection[TransferStep] = ("completes", "writes")
ENDS: Collection[TransferStep] = ("completes", "fails", "writes", "stops")
Content = list[SlotContent | None]


@dataclass
class Transfer:
    """A transfer in flight. ``prefixes``: the numbers of the prefixes of its text. ``writer``: whose text it is.
    ``late``: for so many turns it has been one that was told to stop, or has failed.
    """

    destination: Destination
    prefixes: list[int]
    writer: str
    late: int = 0


class Arrivals:
    """``open``: the transfers in flight, by request. A transfer writes at its end, where it was told when it began."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self.open: dict[int, Transfer] = {}
        self._copies: dict[int, list[Content]] = {}

    def begins(self, request: int, known: ServedRequest, destination: Destination, writer: str) -> None:
        """A prefill server knows where to write the text of a request."""
        text = [*known.tokens, *known.sampled]
        self.open[request] = Transfer(destination, self._shadow.texts.prefixes(text), writer)

    def does(self, request: int, step: TransferStep) -> bool:
        """The prefill server does something. Whether the transfer ends by it."""
        if step not in ENDS:
            return False
        transfer = self.open.pop(request)
        if step in WRITES:
            self._writes(transfer)
        return True

    def copied(self, backups: Sequence[RowCopy]) -> None:
        """What requests had was copied, so that they can go on with it later, or loaded."""
        for one in backups:
            if one.saved:
                self._copies[one.copy] = [[self._shadow.holds(pool, s) for s in slots] for pool, slots in _pools(one)]
            else:
                for (pool, slots), held in zip(_pools(one), self._copies[one.copy], strict=True):
                    self._load(pool, slots, held)

    def _load(self, pool: str, slots: Sequence[int], held: Content) -> None:
        for slot, content in zip(slots, held, strict=False):
            if content is not None and slot:
                self._shadow.write(pool, [slot], [content.prefix], content.writer)

    def _writes(self, transfer: Transfer) -> None:
        to = transfer.destination
        for pool, start, slots in ((FULL, to.start, to.slots), (SWA, to.swa_start, to.swa_slots)):
            written = transfer.prefixes[start:]
            self._shadow.write(pool, slots[: len(written)], written[: len(slots)], transfer.writer)
        if to.state:
            self._shadow.write(STATES, [to.state], transfer.prefixes[-1:], transfer.writer)


def _pools(one: RowCopy) -> list[tuple[str, Sequence[int]]]:
    return [(FULL, one.slots), (SWA, one.swa_slots), (STATES, [one.state] if one.state else [])]
