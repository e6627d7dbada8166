"""The time of a search. It counts from the first operation: loading an engine is no searching."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Counts the seconds of a search.

    ``seconds``: how long the search may take; ``None`` without a limit. ``now``: a monotonic time in seconds.
    """

    def __init__(self, seconds: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.now = seconds, now
        self.begun: float | None = None

    def begin(self) -> None:
        """The first operation is about to be sent. Later calls change nothing."""
        if self.begun is None:
            self.begun = self.now()

    @property
    def passed(self) -> float:
        """The seconds since the first operation; 0 before it."""
        return 0.0 if self.begun is None else self.now() - self.begun

    @property
    def left(self) -> float | None:
        """The seconds that are left, 0 where none are; ``None`` without a limit."""
        return None if self.seconds is None else max(self.seconds - self.passed, 0.0)

    @property
    def over(self) -> float:
        """By how many seconds the search has taken longer than it may."""
        return 0.0 if self.seconds is None else max(self.passed - self.seconds, 0.0)

    def is_up(self, part: float = 1.0) -> bool:
        """This part of the time has gone by."""
        return self.seconds is not None and self.passed > part * self.seconds
