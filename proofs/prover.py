"""Proves the obligations: z3 first, then cvc5 on the SMT-LIB text of the obligation; both must answer ``unsat``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import z3

from proofs import lemmas, obligations, second_solver
from proofs.hints import Hints, Transition
from proofs.registry import hints_of


@dataclass(frozen=True)
class Limits:
    """How much work each solver may do for one look at an obligation, in the solver's own count of its steps.

    A solver takes as many steps on a slow or busy machine as on a fast and idle one, so that the load of a machine
    never makes an answer ``unknown``. z3 calls this count ``rlimit``, cvc5 ``rlimit-per``.
    """

    z3: int
    cvc5: int


# In a process that has solved much before, z3 has taken 20 GB for one formula, without counting its steps. No proof
# needs a tenth of this memory; where z3 has more, its answer is ``unknown``.
MOST_MEMORY = 6_000  # megabytes
z3.set_param("memory_high_watermark_mb", MOST_MEMORY)

# Of all proofs the greatest takes z3 742,000 steps and cvc5 151,000: the limits are 20 times that.
LIMITS = Limits(z3=15_000_000, cvc5=3_000_000)
GLANCE = Limits(z3=1_500_000, cvc5=300_000)  # for a first look, and where a proof from few facts is tried
# Whether z3 finds a proof quickly can depend on the order in which it takes the facts, so it gets several looks with
# different options. The first look finds most proofs and gives up early where it finds none; a look without options can
# also find that the goal does not follow.
QUICK: dict[str, Any] = {"auto_config": False, "mbqi": False, "qi.eager_threshold": 20.0}
LOOKS: tuple[dict[str, Any], ...] = (
    QUICK,
    QUICK | {"pull_nested_quantifiers": True},
    {},
    {"random_seed": 7},
    {"mbqi": False, "qi.eager_threshold": 100.0},
)


@dataclass(frozen=True)
class Verdict:
    """What both solvers answered for one obligation; ``unsat`` means proved. The proof holds for any page size.

    ``kind``: what kind of work the obligation is, see ``obligations.Formula.kind``.
    """

    stem: str
    transition: str
    invariant: str
    z3: str
    cvc5: str
    seconds: float
    page_size: str = "any"
    kind: str = obligations.PROOF

    @property
    def proved(self) -> bool:
        """Both solvers proved the obligation."""
        return self.z3 == self.cvc5 == "unsat"


def prove_formula(formula: obligations.Formula, certificate: Path | None = None) -> tuple[str, str]:
    """What z3 and cvc5 answer. The core facts are tried first: what follows from them follows from all facts.

    ``certificate``: where to write what cvc5 proved (``.smt2``) and its proof (``.cpc``), see ``second_solver``.
    """
    first = second = "unknown"
    if formula.core_facts is not None:
        first, second = solve([*formula.core_facts, z3.Not(formula.goal)], GLANCE)
    if certificate is not None:
        few = formula.core_facts if second == "unsat" else None
        write_certificate(formula.negated if few is None else [*few, z3.Not(formula.goal)], certificate)
    if (first, second) == ("unsat", "unsat"):
        return first, second
    answers = solve(formula.negated)
    return ("unsat" if first == "unsat" else answers[0]), ("unsat" if second == "unsat" else answers[1])


def solve(assertions: list[object], limits: Limits | None = None) -> tuple[str, str]:
    """What z3 and cvc5 answer; cvc5 is asked even where z3 finds no proof. ``limits``: by default ``LIMITS``."""
    limits = limits or LIMITS
    text = second_solver.script(assertions)  # taken before a z3 solver sees the assertions: it rewrites them
    return first_solver(assertions, limits.z3), second_solver.check(text, limits.cvc5)


def write_certificate(assertions: list[Any], place: Path) -> None:
    """Writes what cvc5 proved and its proof, to ``place`` with ``.smt2`` and ``.cpc``; no proof where it finds none."""
    script = second_solver.script(assertions)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_name(place.name + ".smt2").write_text(script, encoding="utf-8")
    if proof := second_solver.certificate(script, LIMITS.cvc5):
        place.with_name(place.name + ".cpc").write_text(proof, encoding="utf-8")


def looking(assertions: list[object], look: dict[str, Any], limit: int) -> z3.Solver:
    """A z3 solver with these assertions and these options, which gives up after ``limit`` steps."""
    solver = z3.SimpleSolver()
    for option, value in {"rlimit": limit, "timeout": second_solver.NET, **look}.items():
        solver.set(option, value)
    solver.add(*assertions)
    return solver


def first_solver(assertions: list[object], limit: int) -> str:
    """What z3 answers at its first look, or at a later look with other options; short looks come first."""
    answer = "unknown"
    for steps in (GLANCE.z3, limit) if limit > GLANCE.z3 else (limit,):
        for look in LOOKS:
            answer = str(looking(assertions, look, steps).check())
            if answer != "unknown":
                return answer
    return answer


def prove_transition(
    hints: Hints, name: str, transition: Transition, certificates: Path | None = None
) -> list[Verdict]:
    """All obligations of one transition; it may be a wrong one (a mutant, the transition of a fault).

    ``certificates``: a folder for cvc5's proofs, ``STEM/TRANSITION/LAW``.
    """
    verdicts = []
    for formula in obligations.all_of(hints, name, transition):
        start = time.perf_counter()
        first, second = prove_formula(
            formula, certificates and certificates / hints.stem.name / name / formula.invariant
        )
        seconds = round(time.perf_counter() - start, 4)
        verdicts.append(Verdict(hints.stem.name, name, formula.invariant, first, second, seconds, kind=formula.kind))
    return verdicts


def prove_lemmas(certificates: Path | None = None) -> list[Verdict]:
    """The base and step of every counting lemma."""
    verdicts = []
    for lemma in lemmas.all_lemmas():
        for case, goal in zip(("base", "step"), lemma.goals, strict=True):
            start = time.perf_counter()
            first, second = solve([z3.Not(goal)])
            if certificates is not None:
                write_certificate([z3.Not(goal)], certificates / "lemmas" / lemma.name / case)
            seconds = round(time.perf_counter() - start, 4)
            verdicts.append(Verdict("lemmas", lemma.name, case, first, second, seconds))
    return verdicts


def _task(stem: str, name: str, certificates: Path | None) -> list[Verdict]:
    if stem == "lemmas":
        return prove_lemmas(certificates)
    hints = hints_of(stem)
    transition: Any = hints.stem.transitions.get(name, hints.stem.start)
    return prove_transition(hints, name, transition, certificates)


def tasks(stems: Iterable[str]) -> list[tuple[str, str]]:
    """The units of work: the lemmas, and the first state and each transition of each stem."""
    todo = [("lemmas", "")]
    for stem in stems:
        todo += [(stem, name) for name in (obligations.START, *hints_of(stem).stem.transitions)]
    return todo


def prove(
    stems: Iterable[str], report: Callable[[list[Verdict]], None], certificates: Path | None = None
) -> list[Verdict]:
    """Proves every obligation of the stems on all cores; ``report`` gets the verdicts of each unit when it ends.

    ``certificates``: a folder for cvc5's proofs.
    """
    found = on_every_core(_task, [(*unit, certificates) for unit in tasks(stems)], report)
    return [verdict for verdicts in found for verdict in verdicts]


def on_every_core(
    work: Callable[..., Any],
    units: Sequence[tuple[Any, ...]],
    report: Callable[[Any], None],
    processes: int | None = None,
) -> list[Any]:
    """The results of ``work`` on each unit, in order of the units; ``report`` gets each result when it comes.

    ``processes``: how many units at a time; by default as many as there are processors.
    """
    with ProcessPoolExecutor(processes or os.cpu_count()) as workers:
        futures = [workers.submit(work, *unit) for unit in units]
        for future in as_completed(futures):
            report(future.result())
    return [future.result() for future in futures]
