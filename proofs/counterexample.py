"""A concrete example for a failed obligation: a small lawful state, a lawful call, and the law that breaks after it.

In a small world of two or three pages every quantifier is written out, so that the solver decides, and its model is a
state that the finite reading executes. Its numbers are made as small as they can be. Only what the finite reading
confirms is reported. The state need not be reachable: ``classify`` searches for a shortest path from the first state.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import z3

from proofs import explore, lawful_state, obligations
from proofs.explore import PathMove
from proofs.fitting import ANSWERED, FITS
from proofs.hints import Hints, Mutant, Transition, searched
from proofs.symbols import SymDomain, SymMap, SymSeq, SymSet, Term, World, lift
from spec.finite import Domain, Map, Seq, Set
from spec.lengths import Length
from spec.logic import Change, Invariant, Step

REACHABLE, NOT_INDUCTIVE = "reachable bug", "not inductive"
LITTLE = 2_000_000  # of z3's steps, in which a number is made smaller or stays
FEW = 8  # a greater number is tried with these values: in the small world nothing counts further
ALONE, FIRST, WITH = "alone", "first", "with laws that it rests on"  # how a mutant breaks its law


@dataclass(frozen=True)
class Counterexample:
    """A concrete lawful state ``before``, the call, the state ``after``, and the laws (and parts) broken there."""

    transition: str
    arguments: dict[str, Any]
    before: Any
    after: Any
    broken: list[tuple[str, str]]

    def __str__(self) -> str:
        if self.transition == obligations.START:
            return f"a lawful state breaks {self.broken[0][0]}: {explore.told(self.before)}"
        words = ", ".join(f"{name}={explore.show(value)}" for name, value in self.arguments.items())
        broken = ", ".join(sorted({law for law, _ in self.broken}))
        return f"{self.transition}({words}) breaks {broken}; the state before: {explore.told(self.before)}"


def of_obligation(hints: Hints, name: str, invariant: str, limit: int) -> Counterexample | None:
    """What refutes an obligation of the stem in its small world, found in ``limit`` of z3's steps."""
    if name == obligations.START:
        return _at_the_start(hints, invariant, limit)
    return find(hints, name, hints.stem.transitions[name], invariant, limit=limit)


def _at_the_start(hints: Hints, invariant: str, limit: int) -> Counterexample | None:
    """A small first state that breaks the law; of a theorem, a small lawful state that breaks it."""
    law = hints.stem.invariants.get(invariant)
    if law is None:
        return None
    broken = (first for first in hints.small() if invariant in {found.name for found, _ in hints.stem.broken(first)})
    if (first := next(broken, None)) is None and law.theorem:
        first = _lawful_without(hints, law, limit)
    return None if first is None else Counterexample(obligations.START, {}, first, first, [(invariant, "")])


def _lawful_without(hints: Hints, theorem: Invariant, limit: int) -> Any:
    """A small state that keeps every law and breaks the theorem; ``None`` if there is none."""
    laws = [law for law in hints.stem.invariants.values() if not law.theorem]
    found = state_apart(hints, theorem, laws, limit)
    broken = {law.name for law, _ in hints.stem.broken(found)} if found is not None else {theorem.name}
    if theorem.name not in broken or broken & {law.name for law in laws}:
        raise AssertionError(f"the two readings disagree on {theorem.name} of {found}")
    return found


def state_apart(hints: Hints, law: Invariant, laws: Sequence[Invariant], limit: int) -> Any:
    """A small state that keeps these ``laws`` and breaks the ``law`` in the symbolic reading, found in ``limit`` of
    z3's steps; ``None`` if there is none. Where ``laws`` are not all, the finite reading may see it otherwise.
    """
    world = World(dict(hints.sizes))
    held = obligations.state_of(hints.stem, world)
    said = [fact for kept in laws for fact in obligations.law_at(world, kept, held, [])]
    broken = z3.Not(z3.And(*obligations.law_at(world, law, held, [])))
    model = _model([*said, broken, *world.axioms], limit)
    return None if model is None else ModelReader(model, max(hints.sizes.values())).value(held)


