"""What has to be proved of a stem: each formula is hypotheses and a goal over the spec's own functions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import z3

from proofs import lemmas
from proofs.hints import Hints, Transition
from proofs.symbols import SymMap, SymSeq, Term, World, argument, lift, state
from spec.logic import Invariant, Step, implies

START = "start"
ATOMIC = "refused_changes_nothing"


@dataclass(frozen=True)
class Call:
    """A transition on a symbolic state with symbolic arguments."""

    world: World
    pre: Any
    arguments: dict[str, Any]
    step: Step[Any]


@dataclass(frozen=True)
class Formula:
    """``goal`` must follow from ``given``."""

    invariant: str
    given: list[Any]
    goal: Any

    @property
    def negated(self) -> list[Any]:
        """Satisfiable exactly where the goal does not follow."""
        return [*self.given, z3.Not(self.goal)]


def call(hints: Hints, transition: Transition, world: World) -> Call:
    """``transition`` on fresh symbols of ``world``."""
    pre = state(world, hints.stem.state)
    arguments = {}
    for parameter in list(inspect.signature(transition).parameters.values())[1:]:
        over = hints.over[parameter.name](pre) if parameter.name in hints.over else None
        arguments[parameter.name] = argument(world, str(parameter.annotation), "the " + parameter.name, over)
    return Call(world, pre, arguments, transition(pre, **arguments))


def law_at(world: World, law: Invariant, state: Any, members: list[Any]) -> list[Any]:
    """The law on a state; of a law on each member, what it says of ``members``."""
    world.about = law.name
    if law.at is None or law.domain is None or world.small:
        return [lift(law.of(state))]
    domain = law.domain(state)
    whole = [] if law.counts else [lift(law.of(state))]
    return whole + [lift(implies(domain.has(m), law.at(state, m))) for m in members]


def laws_of(hints: Hints, made: Call, members: list[Any]) -> list[Any]:
    """Every invariant on the state before the call."""
    return [f for law in hints.stem.invariants.values() for f in law_at(made.world, law, made.pre, members)]


def places_of(hints: Hints, made: Call) -> dict[str, tuple[Any, ...]]:
    """By domain, the members that the call's arguments name."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, domain in hints.places.items():
        if name in made.arguments:
            found[domain] = (*found.get(domain, ()), made.arguments[name])
    return found


def preserved(hints: Hints, made: Call, law: Invariant) -> Formula:
    """A granted call leads from lawful states to lawful states."""
    places = places_of(hints, made)
    one = Term(made.world.fresh("one"))
    named = [member for members in places.values() for member in members]
    before = laws_of(hints, made, [one, *named])
    proved = [hints.stem.invariants[name] for name in law.uses]
    before += [law_at(made.world, known, made.step.then, [one])[-1] for known in proved]
    goal = law_at(made.world, law, made.step.then, [one])[-1]
    given = [*made.world.axioms, *before, lift(made.step.granted)]
    return Formula(law.name, [*given, *_lemmas(made, places)], goal)


def atomic(hints: Hints, made: Call) -> Formula:
    """A call that does not fit leaves the state as it was, in every field."""
    after = made.pre if made.step.otherwise is None else made.step.otherwise
    refused = [lift(made.step.kept), z3.Not(lift(made.step.fits))]
    given = [*made.world.axioms, *laws_of(hints, made, []), *refused]
    return Formula(ATOMIC, given, z3.And(*_equal(made.world, made.pre, after)))


def initially(hints: Hints, law: Invariant) -> Formula:
    """The first state is lawful."""
    world = World()
    assert hints.stem.start is not None
    first = hints.stem.start(state(world, hints.stem.state))
    goal = law_at(world, law, first, [Term(world.fresh("one"))])[-1]
    return Formula(law.name, [*world.axioms, *lemmas.instances(world, [], {})], goal)


def all_of(hints: Hints, name: str, transition: Transition) -> Iterator[Formula]:
    """Every formula about one transition (``START``: about the first state)."""
    if name == START:
        yield from (initially(hints, law) for law in hints.stem.invariants.values())
        return
    for law in hints.stem.invariants.values():
        yield preserved(hints, checked_constants(call(hints, transition, World())), law)
    yield atomic(hints, call(hints, transition, World()))


def checked_constants(made: Call) -> Call:
    """The call, after making sure that its step replaced no constant."""
    _same_constants(made.pre, made.step.then)
    return made


def _same_constants(before: Any, after: Any) -> None:
    for f in fields(before):
        old, new = getattr(before, f.name), getattr(after, f.name)
        if f.metadata.get("constant") and old is not new:
            raise TypeError(f"a transition replaced the constant {f.name}")
        if is_dataclass(old):
            _same_constants(old, new)


def _lemmas(made: Call, places: dict[str, tuple[Any, ...]]) -> list[Any]:
    sequences = [a for a in made.arguments.values() if isinstance(a, SymSeq)]
    return list(lemmas.instances(made.world, sequences, places))


def _equal(world: World, one: Any, other: Any) -> Iterator[Any]:
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(other, f.name)
        if is_dataclass(a):
            yield from _equal(world, a, b)
        elif isinstance(a, SymMap):
            keys = [Term(world.fresh("key")) for _ in range(a.arity)]
            yield lift(a(*keys)) == lift(b(*keys))
        elif isinstance(a, Term):
            yield a.z == lift(b)
