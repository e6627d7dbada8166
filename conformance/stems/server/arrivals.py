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
            parts = copied_slots(one)
            if one.saved:
                self._copies[one.copy] = [[self._shadow.holds(pool, s) for s in slots] for pool, slots in parts]
            else:
                for (pool, slots), held in zip(parts, self._copies[one.copy], strict=True):
                    self._load(pool, slots, held)

    def _load(self, pool: str, slots: Sequence[int], held: Content) -> None:
        for slot, content in zip(slots, held, strict=False):
            if content is not None and slot:
                self._shadow.write(pool, [slot], [content.prefix], content.writer)

    def _writes(self, transfer: Transfer) -> None:
        for pool, start, slots in written(transfer.destination, len(transfer.prefixes)):
            prefixes = transfer.prefixes[start:]
            self._shadow.write(pool, slots[: len(prefixes)], prefixes[: len(slots)], transfer.writer)


def written(to: Destination, length: int) -> list[tuple[str, int, Sequence[int]]]:
    """What a transfer of a text of so many tokens writes: by pool, the slots of the tokens from a first one on."""
    kv = [(FULL, to.start, to.slots), (SWA, to.swa_start, to.swa_slots)]
    return [*kv, (STATES, length - 1, [to.state])] if to.state else kv


def copied_slots(one: RowCopy) -> list[tuple[str, Sequence[int]]]:
    """The slots of each pool that a copy is from, or into which its parts went."""
    return [(FULL, one.slots), (SWA, one.swa_slots), (STATES, [one.state] if one.state else [])]
