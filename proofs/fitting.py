"""A call fits exactly where a lawful answer exists: if its promises are kept it is granted or refused, never both and
never neither.

``ANSWERED``: a call that fits has a lawful answer, the one that the hints name (``proofs.answers``). An argument that
the hints do not answer is what the caller asks. A choice that speaks of such arguments alone is assumed: it says what
the engine must have answered to an earlier call, such as a prefix match (``assumed_choices``). ``FITS``: a call with a
lawful answer fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import z3

from proofs import lemmas
from proofs.answers import Pick
from proofs.hints import Hints, Transition
from proofs.symbols import Count, SymSeq, World, lift
from spec.logic import Requirement, Step, every

ANSWERED = "a_fitting_call_has_a_lawful_answer"
FITS = "a_lawful_answer_fits"
SENTENCES = {
    FITS: "A call with a lawful answer fits: no call is refused for nothing.",
    ANSWERED: "A call that fits has a lawful answer, if the choices hold that no answer of this call can change: no "
    "such call is neither granted nor refused.",
}


def is_available_counts(law: str) -> bool:
    """The law says how many pages or slots are available; that of a later part is called ``PART.available_counts``."""
    return law.split(".")[-1] == "available_counts"


class Made(Protocol):
    """What is read of a symbolic call (``proofs.obligations.SymbolicCall``)."""

    name: str
    world: World
    pre: Any
    arguments: dict[str, Any]
    step: Step[Any]
    base: int

    def afresh(self) -> None:
        """Forgets all counts but those of the transition."""


class Direction(NamedTuple):
    """One direction: its name, the facts from which its ``goal`` follows beside the laws, and the goal."""

    name: str
    facts: list[Any]
    goal: Any


def directions(hints: Hints, transition: Transition, made: Made) -> Iterator[Direction]:
    """What there is to prove of a call with a choice or a fit. Any other call is granted if its promises are kept.

    Raises ``TypeError`` where the hints neither answer the call nor say why no answer is known.
    """
    step = made.step
    always = z3.is_true(z3.simplify(lift(step.fits)))
    if not step.choice and always:
        return
    counts, sized = _available(hints, made)
    if not always:
        asked = [lift(step.kept), *(lift(choice.holds) for choice in step.choice)]
        yield Direction(FITS, [*sized, *asked, *_no_more(hints, made, counts)], lift(step.fits))
    if made.name not in hints.unanswered:
        yield _answered(hints.answers.get(made.name, _unknown(made.name)), transition, made, counts, sized)


def _answered(
    answer: Callable[..., dict[str, Any]], transition: Transition, made: Made, counts: list[Count], sized: Any
) -> Direction:
    pick = Pick(made.world, counts)
    step, lawfully, assumed = _with_answer(answer, transition, made, pick)
    asked = [lift(choice.holds) for choice in assumed]
    facts = [*sized, lift(step.kept), lift(step.fits), *asked, *pick.facts]
    return Direction(ANSWERED, facts, lift(lawfully.granted))


def _with_answer(
    answer: Callable[..., dict[str, Any]], transition: Transition, made: Made, pick: Pick
) -> tuple[Step[Any], Step[Any], list[Requirement]]:
    """The call, the call with the answer, and the choices that are assumed."""
    with made.world.sharing():
        step = transition(made.pre, **made.arguments)
        lawfully = transition(made.pre, **{**made.arguments, **answer(pick, made.pre, made.arguments)})
        return step, lawfully, unchanged_choices(step.choice, lawfully.choice)


def assumed_choices(hints: Hints, transition: Transition, made: Made) -> list[Requirement]:
    """The choices that the proof that a lawful answer exists assumes; none where the hints name no answer."""
    if made.name not in hints.answers:
        return []
    pick = Pick(made.world, _available(hints, made)[0])
    return _with_answer(hints.answers[made.name], transition, made, pick)[2]


def _unknown(name: str) -> Callable[..., dict[str, Any]]:
    def refuse(*_: Any) -> dict[str, Any]:
        raise TypeError(f"{name} has a choice or a fit: the hints must name a lawful answer to it")

    return refuse


def unchanged_choices(asked: tuple[Requirement, ...], answered: tuple[Requirement, ...]) -> list[Requirement]:
    """The conditions that no answer changes: they speak of other arguments alone."""
    unchanged = [lift(choice.holds) for choice in answered]
    return [choice for choice in asked if any(lift(choice.holds).eq(other) for other in unchanged)]


def _available(hints: Hints, made: Made) -> tuple[list[Count], list[Any]]:
    """What the laws count as available on the state before, and what these laws say."""
    made.afresh()
    said = [
        lift(every(law.holds(part) for _, part in law.current().parts(made.pre)))
        for law in hints.stem.invariants.values()
        if is_available_counts(law.name)
    ]
    counts = made.world.counts[made.base :]
    return counts, [*said, *(lemmas.none(count) for count in counts)]


def _no_more(hints: Hints, made: Made, counts: list[Count]) -> Iterator[Any]:
    """What the call takes is a sequence of different members, and so no longer than the number of available ones."""
    taken = [argument for argument in made.arguments.values() if isinstance(argument, SymSeq)]
    if made.name in hints.takes:
        taken.append(hints.takes[made.name](made.pre, made.arguments))
    for seq in taken:
        size = lemmas.counted(seq)
        yield lemmas.sequence(seq, size)
        yield from (lemmas.part_of(size, count) for count in counts if count.domain is seq.domain)
