"""What a run that is driven on without the law offers to the search for harm (``conformance.search.harm``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from conformance.driver.shadow import Shadow, WrongSlot

Move = Iterator[tuple[str, WrongSlot | None]]
"""What a move sends: each call in words, and the first wrong contents that a forward pass after it reads."""


class Onward(Protocol):
    """A run that is driven on without the law. ``moves``: what a caller can do, by name."""

    shadow: Shadow
    moves: Mapping[str, Callable[[], Move]]


def send(run: Any, call: Callable[[], Any]) -> Any:
    """The answer of the engine to a call, which is the next operation of the run; then the run reads the engine."""
    run.shadow.begin(run.shadow.step + 1)
    answer = call()
    run.seen = run.snapshot()
    return answer
