"""Makes a solver's model small: as many values as possible are 0, and all others are as near to 0 as they can be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import z3

from proofs.symbols import SymMap, SymSeq, SymSet, Term

EFFORT = 500_000  # of z3's steps for each attempt to make a value smaller


def model(solver: z3.Solver, shown: Iterable[Any], largest: int) -> Any:
    """A small model of what the solver knows. It must have been found satisfiable. ``shown``: symbols whose values are
    made small, the first ones first. ``largest``: the greatest key of a map that matters.
    """
    found = solver.model()
    solver.set("rlimit", EFFORT)
    values = [group for symbol in shown for group in groups(symbol, largest)]
    for group in sorted(values, key=len):  # numbers before maps
        found = _zeroed(solver, group, found)
    return found


def groups(symbol: Any, largest: int) -> Iterator[list[Any]]:
    """The formulas of the values of a symbol, together where they are one map."""
    if isinstance(symbol, SymMap):
        keys = itertools.product(range(largest + 1), repeat=symbol.arity)
        yield [value.z for key in keys if isinstance(value := symbol(*key), Term)]
    elif isinstance(symbol, SymSet):
        yield [value.z for key in symbol._keys() if isinstance(value := symbol.has(*key), Term)]
    elif isinstance(symbol, SymSeq):
        yield [symbol.length.z]
        yield [symbol.at(k).z for k in range(symbol.domain.size)]
    elif is_dataclass(symbol) and not isinstance(symbol, type):
        for f in fields(symbol):
            yield from groups(getattr(symbol, f.name), largest)
    elif isinstance(symbol, tuple):
        for part in symbol:
            yield from groups(part, largest)
    elif isinstance(symbol, Term):
        yield [symbol.z]


def _zeroed(solver: z3.Solver, group: list[Any], found: Any) -> Any:
    """A model in which as many of these as possible are 0; the solver keeps what was found."""
    if not group:
        return found
    nothing = [_is(formula, 0) for formula in group]
    better = found if all(z3.is_true(found.eval(said, model_completion=True)) for said in nothing) else None
    if better is None:
        better = _with(solver, nothing)
    if better is not None:
        solver.add(*nothing)
        return better
    if len(group) == 1:
        return _lowered(solver, group[0], found)
    half = len(group) // 2
    return _zeroed(solver, group[half:], _zeroed(solver, group[:half], found))


def _lowered(solver: z3.Solver, formula: Any, found: Any) -> Any:
    """A model in which this value, which cannot be 0, is as near to 0 as it can be."""
    value = found.eval(formula, model_completion=True)
    if z3.is_int_value(value):
        for near in (sign * size for size in range(1, min(abs(value.as_long()), 12)) for sign in (1, -1)):
            if (better := _with(solver, [formula == near])) is not None:
                solver.add(formula == near)
                return better
        if value.as_long() < 0 and (better := _with(solver, [formula == -value.as_long()])) is not None:
            solver.add(formula == -value.as_long())
            return better
    solver.add(formula == value)
    return found


def _with(solver: z3.Solver, said: list[Any]) -> Any:
    solver.push()
    solver.add(*said)
    found = solver.model() if solver.check() == z3.sat else None
    solver.pop()
    return found


def _is(formula: Any, value: int) -> Any:
    return z3.Not(formula) if z3.is_bool(formula) else formula == value
