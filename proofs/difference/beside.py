"""Both revisions of a stem, read on the very same symbols, so that their formulas can be compared."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any, NamedTuple, get_type_hints

import z3

from proofs.hints import Hints
from proofs.mutation import seen
from proofs.mutation.right import counted
from proofs.obligations import law_at
from proofs.symbols import NAMED_STATES, Count, SymDomain, SymMap, SymSeq, SymSet, Term, World, argument, lift, state
from spec.lengths import Length
from spec.logic import Change, Invariant, Stem, but, no

OLD, NEW = 0, 1  # the two sides
KEYS = [Term(z3.Int(f"anywhere {n}")) for n in range(3)]  # they stand for all keys of a map
LATER = "now.saved."  # the path of a second state: constants keep their names below it (``proofs.symbols``)


class Sizes(dict[str, int]):
    """The sizes of a small world; a constant that only one revision knows is 2."""

    def __missing__(self, name: str) -> int:
        return 2


@dataclass(frozen=True)
class RevisionPair:
    """Both revisions of a stem. ``hints``: what the provers know of the present stem of this name, if there is one."""

    name: str
    stems: tuple[Stem, Stem]
    hints: Hints | None

    def domain_of(self, name: str, states: tuple[Any, Any]) -> SymDomain | None:
        """The domain over which an argument ranges; ``None`` where nobody says it."""
        over = None if self.hints is None else self.hints.over.get(name)
        for held in reversed(states) if over is not None else ():
            try:
                found: SymDomain = over(held)  # type: ignore[misc]
            except AttributeError:  # a state of another revision may lack the field
                continue
            return found
        return None

    def relevant(self, name: str) -> frozenset[str]:
        """The laws from which a proof about this law is tried first."""
        known = {} if self.hints is None else self.hints.relevant_laws
        return frozenset({name, *known.get(name, "").split()})


# Fields.


class Apart(NamedTuple):
    """The fields in which two states differ, by path: of one revision alone, or of another kind."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Every field in which they differ."""
        return (*self.added, *self.dropped, *self.changed)

    def read_by(self, names: Iterable[str]) -> list[str]:
        """The fields among these that have one of these symbols."""
        known = set(names)
        return [path for path in self.all if known & {*_symbols(path)}]


@cache
def apart(one: Any, other: Any) -> Apart:
    """How the fields of two classes of states differ."""
    was, now = (dict(_fields(cls)) for cls in (one, other))
    return Apart(
        tuple(path for path in now if path not in was),
        tuple(path for path in was if path not in now),
        tuple(path for path in was if path in now and was[path] != now[path]),
    )


