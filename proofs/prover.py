"""Proves the obligations: z3 and cvc5 must both answer ``unsat``.

Everything is looked at briefly first: a proof, or a small world that refutes the obligation, is nearly always found in
few steps. Long looks are for what is left.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import z3

from proofs import counterexample, lemmas, obligations, second_solver
from proofs.asking import (
    FEW,
    GLANCE,
    LIMITS,
    LOOKS,
    NOT_ASKED,
    ONCE,
    QUICK,
    SAT,
    UNKNOWN,
    UNSAT,
    Answers,
    SolverLimits,
    Stop,
    alone,
    ask,
    looking,
    never,
)
from proofs.hints import Hints, Transition
from proofs.memory import NOTHING, AnswerMemory
from proofs.registry import hints_of

__all__ = ["GLANCE", "LIMITS", "LOOKS", "QUICK", "SolverLimits", "looking"]
LEMMAS = "lemmas"  # the name of a stem in verdicts
SMALL_WORLD = 3_000_000  # of z3's steps, in which a small world that refutes an obligation is searched


@dataclass(frozen=True)
class Verdict:
    """What both solvers answered for one obligation; ``unsat`` means proved. The proof holds for any page size.

    ``kind``: what kind of work the obligation is, see ``obligations.Formula.kind``. ``number``: its place among the
    obligations of its transition. ``refuted``: a call in a small lawful state that breaks the law, where one was found;
    z3 found it and the finite reading of the spec confirmed it, so cvc5 is not asked. ``remembered``: no solver was
    asked, since both are remembered to have proved it.
    """

    stem: str
    transition: str
    invariant: str
    z3: str
    cvc5: str
    seconds: float
    page_size: str = "any"
    kind: str = obligations.PROOF
    number: int = 0
    refuted: str = ""
    remembered: bool = False

    @property
    def proved(self) -> bool:
        """Both solvers proved the obligation."""
        return self.z3 == self.cvc5 == UNSAT

    @property
    def open(self) -> bool:
        """The obligation is neither proved nor refuted."""
        return not self.proved and SAT not in (self.z3, self.cvc5)


def prove_formula(formula: obligations.Formula, certificate: Path | None = None) -> tuple[str, str]:
    """What z3 and cvc5 answer after brief and long looks.

    ``certificate``: where to write what cvc5 proved (``.smt2``) and its proof (``.cpc``), see ``second_solver``.
    """
    answers = at_length(formula, briefly(formula, certificate=certificate))
    return answers.z3, answers.cvc5


def briefly(
    formula: obligations.Formula, memory: AnswerMemory = NOTHING, stop: Stop = never, certificate: Path | None = None
) -> Answers:
    """What both solvers answer in few steps. The core facts are tried first: what follows from them follows from all
    facts. ``stop``: see ``ask``; it is called where the core facts are not enough and the first look at all facts finds
    no proof. Most obligations that do not follow from the core facts follow from all, so it is not called before.
    """
    few = formula.core_facts
    answers = Answers()
    if few is not None:
        answers = _only_proofs(ask([*few, z3.Not(formula.goal)], FEW, memory))
        if answers.z3 == UNSAT != answers.cvc5:
            answers = _only_proofs(ask([*few, z3.Not(formula.goal)], GLANCE, memory, answers))
    if certificate is not None:
        enough = few is not None and answers.cvc5 == UNSAT
        write_certificate([*(few or ()), z3.Not(formula.goal)] if enough else formula.negated, certificate)
    if answers.proved or NOT_ASKED in (answers.z3, answers.cvc5):
        return answers
    return ask(formula.negated, GLANCE, memory, answers, stop)


def _only_proofs(answers: Answers) -> Answers:
    """What answers on some of the facts say about all of them: a model of some facts says nothing."""
    z3s, cvc5s = (UNKNOWN if said == SAT else said for said in (answers.z3, answers.cvc5))
    return replace(answers, z3=z3s, cvc5=cvc5s)


def at_length(formula: obligations.Formula, answers: Answers, memory: AnswerMemory = NOTHING) -> Answers:
    """What both solvers answer in many steps; a solver that has proved or refuted the formula is not asked again."""
    if answers.proved or SAT in (answers.z3, answers.cvc5):
        return answers
    return ask(formula.negated, LIMITS, memory, answers)


def solve(assertions: Sequence[Any], limits: SolverLimits | None = None) -> tuple[str, str]:
    """What z3 and cvc5 answer; cvc5 is asked even where z3 finds no proof. ``limits``: by default ``LIMITS``."""
    answers = ask(assertions, limits or LIMITS)
    return answers.z3, answers.cvc5


def write_certificate(assertions: list[Any], place: Path) -> None:
    """Writes what cvc5 proved and its proof, to ``place`` with ``.smt2`` and ``.cpc``; no proof where it finds none."""
    script = second_solver.script(alone(assertions))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_name(place.name + ".smt2").write_text(script, encoding="utf-8")
    if proof := second_solver.certificate(script, LIMITS.cvc5):
        place.with_name(place.name + ".cpc").write_text(proof, encoding="utf-8")


def prove_transition(hints: Hints, name: str, transition: Transition) -> list[Verdict]:
    """All obligations of one transition, briefly and then at length; it may be a wrong one (a mutant, the transition
    of a fault). No small world is searched.
    """
    verdicts: list[Verdict] = []
    for number, formula in enumerate(obligations.all_of(hints, name, transition)):
        start = time.perf_counter()
        answers = at_length(formula, briefly(formula))
        verdicts.append(_verdict((hints.stem.name, name, formula.invariant), number, answers, start, formula.kind))
    return verdicts


def prove_lemmas(certificates: Path | None = None, memory: AnswerMemory = NOTHING) -> list[Verdict]:
    """The base and the step of every lemma about sums."""
    verdicts: list[Verdict] = []
    for lemma in lemmas.all_lemmas():
        for case, goal in lemma.goals.items():
            start = time.perf_counter()
            answers = ask([z3.Not(goal)], LIMITS, memory)
            if certificates is not None:
                write_certificate([z3.Not(goal)], certificates / LEMMAS / lemma.name / case)
            verdicts.append(_verdict((LEMMAS, lemma.name, case), len(verdicts), answers, start))
    return verdicts


def look_briefly(
    stem: str, name: str, certificates: Path | None = None, memory: AnswerMemory = NOTHING
) -> list[Verdict]:
    """The obligations of one transition after brief looks, beside a search for a small world that refutes them; all
    lemmas for the stem ``lemmas``. An obligation may be left open.

    ``certificates``: a folder for cvc5's proofs, ``STEM/TRANSITION/LAW``.
    """
    if stem == LEMMAS:
        return prove_lemmas(certificates, memory)
    hints = hints_of(stem)
    verdicts: list[Verdict] = []
    for number, formula in enumerate(_obligations(hints, name)):
        start, law = time.perf_counter(), formula.invariant
        small = SmallWorld(hints, name, law)
        answers = briefly(formula, memory, small.refutes, certificates and certificates / stem / name / law)
        verdicts.append(_with_small_world(_verdict((stem, name, law), number, answers, start, formula.kind), small))
    return verdicts


def look_at_length(stem: str, name: str, open_ones: Sequence[Verdict], memory: AnswerMemory = NOTHING) -> list[Verdict]:
    """The open obligations of one transition, each after a longer search for a small world that refutes it, and after
    long looks where there is none.
    """
    hints, by_number = hints_of(stem), {verdict.number: verdict for verdict in open_ones}
    verdicts: list[Verdict] = []
    for number, formula in enumerate(_obligations(hints, name)):
        if number in by_number:
            start, answers = time.perf_counter(), Answers(by_number[number].z3, by_number[number].cvc5)
            small = SmallWorld(hints, name, formula.invariant, 10 * SMALL_WORLD)
            answers = answers if small.refutes() else at_length(formula, answers, memory)
            verdict = _verdict((stem, name, formula.invariant), number, answers, start, formula.kind)
            verdicts.append(_with_small_world(verdict, small))
    return verdicts


def _with_small_world(verdict: Verdict, small: SmallWorld) -> Verdict:
    return replace(verdict, z3=SAT, cvc5=NOT_ASKED, refuted=small.words) if small.words else verdict


def _obligations(hints: Hints, name: str) -> Iterator[obligations.Formula]:
    transition: Any = hints.stem.transitions.get(name, hints.stem.start)
    return obligations.all_of(hints, name, transition)


def _verdict(
    place: tuple[str, str, str], number: int, answers: Answers, start: float, kind: str = obligations.PROOF
) -> Verdict:
    """``place``: the stem, the transition and the law. ``start``: of the work, by ``time.perf_counter``."""
    seconds = round(time.perf_counter() - start, 4)
    remembered = answers.remembered == {"z3", "cvc5"}
    return Verdict(*place, answers.z3, answers.cvc5, seconds, kind=kind, number=number, remembered=remembered)


@dataclass
class SmallWorld:
    """The search for a small lawful state and a call that breaks a law; ``words`` tell the call that was found."""

    hints: Hints
    transition: str
    law: str
    steps: int = SMALL_WORLD
    words: str = ""

    def refutes(self) -> bool:
        """Searches, in this many steps of z3."""
        found = counterexample.of_obligation(self.hints, self.transition, self.law, self.steps)
        self.words = "" if found is None else str(found)
        return found is not None


def tasks(stems: Iterable[str]) -> list[tuple[str, str]]:
    """The units of work: the lemmas, and the first state and each transition of each stem."""
    todo = [(LEMMAS, "")]
    for stem in stems:
        todo += [(stem, name) for name in (obligations.START, *hints_of(stem).stem.transitions)]
    return todo


def weight(stem: str) -> int:
    """How long a unit of work of this stem takes, beside those of others: as long as it has many laws."""
    return 0 if stem == LEMMAS else len(hints_of(stem).stem.invariants)


def prove(
    stems: Iterable[str],
    report: Callable[[list[Verdict]], None],
    certificates: Path | None = None,
    memory: AnswerMemory = NOTHING,
) -> list[Verdict]:
    """Proves every obligation of the stems on all cores; ``report`` gets the verdicts of each unit when it ends.

    ``certificates``: a folder for cvc5's proofs. ``memory``: of proofs that were found before.
    """
    units = [(*unit, certificates, memory) for unit in tasks(stems)]
    verdicts = on_every_core(look_briefly, units, report, weight=lambda unit: weight(unit[0]))
    left = [(*unit, memory) for unit in still_open(verdict for found in verdicts for verdict in found)]
    return with_later(verdicts, on_every_core(look_at_length, left, report))


def still_open(verdicts: Iterable[Verdict]) -> list[tuple[str, str, list[Verdict]]]:
    """The open obligations, by stem and transition. Where a law is refuted, no other obligation of this law is looked
    at for longer: the law is false.
    """
    verdicts = list(verdicts)
    false = {(v.stem, v.invariant) for v in verdicts if v.refuted}
    left: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        if v.open and v.stem != LEMMAS and (v.stem, v.invariant) not in false:
            left.setdefault((v.stem, v.transition), []).append(v)
    return [(stem, name, found) for (stem, name), found in left.items()]


def with_later(brief: Iterable[list[Verdict]], later: Iterable[list[Verdict]]) -> list[Verdict]:
    """The verdicts in order; a later one takes the place of the brief one on its obligation."""
    newest = {(v.stem, v.transition, v.number): v for found in later for v in found}
    return [newest.get((v.stem, v.transition, v.number), v) for found in brief for v in found]


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin() -> None:
    """In a worker process no solver is asked a question twice, and Python looks for garbage less often: most of what a
    unit of work makes is in use until its end.
    """
    ONCE[:] = [set()]
    gc.freeze()
    gc.set_threshold(7_000)


def on_every_core(
    work: Callable[..., Any],
    units: Sequence[tuple[Any, ...]],
    report: Callable[[Any], None],
    processes: int | None = None,
    weight: Callable[[tuple[Any, ...]], float] = lambda _: 0,
) -> list[Any]:
    """The results of ``work`` on each unit, in order of the units; ``report`` gets each result when it comes.

    ``processes``: how many units at a time; by default as many as there are processors for this process. ``weight``: of
    a unit; the heaviest begin first, so that no long one begins last.
    """
    if not units:
        return []
    with ProcessPoolExecutor(processes or processors(), initializer=_begin) as workers:
        heaviest_first = sorted(range(len(units)), key=lambda place: -weight(units[place]))
        futures = {workers.submit(work, *units[place]): place for place in heaviest_first}
        for future in as_completed(futures):
            report(future.result())
    return [future.result() for future in sorted(futures, key=futures.__getitem__)]