def find(
    hints: Hints,
    name: str,
    transition: Transition,
    invariant: str,
    kept: Sequence[str] = (),
    smallest: bool = True,
    limit: int = 0,
) -> Counterexample | None:
    """A small state from which ``transition`` breaks ``invariant`` and keeps the laws ``kept``, if there is one.

    ``smallest``: its numbers are made as small as they can be, see ``_numbers_of``, which takes about a second.
    ``limit``: of z3's steps, in which it must be found; 0 for no limit.
    """
    made = lawful_state.call(hints, transition, name)
    if invariant == ANSWERED:
        return None  # no single model shows that a call has no lawful answer at all
    assertions = _broken(hints, made, invariant, kept)
    model = _model(assertions, limit, _numbers_of(hints, made) if smallest else ())
    return None if model is None else _execute(hints, name, transition, made, model)


def refutes(hints: Hints, name: str, transition: Transition, invariant: str, limit: int) -> bool:
    """A small lawful state is found, in ``limit`` of z3's steps, from which the transition breaks the invariant."""
    made = lawful_state.call(hints, transition, name)
    return invariant != ANSWERED and _model(_broken(hints, made, invariant, ()), limit) is not None


def _model(assertions: Sequence[Any], limit: int = 0, least: Sequence[Any] = ()) -> Any:
    """A model of the assertions, found in ``limit`` of z3's steps; ``None`` if there is none.

    ``least``: numbers that are then made as small as they can be, each beside those that stand before it.
    """
    solver = z3.SimpleSolver()
    solver.set("rlimit", limit or 2**32 - 1)
    solver.set("arith.solver", 2)  # on written-out quantifiers the older one is many times faster
    solver.add(*assertions)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    solver.set("rlimit", LITTLE)
    for number in least:
        model = _lessened(solver, number, model)
    return model


def _lessened(solver: z3.Solver, number: Any, model: Any) -> Any:
    """A model with the smallest value of ``number`` from 0 on; later models of the solver have no greater one. A number
    below 0, which says nothing in most places, becomes 0 where it can.
    """
    value = _value_in(model, number)
    for less in range(min(value, FEW) if value >= 0 else 1):
        solver.push()
        solver.add(number == less)
        if solver.check() == z3.sat:
            found = solver.model()
            solver.pop()
            solver.add(number == less)
            return found
        solver.pop()
    solver.add(number <= value)
    return model


def _value_in(model: Any, number: Any) -> int:
    """The value of a number in the model; by z3's C functions, since a state has hundreds of numbers."""
    context, found, value = model.ctx.ref(), (z3.Ast * 1)(), ctypes.c_int64()
    evaluated = z3.Z3_model_eval(context, model.model, number.ast, True, found)
    if evaluated and z3.Z3_get_numeral_int64(context, found[0], ctypes.byref(value)):
        return value.value
    return int(model.eval(number, model_completion=True).as_long())


def _numbers_of(hints: Hints, made: obligations.SymbolicCall) -> list[Any]:
    """What a reader reads in a counterexample, as numbers: first the arguments of the call; then the maps of the state,
    which are 0 where a page is free and where nothing is held; then its sets; then its other numbers, since a smaller
    count of free pages is no simpler state.
    """
    largest = max(hints.sizes.values())
    given = [number for value in made.arguments.values() for _, number in _numbers(value, largest)]
    state = sorted(_numbers(made.pre, largest), key=lambda ranked: ranked[0])
    return [number for number in [*given, *(number for _, number in state)] if not z3.is_int_value(number)]


