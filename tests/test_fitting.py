"""A call fits exactly where a lawful answer exists: small states try every answer, and a wrong fit is not proved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import z3

from proofs import obligations, prover
from proofs.counterexample import find
from proofs.explore import paths
from proofs.fitting import ANSWERED, FITS
from proofs.hints import Transition
from proofs.registry import STEMS, hints_of
from spec import allocator, mamba_slots
from spec.allocator import AllocatorState
from spec.finite import Domain
from spec.finite import Seq as FiniteSeq
from spec.lengths import Length
from spec.logic import Number, Seq, Step, but, requires
from spec.mamba_slots_state import MambaSlotsState


def sequences(domain: Domain) -> list[FiniteSeq]:
    """Every sequence of different members, also the empty one."""
    return [
        FiniteSeq(chosen) for size in range(domain.size + 1) for chosen in itertools.permutations(domain.items(), size)
    ]


def slots(domain: Domain) -> range:
    """Every slot and the absent one."""
    return range(domain.size + 1)


ALLOCATES = ("alloc", "alloc_extend", "alloc_decode")
# Of each transition the arguments that an implementation answers, and every value that each can have.
ANSWERS: dict[tuple[str, str], dict[str, Callable[[Any], Any]]] = {
    **{("allocator", name): {"chosen": lambda st: sequences(st.now.pages)} for name in ALLOCATES},
    ("mamba_slots", "alloc"): dict.fromkeys(("own", "first", "second"), lambda st: slots(st.slots)),
    ("mamba_slots", "alloc_copy"): {"slot": lambda st: slots(st.slots)},
}


def states(stem: str, number: int) -> Iterator[Any]:
    """The first lawful states that calls lead to."""
    ways = paths(hints_of(stem), hints_of(stem).stem.transitions)
    return (way[-1].after for way in itertools.islice(ways, number))


@pytest.mark.parametrize(("stem", "name"), ANSWERS)
def test_a_call_fits_exactly_where_one_of_all_answers_is_lawful(stem: str, name: str) -> None:
    hints, answers, met = hints_of(stem), ANSWERS[stem, name], set()
    transition = hints.stem.transitions[name]
    for state in states(stem, 150):
        for arguments in hints.moves[name](state):
            asked = arguments[: -len(answers)]
            steps = [
                transition(state, *asked, *answer)
                for answer in itertools.product(*(a(state) for a in answers.values()))
            ]
            if steps[0].kept:
                assert steps[0].fits == any(step.granted for step in steps), (state, asked)
                met.add(bool(steps[0].fits))
    assert met == {True, False}


def needs_more(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A call that is refused although there are exactly as many pages as it needs."""
    step = allocator.alloc_extend(st, row, to, chosen)
    return but(step, fits=step.fits & (st.now.available > 1))


def needs_less(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A call that fits although there is no page."""
    return but(allocator.alloc_extend(st, row, to, chosen), fits=True)


def wants_more(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A call that fits, and whose answer must have more pages than there may be."""
    step = allocator.alloc_extend(st, row, to, chosen)
    return but(step, choice=(*step.choice, requires(chosen.length > 3, "many pages are handed out")))


def copies_from_nowhere(st: MambaSlotsState, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """A slot is handed out where none is open."""
    return but(mamba_slots.alloc_copy(st, node, slot), fits=True)


@pytest.mark.parametrize(
    ("stem", "name", "wrong", "direction"),
    [
        ("allocator", "alloc_extend", needs_more, FITS),
        ("allocator", "alloc_extend", needs_less, ANSWERED),
        ("allocator", "alloc_extend", wants_more, ANSWERED),
        ("mamba_slots", "alloc_copy", copies_from_nowhere, ANSWERED),
    ],
)
def test_a_wrong_fit_is_not_proved(stem: str, name: str, wrong: Transition, direction: str) -> None:
    hints = hints_of(stem)
    formulas = obligations.all_of(hints, name, wrong)
    wanted = next(formula for formula in formulas if formula.invariant == direction)
    assert wanted.core_facts is not None
    from_few = [*wanted.core_facts, z3.Not(wanted.goal)]
    assert "unsat" not in prover.solve(from_few, prover.SolverLimits(z3=400_000, cvc5=60_000))


def test_a_call_that_is_refused_for_nothing_has_an_example() -> None:
    hints = hints_of("allocator")
    example = find(hints, "alloc_extend", needs_more, FITS)
    assert example is not None
    assert FITS in {law for law, _ in example.broken}


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("stem", STEMS)
def test_each_call_with_a_choice_has_an_answer_or_a_reason(stem: str) -> None:
    hints = hints_of(stem)
    assert not hints.answers.keys() & hints.unanswered.keys()
    assert (hints.answers.keys() | hints.unanswered.keys()) <= hints.stem.transitions.keys()
    for name, transition in hints.stem.transitions.items():
        made = {formula.invariant for formula in obligations.all_of(hints, name, transition)}
        assert (ANSWERED in made) == (name in hints.answers)
        assert implies_answered(made, name in hints.unanswered)


def implies_answered(made: set[str], unanswered: bool) -> bool:
    """A call that can be refused has a lawful answer where it fits, or the hints say why none is known."""
    return FITS not in made or ANSWERED in made or unanswered
