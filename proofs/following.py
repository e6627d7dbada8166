"""Whether a law follows from the other laws: whether each state that keeps them keeps it too, as both solvers prove.

Such a law forbids nothing that the others do not forbid, so no wrong transition breaks it alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import z3

from proofs import counterexample, prover
from proofs.hints import Hints
from proofs.obligations import Consequence, Formula
from spec.logic import Invariant

SMALL_WORLD = prover.SMALL_WORLD  # of z3's steps, in which a small state is searched that keeps the others alone


class Following(NamedTuple):
    """What became of the question whether a law follows from the others.

    ``laws``: those from which it follows; z3 finds no proof without any one of them. There are none where the law is
    true of every state. ``None``: no proof was found. ``apart``: a small state keeps the others and breaks this law.
    """

    laws: tuple[str, ...] | None = None
    apart: bool = False


def following(hints: Hints, names: Sequence[str]) -> dict[str, Following]:
    """For each of these laws, whether it follows from the other laws of the stem and of its parts.

    The laws that are registered last are asked first, and one that follows is no reason for an earlier one: so all that
    follow can be made theorems together.
    """
    found: dict[str, Following] = {}
    for law in reversed([law for law in hints.stem.invariants.values() if law.name in names]):
        without = {name for name, said in found.items() if said.laws is not None}
        found[law.name] = _asked(hints, law, without)
    return {name: found[name] for name in names if name in found}


def _asked(hints: Hints, law: Invariant, without: Collection[str]) -> Following:
    known = [
        other
        for other in hints.stem.invariants.values()
        if not other.theorem and other.name != law.name and other.name not in without
    ]
    made = Consequence(hints, law)
    core = _core(made, known)
    if core is not None:
        core = _fewer(made, core)
        formula = Formula(law.name, lambda: made.given(core), made.claim)
        if prover.prove_formula(formula) == ("unsat", "unsat"):
            return Following(tuple(one.name for one in core))
    return Following(None, _apart(hints, law, known))


def _apart(hints: Hints, law: Invariant, known: Sequence[Invariant]) -> bool:
    """A small state keeps the others and breaks the law, as both readings of the spec say."""
    state = counterexample.state_apart(hints, law, known, SMALL_WORLD)
    if state is None:
        return False
    broken = {one.name for one, _ in hints.stem.broken(state)}
    return law.name in broken and not broken & {one.name for one in known}


def _fewer(made: Consequence, laws: Sequence[Invariant]) -> list[Invariant]:
    """The laws without those that z3 does not need beside the others."""
    left = [*laws]
    for law in laws:
        if law in left and (fewer := _core(made, [other for other in left if other is not law])) is not None:
            left = fewer
    return left


def _core(made: Consequence, laws: Sequence[Invariant]) -> list[Invariant] | None:
    """Those of the laws that z3 uses to prove that the law follows; ``None`` if it finds no proof."""
    said, always = made.facts(laws), [*made.lemmas(), *made.world.axioms]
    labels = [z3.Bool(f"law {number}") for number in range(len(laws))]
    facts = [z3.Implies(label, fact) for label, several in zip(labels, said, strict=True) for fact in several]
    for look in prover.LOOKS[:3]:
        solver = prover.looking([*always, *facts, z3.Not(made.claim)], look, prover.GLANCE.z3)
        answer = solver.check(labels)
        if answer == z3.unsat:
            used = {str(label) for label in solver.unsat_core()}
            return [law for label, law in zip(labels, laws, strict=True) if str(label) in used]
        if answer == z3.sat:
            return None
    return None
