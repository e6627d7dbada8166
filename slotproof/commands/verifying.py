"""``slotproof verify``: the proofs, our implementation and the known bugs, one after the other, and one line at the end
that says what was verified.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.search.connection import Subject
from slotproof.checks import checking
from slotproof.console.codes import BROKEN, HOLDS, USAGE
from slotproof.console.screen import say
from slotproof.planted import faulting, kept_search
from slotproof.proving import proving

RUNS = 100  # drawn for each stem of our implementation; `slotproof check ours` draws twice as many
EXPECTED = "about 2 minutes on 2 cores where no proof is remembered"


class Part(NamedTuple):
    """What came of one of the three parts. ``code``: an exit code. ``said``: its words in the last line."""

    code: int
    said: str


def run(fresh: bool) -> int:
    """Does the three parts and prints one last line. A part that fails does not keep the others from being done. The
    exit code is that of the first part that failed. ``fresh``: no proof is remembered.
    """
    start = time.perf_counter()
    say(f"proofs, our implementation, known bugs: {EXPECTED}")
    parts = [_done("the proofs", lambda: _proofs(fresh)), _done("our implementation", _implementation)]
    parts.append(_done("the known bugs", _bugs))
    line, code = last_line(parts, time.perf_counter() - start)
    say(("not verified: ", "bold red") if code else ("verified: ", "bold green"), line, wrap=False)
    return code


def last_line(parts: list[Part], seconds: float) -> tuple[str, int]:
    """What was verified, or what failed; and the exit code."""
    failed = [part for part in parts if part.code != HOLDS]
    words = [part.said for part in failed or parts if part.said]
    return f"{', '.join(words)}, {seconds:.0f} s", failed[0].code if failed else HOLDS


def _done(name: str, part: Callable[[], Part]) -> Part:
    """The part, done. One that cannot be done has failed, and the others are done all the same."""
    try:
        return part()
    except (EngineError, UsageError) as error:
        say(f"{name}: {error}")
        return Part(USAGE, f"{name} ({error})")


def _proofs(fresh: bool) -> Part:
    counts = proving.counted(fresh=fresh)
    if counts.code != HOLDS:
        return Part(counts.code, f"the proofs ({counts.proved} of {counts.obligations} obligations are proved)")
    remembered = f" ({counts.remembered} of them remembered)" if counts.remembered else ""
    return Part(HOLDS, f"{counts.obligations} obligations in {counts.stems} stems by z3 and cvc5{remembered}")


def _implementation() -> Part:
    own = registry.own().name
    code = checking.run(checking.CheckOptions(Subject(own), examples=RUNS, workers=checking.workers()))
    return Part(code, f"slotproof check {own} (exit code {code})" if code else "our implementation conforms")


def _bugs() -> Part:
    found = faulting.caught()
    if names := faulting.missed(found):
        return Part(BROKEN, f"known bugs that are not shown ({', '.join(names)})")
    return Part(HOLDS, f"{len(found)} known bugs shown{_from_nothing()}")


def _from_nothing() -> str:
    """What the last kept search found; an installed package does not have it."""
    return "" if kept_search.KEPT is None else f" (found from nothing: {kept_search.search()})"
