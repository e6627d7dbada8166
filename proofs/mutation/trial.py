"""Tries one change of the spec: a law refutes it, or it survives, or it changes nothing that a lawful run can show.

The changed spec is loaded as modules of its own beside the right one. The laws are those of the right spec; of the
changed one only the transitions are taken. So a change can never weaken the law that judges it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

import z3

import spec
from proofs import counterexample, obligations, prover
from proofs.hints import Hints
from proofs.mutation.operators import Change
from proofs.registry import STEMS, hints_of
from proofs.symbols import SymMap, Term, World, lift
from spec.logic import Stem

KILLED, SURVIVES, EQUIVALENT = "killed", "survives", "equivalent"
SHARED = ("logic", "finite", "lengths")  # both readings are made of these, so there is one copy of each
FOLDER = Path(spec.__file__).parent
PATIENCE = 5_000  # milliseconds that a solver has for one question


@dataclass(frozen=True)
class Tried:
    """What became of a change: the law that refutes it, with its stem and transition; empty where none does."""

    change: Change
    fate: str
    stem: str = ""
    transition: str = ""
    by: str = ""


def tried(change: Change) -> Tried:
    """Tries the change on each stem, in the order in which they are made of one another."""
    try:
        stems = loaded(change)
    except Exception as error:  # the text cannot even be read: whoever writes it finds out at once
        return Tried(change, KILLED, by=type(error).__name__)
    affected = False
    for name in STEMS:
        for transition in hints_of(name).stem.transitions:
            fate, by = _on_transition(hints_of(name), stems[name], transition)
            affected |= fate == SURVIVES
            if fate == KILLED:
                return Tried(change, KILLED, name, transition, by)
    return Tried(change, SURVIVES if affected else EQUIVALENT)


def _on_transition(hints: Hints, changed: Stem, name: str) -> tuple[str, str]:
    right = obligations.call(hints, hints.stem.transitions[name], World())
    try:
        wrong = obligations.checked(changed, obligations.call(hints, changed.transitions[name], World()))
    except (TypeError, z3.Z3Exception) as error:
        return KILLED, str(error).splitlines()[0]
    if _reads_alike(right, wrong):
        return EQUIVALENT, ""
    if by := _refuted(hints, changed, name):
        return KILLED, by
    return (EQUIVALENT if _does_alike(hints, right, wrong) else SURVIVES), ""


def _reads_alike(right: obligations.SymbolicCall, wrong: obligations.SymbolicCall) -> bool:
    """The two steps are made of the very same formulas."""
    asked = [(right.step.kept, wrong.step.kept), (right.step.granted, wrong.step.granted)]
    keys = [Term(z3.Int(f"anywhere {n}")) for n in range(3)]
    pairs = [(lift(a), lift(b)) for a, b in asked] + list(_pairs(right.step.then, wrong.step.then, keys))
    return all(a.eq(b) for a, b in pairs)


def _pairs(one: Any, other: Any, keys: list[Term]) -> Iterator[tuple[Any, Any]]:
    """The values of all fields of two states; those of a map at arbitrary keys."""
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(other, f.name)
        if is_dataclass(a):
            yield from _pairs(a, b, keys)
        elif isinstance(a, SymMap):
            yield lift(a(*keys[: a.arity])), lift(b(*keys[: a.arity]))
        elif isinstance(a, Term | int):
            yield lift(a), lift(b)


def _refuted(hints: Hints, changed: Stem, name: str) -> str:
    """The law that a small counterexample shows broken, or the call whose promise is; empty where there is none."""
    made = obligations.call(hints, changed.transitions[name], World(dict(hints.sizes)))
    before = [*made.world.axioms, *counterexample.lawful(hints, made), lift(made.step.granted)]
    own = [law for law in hints.stem.invariants.values() if not law.inherited]
    kept = {law.name: lift(law.of(made.step.then)) for law in own}
    for number, call in enumerate(made.step.calls):
        kept[f"{obligations.CALLS}{call.transition.__name__} {number}"] = lift(call.step.granted)
    solver = z3.SimpleSolver()
    solver.set("arith.solver", 2)
    solver.set("timeout", PATIENCE)
    solver.add(*before, z3.Not(z3.And(*kept.values())))
    if solver.check() != z3.sat:
        return ""
    model = solver.model()
    return next((law for law, holds in kept.items() if not z3.is_true(model.eval(holds, model_completion=True))), "law")


def _does_alike(hints: Hints, right: obligations.SymbolicCall, wrong: obligations.SymbolicCall) -> bool:
    """In every lawful state both ask and do what the other does: both solvers prove it."""
    keys = [Term(right.world.fresh("anywhere")) for _ in range(3)]
    same = [lift(right.step.kept) == lift(wrong.step.kept), lift(right.step.granted) == lift(wrong.step.granted)]
    then = z3.And(*(a == b for a, b in _pairs(right.step.then, wrong.step.then, keys)))
    goal = z3.And(*same, z3.Implies(lift(right.step.granted), then))
    laws = obligations.laws_of(hints, right, [], {*hints.stem.parts})
    given = [*right.world.axioms, *wrong.world.axioms, *laws]
    return prover.solve([*given, z3.Not(goal)], PATIENCE) == ("unsat", "unsat")


# The changed spec, as modules beside the right one.


def loaded(change: Change) -> dict[str, Stem]:
    """The stems of the spec with the change."""
    with _beside(change):
        return {name: import_module(f"{spec.__name__}.{name}").stem for name in STEMS}


@contextmanager
def _beside(change: Change) -> Iterator[None]:
    """While this is open, imports of the spec find copies of its modules, one of them with the change."""
    prefix = f"{spec.__name__}."
    right = {name: module for name, module in sys.modules.items() if name.startswith(prefix)}
    attributes = dict(vars(spec))
    for name in right:
        if name.removeprefix(prefix) not in SHARED:
            del sys.modules[name]
            vars(spec).pop(name.removeprefix(prefix), None)
    finder = _Changed(prefix + change.file.removesuffix(".py"), change.text)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(prefix)]:
            del sys.modules[name]
        sys.modules.update(right)
        vars(spec).clear()
        vars(spec).update(attributes)


class _Changed:
    """Finds one module, whose text is changed."""

    def __init__(self, module: str, text: str) -> None:
        self.module, self.text = module, text

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> Any:
        """The changed module, or nothing."""
        return util.spec_from_loader(name, self) if name == self.module else None  # type: ignore[arg-type]

    def create_module(self, _spec: Any) -> ModuleType | None:
        """A module as usual."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Executes the changed text."""
        exec(compile(self.text, f"<changed {self.module}>", "exec"), vars(module))
