"""The time of a server: it passes by turns of its loop, so that a run is the same however fast it goes."""

from __future__ import annotations

from collections.abc import Callable

TURN = 0.125  # seconds
NANO = 1_000_000_000


class ServerClock:
    """Stands for the module ``time``. ``turns``: how many turns the server that runs has made."""

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns

    def monotonic(self) -> float:
        """Seconds."""
        return self._turns() * TURN

    time = perf_counter = monotonic

    def monotonic_ns(self) -> int:
        """Nanoseconds."""
        return int(self.monotonic() * NANO)

    def sleep(self, seconds: float) -> None:
        """Nobody waits: time passes by turns alone."""
