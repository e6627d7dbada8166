"""A known bug of desks."""

from __future__ import annotations

from conformance.stems.fault import Fault
from impl.tickets import Desk
from proofs import tickets as wrong


class Oversells(Desk):
    """Hands out one ticket more than it is asked for."""

    def take(self, count: int) -> None:
        """Hands out tickets."""
        super().take(count)
        self.out += 1


FAULTS = (
    Fault(
        "oversells",
        "tickets",
        "A desk hands out one ticket more than it is asked for.",
        spec={"take": wrong.oversells},
        parts={"kind": Oversells},
    ),
)
