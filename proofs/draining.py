"""What there is to prove of the calls that bring every lawful state to rest (``spec.logic.Drain``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import z3

from proofs.symbols import Term, World, domain_of, lift
from spec.logic import Descent, Drain, Measure, Step, no

COMES_TO_REST = "comes_to_rest"  # the law that all claims together say
DRAIN = "drain_"
GOES_ON = "drain_goes_on"
GRANTED, LOWERS = "drain_{}_is_granted", "drain_{}_lowers"


def claim_names(drain: Drain) -> list[str]:
    """The names of all claims, in the order in which ``claims`` makes them."""
    return [*(kind.format(call.name) for call in drain.descents for kind in (GRANTED, LOWERS)), GOES_ON]


class DrainClaim(NamedTuple):
    """A name, the members that the claim speaks of, its facts beside the laws on the state, and its goal."""

    name: str
    members: list[Any]
    facts: list[Any]
    goal: Any


def claims(drain: Drain, new: Callable[[], tuple[World, Any]]) -> Iterator[tuple[World, Any, DrainClaim]]:
    """Every claim, each with a world of its own and a symbolic state. ``new``: makes both."""
    for descent in drain.descents:
        for name, goal in ((GRANTED, _granted), (LOWERS, lowers)):
            world, st = new()
            member, there = member_of(world, st, descent)
            step = descent.step(st, member)
            facts = [lift(drain.given(st)), there, lift(descent.when(st, member))]
            facts += [lift(step.granted)] if goal is lowers else []
            yield (
                world,
                st,
                DrainClaim(name.format(descent.name), [member], facts, goal(drain, descent, st, member, step)),
            )
    world, st = new()
    yield world, st, DrainClaim(GOES_ON, [], [lift(drain.given(st))], _goes_on(drain, st))


def member_of(world: World, st: Any, descent: Descent) -> tuple[Any, Any]:
    """The member of which a call of the drain speaks, and that it is one."""
    if descent.pick is not None:
        return descent.pick(st), z3.BoolVal(True)
    assert descent.members is not None, "a descent has members, or picks one"
    member = Term(world.fresh("member"))
    return member, lift(domain_of(descent.members, st).has(member))


def _granted(_: Drain, __: Descent, ___: Any, ____: Any, step: Step[Any]) -> Any:
    return lift(step.granted)


def lowers(drain: Drain, descent: Descent, st: Any, member: Any, step: Step[Any]) -> Any:
    """No measure is greater anywhere, and the measure of the call is smaller at the member, which is one of its own."""
    smaller = lift(descent.lowers.value(step.then, member)) < lift(descent.lowers.value(st, member))
    of = descent.lowers.domain
    inside = z3.BoolVal(True) if of is None else lift(domain_of(of, st).has(member))
    return z3.And(inside, smaller, *(_no_greater(measure, st, step.then) for measure in drain.measures))


def _no_greater(measure: Measure, was: Any, now: Any) -> Any:
    def at(member: Any) -> Any:
        return measure.value(now, member) <= measure.value(was, member)

    return lift(at(0) if measure.domain is None else domain_of(measure.domain, was).all(at))


def _goes_on(drain: Drain, st: Any) -> Any:
    """The state is at rest, or one of the calls can be made; and no measure is negative."""

    def possible(descent: Descent) -> Any:
        if descent.pick is not None:
            return lift(descent.when(st, descent.pick(st)))
        assert descent.members is not None
        nowhere = domain_of(descent.members, st).all(lambda member: no(descent.when(st, member)))
        return lift(no(nowhere))

    def natural(measure: Measure) -> Any:
        if measure.domain is None:
            return lift(measure.value(st, 0) >= 0)
        return lift(domain_of(measure.domain, st).all(lambda member: measure.value(st, member) >= 0))

    on = z3.Or(lift(drain.rest(st)), *map(possible, drain.descents))
    return z3.And(on, *map(natural, drain.measures))