def _numbers(symbol: Any, largest: int) -> Iterator[tuple[int, Any]]:
    """Each number of a symbol with its rank: 0 the value of a map, 1 the member of a set, 2 a number or truth."""
    if is_dataclass(symbol):
        for part in fields(symbol):
            yield from _numbers(getattr(symbol, part.name), largest)
    elif isinstance(symbol, Length):
        yield from ((2, lift(number)) for number in (symbol.pages, symbol.rest))
    elif isinstance(symbol, SymSeq):
        yield 2, lift(symbol.length)
        yield from ((2, _as_number(symbol.at(k))) for k in range(largest))
    elif isinstance(symbol, SymSet):
        yield from ((1, _as_number(symbol.has(*key))) for key in symbol._keys())
    elif isinstance(symbol, SymMap):
        yield from ((0, _as_number(symbol(*key))) for key in _keys(symbol, largest))
    elif isinstance(symbol, Term):
        yield 2, _as_number(symbol)


def _as_number(value: Any) -> Any:
    truth = lift(value)
    return z3.If(truth, z3.IntVal(1), z3.IntVal(0)) if z3.is_bool(truth) else truth


def _keys(symbol: SymMap, largest: int, more: Iterable[int] = ()) -> Iterator[tuple[int, ...]]:
    """The keys of a map in the small world, and those that have a number of ``more``."""
    return itertools.product((*range(largest + 1), *more), repeat=symbol.arity)


def killed_by(hints: Hints, mutant: Mutant) -> str | None:
    """How the mutant's law kills it: ``alone``, or as the ``first`` law in order; ``None`` if it does neither.

    A law that follows from others is broken ``with`` one of them, never alone or before it.
    """
    hints = searched(hints, mutant)
    laws = [*hints.stem.invariants, *hints.stem.changes]
    if (known := hints.stem.invariants.get(mutant.invariant)) is not None and known.derived:
        found = find(hints, mutant.transition, mutant.wrong, mutant.invariant, smallest=False)
        return None if found is None else WITH
    place = laws.index(mutant.invariant)
    made = lawful_state.call(hints, mutant.wrong, mutant.transition)
    first = _broken(hints, made, mutant.invariant, laws[:place])
    alone, small = _kept(hints, made, laws[place + 1 :]), _small_arguments(hints, made)
    for how, more in ((ALONE, [*alone, *small]), (ALONE, alone), (FIRST, small), (FIRST, [])):
        if (model := _model([*first, *more])) is not None:
            _execute(hints, mutant.transition, mutant.wrong, made, model)  # the finite reading confirms it
            return how
    return None


def _broken(hints: Hints, made: obligations.SymbolicCall, invariant: str, names: Sequence[str]) -> list[Any]:
    if invariant == obligations.ATOMIC:
        return _half_done(hints, made)
    if invariant == FITS:
        return _refused_for_nothing(hints, made)
    if invariant.startswith(obligations.CALLS):
        return _unlawful_call(hints, made, invariant)
    said = [*lawful_state.before(hints, made), lift(made.step.granted)]
    said += [*_kept(hints, made, names), z3.Not(*_kept(hints, made, [invariant]))]
    return [*said, *made.world.axioms]  # taken last: a law that names a member adds axioms about it


def _kept(hints: Hints, made: obligations.SymbolicCall, names: Sequence[str]) -> list[Any]:
    laws, changes = hints.stem.invariants, hints.stem.changes
    bound = [changes[name] for name in names if name in changes and changes[name].binds(made.name)]
    kept = lawful_state.after(made, [laws[name] for name in names if name in laws])
    return [*kept, *(lift(change.of(made.pre, made.step.then, made.arguments)) for change in bound)]


def _half_done(hints: Hints, made: obligations.SymbolicCall) -> list[Any]:
    """A refused call that changes a field of the state."""
    formula = obligations.atomic(hints, made)
    keys = _free_keys(formula.goal)
    small = [z3.And(k >= 0, k <= max(hints.sizes.values())) for k in keys]
    real = [lift(a.all(a.domain.has)) for a in made.arguments.values() if isinstance(a, SymSeq)]
    return [*formula.given, *lawful_state.before(hints, made), *small, *real, z3.Not(formula.goal)]


