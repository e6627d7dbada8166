"""A solver gives up after a number of its own steps, not of seconds: the load of a machine changes no answer."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from proofs import asking, obligations, prover, second_solver
from proofs.registry import hints_of


def formulas(stem: str, transition: str) -> list[obligations.Formula]:
    known = hints_of(stem)
    found = obligations.all_of(known, transition, known.stem.transitions[transition])
    return [formula for formula in found if formula.kind == obligations.PROOF]


def hard() -> list[Any]:
    """Assertions that z3 and cvc5 cannot decide in few steps: a pigeonhole with no lemma to help."""
    holes, pigeons = 9, 10
    sits = z3.Function("sits", z3.IntSort(), z3.IntSort())
    inside = [z3.And(sits(k) >= 0, sits(k) < holes) for k in range(pigeons)]
    return [*inside, *[sits(k) != sits(j) for k in range(pigeons) for j in range(k)]]


def test_z3_gives_up_after_its_steps() -> None:
    assert asking.first_solver(hard(), asking.alone(hard()), asking.looks(1_000)) == "unknown"


def test_cvc5_gives_up_after_its_steps() -> None:
    assert second_solver.check(second_solver.script(hard()), 100) == "unknown"


def test_without_steps_nothing_is_proved() -> None:
    """Each answer of a proof costs steps: with a limit of one step both solvers say that they do not know."""
    formula = formulas("allocator", "shorten")[0]
    assert prover.solve(formula.negated, prover.SolverLimits(z3=1, cvc5=1)) == ("unknown", "unknown")
    assert prover.solve(formula.negated) == ("unsat", "unsat")


def test_time_is_only_a_safety_net() -> None:
    """The clock is far away: no proof takes a hundredth of it on an idle machine."""
    assert second_solver.NET >= 100_000


@pytest.mark.parametrize("solver", ["z3", "cvc5"])
def test_the_last_look_has_more_room_than_the_first(solver: str) -> None:
    assert getattr(prover.LIMITS, solver) >= 10 * getattr(prover.GLANCE, solver)
