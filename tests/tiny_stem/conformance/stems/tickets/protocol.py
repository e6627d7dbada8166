"""What an engine must implement to be driven as the stem ``tickets``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from conformance.driver.protocol import Engine


@dataclass(frozen=True)
class TicketsSnapshot:
    """How many tickets are out."""

    out: int


class TicketsEngine(Engine, Protocol):
    """A desk. Configuration: ``size``, the number of tickets."""

    def take(self, count: int) -> None:
        """Hands out tickets that are left."""

    def snapshot(self) -> TicketsSnapshot:
        """Reads the desk."""
