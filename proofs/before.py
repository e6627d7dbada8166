"""Finds promises that look at the state after: such a promise could say that the call does no harm, and prove anything.

A promise is what a caller can check before the call. So it must speak of the state before and of the arguments. To find
those that do not, the transition is read on a state whose fields are *marked* wherever they are read after a change:
every number of a changed field stands under a function ``after``. So does every number of a map that was made by a
change of a map, whether or not a field has it. A promise, a choice or a fit that contains this function speaks of a
later state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import z3

from proofs.hints import Hints, Transition
from proofs.symbols import SymMap, Term, World, arguments, lift, state
from spec.logic import Requirement, Step

_NUMBER = z3.Function("after", z3.IntSort(), z3.IntSort())
_TRUTH = z3.Function("after", z3.BoolSort(), z3.BoolSort())


def looks_ahead(hints: Hints, transition: Transition) -> list[str]:
    """The sentences of the requirements of a transition that speak of a state after the one before the call.

    The requirements of a call within the transition are left out: they are proved, not promised.
    """
    world = World()
    before = _watched(state(world, hints.stem.state))
    step = transition(before, **arguments(world, transition, hints.over, before))
    return [asked.sentence for asked in _asked(step) if _marks(lift(asked.holds))]


def _asked(step: Step[Any]) -> Iterator[Requirement]:
    yield from step.promises
    yield from step.choice
    yield Requirement("the call fits", step.fits)


def _marks(formula: Any) -> bool:
    seen, todo = set(), [formula]
    while todo:
        node = todo.pop()
        if node.get_id() in seen:
            continue
        seen.add(node.get_id())
        if z3.is_app(node) and node.decl().name() == _NUMBER.name():
            return True
        todo += [node.body()] if z3.is_quantifier(node) else node.children()
    return False


def _watched(before: Any) -> Any:
    """A copy of the state whose fields are marked where they are read after a change."""
    cls, was = type(before), dict(before.__dict__)
    for f in fields(before):
        if is_dataclass(was[f.name]):
            was[f.name] = _watched(was[f.name])
        elif isinstance(was[f.name], SymMap):
            was[f.name] = _Watched(was[f.name])

    def read(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name not in was or value is was[name]:
            return value
        return value if type(value) is type(was[name]) and is_dataclass(value) else _marked(value)

    watched = type(cls.__name__, (cls,), {"__getattribute__": read})
    made: Any = object.__new__(watched)
    made.__dict__.update(was)
    return made


class _Watched:
    """A map of the state before; a map that is made from it by a change is one of a later state."""

    def __init__(self, before: SymMap) -> None:
        self.before = before

    def __call__(self, *key: Any) -> Any:
        return self.before(*key)

    def put(self, key: Any, value: Any) -> Any:
        """The changed map, marked."""
        return _marked(self.before.put(key, value))

    def where(self, cond: Any, value: Any, among: Any = None) -> Any:
        """The changed map, marked."""
        return _marked(self.before.where(cond, value, among))

    def all_to(self, value: Any) -> Any:
        """The changed map, marked."""
        return _marked(self.before.all_to(value))


def _marked(value: Any) -> Any:
    """The value as one of a later state."""
    if isinstance(value, SymMap):
        return SymMap(value.arity, lambda *key: _marked(value(*key)))
    if callable(value):  # in the place of a map
        return lambda *key: _marked(value(*key))
    if is_dataclass(value) and not isinstance(value, type):  # a part that was replaced by another one
        made = object.__new__(type(value))
        made.__dict__.update({f.name: _marked(getattr(value, f.name)) for f in fields(value)})
        return made
    if isinstance(value, Term | int):
        plain = lift(value)
        return Term((_TRUTH if z3.is_bool(plain) else _NUMBER)(plain))
    return value
