"""The right transitions, read on symbols once for all edits, and what it means that an edited one does the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import z3

from proofs import lawful_state, lemmas, obligations
from proofs.answers import Pick
from proofs.fitting import ANSWERED, FITS, unchanged_choices
from proofs.hints import Hints
from proofs.mutation import seen
from proofs.obligations import CALLS, START, SymbolicCall
from proofs.registry import hints_of
from proofs.symbols import Count, SymSeq, Term, World, arguments, lift
from spec.logic import Step, every

SMALL, LARGER, ANY = "small", "larger", "any"  # the kinds of worlds
# How much work z3 may do for one question; unlike seconds, this is alike on every machine.
SEARCH = {SMALL: 30_000_000, LARGER: 3_000_000, ANY: 1_000_000}
STUCK = 20_000  # milliseconds; z3 has loops that count no work, so that a question needs an end in time, too
# The larger world of each stem has more of what the small one has little of.
MORE: Mapping[str, Mapping[str, int]] = {
    "allocator": {"page_size": 3, "pages": 4, "indices": 4, "rows": 3},
    "swa_mapping": {"page_size": 3, "full.pages": 4, "swa.pages": 3, "indices": 4, "rows": 3},
    "lock_ref": {"nodes": 4, "handles": 3, "window": 3},
    "session_trim": {"rows": 4, "limit": 2, "sessions": 2, "window_pages": 1},
    "mamba_slots": {"states": 5, "owners": 6, "requests": 3, "first_node": 4},
    "cache": {"rows": 5, "limit": 2, "sessions": 2, "requests": 2, "first_node": 4, "owners": 7},
    "block_pool": {"blocks": 4, "tables": 3, "places": 4, "stories": 2},
    "block_cache": {"blocks": 4, "places": 4, "stories": 2},
    "host_tier": {"keys": 3, "slots": 2, "blocks": 4, "parts": 2, "jobs": 2},
    "kv_events": {"blocks": 3, "media": 3},
}
NEVER, REFUSED = "witness", "refused"  # no granted call changes anything; no call is refused
ASKED = ("promises", "choice", "fits")

Said = dict[str, tuple[Any, Any]]  # by name a formula, and where it is read
Goals = dict[str, Any]


@dataclass(frozen=True)
class Right:
    """A right transition in a world of one kind. ``said``: the formulas of what it asks and does."""

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

    def read(self, function: Callable[..., Any], **other: Any) -> Step[Any]:
        """The step of another transition on the state and the arguments of this one, some of them replaced."""
        del self.world.counts[len(self.counts) :]
        if self.transition == START:
            return Step(then=function(self.pre))
        step: Step[Any] = function(self.pre, **{**self.arguments, **other})
        return step

    @cached_property
    def solver(self) -> z3.Solver:
        """A solver that knows that the state before is lawful; for the first state it knows nothing."""
        solver = z3.SimpleSolver()
        solver.set("arith.solver", 2)  # on written-out quantifiers the older one is many times faster
        solver.set("rlimit", SEARCH[self.kind])
        solver.set("timeout", STUCK)
        solver.add(*self.world.axioms)
        if self.transition != START:
            solver.add(*lawful_state.before(self.hints, self.made))
        return solver

    def ask(self, *assertions: Any) -> tuple[str, Any]:
        """Whether a lawful state of a small world and a call there satisfy these: z3's answer, and its model."""
        self.solver.push()
        self.solver.add(*assertions)
        answer = str(self.solver.check())
        model = self.solver.model() if answer == "sat" else None
        self.solver.pop()
        return answer, model

    def model(self, *assertions: Any) -> Any:
        """A lawful state of a small world, and a call there, that satisfy these; ``None`` where none is found."""
        return self.ask(*assertions)[1]

    def refutes(self, function: Callable[..., Any]) -> str:
        """The law that a counterexample in this small world shows broken; empty where none is found."""
        step = self.read(function)
        kept = self.kept(step)
        broken = self.model(lift(step.granted), z3.Not(z3.And(*kept.values())))
        if broken is not None:
            return false_in(broken, kept).split(", ")[0]
        return "" if self.transition == START else self._vacuous(step) or self._unfitting(function, step)

    def kept(self, step: Step[Any]) -> Goals:
        """What must hold where the step is granted, by name: laws, laws of two states, promises of calls."""
        stem, first = self.hints.stem, self.transition == START
        laws = [law for law in stem.invariants.values() if not law.theorem and (first or not law.inherited)]
        found = {law.name: lift(law.of(step.then)) for law in laws}
        if not first:
            changes = [law for law in stem.changes.values() if law.binds(self.transition)]
            found |= {law.name: lift(law.of(self.pre, step.then, self.arguments)) for law in changes}
        if step.otherwise is not None:
            raise NotImplementedError(f"{self.transition} changes the state when it is refused")
        return found | {f"{CALLS}{c.transition.__name__} {k}": lift(c.step.granted) for k, c in enumerate(step.calls)}

    def _vacuous(self, step: Step[Any]) -> str:
        """No call of the step changes anything, or none is refused although the right one can be; else empty."""
        was = {name: lift(value) for name, value, _ in seen.values(self.pre, KEYS)}
        changed = [z3.And(where, value != was[name]) for name, (value, where) in said(step).items() if name in was]
        if self.ask(lift(step.granted), z3.Or(*changed))[0] == "unsat":
            return NEVER
        refusable = self.transition in self.hints.refusable
        return REFUSED if refusable and self.ask(lift(step.kept), z3.Not(lift(step.fits)))[0] == "unsat" else ""

    def _unfitting(self, function: Callable[..., Any], step: Step[Any]) -> str:
        """A call does not fit though it has a lawful answer, or fits though the answer of the hints is not lawful."""
        asked, fits = lift(step.kept), lift(step.fits)
        if self.model(asked, *(lift(choice.holds) for choice in step.choice), z3.Not(fits)) is not None:
            return FITS
        if self.transition not in self.hints.answers:
            return ""
        known = len(self.world.axioms)
        pick = Pick(self.world, self._available())
        answered = self.hints.answers[self.transition](pick, self.pre, self.arguments)
        lawfully = self.read(function, **answered)
        others = [lift(choice.holds) for choice in unchanged_choices(step.choice, lawfully.choice)]
        facts = [*self.world.axioms[known:], *pick.facts, asked, fits, *others]
        del self.world.axioms[known:]
        return "" if self.model(*facts, z3.Not(lift(lawfully.granted))) is None else ANSWERED

    def _available(self) -> list[Count]:
        """What the laws count as available."""
        del self.world.counts[len(self.counts) :]
        for law in self.hints.stem.invariants.values():
            if law.name.split(".")[-1] == "available_counts":
                every(law.holds(part) for _, part in law.current().parts(self.pre))
        return self.world.counts[len(self.counts) :]

    def facts(self, more: list[Any]) -> list[Any]:
        """The laws of the state before, for any number of pages, and the lemmas.

        ``more``: the counts of the edited step.
        """
        made, laws = self.made, []
        made.afresh()
        places = obligations.places_of(self.hints, made)
        if self.transition != START:
            named = [member for members in places.values() for member in members]
            laws = obligations.laws_of(self.hints, made, [self.one, *named], set(self.hints.stem.parts))
        self.world.counts.extend(more)
        sequences = [a for a in self.arguments.values() if isinstance(a, SymSeq)]
        found = [*self.world.axioms, *laws, *lemmas.instances(self.world, sequences, places)]
        made.afresh()
        return found

    @cached_property
    def made(self) -> SymbolicCall:
        """The call, as the obligations take it."""
        return SymbolicCall(
            self.transition, self.world, self.pre, self.arguments, self.step, self.one, len(self.counts)
        )


