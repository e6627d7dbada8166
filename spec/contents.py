"""What the pages of both pools contain: the ghost state of the law of contents, in ``spec.isolation``.

A forward pass computes the KV cache of a token from all tokens before this token. So a slot does not hold a token, it
holds a *prefix*: the text up to this token. Each prefix has a number. A *story* is the whole text that a request will
ever have; the law speaks of it although an engine learns it token by token. ``tells(x, i, o)`` is the number of the
prefix of the story ``x`` that ends with the token at the page index ``i`` and the offset ``o``: two stories that begin
alike have the same numbers there. ``story(r)`` is the story of the request on the row ``r``. ``full(p, o)`` and
``swa(p, o)`` are the prefixes that the slots of the full pool and of the SWA pool were last written with; ``UNWRITTEN``
stands for anything that is no text, such as a draft that is not verified. ``state`` and the two maps after it say what
mamba state slots hold (``spec.state_isolation``).
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import Domain, Map, Number, but, constant, constant_map, total, zeroed

EMPTY = 0  # the prefix without a token
UNWRITTEN = 0  # the number of no token's prefix


@dataclass(frozen=True)
class Contents:
    """The stories, which row has which, and what each slot of both pools was last written with."""

    stories: Domain = constant("naturals", shared="stories")
    tells: Map = constant_map(3)
    story: Map = total(1)
    full: Map = total(2)
    swa: Map = total(2)
    state: Map = total(1)
    state_page: Map = total(1)
    state_offset: Map = total(1)


def initial(stories: int = 1, tells: Map | None = None) -> Contents:
    """``stories`` stories, numbered from 0, and slots that nobody has written (finite reading).

    ``tells``: without it, all stories are alike, and nothing is told apart.
    """
    told = FiniteMap(3) if tells is None else tells
    return Contents(
        Range(0, stories - 1), told, FiniteMap(1), FiniteMap(2), FiniteMap(2), *(FiniteMap(1) for _ in range(3))
    )


def start(st: Contents) -> Contents:
    """Before the first call: no slot is written."""
    return zeroed(st, ("story", "full", "swa", "state", "state_page", "state_offset"), ())


def begun(st: Contents, row: Number, story: Number) -> Contents:
    """The contents after the request on the row got a story."""
    return but(st, story=st.story.put(row, story))
