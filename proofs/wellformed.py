"""What a spec must be beside lawful: states whose fields keep their kind, parts that are states of their stems, calls
that only ``spec.logic.call`` has made, and constants that nothing replaces.

A symbol is read as what its field is declared to be. A field that held something else in a run, such as ``None``, 2 in
the place of a truth, or another domain, would have no symbol that says so. So each is a ``TypeError``.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any

from proofs.symbols import SymMap, SymSeq, SymSet, Term, World, kinds_of
from spec.lengths import Length
from spec.logic import Call, Drain, Stem, Step


def check_signature(name: str, transition: Any) -> None:
    """Every argument of a transition is given in every call: the proofs know no call without one."""
    for parameter in list(inspect.signature(transition).parameters.values())[1:]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            raise TypeError(f"{name}: the argument {parameter.name} can be left out of a call")


def check_step(stem: Stem, world: World, before: Any, step: Any) -> None:
    """The step keeps the kind of each field and every constant, and changes parts by calls alone."""
    if type(step) is not Step:
        raise TypeError(f"a transition answers with a Step, not with a {type(step).__name__}")
    for after in (step.then, step.otherwise):
        if after is not None:
            check_state(world, before, after)
    parts = check_parts(stem, before)
    for call in step.calls:
        if type(call) is not Call or type(call.step) is not Step:
            raise TypeError(f"{stem.name}: a call of a part is made by spec.logic.call alone")
        if call.before is not parts[call.part] or call.transition not in stem.parts[call.part].transitions.values():
            raise TypeError(f"{call.transition.__name__} does not continue the calls on {call.part}")
        for kind_of, value in zip(kinds_of(call.transition).values(), call.arguments, strict=True):
            check_argument(f"of {call.transition.__name__}", kind_of, value)
        parts[call.part] = call.then
    changed = [name for name, part in parts.items() if getattr(step.then, name) is not part]
    if changed:
        raise TypeError(f"a transition replaced {', '.join(changed)} without calling a transition of it")
    if step.otherwise is not None and any(getattr(step.otherwise, name) is not getattr(before, name) for name in parts):
        raise TypeError("a refused call replaced a part")


def check_parts(stem: Stem, state: Any) -> dict[str, Any]:
    """The parts of a state by name; each is a state of the stem that it is a part of."""
    parts = {name: getattr(state, name) for name in stem.parts}
    for name, part in parts.items():
        if type(part) is not stem.parts[name].state:
            raise TypeError(f"{stem.name}.{name} is a {type(part).__name__}, and no state of {stem.parts[name].name}")
    return parts


def check_state(world: World, before: Any, after: Any, path: str = "") -> None:
    """Each field of ``after`` is of the kind that it is in ``before``; constants are the very same."""
    if type(after) is not type(before):
        raise TypeError(f"a transition replaced {path or 'the state'} by a {type(after).__name__}")
    for f in fields(before):
        name, old, new = path + f.name, getattr(before, f.name), getattr(after, f.name)
        if f.metadata.get("constant") and old is not new:
            raise TypeError(f"a transition replaced the constant {name}")
        if is_dataclass(old):
            check_state(world, old, new, f"{name}.")
        elif isinstance(old, SymMap):
            check_map(world, name, old, new)
        elif isinstance(old, Term) and old is not new and not is_of_kind(new, old.is_truth):
            raise TypeError(f"a transition replaced the {kind(old.is_truth)} {name} by something that is none")


def check_map(world: World, name: str, before: SymMap, after: Any) -> None:
    """The map has as many keys as before, and numbers at them."""
    if after is before:
        return
    if type(after) is not SymMap:
        raise TypeError(f"a transition replaced the map {name} by something that is no map")
    if after.arity != before.arity or not is_of_kind(
        after(*(Term(world.fresh("key")) for _ in range(after.arity))), False
    ):
        raise TypeError(f"a transition replaced the map {name} by one of another kind")


def is_of_kind(value: Any, truth: bool) -> bool:
    """The value is a truth, if ``truth``, or else a number."""
    if isinstance(value, Term):
        return value.is_truth is truth
    return type(value) is (bool if truth else int)


def kind(truth: bool) -> str:
    """The word for it."""
    return "truth" if truth else "number"


def check_argument(name: str, declared: str, value: Any) -> None:
    """A part's transition is called with an argument of the kind that its signature names."""
    known = {"Length": Length, "Seq": SymSeq, "Set": SymSet, "Slots": SymSet}
    fits = type(value) is known[declared] if declared in known else is_of_kind(value, declared == "Truth")
    if fits and isinstance(value, Length):
        fits = all(is_of_kind(part, False) for part in value)
    if fits and isinstance(value, SymSet):
        fits = value.arity == (2 if declared == "Slots" else 1)
    if not fits:
        raise TypeError(f"the argument {name} is no {declared}, but a {type(value).__name__}")


def check_drain(stem: Stem, drain: Drain) -> None:
    """Each call of a drain is of a transition of the stem, and lowers a measure that the drain lists."""
    for descent in drain.descents:
        if descent.transition not in stem.transitions.values():
            raise TypeError(f"{stem.name}: {descent.name} is no call of a transition")
        if not any(descent.lowers is measure for measure in drain.measures):
            raise TypeError(f"{stem.name}: {descent.name} lowers what is no measure of the drain")
        if (descent.pick is None) == (descent.members is None):
            raise TypeError(f"{stem.name}: {descent.name} either has members or picks one")
