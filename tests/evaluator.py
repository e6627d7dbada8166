"""What a formula of the unbounded proofs says of a finite state: an evaluator that knows nothing of how it was made.

``Evaluated`` is a world that remembers what its symbols stand for. ``compiled`` makes a formula of z3 a function of the
values of its symbols. A quantifier is evaluated on ``KEYS``: all members of the finite domains, and some beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import pytest
import z3

from proofs import answers, lemmas, obligations
from proofs.symbols import REF, Count, SymDomain, SymMap, SymSeq, SymSet, Term, World, lift
from spec.finite import Seq
from spec.lengths import Length

KEYS = range(-1, 7)  # the keys at which quantifiers are looked at; larger than every finite domain
ANY = "any!"
FREE = ("one!", "key!", "member!")

BINARY = {
    z3.Z3_OP_LE: "<=",
    z3.Z3_OP_GE: ">=",
    z3.Z3_OP_LT: "<",
    z3.Z3_OP_GT: ">",
    z3.Z3_OP_EQ: "==",
    z3.Z3_OP_DISTINCT: "!=",  # of two
    z3.Z3_OP_ADD: "+",
    z3.Z3_OP_SUB: "-",
    z3.Z3_OP_MUL: "*",
    z3.Z3_OP_AND: "and",
    z3.Z3_OP_OR: "or",
}


CLOSED = 1_000  # stands for the number of a variable in a formula without free variables


@dataclass
class Writer:
    """Writes formulas as Python: one assignment for each node, in the scope of the innermost variable that it has.

    ``scopes``: the statements of each scope, and the names of the nodes that are written there. A node without free
    variables is written once, in the outermost scope. Nodes are read with z3's C functions, many times faster than with
    its Python objects.
    """

    scopes: list[tuple[list[str], dict[tuple[int, int], str]]] = field(default_factory=lambda: [([], {})])
    number: int = 0
    innermost: dict[int, int] = field(default_factory=dict)

    def lowest(self, node: Any) -> int:
        """The smallest number of a free variable in the node, or a smaller one; ``CLOSED`` if it has none."""
        mark = z3.Z3_get_ast_id(REF, node)
        known = self.innermost.get(mark)
        if known is None:
            kind = z3.Z3_get_ast_kind(REF, node)
            if kind == z3.Z3_VAR_AST:
                known = z3.Z3_get_index_value(REF, node)
            elif kind == z3.Z3_QUANTIFIER_AST:
                inside = self.lowest(z3.Z3_get_quantifier_body(REF, node))
                known = CLOSED if inside == CLOSED else max(0, inside - z3.Z3_get_quantifier_num_bound(REF, node))
            else:
                known = min(map(self.lowest, _parts(node)), default=CLOSED)
            self.innermost[mark] = known
        return known

    def write(self, node: Any) -> str:
        """The name of the node's value."""
        depth, low = len(self.scopes) - 1, self.lowest(node)
        home, key = (
            (0, (z3.Z3_get_ast_id(REF, node), 0))
            if low == CLOSED
            else (depth - low, (z3.Z3_get_ast_id(REF, node), depth))
        )
        statements, names = self.scopes[home]
        if key not in names:
            kind = z3.Z3_get_ast_kind(REF, node)
            if kind == z3.Z3_NUMERAL_AST:
                names[key] = f"({z3.Z3_get_numeral_string(REF, node)})"
            elif kind == z3.Z3_VAR_AST:
                names[key] = f"b{depth - low}"
            else:
                is_quantifier = kind == z3.Z3_QUANTIFIER_AST
                text = self.quantifier(node, statements) if is_quantifier else self.application(node)
                self.number += 1
                names[key] = f"t{self.number}"
                statements.append(f"{names[key]} = {text}")
        return names[key]

    def application(self, node: Any) -> str:
        decl = z3.Z3_get_app_decl(REF, node)
        kind, parts = z3.Z3_get_decl_kind(REF, decl), [self.write(part) for part in _parts(node)]
        if kind == z3.Z3_OP_UNINTERPRETED:
            name = repr(z3.Z3_get_symbol_string(REF, z3.Z3_get_decl_name(REF, decl)))
            return f"M[{name}]({', '.join(parts)})" if parts else f"S[{name}]"
        if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE):
            return str(kind == z3.Z3_OP_TRUE)
        if kind == z3.Z3_OP_ITE:
            return f"{parts[1]} if {parts[0]} else {parts[2]}"
        if kind == z3.Z3_OP_NOT:
            return f"not {parts[0]}"
        if kind == z3.Z3_OP_IMPLIES:
            return f"not {parts[0]} or {parts[1]}"
        if kind == z3.Z3_OP_UMINUS:
            return f"-{parts[0]}"
        if kind in BINARY and (len(parts) == 2 or (kind != z3.Z3_OP_DISTINCT and parts)):
            return f" {BINARY[kind]} ".join(parts)
        raise TypeError(f"the evaluator does not know the operation {kind}")

    def quantifier(self, node: Any, statements: list[str]) -> str:
        """The call of a function that evaluates the quantifier. The function is defined among ``statements``, where it
        is called.
        """
        if not z3.Z3_is_quantifier_forall(REF, node):
            raise TypeError("the spec has no quantifier but `for all`")
        first = len(self.scopes)
        for _ in range(z3.Z3_get_quantifier_num_bound(REF, node)):
            self.scopes.append(([], {}))
        result = self.write(z3.Z3_get_quantifier_body(REF, node))
        for depth in range(len(self.scopes) - 1, first - 1, -1):
            inner, _ = self.scopes.pop()
            self.number += 1
            lines = [f"def q{self.number}():", f"    for b{depth} in KEYS:"]
            lines += [f"        {line}" for text in inner for line in text.split("\n")]
            lines += [f"        if not ({result}): return False", "    return True"]
            result = f"q{self.number}()"
            (statements if depth == first else self.scopes[-1][0]).append("\n".join(lines))
        return result