def _small_arguments(hints: Hints, made: obligations.SymbolicCall) -> list[Any]:
    """The numbers among the arguments are small: of keys beyond them no model is read (``ModelReader``)."""
    most = max(hints.sizes.values())
    numbers = [a.z for a in made.arguments.values() if isinstance(a, Term) and z3.is_int(a.z)]
    return [z3.And(number >= 0, number <= most) for number in numbers]


def _refused_for_nothing(hints: Hints, made: obligations.SymbolicCall) -> list[Any]:
    """A call with a lawful answer that does not fit."""
    chosen = [lift(choice.holds) for choice in made.step.choice]
    return [
        *made.world.axioms,
        *lawful_state.before(hints, made),
        lift(made.step.kept),
        *chosen,
        z3.Not(lift(made.step.fits)),
    ]


def _unlawful_call(hints: Hints, made: obligations.SymbolicCall, name: str) -> list[Any]:
    """A granted call that makes a call which is not granted; two parts may both have a transition of this name."""
    numbers = [k for k, call in enumerate(made.step.calls) if obligations.CALLS + call.transition.__name__ == name]
    unlawful = [z3.And(*obligations.promised(hints, made, number).negated) for number in numbers]
    return [z3.Or(*unlawful), *lawful_state.before(hints, made)]


def _free_keys(goal: Any) -> list[Any]:
    found, todo = {}, [goal]
    while todo:
        term = todo.pop()
        if z3.is_const(term) and term.decl().name().startswith("key!"):
            found[term.decl().name()] = term
        todo.extend(term.children())
    return list(found.values())


def _execute(
    hints: Hints, name: str, transition: Transition, made: obligations.SymbolicCall, model: Any
) -> Counterexample:
    largest = max(hints.sizes.values())
    arguments = {key: ModelReader(model, largest).value(value) for key, value in made.arguments.items()}
    before = ModelReader(model, largest, _beyond(arguments, largest)).value(made.pre)
    step = transition(before, **arguments)
    after = explore.after(step, before)
    move = PathMove(name, tuple(arguments.values()), before, after, bool(step.granted))
    found = Counterexample(name, arguments, before, after, _laws_broken(hints, step, move))
    if hints.stem.broken(before) or not step.kept or not found.broken:
        raise AssertionError(f"the two readings disagree on {found}")
    return found


def _beyond(arguments: Mapping[str, Any], largest: int) -> frozenset[int]:
    """The numbers among the arguments that are no key of the small world: a call may look them up in a map."""
    plain = (value for value in arguments.values() if isinstance(value, int))
    return frozenset(int(value) for value in plain if not 0 <= value <= largest)


def _laws_broken(hints: Hints, step: Step[Any], move: PathMove) -> list[tuple[str, str]]:
    broken = [(law.name, part) for law, part in hints.stem.broken(move.after)]
    if not step.fits and explore.key(move.before) != explore.key(move.after):
        broken.append((obligations.ATOMIC, ""))
    if step.kept and not step.fits and all(choice.holds for choice in step.choice):
        broken.append((FITS, ""))
    broken += [(law.name, "") for law in done_wrong(hints, move)]
    unlawful = [call for call in step.calls if step.granted and not call.step.granted]
    return broken + [(obligations.CALLS + call.transition.__name__, call.part) for call in unlawful]


def done_wrong(hints: Hints, move: PathMove) -> list[Change]:
    """The laws of two states that a call breaks; none where it was refused."""
    names = list(inspect.signature(hints.stem.transitions[move.transition]).parameters)[1:]
    arguments = dict(zip(names, move.arguments, strict=True))
    return hints.stem.done_wrong(move.transition, move.before, move.after, arguments) if move.granted else []