def _fields(cls: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path of each field that has a symbol, and what decides which symbol it has."""
    hints = get_type_hints(cls)
    for f in fields(cls):
        if "kind" in f.metadata:
            yield path + f.name, dict(f.metadata)
        else:
            yield from _fields(hints[f.name], f"{path}{f.name}.")


def _symbols(path: str) -> Iterator[str]:
    constant = re.sub(NAMED_STATES, "", path)
    yield from (path, LATER + path, f"constant {constant}", f"size {constant}", path + ".length")


def symbols_in(formulas: Iterable[Any], counts: Iterable[Count] = ()) -> set[str]:
    """The names of the symbols of formulas, and of what is counted in them."""
    anyone = Term(z3.Int("counted"))
    said = [lift(value) for c in counts for value in (c.domain.has(anyone), c.law(anyone), c.weight(anyone))]
    todo, known, found = [*formulas, *said], set(), set()
    while todo:
        node = todo.pop()
        if node.get_id() in known:
            continue
        known.add(node.get_id())
        if z3.is_app(node) and node.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found.add(node.decl().name())
        todo += [node.body()] if z3.is_quantifier(node) else node.children()
    return found


# States and calls.


def states_of(world: World, pair: RevisionPair, path: str = "") -> tuple[Any, Any]:
    """The state of each revision; a field that both have is one symbol."""
    one, other = (stem.state for stem in pair.stems)
    first = state(world, one, path)
    for name in apart(one, other).changed:
        world.forget(path + name)
    return first, state(world, other, path)


def later(world: World, pair: RevisionPair, states: tuple[Any, Any]) -> tuple[Any, Any]:
    """Another state of each revision, with the constants of these."""
    one, other = states_of(world, pair, LATER)
    return with_constants(one, states[OLD]), with_constants(other, states[NEW])


def with_constants(after: Any, before: Any) -> Any:
    """A state with the constants of another one."""
    kept: dict[str, Any] = {}
    for f in fields(after):
        was = getattr(before, f.name)
        if f.metadata.get("constant"):
            kept[f.name] = was
        elif is_dataclass(was):
            kept[f.name] = with_constants(getattr(after, f.name), was)
    return but(after, **kept)


class UnknownArgument(ValueError):
    """An argument of a call of which nobody says over what it ranges."""


def kinds_of(function: Callable[..., Any], first: int = 1) -> dict[str, str]:
    """The arguments of a transition and their kinds. ``first``: how many states come before them."""
    return {p.name: str(p.annotation) for p in list(inspect.signature(function).parameters.values())[first:]}


def arguments_of(
    world: World, pair: RevisionPair, states: tuple[Any, Any], *kinds: Mapping[str, str]
) -> tuple[dict[str, Any], ...]:
    """A symbol for each argument of each of these signatures; one name and one kind is one symbol."""
    made: dict[tuple[str, str], Any] = {}
    for name, kind in (item for signature in kinds for item in signature.items()):
        over = pair.domain_of(name, states)
        if over is None and kind in ("Seq", "Set", "Slots"):
            raise UnknownArgument(f"the proofs do not know over what `{name}` ranges")
        if (name, kind) not in made:
            world.forget(f"the {name}")
            made[name, kind] = argument(world, kind, f"the {name}", over)
    return tuple({name: made[name, kind] for name, kind in signature.items()} for signature in kinds)


# Formulas.


def values(one: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each value of a state that a call can change: its name, the value, and where anybody reads it."""
    for f in fields(one):
        value = getattr(one, f.name)
        if is_dataclass(value):
            yield from values(value, f"{path}{f.name}.")
        elif isinstance(value, SymMap):
            used = KEYS[: value.arity]
            read = value(*used) == 1 if f.name in seen.FLAGS else value(*used)
            yield path + f.name, lift(read), lift(_read_at(one, f.name, used))
        elif isinstance(value, Term | int):
            yield path + f.name, lift(value), lift(True)


def _read_at(one: Any, name: str, keys: list[Term]) -> Any:
    where = seen.where_read(one).get(name)
    try:
        return True if where is None else where(one, *keys)
    except AttributeError:  # a state of another revision: it may lack what the present one reads
        return True


def formulas_of(value: Any) -> Iterator[Any]:
    """The formulas of an argument of a call: equal ones are equal arguments."""
    if isinstance(value, Length) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        for part in value:
            yield from formulas_of(part)
    elif isinstance(value, SymSet | SymMap):
        yield lift(value.formula(*KEYS[: value.arity]))
    elif isinstance(value, SymSeq):
        yield from (lift(value.length), lift(value.at(KEYS[0])), lift(value.index(KEYS[0])))
    elif isinstance(value, SymDomain):
        yield from (lift(value.has(KEYS[0])),)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from formulas_of(getattr(value, f.name))
    elif isinstance(value, Term | int):
        yield lift(value)


class CountedFormula(NamedTuple):
    """A formula of a revision, and what is counted in it."""

    formula: Any
    counts: tuple[Count, ...]

    @property
    def symbols(self) -> set[str]:
        """The names of its symbols."""
        return symbols_in([self.formula], self.counts)


def reading(world: World, read: Callable[[], Any]) -> CountedFormula:
    """A formula, and what is counted in it; the world forgets these counts."""
    start = len(world.counts)
    formula = lift(read())
    counts = tuple(world.counts[start:])
    del world.counts[start:]
    return CountedFormula(formula, counts)


_counted = cache(counted)  # a count is one object, which is compared often


def in_terms_of(said: CountedFormula, other: CountedFormula) -> Any:
    """The formula, with the symbols of the other one for what both count."""
    known = {_counted(count): count.term.z for count in other.counts}
    new = [(count.term.z, known[what]) for count in said.counts if (what := _counted(count)) in known]
    return z3.substitute(said.formula, *new) if new else said.formula


def is_one_formula(one: CountedFormula, other: CountedFormula) -> bool:
    """Both revisions say the very formula."""
    return bool(one.formula.eq(other.formula)) or bool(one.formula.eq(in_terms_of(other, one)))


def law_said(world: World, law: Invariant, held: Any, one: Any) -> CountedFormula:
    """A law on a state; of a law on each member, what it says about ``one``."""
    return reading(world, lambda: law_at(world, law, held, [one])[-1])


def change_said(world: World, law: Change, was: Any, now: Any, arguments: Mapping[str, Any]) -> CountedFormula:
    """A law of two states, on these states and these arguments."""
    return reading(world, partial(law.of, was, now, arguments))


def plainly_true(formula: Any) -> bool:
    """The formula is true whatever its symbols are."""
    return bool(z3.is_true(z3.simplify(formula)))


def negation(formula: Any) -> Any:
    """The negation of a formula."""
    return lift(no(Term(formula)))