def _parts(node: Any) -> list[Any]:
    if z3.Z3_get_ast_kind(REF, node) != z3.Z3_APP_AST:
        return []
    return [z3.Z3_get_app_arg(REF, node, k) for k in range(z3.Z3_get_app_num_args(REF, node))]


def compiled(formulas: tuple[Any, ...]) -> Callable[[Any, Any], list[Any]]:
    """A function from the values of the symbols, and of the maps, to the values of the formulas."""
    return _compiled(Formulas(formulas))


class Formulas:
    """Formulas by their numbers in z3, theirs as long as they are kept: a comparison of z3 would make a formula."""

    def __init__(self, formulas: tuple[Any, ...]) -> None:
        self.formulas = formulas
        self.numbers = tuple(z3.Z3_get_ast_id(REF, formula.ast) for formula in formulas)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formulas) and self.numbers == other.numbers

    def __hash__(self) -> int:
        return hash(self.numbers)


@lru_cache(maxsize=100_000)
def _compiled(asked: Formulas) -> Callable[[Any, Any], list[Any]]:
    formulas, writer = asked.formulas, Writer()
    names = [writer.write(formula.as_ast()) for formula in formulas]
    lines = [line for text in writer.scopes[0][0] for line in text.split("\n")]
    body = "\n    ".join([*lines, f"return [{', '.join(names)}]"])
    scope: dict[str, Any] = {"KEYS": KEYS}
    exec(f"def f(S, M):\n    {body}\n", scope)
    made: Callable[[Any, Any], list[Any]] = scope["f"]
    return made


@dataclass
class Remembering(World):
    """An unbounded world that remembers what its symbols stand for: its sums, its members with the greatest value, the
    sizes of given sets, and the answers that a proof names.
    """

    sums: dict[str, Count] = field(default_factory=dict)
    greatest: dict[str, tuple[SymDomain, Any, Any]] = field(default_factory=dict)
    sizes_of_given: dict[str, str] = field(default_factory=dict)
    sequences: dict[str, tuple[Any, Count]] = field(default_factory=dict)
    chosen: dict[str, tuple[SymDomain, Any]] = field(default_factory=dict)
    said: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def of_any(self, *laws: Callable[[Any], Any]) -> tuple[Any, ...]:
        """What these say of ``ANY``, as formulas."""
        if laws not in self.said:
            self.said[laws] = tuple(lift(law(Term(z3.Int(ANY)))) for law in laws)
        return self.said[laws]

    def counted(
        self, domain: SymDomain, law: Callable[[Any], Any], delta: bool, weight: Callable[[Any], Any] = lambda _: 1
    ) -> Term:
        """The symbol of the sum."""
        made = super().counted(domain, law, delta, weight)
        self.sums.setdefault(name_of(made), Count(domain, law, made, delta, weight))
        return made

    def named(self, domain: SymDomain, *said: Any) -> tuple[Term, bool]:
        """The symbol of the first member with the greatest value."""
        made, new = super().named(domain, *said)
        self.greatest.setdefault(name_of(made), (domain, *said))
        return made, new