@cache
def right(stem: str, transition: str, kind: str) -> Right:
    """A right transition in a world of this kind."""
    hints = hints_of(stem)
    sizes = {SMALL: hints.sizes, LARGER: {**hints.sizes, **MORE[stem]}, ANY: {}}[kind]
    world = World(dict(sizes), remembers=True) if sizes else World()
    pre = obligations.state_of(hints.stem, world)
    function = hints.stem.start if transition == START else hints.stem.transitions[transition]
    assert function is not None
    given = {} if transition == START else arguments(world, function, hints.over, pre)
    step: Step[Any] = Step(then=function(pre)) if transition == START else function(pre, **given)
    one = Term(world.fresh("one"))
    return Right(hints, transition, kind, world, pre, given, one, step, said(step), tuple(world.counts))


# What a step asks and does, and what it means that two steps ask and do alike.

KEYS = [Term(z3.Int(f"anywhere {n}")) for n in range(3)]  # they stand for all keys of a map


def said(step: Step[Any]) -> Said:
    """The formulas of what a step asks and does."""
    choice = z3.And(*(lift(r.holds) for r in step.choice))
    asked = [("promises", step.kept, True), ("choice", choice, True), ("fits", step.fits, True)]
    return {name: (lift(value), lift(where)) for name, value, where in (*asked, *seen.values(step.then, KEYS))}


def counted(count: Count) -> str:
    """What is counted: two counts of one set by one weight are one number."""
    at = Term(z3.Int("counted"))
    return " ".join(lift(value).sexpr() for value in (count.domain.has(at), count.law(at), count.weight(at)))


def granted(one: Said) -> Any:
    """The call is granted."""
    return z3.And(*(one[name][0] for name in ASKED))


def same(one: Said, other: Said) -> Goals:
    """What it means that two steps are equal: they ask alike, and where they are granted they do alike."""
    kept, fits = one["promises"][0], one["fits"][0]
    under = {"promises": z3.BoolVal(True), "choice": z3.And(kept, fits), "fits": kept}
    return {
        name: z3.Implies(z3.And(under.get(name, granted(one)), where), value == other[name][0])
        for name, (value, where) in one.items()
    }


def narrower(one: Said, other: Said) -> Goals:
    """What it means that the other step is granted only where this one is, and does there what this one does."""
    return {
        name: z3.Implies(z3.And(granted(other), where), value if name in ASKED else value == other[name][0])
        for name, (value, where) in one.items()
    }


def plainly(one: Said, other: Said) -> Goals:
    """What both of these follow from: two steps ask and do alike, wherever this is read."""
    return {name: z3.Implies(where, value == other[name][0]) for name, (value, where) in one.items()}


def false_in(model: Any, goals: Goals) -> str:
    """The names of the goals that are false in a model."""
    return ", ".join(name for name, goal in goals.items() if z3.is_false(model.eval(goal, model_completion=True)))
