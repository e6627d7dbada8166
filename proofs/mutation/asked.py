"""Judges what a transition asks: the drains, the calls that engines make, and whether a requirement is for nothing.

A promise that asks for less lets calls through that break a law, and so a law judges it. A promise that asks for more
breaks no law by itself. These notice promises beside the laws:

- *drains*: the calls that bring every lawful state to rest (``spec.logic.Drain``) are granted, and each brings the
  state nearer to rest;
- *calls of kept traces*: each call that an engine or a known bug makes on a kept trace, and that the law granted when
  the trace was run on our implementation, is granted (``slotproof.planted.kept_calls``);
- *settled choices*: a condition on the implementation's choice is settled where the promises of the right transition
  imply it, so that no answer can break it. A call that keeps the promises and breaks a settled condition would be
  neither granted nor refused. Here a promise asks for too little;
- *exact requirements*: a promise or a condition on the implementation's choice is exact where each call that it alone
  refuses would break a law. Most requirements of the right spec are exact. One that was exact and that refuses a call
  which would break no law asks for nothing that a law needs.

The calls of traces are looked at in the finite reading, all else in the small worlds, in which a model decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import z3

from proofs import draining
from proofs.explore import show
from proofs.mutation.right import Right, right
from proofs.obligations import START
from proofs.symbols import lift
from spec.logic import Descent, Step

FOR_NOTHING = "asks for nothing: "  # before the sentence of the requirement
NO_ANSWER = "neither granted nor refused: "  # before the sentence of the condition
OF_TRACE = "refuses a call of a kept trace: "  # before the call


class FiniteCall(NamedTuple):
    """A call on plain values: its transition, the state before it, and its arguments."""

    transition: str
    state: Any
    arguments: tuple[Any, ...]


_CALLS: dict[tuple[str, str], Sequence[FiniteCall]] = {}  # that are granted on kept traces, by stem and transition


def noticed(of: Right, function: Callable[..., Step[Any]]) -> str:
    """What the drain, an exact requirement or a settled choice says against the transition in this world; empty where
    nothing is said.
    """
    if of.transition == START:
        return ""
    step = of.read(function)
    return undrained(of, function) or idle(of, step) or unsettled(of, step)


def undrained(of: Right, function: Callable[..., Step[Any]]) -> str:
    """The claim of the drain that is false of this transition; empty where there is none, or no drain calls it."""
    drain, ours = of.hints.drain, of.hints.stem.transitions[of.transition]
    calls = [] if drain is None else [descent for descent in drain.descents if descent.transition is ours]
    return next(filter(None, (_stuck(of, function, descent) for descent in calls)), "")


def _stuck(of: Right, function: Callable[..., Step[Any]], descent: Descent) -> str:
    """Which claim about this call of the drain is false of the transition; empty where none is."""
    drain, known = of.hints.drain, len(of.world.axioms)
    assert drain is not None
    member, there = draining.member_of(of.world, of.pre, descent)
    step = of.read(function, **dict(zip(of.arguments, descent.arguments(of.pre, member), strict=True)))
    lowers = draining.lowers(drain, descent, of.pre, member, step)
    facts = [*of.world.axioms[known:], lift(drain.given(of.pre)), there, lift(descent.when(of.pre, member))]
    del of.world.axioms[known:]
    if of.model(*facts, z3.Not(lift(step.granted))) is not None:
        return draining.GRANTED.format(descent.name)
    if of.model(*facts, lift(step.granted), z3.Not(lowers)) is not None:
        return draining.LOWERS.format(descent.name)
    return ""


def requirements(step: Step[Any]) -> dict[tuple[str, int], Any]:
    """The promises and choices of a step, each by its sentence and by how many of this sentence stand before it."""
    found: dict[tuple[str, int], Any] = {}
    for asked in (*step.promises, *step.choice):
        number = sum(sentence == asked.sentence for sentence, _ in found)
        found[asked.sentence, number] = lift(asked.holds)
    return found


def _for_nothing(of: Right, step: Step[Any], name: tuple[str, int]) -> str:
    """z3's answer to whether a call that this requirement alone refuses would break no law: ``sat`` where there is such
    a call, ``unsat`` where there is none.
    """
    asked = requirements(step)
    others = [holds for other, holds in asked.items() if other != name]
    return of.ask(z3.Not(asked[name]), *others, lift(step.fits), *of.kept(step).values())[0]


@cache
def is_exact(stem: str, transition: str, kind: str, name: tuple[str, int]) -> bool:
    """The right transition refuses no call for nothing by this requirement in the world of this kind."""
    of = right(stem, transition, kind)
    return _for_nothing(of, of.step, name) == "unsat"


def idle(of: Right, step: Step[Any]) -> str:
    """The sentence of a requirement that is exact in the right transition, differs in this one and refuses a call for
    nothing in this one; empty where there is none.
    """
    was = requirements(of.step)
    changed = [name for name, holds in requirements(step).items() if name in was and not was[name].eq(holds)]
    at = of.hints.stem.name, of.transition, of.kind
    found = (name[0] for name in changed if _for_nothing(of, step, name) == "sat" and is_exact(*at, name))
    return next((FOR_NOTHING + sentence for sentence in found), "")


def _open(of: Right, step: Step[Any], name: tuple[str, int]) -> str:
    """z3's answer to whether a call that keeps every promise can break this condition on the choice; ``unsat`` where it
    cannot, and where the step has no such condition.
    """
    asked = requirements(replace(step, promises=()))
    return of.ask(lift(step.kept), lift(step.fits), z3.Not(asked[name]))[0] if name in asked else "unsat"


@cache
def is_settled(stem: str, transition: str, kind: str, name: tuple[str, int]) -> bool:
    """The promises of the right transition imply this condition on the choice, in the world of this kind."""
    of = right(stem, transition, kind)
    return _open(of, of.step, name) == "unsat"


def unsettled(of: Right, step: Step[Any]) -> str:
    """The sentence of a condition on the choice that is settled in the right transition and open in this one, whose
    promises differ; empty where there is none.
    """
    if lift(step.kept).eq(lift(of.step.kept)):
        return ""
    at, choices = (of.hints.stem.name, of.transition, of.kind), requirements(replace(of.step, promises=()))
    found = (name[0] for name in choices if is_settled(*at, name) and _open(of, step, name) == "sat")
    return next((NO_ANSWER + sentence for sentence in found), "")


def learn(calls: Mapping[tuple[str, str], Sequence[FiniteCall]]) -> None:
    """From now on ``refused`` asks these calls, by stem and transition, and no others."""
    _CALLS.clear()
    _CALLS.update(calls)


def refused(stem: str, transition: str, function: Callable[..., Step[Any]]) -> str:
    """The first call of a kept trace that this transition does not grant; empty where it grants all of them."""
    for call in _CALLS.get((stem, transition), ()):
        try:
            granted = function(call.state, *call.arguments).granted
        except Exception:
            continue
        if not granted:
            words = ", ".join(show(argument) for argument in call.arguments)
            return f"{OF_TRACE}{transition}({words})"
    return ""