def of(world: World) -> Remembering:
    """The world, which remembers."""
    assert isinstance(world, Remembering)
    return world


def name_of(term: Any) -> str:
    """The name of a symbol, or of the map of which this is a value."""
    return str(lift(term).decl().name())


LEMMAS = ("points", "additive", "complete", "none", "weighty", "empty", "sequence", "part_of", "members")


@dataclass
class Made:
    """The worlds and the calls that the proofs made, in order, and each instance of a lemma that they used."""

    worlds: list[Remembering] = field(default_factory=list)
    calls: list[obligations.SymbolicCall] = field(default_factory=list)
    lemmas: list[Any] = field(default_factory=list)


@contextmanager
def remembering() -> Iterator[Made]:
    """The context in which what the proofs make is remembered."""
    found = Made()
    worlds, calls = found.worlds, found.calls

    def world() -> Remembering:
        worlds.append(Remembering())
        return worlds[-1]

    def call(*given: Any) -> obligations.SymbolicCall:
        calls.append(made_call(*given))
        return calls[-1]

    def if_inside(self: SymSet, count: Term) -> Term:
        made = inside(self, count)
        if made is not count and isinstance(self.world, Remembering):
            self.world.sizes_of_given[name_of(made)] = name_of(count)
        return made

    def counted(seq: SymSeq) -> Count:
        made = of_sequence(seq)
        of(seq.world).sums[name_of(made.term)] = made
        return made

    def members(self: answers.Pick, domain: SymDomain, size: Any) -> SymSeq:
        made = of_set(self, domain, size)
        of(self.world).sequences[name_of(made.length).removesuffix(".length")] = (size, self.counted(domain))
        return made

    def one(self: answers.Pick, domain: SymDomain, law: Callable[[Any], Any]) -> Term:
        made = of_law(self, domain, law)
        of(self.world).chosen[name_of(made)] = (domain, law)
        return made

    def noted(lemma: Callable[..., Any]) -> Callable[..., Any]:
        def instance(*counts: Any, **fixed: Any) -> Any:
            found.lemmas.append(lemma(*counts, **fixed))
            return found.lemmas[-1]

        return instance

    made_call, inside, of_sequence = obligations.call, SymSet._if_inside, lemmas.counted
    of_set, of_law = answers.Pick.members, answers.Pick.one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obligations, "World", world)
        patch.setattr(obligations, "call", call)
        patch.setattr(SymSet, "_if_inside", if_inside)
        patch.setattr(lemmas, "counted", counted)
        patch.setattr(answers.Pick, "members", members)
        patch.setattr(answers.Pick, "one", one)
        for name in LEMMAS:
            patch.setattr(lemmas, name, noted(getattr(lemmas, name)))
        yield found


