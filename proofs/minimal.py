"""Which promises, choices and fits of a transition its proofs need: each is dropped in turn.

A proof is a set of formulas, each of which a solver shows. A requirement that stands in no proof is needed by nothing;
one that stands in a proof is dropped, and the proof is tried again without it. Where it fails, a small state is looked
for from which the call without the requirement breaks the law: then the requirement is needed for certain.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import z3

from proofs import counterexample, obligations, prover
from proofs.hints import Hints, Transition
from proofs.registry import hints_of
from proofs.symbols import Term, World, lift
from spec import logic
from spec.logic import Change, Requirement, Step, but, implies

PROMISE, CHOICE, FITS = "promise", "choice", "fits"
FIT = "the call fits"
REFUTED, UNDECIDED = "refuted", "undecided"


@dataclass(frozen=True)
class AskedRequirement:
    """One requirement of a transition: a promise, a condition on the implementation's choice, or that the call fits.

    ``place``: the file and line where the spec says it; ``text``: the source text there.
    """

    stem: str
    transition: str
    kind: str
    sentence: str
    place: str
    text: str


@dataclass(frozen=True)
class Need:
    """What becomes of the proofs of a transition when one requirement is dropped.

    ``fails``: the obligations that z3 does not prove without it. ``how``: ``refuted`` where a small lawful state shows
    that one of them is false then; ``undecided`` where no such state was found and it does not follow; else ``None``.
    ``follows``: the requirement follows from the laws and the other requirements, so that it asks nothing more.
    """

    asked: AskedRequirement
    fails: tuple[str, ...] = ()
    how: str | None = None
    follows: bool = False

    @property
    def idle(self) -> bool:
        """No law needs the requirement."""
        return self.how is None


def requirements(step: Step[Any]) -> list[tuple[str, Requirement]]:
    """The requirements of a step in order, each with its kind."""
    return [
        *((PROMISE, promise) for promise in step.promises),
        *((CHOICE, choice) for choice in step.choice),
        (FITS, Requirement(FIT, step.fits)),
    ]


def rewritten(transition: Transition, rewrite: Callable[[int, Requirement], Requirement]) -> Transition:
    """The transition with each of its requirements rewritten; a requirement is known by its number in order."""

    @functools.wraps(transition)
    def wrapped(*arguments: Any, **named: Any) -> Step[Any]:
        step = transition(*arguments, **named)
        new = [rewrite(number, asked) for number, (_, asked) in enumerate(requirements(step))]
        last = len(step.promises)
        return but(step, promises=tuple(new[:last]), choice=tuple(new[last:-1]), fits=new[-1].holds)

    return wrapped


def without(transition: Transition, dropped: int) -> Transition:
    """The transition without one of its requirements."""
    return rewritten(
        transition, lambda number, asked: Requirement(asked.sentence, True) if number == dropped else asked
    )


def _label(number: int) -> Any:
    return z3.Bool(f"asked {number}")


def labelled(transition: Transition) -> Transition:
    """The transition, each of whose requirements is asked only where its label is true: a proof then names those that
    it uses.
    """
    return rewritten(
        transition,
        lambda number, asked: Requirement(asked.sentence, implies(Term(_label(number)), asked.holds)),
    )


def asked_of(hints: Hints, name: str) -> dict[int, AskedRequirement]:
    """The requirements of a transition by number, each with its place in the spec; not those that are plainly true."""
    transition = hints.stem.transitions[name]
    with _noted() as places:
        step = obligations.call(hints, transition, World(), name).step
    whole = (None, *_head(transition))
    found = {}
    for number, (kind, asked) in enumerate(requirements(step)):
        if asked.holds is not True:
            _, place, text = places.get(id(asked), whole)
            found[number] = AskedRequirement(hints.stem.name, name, kind, asked.sentence, place, text)
    return found


@contextmanager
def _noted() -> Iterator[dict[int, tuple[Requirement, str, str]]]:
    """The requirements that ``logic.requires`` makes while the block runs, by identity, each with the place of the call
    and its source text.
    """
    places: dict[int, tuple[Requirement, str, str]] = {}
    real = logic.requires

    def requires(holds: logic.Truth, sentence: str) -> Requirement:
        asked = real(holds, sentence)
        places[id(asked)] = (asked, *_source(sys._getframe(1)))
        return asked

    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    with ExitStack() as replaced:
        for module in [module for module in modules if vars(module).get("requires") is real]:
            replaced.enter_context(patch.object(module, "requires", requires))
        yield places


def _source(frame: FrameType) -> tuple[str, str]:
    """The place of the call that the frame makes, and its source text on one line."""
    code = frame.f_code
    first, last, start, end = list(code.co_positions())[frame.f_lasti // 2]
    assert first is not None
    assert last is not None
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:end].decode()
    lines[0] = lines[0].encode()[start:].decode()
    return _place(code.co_filename, first), " ".join(" ".join(lines).split())


def _head(transition: Transition) -> tuple[str, str]:
    code = inspect.unwrap(transition).__code__
    return _place(code.co_filename, code.co_firstlineno), f"fits of {transition.__name__}"


def _place(file: str, line: int) -> str:
    path = Path(file)
    return f"{path.parent.name}/{path.name}:{line}"


def needs(stem: str, name: str) -> list[Need]:
    """For each requirement of a transition what fails without it. A requirement that is plainly true is left out."""
    hints = hints_of(stem)
    asked = asked_of(hints, name)
    fails: dict[int, list[str]] = {number: [] for number in asked}
    for formula in obligations.all_of(hints, name, labelled(hints.stem.transitions[name])):
        if formula.kind == obligations.PROOF:
            for number in _needed_by(formula, [*asked]):
                fails[number].append(formula.invariant)
    return [_need(hints, name, number, said, fails[number]) for number, said in asked.items()]


def _need(hints: Hints, name: str, number: int, asked: AskedRequirement, fails: Sequence[str]) -> Need:
    """A proof without a requirement may fail only since the proofs leave out a law from which the requirement follows:
    where no small state shows that it is needed, all laws are asked.
    """
    if fails and _is_refuted(hints, name, number, fails):
        return Need(asked, tuple(fails), REFUTED)
    follows = _follows(hints, name, number)
    return Need(asked, tuple(fails), UNDECIDED if fails and not follows else None, follows)


def _needed_by(formula: obligations.Formula, asked: Sequence[int]) -> Iterator[int]:
    """The numbers of the requirements without which z3 does not prove the formula."""
    used = _used(formula, asked)
    for number in asked if used is None else used:
        if _used(formula, [other for other in asked if other != number]) is None:
            yield number


def _used(formula: obligations.Formula, asked: Sequence[int]) -> list[int] | None:
    """The requirements among ``asked`` that a proof of the formula uses; ``None`` if z3 finds no proof from them."""
    if formula.core_facts is not None:
        core = _core([*formula.core_facts, z3.Not(formula.goal)], asked, prover.LOOKS[:1])
        if core is not None:
            return core
    return _core(formula.negated, asked, prover.LOOKS[:3])


def _core(assertions: list[Any], asked: Sequence[int], looks: Sequence[dict[str, Any]]) -> list[int] | None:
    """The requirements that z3 uses to refute the assertions; ``None`` if it does not refute them."""
    for look in looks:
        solver = prover.looking(assertions, look, prover.GLANCE.z3)
        answer = solver.check([_label(number) for number in asked])
        if answer == z3.unsat:
            names = {str(label) for label in solver.unsat_core()}
            return [number for number in asked if str(_label(number)) in names]
        if answer == z3.sat:
            return None
    return None


def _is_refuted(hints: Hints, name: str, number: int, fails: Sequence[str]) -> bool:
    """A small lawful state shows that one of the obligations is false without the requirement."""
    wrong = without(hints.stem.transitions[name], number)
    tries = ((world, law) for world in _small_worlds(hints) for law in fails)
    return any(counterexample.refutes(world, name, wrong, law, prover.GLANCE.z3) for world, law in tries)


def _small_worlds(hints: Hints) -> Iterator[Hints]:
    """The small world of the stem; where its pages have one slot, also one whose pages have two: lengths within a page
    are seen there alone.
    """
    yield hints
    if hints.sizes.get("page_size") == 1:
        yield replace(hints, sizes={**hints.sizes, "page_size": 2})


def _follows(hints: Hints, name: str, number: int) -> bool:
    """The requirement follows from the laws of the state before and the other requirements of the call."""
    made = obligations.call(hints, labelled(hints.stem.transitions[name]), World(), name)
    asked = requirements(made.step)
    said = z3.substitute(lift(asked[number][1].holds), (_label(number), z3.BoolVal(True)))
    formula = obligations.changes_lawfully(hints, made, Change("follows", lambda *_: Term(said)))
    labels = [_label(other) for other in range(len(asked)) if other != number]
    return _core([*formula.negated, z3.Not(_label(number)), *labels], [], prover.LOOKS[:3]) is not None
