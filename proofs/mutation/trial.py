"""Judges one edit of the spec: a law refutes it, or it changes nothing, or it asks more, or it survives.

The laws are those of the right spec; of the edited one only the transitions are taken. So an edit can never weaken the
law that judges it.

``REFUTED``: in a small world there is a lawful state and a granted call after which a law, or a law of two states, is
broken; or that calls a transition of a part without keeping its promises. Or the transition has no witness: no granted
call changes anything, or no call is ever refused. Or the framework refuses the transition, for example since a promise
speaks of the state after.

``EQUIVALENT``: z3 proves, for every number of pages and every page size, that under the laws the edited transition asks
the very promises and choices of the right one, fits exactly where it fits, and leads to the very state.

``STRICTER``: z3 proves that the edited transition is granted only where the right one is granted, and does what the
right one does there. So no law about what a call does can refute it: every such law also holds for fewer calls. It is
not counted as wrong where it asks more of callers, or leaves the implementation less choice. A call that is refused for
want of pages although it fits is wrong: only laws that say when a call must fit can refute it.

``SURVIVES``: none of these. So an edit that z3 says ``unknown`` about survives.

``INVALID``: Python raises when the edited text is loaded or read, so that nobody could use it. It is not counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import z3

from proofs import lemmas, obligations, prover
from proofs.before import looks_ahead
from proofs.counterexample import lawful
from proofs.hints import Hints
from proofs.mutation import beside, reach, seen
from proofs.mutation.operators import Edit
from proofs.obligations import CALLS, START, SymbolicCall
from proofs.registry import hints_of
from proofs.symbols import Count, SymSeq, Term, World, argument, lift, state
from spec.logic import Stem, Step

REFUTED, EQUIVALENT, STRICTER, SURVIVES, INVALID = "refuted", "equivalent", "stricter", "survives", "invalid"
SMALL, LARGER = "small", "larger"
# How much work a solver may do for one question; unlike seconds, this is alike on every machine.
SEARCH, PROOF = {SMALL: 30_000_000, LARGER: 3_000_000}, 1_000_000
ASKED = ("promises", "choice", "fits")
UNKNOWN = "unknown"  # no small world shows a difference, and z3 does not prove that there is none
STUCK = 20_000  # milliseconds; z3 has loops that count no work, so that a question needs an end in time, too
NEVER, REFUSED = "witness", "refused"  # no granted call changes anything; no call is refused
FRAMEWORK = "framework"


@dataclass(frozen=True)
class Tried:
    """What became of an edit. ``by``: the law that refutes it, in the ``transition`` of the ``stem``; of a survivor, in
    which transition it is seen.
    """

    edit: Edit
    fate: str
    stem: str = ""
    transition: str = ""
    by: str = ""


def tried(edit: Edit) -> Tried:
    """Judges the edit on each transition that is made of the edited function, part by part before the whole."""
    try:
        stems = beside.stems_with(edit)
    except Exception as error:  # whatever a wrong text raises
        return Tried(edit, INVALID, by=type(error).__name__)
    left: list[_Edited] = []
    for stem, transition in reach.reached()[edit.module, edit.function]:
        if stem in stems:
            one = _Edited(stem, transition, stems[stem])
            try:
                differs = bool(one.differences)
            except Exception as error:  # whatever a wrong text raises
                return Tried(edit, INVALID, stem, transition, type(error).__name__)
            if differs and (by := one.refused() or one.refuted(larger=False)):
                return Tried(edit, REFUTED, stem, transition, by)
            left += [one] if differs else []
    # The others differ only in calls of transitions of their parts, which are compared themselves.
    direct = [one for one in left if reach.is_direct((edit.module, edit.function), one.stem, one.transition)]
    fates = {one: one.compared() for one in direct}
    for one in [one for one, fate in fates.items() if fate == SURVIVES]:
        if by := one.refuted(larger=True):
            return Tried(edit, REFUTED, one.stem, one.transition, by)
    for one in [one for one, fate in fates.items() if fate == SURVIVES]:
        return Tried(edit, SURVIVES, one.stem, one.transition, one.example(_same) or UNKNOWN)
    return Tried(edit, STRICTER if STRICTER in fates.values() else EQUIVALENT)


Goals = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, eq=False)
class _Edited:
    """A transition with the edit, beside the right one."""

    stem: str
    transition: str
    laws: Stem

    @property
    def function(self) -> Callable[..., Any]:
        """The edited transition."""
        found = self.laws.start if self.transition == START else self.laws.transitions[self.transition]
        assert found is not None
        return found

    @cached_property
    def step(self) -> Step[Any]:
        """The edited step for any number of pages."""
        right = _right(self.stem, self.transition, "")
        made = right.read(self.function)
        right.world.counts[len(right.counts) :], self.__dict__["counts"] = [], right.world.counts[len(right.counts) :]
        return made

    @cached_property
    def said(self) -> Said:
        """What the edited step asks and does; a count of what the right step counts is the very symbol."""
        right, made = _right(self.stem, self.transition, ""), _said(self.step)
        known = {_counted(count): count.term.z for count in right.counts}
        new = [(count.term.z, known[what]) for count in self.__dict__["counts"] if (what := _counted(count)) in known]
        if not new:
            return made
        return {name: (z3.substitute(value, *new), z3.substitute(where, *new)) for name, (value, where) in made.items()}

    @cached_property
    def differences(self) -> set[str]:
        """What the right step and the edited one ask and do, where the formulas are not the very same."""
        right, wrong = _right(self.stem, self.transition, "").said, self.said
        if right.keys() != wrong.keys():
            raise TypeError("the edited transition leads to no state of the stem")
        return {name for name in right if not right[name][0].eq(wrong[name][0])}

    def refused(self) -> str:
        """Why the framework refuses the edited transition; empty where it does not."""
        if self.transition == START:
            return ""
        right = _right(self.stem, self.transition, "")
        made = SymbolicCall(self.transition, right.world, right.pre, right.arguments, self.step, right.one, 0)
        try:
            obligations.checked(self.laws, made)
        except TypeError:
            return FRAMEWORK
        asks = any(name in self.differences for name in ("promises", "choice", "fits"))
        return FRAMEWORK if asks and looks_ahead(hints_of(self.stem), self.function) else ""

    def refuted(self, larger: bool) -> str:
        """The law that a counterexample in a small world shows broken; empty where there is none."""
        small = _right(self.stem, self.transition, LARGER if larger else SMALL)
        step = small.read(self.function)
        kept = small.kept(step)
        broken = small.model(lift(step.granted), z3.Not(z3.And(*kept.values())))
        if broken is not None:
            return next(law for law, holds in kept.items() if z3.is_false(broken.eval(holds, model_completion=True)))
        return "" if larger or self.transition == START else small.vacuous(step)

    def compared(self) -> str:
        """``EQUIVALENT``, ``STRICTER`` or ``SURVIVES``."""
        for fate, goals_of in ((EQUIVALENT, _same), (STRICTER, _narrower)):
            possible = fate == EQUIVALENT or (self.transition != START and "fits" not in self.differences)
            if possible and not self.example(goals_of):
                right = _right(self.stem, self.transition, "")
                plain, goals = _plainly(right.said, self.said), goals_of(right.said, self.said)
                if all(self._proved(plain[name], goals[name]) for name in self.differences):
                    return fate
        return SURVIVES

    def example(self, goals_of: Goals) -> str:
        """Which of these goals a call in a lawful state of a small world does not meet; empty where all are met."""
        small = _right(self.stem, self.transition, SMALL)
        goals = goals_of(small.said, _said(small.read(self.function)))
        goals = {name: goal for name, goal in goals.items() if name in self.differences}
        model = small.model(z3.Not(z3.And(*goals.values())))
        if model is None:
            return ""
        return ", ".join(name for name, goal in goals.items() if z3.is_false(model.eval(goal, model_completion=True)))

    def _proved(self, plain: Any, goal: Any) -> bool:
        """z3 proves the goal for every lawful state, or even the ``plain`` goal for every state."""
        right = _right(self.stem, self.transition, "")
        laws = right.facts(self.__dict__["counts"])
        for facts, claim, look in (
            *((right.world.axioms, plain, {}), (right.world.axioms, goal, {})),
            *((laws, goal, prover.LOOKS[0]), (laws, goal, {})),
        ):
            solver = prover.looking([*facts, z3.Not(claim)], look)
            solver.set("rlimit", PROOF)
            solver.set("timeout", STUCK)
            if solver.check() == z3.unsat:
                return True
        return False


# A second world for each stem, with more of what the first has little of.
MORE: Mapping[str, Mapping[str, int]] = {
    "allocator": {"page_size": 3, "pages": 4, "indices": 4, "rows": 3},
    "swa_mapping": {"page_size": 3, "full.pages": 4, "swa.pages": 3, "indices": 4, "rows": 3},
    "lock_ref": {"nodes": 4, "handles": 3, "window": 3},
    "session_trim": {"rows": 4, "limit": 2, "sessions": 2, "window_pages": 1},
    "mamba_slots": {"states": 5, "owners": 6, "requests": 3, "first_node": 4},
    "cache": {"rows": 5, "limit": 2, "sessions": 2, "requests": 2, "first_node": 4, "owners": 7},
}


@dataclass(frozen=True)
class _Right:
    """The right transition, read on symbols once for all edits. ``kind``: ``SMALL``, ``LARGER``, or empty for a world
    of any size. ``said``: the formulas of what it asks and does.
    """

    hints: Hints
    transition: str
    kind: str
    world: World
    pre: Any
    arguments: dict[str, Any]
    one: Term
    step: Step[Any]
    said: Said
    counts: tuple[Any, ...]

    def read(self, function: Callable[..., Any]) -> Step[Any]:
        """The step of another transition on the state and the arguments of this one."""
        del self.world.counts[len(self.counts) :]
        return Step(then=function(self.pre)) if self.transition == START else function(self.pre, **self.arguments)

    def model(self, *assertions: Any) -> Any:
        """A lawful state of a small world, and a call there, that satisfy these; ``None`` where there is none."""
        self.solver.push()
        self.solver.add(*assertions)
        model = self.solver.model() if self.solver.check() == z3.sat else None
        self.solver.pop()
        return model

    def vacuous(self, step: Step[Any]) -> str:
        """No call of the step changes anything, or none is refused although the right one can be; else empty."""
        keys = [Term(z3.Int(f"anywhere {n}")) for n in range(2)]
        was = {name: lift(value) for name, value, _ in seen.values(self.pre, keys)}
        changed = [z3.And(where, value != was[name]) for name, (value, where) in _said(step).items() if name in was]
        if self.model(lift(step.granted), z3.Or(*changed)) is None:
            return NEVER
        refusable = self.transition in self.hints.refusable
        return REFUSED if refusable and self.model(lift(step.kept), z3.Not(lift(step.fits))) is None else ""

    @cached_property
    def solver(self) -> z3.Solver:
        """A solver that knows that the state before is lawful; for the first state it knows nothing."""
        return _lawful(self.hints.stem.name, self.transition, self)

    def kept(self, step: Step[Any]) -> dict[str, Any]:
        """What must hold where the step is granted, by name: laws, laws of two states, promises of calls."""
        stem = self.hints.stem
        laws = [
            law
            for law in stem.invariants.values()
            if not law.theorem and (self.transition == START or not law.inherited)
        ]
        found = {law.name: lift(law.of(step.then)) for law in laws}
        if self.transition != START:
            changes = [law for law in stem.changes.values() if law.binds(self.transition)]
            found |= {law.name: lift(law.of(self.pre, step.then, self.arguments)) for law in changes}
        found |= {f"{CALLS}{c.transition.__name__} {k}": lift(c.step.granted) for k, c in enumerate(step.calls)}
        if step.otherwise is not None:
            raise NotImplementedError("a transition that changes the state when it is refused")
        return found

    def facts(self, more: list[Any]) -> list[Any]:
        """The laws of the state before, for any number of pages, and the lemmas.

        ``more``: the counts of the edited step.
        """
        made = self.made
        made.afresh()
        named = [m for members in obligations.places_of(self.hints, made).values() for m in members]
        laws = (
            []
            if self.transition == START
            else obligations.laws_of(self.hints, made, [self.one, *named], set(self.hints.stem.parts))
        )
        self.world.counts.extend(more)
        sequences = [a for a in self.arguments.values() if isinstance(a, SymSeq)]
        found = [*self.world.axioms, *laws]
        found += lemmas.instances(self.world, sequences, obligations.places_of(self.hints, made))
        made.afresh()
        return found

    @cached_property
    def made(self) -> SymbolicCall:
        """The call, as the obligations take it."""
        return SymbolicCall(
            self.transition, self.world, self.pre, self.arguments, self.step, self.one, len(self.counts)
        )


@cache
def _right(stem: str, transition: str, kind: str) -> _Right:
    hints = hints_of(stem)
    sizes = {SMALL: hints.sizes, LARGER: {**hints.sizes, **MORE[stem]}, "": None}[kind]
    world = World(dict(sizes or {}))
    pre = state(world, hints.stem.state)
    arguments = {}
    function = hints.stem.start if transition == START else hints.stem.transitions[transition]
    assert function is not None
    if transition != START:
        for parameter in list(inspect.signature(function).parameters.values())[1:]:
            over = hints.over[parameter.name](pre) if parameter.name in hints.over else None
            arguments[parameter.name] = argument(world, str(parameter.annotation), "the " + parameter.name, over)
    step = Step(then=function(pre)) if transition == START else function(pre, **arguments)
    one = Term(world.fresh("one"))
    return _Right(hints, transition, kind, world, pre, arguments, one, step, _said(step), tuple(world.counts))


def _lawful(stem: str, transition: str, right: _Right) -> z3.Solver:
    solver = z3.SimpleSolver()
    solver.set("arith.solver", 2)  # on written-out quantifiers the older one is many times faster
    solver.set("rlimit", SEARCH[right.kind])
    solver.set("timeout", STUCK)
    solver.add(*right.world.axioms)
    if transition != START:
        solver.add(*lawful(hints_of(stem), right.made))
    return solver


Said = dict[str, tuple[Any, Any]]  # by name a formula, and where it is read


def _said(step: Step[Any]) -> Said:
    """The formulas of what a step asks and does; those of a map at keys that stand for all keys."""
    choice = z3.And(*(lift(r.holds) for r in step.choice))
    keys = [Term(z3.Int(f"anywhere {n}")) for n in range(2)]
    asked = [("promises", step.kept, True), ("choice", choice, True), ("fits", step.fits, True)]
    return {name: (lift(value), lift(where)) for name, value, where in (*asked, *seen.values(step.then, keys))}


def _counted(count: Count) -> str:
    """What is counted: two counts of one set by one weight are one number."""
    at = Term(z3.Int("counted"))
    return " ".join(lift(value).sexpr() for value in (count.domain.has(at), count.law(at), count.weight(at)))


def _granted(said: Said) -> Any:
    return z3.And(*(said[name][0] for name in ASKED))


def _same(right: Said, wrong: Said) -> dict[str, Any]:
    """What it means that two steps are equal: they ask alike, and where they are granted they do alike."""
    kept, fits = right["promises"][0], right["fits"][0]
    under = {"promises": z3.BoolVal(True), "choice": z3.And(kept, fits), "fits": kept}
    return {
        name: z3.Implies(z3.And(under.get(name, _granted(right)), where), value == wrong[name][0])
        for name, (value, where) in right.items()
    }


def _plainly(right: Said, wrong: Said) -> dict[str, Any]:
    """What both goals below follow from: both steps ask and do alike, wherever this is read."""
    return {name: z3.Implies(where, value == wrong[name][0]) for name, (value, where) in right.items()}


def _narrower(right: Said, wrong: Said) -> dict[str, Any]:
    """What it means that a step is granted only where the right one is, and does there what the right one does."""
    return {
        name: z3.Implies(z3.And(_granted(wrong), where), value if name in ASKED else value == wrong[name][0])
        for name, (value, where) in right.items()
    }


__all__ = ["EQUIVALENT", "INVALID", "REFUTED", "STRICTER", "SURVIVES", "Tried", "tried"]
