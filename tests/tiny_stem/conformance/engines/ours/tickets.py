"""Our desk as an engine."""

from __future__ import annotations

from collections.abc import Callable, Collection

from conformance.driver.protocol import Json
from conformance.stems.tickets.protocol import TicketsSnapshot
from impl.tickets import Desk


class OurDesk:
    """A ``TicketsEngine``."""

    fragile = False

    def __init__(self, desk: Desk, lacks: Collection[str]) -> None:
        self.desk, self.lacks = desk, lacks

    def take(self, count: int) -> None:
        """Hands out tickets."""
        self.desk.take(count)

    def snapshot(self) -> TicketsSnapshot:
        """How many are out."""
        return TicketsSnapshot(self.desk.out)


def tickets(
    config: Json, device: str = "cpu", lacks: Collection[str] = (), kind: Callable[[int], Desk] = Desk
) -> OurDesk:
    """Our desk. It is on the host, whatever the ``device``."""
    del device
    return OurDesk(kind(config["size"]), lacks)
