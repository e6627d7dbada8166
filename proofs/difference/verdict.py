"""What two answers of the solvers say of a change: does the new revision say more, and does it still say all?"""

from __future__ import annotations

from typing import NamedTuple

from proofs.difference.decide import FALSE, TRUE, UNKNOWN
from proofs.difference.row import INCOMPARABLE, NOT_KNOWN, SAME, SAME_MEANING, STRENGTHENED, WEAKENED


class ChangeVerdict(NamedTuple):
    """The ``change``, what it does to what users are guaranteed, and whether every question was answered."""

    change: str
    guarantee: str
    decided: bool


def of_law(nothing_new: str, still_said: str) -> ChangeVerdict:
    """``nothing_new``: what the new revision says, the old one said. ``still_said``: the other way round.

    Where an answer is unknown, the change is never called a change without a meaning.
    """
    change = {
        (TRUE, TRUE): SAME_MEANING,
        (TRUE, FALSE): WEAKENED,
        (FALSE, TRUE): STRENGTHENED,
        (TRUE, UNKNOWN): WEAKENED,
        (UNKNOWN, TRUE): STRENGTHENED,
    }.get((nothing_new, still_said), INCOMPARABLE)
    decided = UNKNOWN not in (nothing_new, still_said)
    return ChangeVerdict(change, _guarantee(change) if decided else NOT_KNOWN, decided)


def of_asked(asks_no_more: str, asks_no_less: str) -> ChangeVerdict:
    """``asks_no_more``: who did what the old revision asked does what the new one asks; ``asks_no_less``: the other way
    round. A revision that asks more guarantees less.
    """
    return of_law(asks_no_less, asks_no_more)


def of_both(parts: list[ChangeVerdict]) -> ChangeVerdict:
    """What several changes of one thing are together."""
    changes = {part.change for part in parts} - {SAME_MEANING}
    decided = all(part.decided for part in parts)
    change = SAME_MEANING if not changes else changes.pop() if len(changes) == 1 else INCOMPARABLE
    return ChangeVerdict(change, _guarantee(change) if decided else NOT_KNOWN, decided)


def of_one(answer: str, otherwise: str) -> str:
    """What something that only one revision says does to what users are guaranteed. ``answer``: the other revision
    says it without it.
    """
    return {TRUE: SAME, FALSE: otherwise}.get(answer, NOT_KNOWN)


def _guarantee(change: str) -> str:
    return SAME if change == SAME_MEANING else change
