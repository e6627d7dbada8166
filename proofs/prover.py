"""Discharges the obligations: z3 first, then cvc5 on the same SMT-LIB text; both must say ``unsat``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import z3

from proofs import lemmas, obligations, second_solver
from proofs.hints import Hints, Transition
from proofs.registry import hints_of

TIMEOUT = 20_000  # milliseconds a solver has for one obligation; the slowest takes well under one second


@dataclass(frozen=True)
class Verdict:
    """What both solvers said of one obligation: ``unsat`` means proved. ``page_size`` is always any."""

    stem: str
    transition: str
    invariant: str
    z3: str
    cvc5: str
    seconds: float
    page_size: str = "any"

    @property
    def proved(self) -> bool:
        """Both solvers proved it."""
        return self.z3 == self.cvc5 == "unsat"


def solve(assertions: list[object]) -> tuple[str, str]:
    """What z3 and cvc5 answer; cvc5 is asked even where z3 fails."""
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT)
    solver.add(*assertions)
    return str(solver.check()), second_solver.check(solver.to_smt2(), TIMEOUT)


def prove_transition(hints: Hints, name: str, transition: Transition) -> list[Verdict]:
    """All obligations of one transition, also of one that is not the spec's own (a mutant, a fault)."""
    verdicts = []
    for formula in obligations.all_of(hints, name, transition):
        start = time.perf_counter()
        first, second = solve(formula.negated)
        seconds = round(time.perf_counter() - start, 4)
        verdicts.append(Verdict(hints.stem.name, name, formula.invariant, first, second, seconds))
    return verdicts


def prove_lemmas() -> list[Verdict]:
    """The base and step of every counting lemma."""
    verdicts = []
    for lemma in lemmas.all_lemmas():
        for case, goal in zip(("base", "step"), lemma.goals, strict=True):
            start = time.perf_counter()
            first, second = solve([z3.Not(goal)])
            seconds = round(time.perf_counter() - start, 4)
            verdicts.append(Verdict("lemmas", lemma.name, case, first, second, seconds))
    return verdicts


def _task(stem: str, name: str) -> list[Verdict]:
    if stem == "lemmas":
        return prove_lemmas()
    hints = hints_of(stem)
    return prove_transition(hints, name, hints.stem.transitions.get(name, hints.stem.start))  # type: ignore[arg-type]


def tasks(stems: Iterable[str]) -> list[tuple[str, str]]:
    """The units of work: the lemmas, and each transition of each stem."""
    todo = [("lemmas", "")]
    for stem in stems:
        todo += [(stem, name) for name in (obligations.START, *hints_of(stem).stem.transitions)]
    return todo


def prove(stems: Iterable[str], report: Callable[[list[Verdict]], None]) -> list[Verdict]:
    """Every obligation of the stems, on every core; ``report`` hears of each unit as it ends."""
    todo = tasks(stems)
    found: dict[tuple[str, str], list[Verdict]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        futures = {workers.submit(_task, *unit): unit for unit in todo}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            report(future.result())
    return [verdict for unit in todo for verdict in found[unit]]
