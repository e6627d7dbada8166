"""One difference of the law between two revisions, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

ADDED, DROPPED, RENAMED, SAME_MEANING = "added", "dropped", "renamed", "same_meaning"
WEAKENED, STRENGTHENED, INCOMPARABLE, STATE_CHANGED = "weakened", "strengthened", "incomparable", "state_changed"
CHANGES = (ADDED, DROPPED, RENAMED, WEAKENED, STRENGTHENED, INCOMPARABLE, SAME_MEANING, STATE_CHANGED)
SAME, NOT_KNOWN = "same", "unknown"

LAW, THEOREM, OF_TWO_STATES, TRANSITION, FIRST_STATE = (
    "law",
    "theorem",
    "law_of_two_states",
    "transition",
    "first_state",
)
PROMISE, CHOICE, FIT, ASSUMPTION = "promise", "choice", "fit", "assumption"
STATE, HEADLINE, WORD, STEM = "state", "headline", "word", "stem"
KINDS = (
    *(HEADLINE, LAW, THEOREM, OF_TWO_STATES, TRANSITION, PROMISE, CHOICE, FIT, ASSUMPTION, FIRST_STATE, STATE, STEM),
    WORD,
)


@dataclass(frozen=True)
class Side:
    """What one revision says: the name, the sentence in English, and the formula in the words of the spec."""

    name: str
    sentence: str = ""
    formula: str = ""


@dataclass(frozen=True)
class Example:
    """A small lawful state, or a call in it, that tells both revisions apart. ``shows``: what can be seen there."""

    shows: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One difference. ``stem``: empty where it is of no stem. ``transition``: of a promise, a choice or a fit.

    ``change``: one of ``CHANGES``. ``guarantee``: what it does to what users are guaranteed: ``weakened``,
    ``strengthened``, ``incomparable``, ``same`` or ``unknown``. ``decided``: every question about it was answered.
    ``notes``: how it was decided, and what else changed, in sentences. ``helpers``: functions of the spec that it is
    made of and that changed. ``fields``: the fields of the state that differ. ``also_in``: transitions of other stems
    that change with this one, since they call it.
    """

    kind: str
    name: str
    change: str
    stem: str = ""
    transition: str = ""
    guarantee: str = SAME
    decided: bool = True
    old: Side | None = None
    new: Side | None = None
    notes: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    helpers: tuple[tuple[str, str, str], ...] = ()
    fields: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The row as plain data."""
        helpers = [{"name": name, "old": old, "new": new} for name, old, new in self.helpers]
        return {**asdict(self), "helpers": helpers}


@dataclass
class RowNotes:
    """What is gathered for a row while questions are asked."""

    notes: list[str] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
