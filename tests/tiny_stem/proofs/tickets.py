"""What the provers need for the desk: a small world, calls to try, and a mutant."""

from __future__ import annotations

from proofs.hints import COMMON, Hints, Mutant, altered
from spec import tickets as law
from spec.logic import Number, Step
from spec.tickets import TicketsState


def oversells(st: TicketsState, count: Number) -> Step[TicketsState]:
    """The desk hands out one ticket more than it is asked for."""
    return altered(law.take(st, count), out=st.out + count + 1)


HINTS = Hints(
    stem=law.stem,
    over={},
    sizes={"tickets": 3},
    small=lambda: (law.initial(3),),
    moves={"take": lambda _: ((count,) for count in (1, 2))},
    mutants=(Mutant("oversells", "take", "no_more_than_there_are", oversells),),
    assumptions=COMMON,
)
