"""What there is to prove of the calls that bring every lawful state to rest (``spec.logic.Drain``)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import z3

from proofs import lemmas
from proofs.answers import Pick
from proofs.hints import Hints
from proofs.symbols import Term, World, arguments, domain_of, lift
from spec.logic import Descent, Drain, Measure, Step, no

COMES_TO_REST = "comes_to_rest"  # the law that all claims together say
COMES_BACK = "comes_back_and_is_served"  # the law that all claims of ``Drain.returns`` together say
DRAIN, RETURN = "drain_", "return_"
GOES_ON = "drain_goes_on"
GRANTED, LOWERS = "drain_{}_is_granted", "drain_{}_lowers"
SERVED = "return_{}_is_granted"


def sentences(drain: Drain) -> dict[str, str]:
    """What the claims say together, by the name of the law that they are shown as."""
    comes_back = {} if drain.returns is None else {COMES_BACK: drain.returns.sentence}
    return {COMES_TO_REST: drain.sentence, **comes_back}


def claim_names(drain: Drain, law: str | None = None) -> list[str]:
    """The names of the claims of a law of ``sentences``, in the order in which they are made; without a law of all."""
    rest = [*(kind.format(call.name) for call in drain.descents for kind in (GRANTED, LOWERS)), GOES_ON]
    back = [] if drain.returns is None else [SERVED.format(call.__name__) for call in drain.returns.calls]
    return {COMES_TO_REST: rest, COMES_BACK: back, None: [*rest, *back]}[law]


def law_of(claim: str) -> str | None:
    """The law of ``sentences`` to which a claim of this name belongs; ``None`` for any other obligation."""
    laws = {COMES_TO_REST: DRAIN, COMES_BACK: RETURN}
    return next((law for law, begins in laws.items() if claim.startswith(begins)), None)


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


def returns(hints: Hints, new: Callable[[], tuple[World, Any]]) -> Iterator[tuple[World, Any, DrainClaim]]:
    """A claim for each call of a request that comes at rest (``Drain.returns``), after the calls before it.

    The last call keeps its promises and fits; that such a call has a lawful answer is proved of every state
    (``proofs.fitting``). The others are granted with the answer that the hints name.
    """
    drain = hints.drain
    assert drain is not None
    assert drain.returns is not None
    calls = drain.returns.calls
    for number, name in enumerate(claim_names(drain, COMES_BACK), start=1):
        world, st = new()
        given: dict[str, Any] = {}
        for call in calls:
            given = arguments(world, call, hints.over, st) | given
        asked = lift(drain.returns.asks(st, **_of(drain.returns.asks, given)))
        goals: list[Any] = []
        state, counted = st, len(world.counts)
        for call in calls[:number]:
            is_last = call is calls[-1]
            answer = {} if is_last else hints.answers[call.__name__](Pick(world, []), state, given)
            step = call(state, **_of(call, given | answer))
            state, goals = step.then, [*goals, lift(step.kept & step.fits if is_last else step.granted)]
        nothing = [lemmas.none(count) for count in world.counts[counted:] if count.unweighted]
        facts = [lift(drain.given(st)), lift(drain.rest(st)), asked, *goals[:-1], *nothing]
        yield world, st, DrainClaim(name, [], facts, goals[-1])


def _of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given arguments that the function takes."""
    return {name: value for name, value in given.items() if name in inspect.signature(function).parameters}
