"""Drives a desk on after a law was broken: nothing is read, so that no request can be harmed."""

from __future__ import annotations

from collections.abc import Callable

from conformance.driver.onward import Move
from conformance.stems.tickets.run import TicketsRun


class OnwardTickets:
    """The desk of a run, driven without the law."""

    def __init__(self, run: TicketsRun) -> None:
        self.shadow = run.shadow
        self.moves: dict[str, Callable[[], Move]] = {"begin": lambda: iter(())}