@dataclass(frozen=True)
class ModelReader:
    """Reads a solver's model of a small world as finite values. ``more``: keys of maps beyond ``largest``."""

    model: Any
    largest: int
    more: frozenset[int] = frozenset()

    def value(self, symbol: Any) -> Any:
        """The finite value of a symbolic state, argument, map, set, sequence, number or truth."""
        if is_dataclass(symbol):
            return type(symbol)(**{f.name: self.value(getattr(symbol, f.name)) for f in fields(symbol)})  # type: ignore[misc]
        if isinstance(symbol, Length):
            return Length(self.value(symbol.pages), self.value(symbol.rest))
        if isinstance(symbol, SymMap):
            return Map(symbol.arity, 0, self._items(symbol))
        if isinstance(symbol, SymDomain):
            return Domain(symbol.low, symbol.high)
        if isinstance(symbol, SymSeq):
            return Seq(self._number(symbol.at(k)) for k in range(self._number(symbol.length)))
        if isinstance(symbol, SymSet):
            return Set(self._plain(k) for k in symbol._keys() if self._truth(symbol.has(*k)))
        return self._scalar(symbol)

    def _scalar(self, symbol: Any) -> Any:
        if not isinstance(symbol, Term):
            return symbol
        return self._truth(symbol) if z3.is_bool(symbol.z) else self._number(symbol)

    def _items(self, symbol: SymMap) -> Any:
        import immutables

        keys = _keys(symbol, self.largest, self.more)
        return immutables.Map({self._plain(k): self._number(symbol(*k)) for k in keys})

    @staticmethod
    def _plain(key: tuple[int, ...]) -> Any:
        return key if len(key) > 1 else key[0]

    def _number(self, term: Any) -> int:
        return _value_in(self.model, lift(term))

    def _truth(self, term: Any) -> bool:
        return bool(z3.is_true(self.model.eval(lift(term), model_completion=True)))


def classify_mutant(hints: Hints, mutant: Mutant) -> tuple[str, explore.Path | None]:
    """Whether a run of the mutant in its stem leads to a bug: see ``classify``."""
    return classify(searched(hints, mutant), {**hints.stem.transitions, mutant.transition: mutant.wrong})


def classify(hints: Hints, transitions: Mapping[str, Transition]) -> tuple[str, explore.Path | None]:
    """``reachable bug`` with a path from the first state, or ``not inductive`` where none was found.

    Where some transitions are not the stem's, the calls of these alone are looked at: the others are proved to keep
    every law, so the first call that does wrong is none of theirs. Where all are the stem's, each call is looked at.
    """
    firsts = hints.small()
    hints = replace(hints, small=lambda: firsts)
    # Keys of states that break no law, since many paths lead to one state. They are kept for each first state, since
    # the first states have different constants, which a key leaves out.
    lawful: dict[int, set[Any]] = {id(first): set() for first in firsts}
    wrong = {name for name, known in hints.stem.transitions.items() if transitions[name] is not known}

    def bad(way: explore.Path) -> bool:
        move, known = way[-1], lawful[id(way[0].before)]
        if wrong and move.transition not in wrong:
            return False
        after = explore.key(move.after)
        if after not in known:
            if hints.stem.broken(move.after):
                return True
            known.add(after)
        if done_wrong(hints, move):
            return True
        return not move.granted and explore.key(move.before) != after

    # A bug shows after a transition that is not the law's: ways with such a transition come first, the short before.
    routes = [(name.split()[0], route) for name, route in hints.routes.items()]
    routes.sort(key=lambda way: (wrong.isdisjoint([way[0], *way[1].split()]), len(way[1].split())))
    walked = explore.Routes(hints, transitions)
    along = (way for name, route in routes for way in walked.along(route, name))
    path = next((way for way in itertools.chain(along, explore.paths(hints, transitions)) if bad(way)), None)
    return (NOT_INDUCTIVE, None) if path is None else (REACHABLE, path)
