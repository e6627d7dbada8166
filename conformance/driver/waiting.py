"""Says on standard error what the process waits for, where it waits long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

LONG = 9.0  # seconds after which a wait is told
OFTEN = 0.5  # seconds between two looks
AGAIN = 60.0  # seconds after which a wait that goes on is told again


@contextmanager
def watched(waits: Callable[[], str]) -> Iterator[None]:
    """While the block lasts, ``waits`` is asked twice a second what is waited for; what it answers is said, each
    sentence once. An empty answer says nothing.
    """
    done, told = Event(), set[str]()

    def looks() -> None:
        while not done.wait(OFTEN):
            said = waits()
            if said and said not in told:
                told.add(said)
                print(f"slotproof: waits for {said}", file=sys.stderr, flush=True)

    thread = Thread(target=looks, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def since_now(what: str, ends: str = "") -> Callable[[], str]:
    """An answer for ``watched``: ``after`` with the time since now."""
    begun = time.monotonic()
    return lambda: after(what, time.monotonic() - begun, ends)


def after(what: str, seconds: float, ends: str = "") -> str:
    """``what`` with how long it is waited for, once that is long, and another text each minute, such as ``the maker
    (9 s so far; given up after 60 s)``. ``ends``: when the wait ends.
    """
    if seconds < LONG:
        return ""
    minutes = seconds // AGAIN
    passed = f"{f'{minutes:g} min' if minutes else f'{LONG:g} s'} so far"
    return f"{what} ({'; '.join(part for part in (passed, ends) if part)})"