class Maps(dict[str, Callable[..., Any]]):
    """The maps by name. Those of an answer are made when one is asked for."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values_of = values

    def __missing__(self, name: str) -> Callable[..., Any]:
        answer, _, part = name.rpartition(".")
        self[name] = getattr(self.values_of.answer(answer), part)
        return self[name]


class Values(dict[str, Any]):
    """The values of symbols. That of a sum, a named member or an answer is computed when it is asked for.

    ``free``: the value of a symbol that stands for an arbitrary number (``FREE``), by its name.
    """

    def __init__(self, world: Remembering, free: Callable[[str], int]) -> None:
        super().__init__()
        self.world, self.maps, self.free = world, Maps(self), free

    def __missing__(self, name: str) -> Any:
        world = self.world
        if name in world.sums:
            count = world.sums[name]
            self[name] = self.total(count, self.members(count.domain))
        elif name in world.sizes_of_given:
            self[name] = self.total(world.sums[world.sizes_of_given[name]], KEYS)
        elif name in world.greatest:
            domain, *said = world.greatest[name]
            of = {k: self.at(k, tuple(said)) for k in self.members(domain)}
            self[name] = max((k for k, (holds, _) in of.items() if holds), key=lambda k: of[k][1], default=0)
        elif name in world.chosen:
            domain, law = world.chosen[name]
            self[name] = next(self.those(domain, law), 0)
        elif name.startswith(FREE):
            self[name] = self.free(name)
        elif name.endswith(".length"):
            self[name] = self.answer(name.removesuffix(".length")).length
        else:
            raise KeyError(f"nothing says what the symbol {name} stands for")
        return self[name]

    def value(self, formula: Any) -> Any:
        """The value of a formula."""
        return compiled((lift(formula),))(self, self.maps)[0]

    def at(self, member: int, said: tuple[Any, ...]) -> list[Any]:
        """The values of formulas that speak of ``ANY``, for this member."""
        self[ANY] = member
        return compiled(said)(self, self.maps)

    def members(self, domain: SymDomain) -> range:
        """The members of a domain that has an end."""
        return range(domain.low, self.value(domain.high) + 1)

    def those(self, domain: SymDomain, law: Callable[[Any], Any]) -> Iterator[int]:
        """The members for which the law holds, in order."""
        said = self.world.of_any(law)
        return (member for member in self.members(domain) if self.at(member, said)[0])

    def total(self, count: Count, among: range) -> int:
        """The sum of the weights of those for which the law of the sum holds."""
        said = self.world.of_any(count.law, count.weight)
        return sum(weight for holds, weight in (self.at(k, said) for k in among) if holds)

    def answer(self, name: str) -> Seq:
        """As many different members of a counted set as are asked for; none if there are fewer."""
        size, count = self.world.sequences[name]
        found = [*self.those(count.domain, count.law)]
        wanted = self.value(size)
        return Seq(found[:wanted] if 0 <= wanted <= len(found) else [])

    def say(self, symbols: Any, plain: Any) -> None:
        """What these symbols stand for."""
        self.say_of(places(symbols), plain)

    def say_of(self, found: Sequence[Place], plain: Any) -> None:
        """What the symbols of these places stand for."""
        for kind, name, read in found:
            value = read(plain) if read else plain
            if kind == "map":
                self.maps[name] = value
            elif kind == "before":
                self.setdefault(name, value + 1)
            else:
                self[name] = bool(value) if kind == "truth" else value


class Place(NamedTuple):
    """A symbol, and how its value is read of a plain state.

    ``kind``: a number, a truth, a map, or one more than the value that is read (``before``). ``read``: ``None`` where
    the plain value is the symbol's own.
    """

    kind: str
    name: str
    read: Callable[[Any], Any] | None


def places(symbols: Any, *path: str) -> list[Place]:
    """The symbols of a state or an argument."""

    def place(kind: str, name: str, *more: str) -> Place:
        return Place(kind, name, attrgetter(".".join((*path, *more))) if path or more else None)

    if is_dataclass(symbols):
        return [one for f in fields(symbols) for one in places(getattr(symbols, f.name), *path, f.name)]
    if isinstance(symbols, Length):
        return [*places(symbols.pages, *path, "pages"), *places(symbols.rest, *path, "rest")]
    if isinstance(symbols, SymMap):
        return [place("map", name_of(symbols(*range(symbols.arity))))]
    if isinstance(symbols, SymSeq):
        maps = [place("map", name_of(getattr(symbols, part)(0)), part) for part in ("at", "index")]
        return [place("number", name_of(symbols.length), "length"), *maps]
    if isinstance(symbols, SymSet):
        return [place("map", name_of(symbols.has(*range(symbols.arity))), "has")]
    if isinstance(symbols, SymDomain):
        end = lift(symbols.high)
        if z3.is_const(end):
            return [place("number", end.decl().name(), "high")]
        (symbol,) = (part for part in end.children() if not z3.is_int_value(part))  # one less than a symbol
        return [place("before", symbol.decl().name(), "high")]
    return [place("truth" if symbols.is_truth else "number", name_of(symbols))]
