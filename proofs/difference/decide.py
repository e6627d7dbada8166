"""Whether a claim about both revisions is true: both solvers prove it, or a small state shows that it is false.

A claim is first tried from few facts, for any number of pages. Then a state is looked for in small worlds, in which the
claim is false; what is found is made small, and the finite reading must confirm it. Only then the proof is tried from
all facts. Where neither succeeds, the answer is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from proofs import lemmas, prover
from proofs.counterexample import ModelReader
from proofs.difference import plain, smallest
from proofs.difference.beside import RevisionPair, Sizes, plainly_true
from proofs.mutation.right import MORE
from proofs.prover import SolverLimits
from proofs.symbols import Count, SymSeq, World, lift

TRUE, FALSE, UNKNOWN = "true", "false", "unknown"
PROVED = "z3 and cvc5 prove it"
FEW = SolverLimits(z3=600_000, cvc5=300_000)
ALL = SolverLimits(z3=1_500_000, cvc5=600_000)
SEARCH = 20_000_000  # of z3's steps for one search in a small world
STUCK = 60_000  # milliseconds; z3 has loops that count no work


@dataclass(frozen=True)
class Entailment:
    """The ``goal`` follows from each of the lists of facts, which come in order from few to all.

    In a small world only the last list is made. ``shown``: the states and arguments of a telling example, by name.
    ``confirmed``: the claim is false for these values, as the finite reading computes it. ``read``: other symbols that
    it needs the values of. ``alike``: counts of which the proof may show that they count one set. Where the goal is a
    conjunction, each part is proved alone.
    """

    given: Sequence[Callable[[], list[Any]]]
    goal: Any
    shown: Mapping[str, Any]
    confirmed: Callable[[Mapping[str, Any]], bool]
    read: Mapping[str, Any] = field(default_factory=dict)
    sequences: list[SymSeq] = field(default_factory=list)
    alike: Sequence[tuple[Count, Count]] = ()


Build = Callable[[World], Entailment]


@dataclass(frozen=True)
class Answer:
    """``TRUE`` (both solvers prove the claim), ``FALSE`` (a small state shows it) or ``UNKNOWN``.

    ``by``: how it was decided, in words. ``example``: the values of that state and of a call, by name.
    """

    answer: str
    by: str = ""
    example: Mapping[str, Any] | None = None


def decide(build: Build, pair: RevisionPair) -> Answer:
    """Whether the claim is true in every state."""
    world = World()
    claim = build(world)
    if plainly_true(claim.goal):
        return Answer(TRUE, "the formula is plainly true")
    counts = list(world.counts)
    if _proved(world, claim, claim.given[0], counts, FEW):
        return Answer(TRUE, PROVED)
    unconfirmed = False
    for sizes in _ladder(pair):
        found = _example(build, sizes)
        if found is not None and found.answer == FALSE:
            return found
        unconfirmed = unconfirmed or found is not None
    if unconfirmed:
        return Answer(UNKNOWN, "the solvers find a state that the finite reading does not confirm")
    for given in claim.given[1:] or claim.given:
        if _proved(world, claim, given, counts, ALL):
            return Answer(TRUE, PROVED)
    return Answer(UNKNOWN, "no small state shows that it is false, and the solvers do not prove it")


def _proved(
    world: World, claim: Entailment, given: Callable[[], list[Any]], counts: list[Any], limits: SolverLimits
) -> bool:
    world.counts[:] = counts
    facts = given()
    sums = [lemmas.weighty(count) for count in world.counts if not count.unweighted]
    alike = [lemmas.points(one, other) for one, other in claim.alike if one.domain is other.domain]
    used = [*world.axioms, *facts, *lemmas.instances(world, claim.sequences, {}), *sums, *alike]
    goals = claim.goal.children() if z3.is_and(claim.goal) else [claim.goal]
    return all(_follows([*used, z3.Not(goal)], limits) for goal in goals if not plainly_true(goal))


def _follows(assertions: list[Any], limits: SolverLimits) -> bool:
    if prover.looking(assertions, prover.QUICK, limits.z3).check() == z3.sat:
        return False
    return prover.solve(assertions, limits) == ("unsat", "unsat")


def _ladder(pair: RevisionPair) -> list[Sizes]:
    """The small worlds, smallest first: the smallest one gives the smallest example."""
    known = Sizes({} if pair.hints is None else pair.hints.sizes)
    tiny = Sizes({name: min(size, 1) for name, size in known.items()})
    return [tiny, known, Sizes({**known, **MORE.get(pair.name, {})})]


def _example(build: Build, sizes: Sizes) -> Answer | None:
    """The smallest state of this small world in which the claim is false, if there is one."""
    world = World(sizes)
    claim = build(world)
    facts = claim.given[-1]()
    real = [lift(seq.all(seq.domain.has)) for seq in claim.sequences]
    solver = z3.SimpleSolver()
    for option, value in {"rlimit": SEARCH, "timeout": STUCK, "arith.solver": 2}.items():
        solver.set(option, value)
    solver.add(*world.axioms, *facts, *real, z3.Not(claim.goal))
    largest = max(sizes.values(), default=2)
    if len(claim.given) == 1 and _within(solver, claim, largest):
        pass  # no law keeps the values of this state near: the finite reading knows none but these
    elif solver.check() != z3.sat:
        return None
    read = ModelReader(smallest.model(solver, claim.shown.values(), largest), largest)
    values = {name: read.value(symbol) for name, symbol in claim.shown.items()}
    if not claim.confirmed({**values, **{name: read.value(symbol) for name, symbol in claim.read.items()}}):
        return Answer(UNKNOWN)
    return Answer(FALSE, "a small state shows that it is false", plain.example(values))


def _within(solver: z3.Solver, claim: Entailment, largest: int) -> bool:
    """There is a state in which every number is from 0 to ``largest``; then the solver looks among these alone."""
    numbers = [n for symbol in claim.shown.values() for group in smallest.groups(symbol, largest) for n in group]
    solver.push()
    solver.add(*(z3.And(n >= 0, n <= largest) for n in numbers if z3.is_int(n)))
    if solver.check() == z3.sat:
        return True
    solver.pop()
    return False
