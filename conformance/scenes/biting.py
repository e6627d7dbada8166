"""Promises that bite: at a granted call of a transition, a call that differs in one argument would break this promise,
and no other. Where a search never comes to such a place, an engine that forgets the promise is not noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from spec.lengths import Length
from spec.logic import Stem

NUMBERS = range(13)  # numbers that are tried in place of an argument; worlds of drawn runs are hardly greater


def broken_beside(
    stem: Stem, name: str, was: Any, arguments: tuple[Any, ...], wanted: Collection[str]
) -> Iterator[str]:
    """The promises among ``wanted``, by their sentences, that bite at this call."""
    for place, value in enumerate(arguments):
        for other in _others(value):
            step = stem.transitions[name](was, *arguments[:place], other, *arguments[place + 1 :])
            broken = [r.sentence for r in step.promises if not r.holds]
            if len(broken) == 1 and broken[0] in wanted:
                yield broken[0]


def _others(value: Any) -> Iterator[Any]:
    """Other values for an argument; none for a set or a sequence."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (n for n in NUMBERS if n != value)
    elif isinstance(value, Length):
        yield from (Length(pages, value.rest) for pages in NUMBERS if pages != value.pages)
