"""The machine that draws runs of ``tickets``."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from conformance.stems.machine import StemMachine
from conformance.stems.tickets.run import TicketsRun


class TicketsMachine(StemMachine):
    """Callers at one desk."""

    run: TicketsRun | None

    @initialize(size=st.integers(2, 6))
    def start(self, size: int) -> None:
        """A desk of a drawn size."""
        self.begin({"size": size})

    @rule(count=st.integers(1, 3))
    def take(self, count: int) -> None:
        """A caller takes tickets."""
        if self.run is not None and count <= self.run.law.state.size - self.run.law.state.out:
            self.do("take", count=count)
