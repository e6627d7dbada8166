"""Asks z3 and cvc5 whether formulas contradict each other, unless they are remembered to have said so.

The formulas are copied to a context of z3 that holds nothing else. So their text, z3's search and its steps depend on
the formulas alone, and not on what the process did before: one formula has one text in every run. Each look of z3
solves such a copy, and cvc5 solves the text of one, which is also what a proof is remembered by.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from proofs import second_solver
from proofs.memory import NOTHING, AnswerMemory, Question


@dataclass(frozen=True)
class SolverLimits:
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
LIMITS = SolverLimits(z3=15_000_000, cvc5=3_000_000)
# A first look at all facts. A proof from few facts is tried in fewer steps, since most that are found are short; where
# z3 has found one from few facts, cvc5 has as many steps as for a first look.
GLANCE, FEW = SolverLimits(z3=1_500_000, cvc5=300_000), SolverLimits(z3=300_000, cvc5=60_000)
# Whether z3 finds a proof quickly can depend on the order in which it takes the facts, so it gets several looks with
# different options. The first look finds most proofs and gives up early where it finds none; a look in which only the
# seed is set can also find that the goal does not follow, and now and then takes 80 s that z3 does not count as steps.
QUICK: dict[str, Any] = {"auto_config": False, "mbqi": False, "qi.eager_threshold": 20.0}
LOOKS: tuple[dict[str, Any], ...] = (
    QUICK,
    QUICK | {"pull_nested_quantifiers": True},
    QUICK | {"pull_nested_quantifiers": True, "random_seed": 1},
    {"random_seed": 1},
    {"random_seed": 7},
    {"mbqi": False, "qi.eager_threshold": 100.0},
)
UNSAT, SAT, UNKNOWN = "unsat", "sat", "unknown"
NOT_ASKED = "not asked"  # a counterexample was found before
Stop = Callable[[], bool]
# Where it has a set, a solver that has proved a question in this process is not asked the very same one again: a law
# that many calls leave alone is one text, to be proved with the same options and limits.
ONCE: list[set[str]] = []


@dataclass(frozen=True)
class Answers:
    """What the solvers answered; ``remembered``: which of them were not asked, since their answer is remembered."""

    z3: str = UNKNOWN
    cvc5: str = UNKNOWN
    remembered: frozenset[str] = frozenset()

    @property
    def proved(self) -> bool:
        """Both answered that the formulas contradict each other."""
        return self.z3 == self.cvc5 == UNSAT


def settings(look: dict[str, Any], limit: int) -> dict[str, Any]:
    """The options of z3 for one look of at most ``limit`` steps."""
    return {"rlimit": limit, "timeout": second_solver.NET, **look}


def looks(limit: int) -> list[dict[str, Any]]:
    """The options of all looks of z3, in order; short looks come first."""
    lengths = (GLANCE.z3, limit) if limit > GLANCE.z3 else (limit,)
    return [settings(look, steps) for steps in lengths for look in LOOKS]


def alone(assertions: Sequence[Any]) -> list[Any]:
    """The assertions, copied as they are to a context of z3 that holds nothing else."""
    together = z3.AstVector()
    for assertion in assertions:
        together.push(assertion)
    copied = together.translate(z3.Context())
    return [copied[k] for k in range(len(copied))]


def solver_of(assertions: Sequence[Any], options: dict[str, Any]) -> z3.Solver:
    """A z3 solver with these assertions and options."""
    solver = z3.SimpleSolver(ctx=assertions[0].ctx)
    solver.set(*itertools.chain.from_iterable(options.items()))
    solver.add(*assertions)
    return solver


def looking(assertions: Sequence[Any], look: dict[str, Any], limit: int) -> z3.Solver:
    """A z3 solver with these assertions and these options, which gives up after ``limit`` steps."""
    return solver_of(assertions, settings(look, limit))


def never() -> bool:
    """A search that is not stopped."""
    return False


def ask(
    assertions: Sequence[Any],
    limits: SolverLimits,
    memory: AnswerMemory = NOTHING,
    known: Answers | None = None,
    stop: Stop = never,
) -> Answers:
    """What both solvers answer; one that is ``known`` to have answered ``unsat`` is not asked again.

    ``stop`` is called once, where z3 finds no proof at its first look: where it returns ``True``, no solver is asked
    further, and what was not answered is ``not asked``.
    """
    known = known or Answers()
    copied = alone(assertions)
    text = second_solver.script(copied)
    first, second, remembered = known.z3, known.cvc5, known.remembered
    if first != UNSAT:
        plan = looks(limits.z3)
        question = Question(f"z3 {z3.get_full_version()}, at most {MOST_MEMORY} MB", plan, text)
        first, held = _answer(question, memory, lambda: first_solver(assertions, copied, plan, stop))
        remembered |= {"z3"} if held else set()
    if second != UNSAT and first != NOT_ASKED:
        question = Question(second_solver.version(), [second_solver.options(limits.cvc5)], text)
        second, held = _answer(question, memory, lambda: second_solver.check(text, limits.cvc5))
        remembered |= {"cvc5"} if held else set()
    return Answers(first, NOT_ASKED if first == NOT_ASKED else second, remembered)


def _answer(question: Question, memory: AnswerMemory, answer: Callable[[], str]) -> tuple[str, bool]:
    """The answer to the question, and whether it was remembered."""
    if memory.holds(question):
        return UNSAT, True
    if any(question.digest in proved for proved in ONCE):
        return UNSAT, False
    said = answer()
    memory.keep(question, said)
    if said == UNSAT:
        for proved in ONCE:
            proved.add(question.digest)
    return said, False


def first_solver(
    assertions: Sequence[Any], copied: Sequence[Any], plan: Sequence[dict[str, Any]], stop: Stop = never
) -> str:
    """What z3 answers at its first look, or at a later look with other options. Each look has a copy of the formulas of
    its own, so that its steps do not depend on the looks before it. ``copied``: the copy for the first look.
    """
    answer = UNKNOWN
    for number, options in enumerate(plan):
        answer = str(solver_of(alone(assertions) if number else copied, options).check())
        if answer == UNSAT:
            return answer
        if number == 0 and stop():
            return NOT_ASKED
        if answer == SAT:
            return answer
    return answer
