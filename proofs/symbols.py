"""The symbolic reading: the operations of ``spec.finite`` on z3 terms.

A ``World`` makes the symbols. In an unbounded world (``World()``) domains have a symbolic size and quantifiers stay
quantifiers. In a small world (``World(sizes)``) domains are finite and quantifiers are written out, so that the solver
decides and its model is a concrete state. ``bool()`` of a symbol raises: Python must never branch on a symbol.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from typing import Any, NoReturn, get_type_hints

import z3

from spec.lengths import Length
from spec.logic import every, ite

# Formulas are made with z3's C functions: its Python operators check each operand many times. z3 still refuses operands
# of the wrong sort.
CONTEXT = z3.main_ctx()
REF = CONTEXT.ref()
NAMED_STATES = r"\b(now|saved)\."  # in the path of a field
TRUTHS = {truth: z3.BoolVal(truth) for truth in (False, True)}


@cache
def _numeral(value: int) -> Any:
    return z3.IntVal(value)


def lift(value: Any) -> Any:
    """The z3 expression of a symbol, an int or a bool (an expression is itself)."""
    if isinstance(value, Term):
        return value.z
    if isinstance(value, bool):
        return TRUTHS[value]
    return _numeral(value) if isinstance(value, int) else value


def _truth(ast: Any) -> Term:
    return Term(z3.BoolRef(ast, CONTEXT))


def _number(ast: Any) -> Term:
    return Term(z3.ArithRef(ast, CONTEXT))


def _asts(*expressions: Any) -> Any:
    return len(expressions), (z3.Ast * len(expressions))(*[e.ast for e in expressions])


def all_of(*truths: Any) -> Any:
    """The expression of a conjunction."""
    return z3.BoolRef(z3.Z3_mk_and(REF, *_asts(*truths)), CONTEXT)


def entails(premise: Any, conclusion: Any) -> Any:
    """The expression of an implication."""
    return z3.BoolRef(z3.Z3_mk_implies(REF, premise.ast, conclusion.ast), CONTEXT)


class Symbol:
    """What the symbolic reading puts in the place of a value. It has no text: a text with it would say the name of the
    symbol, and the finite reading would say the value.
    """

    __slots__ = ()

    def __repr__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has no text: a spec must not look at how a value is written")

    __str__ = __repr__


class Term(Symbol):
    """A number or truth that z3 reasons about."""

    __slots__ = ("z",)
    __hash__ = None  # type: ignore[assignment]  # == makes a formula, so a term is no key

    def __init__(self, z: Any) -> None:
        self.z = z

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbol has no truth value: say ite, implies, &, | or no, never if, and, or, not")

    @property
    def is_truth(self) -> bool:
        """It is a truth, not a number."""
        return isinstance(self.z, z3.BoolRef)

    def _beside(self, other: Any, truths: bool) -> Any:
        """The expression of the other operand. ``truths``: both must be truths; else both must be numbers.

        Python takes ``True`` for 1, and ``x & True`` for the last bit of x; the solvers do not. So a mixture has no
        meaning in the spec: it raises ``TypeError``.
        """
        one = lift(other)
        if self.is_truth is not truths or isinstance(one, z3.BoolRef) is not truths:
            raise TypeError(f"{'truths' if truths else 'numbers'} are wanted on both sides, got {self.z} and {one}")
        return one

    def ite(self, then: Any, other: Any) -> Term:
        """If-then-else: ``then`` where this truth holds, else ``other``."""
        self._beside(True, truths=True)
        one = Term(lift(then))
        made = z3.Z3_mk_ite(REF, self.z.ast, one.z.ast, one._beside(other, one.is_truth).ast)
        return _truth(made) if one.is_truth else _number(made)

    def negated(self) -> Term:
        """The negation of this truth."""
        self._beside(True, truths=True)
        return _truth(z3.Z3_mk_not(REF, self.z.ast))

    def __and__(self, other: Any) -> Any:
        one = self._beside(other, truths=True)
        if isinstance(other, bool):
            return self if other else False
        return _truth(z3.Z3_mk_and(REF, *_asts(self.z, one)))

    def __or__(self, other: Any) -> Any:
        one = self._beside(other, truths=True)
        if isinstance(other, bool):
            return True if other else self
        return _truth(z3.Z3_mk_or(REF, *_asts(self.z, one)))

    def __eq__(self, other: object) -> Term:  # type: ignore[override]
        return _truth(z3.Z3_mk_eq(REF, self.z.ast, self._beside(other, self.is_truth).ast))

    def __ne__(self, other: object) -> Term:  # type: ignore[override]
        return (self == other).negated()

    def __lt__(self, other: Any) -> Term:
        return _truth(z3.Z3_mk_lt(REF, self.z.ast, self._beside(other, truths=False).ast))

    def __le__(self, other: Any) -> Term:
        return _truth(z3.Z3_mk_le(REF, self.z.ast, self._beside(other, truths=False).ast))

    def __gt__(self, other: Any) -> Term:
        return _truth(z3.Z3_mk_gt(REF, self.z.ast, self._beside(other, truths=False).ast))

    def __ge__(self, other: Any) -> Term:
        return _truth(z3.Z3_mk_ge(REF, self.z.ast, self._beside(other, truths=False).ast))

    def __add__(self, other: Any) -> Term:
        return _number(z3.Z3_mk_add(REF, *_asts(self.z, self._beside(other, truths=False))))

    def __mul__(self, factor: int) -> Term:
        if not isinstance(factor, int):
            raise TypeError("a symbol is multiplied by plain integers alone: formulas stay linear")
        return _number(z3.Z3_mk_mul(REF, *_asts(self.z, self._beside(factor, truths=False))))

    def __sub__(self, other: Any) -> Term:
        return _number(z3.Z3_mk_sub(REF, *_asts(self.z, self._beside(other, truths=False))))

    def __rsub__(self, other: Any) -> Term:
        return Term(lift(other)) - self

    __rand__, __ror__, __radd__ = __and__, __or__, __add__


def _value(value: Any, key: tuple[Any, ...]) -> Any:
    return value(*key) if callable(value) else value


class Whole(Symbol):
    """A map, set, sequence or domain. Two of them would be compared as objects of Python, not by what they hold."""

    def __eq__(self, _: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is not compared as a whole: say .all, and compare at each key")

    __hash__ = object.__hash__


class SymMap(Whole):
    """A total map, given by the formula of its value at a key; each value is made once, since many laws use it."""

    def __init__(self, arity: int, formula: Callable[..., Any]) -> None:
        self.arity, self.formula = arity, formula
        self._made: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def __call__(self, *key: Any) -> Any:
        if len(key) != self.arity:
            raise TypeError(f"a map is read at a number for each of its keys, of which it has {self.arity}")
        places = [lift(k) for k in key]
        address = tuple([place.ast.value for place in places])  # z3 shares equal expressions while one of them is kept
        if address not in self._made:
            self._made[address] = (places, self.formula(*key))
        return self._made[address][1]

    def put(self, key: Any, value: Any) -> SymMap:
        """This map with ``value`` at ``key``."""
        place = key if isinstance(key, tuple) else (key,)
        if len(place) != self.arity or (self.arity == 1 and isinstance(key, tuple)):
            raise TypeError(f"a map is changed at a number for each of its keys, of which it has {self.arity}")
        return self.where(lambda *k: _all_equal(k, place), value)

    def all_to(self, value: Any) -> SymMap:
        """The map that is ``value`` everywhere."""
        return SymMap(self.arity, lambda *_: value)

    def where(self, cond: Callable[..., Any], value: Any, among: Any = None) -> SymMap:
        """This map with ``value`` wherever ``cond`` holds; the symbolic reading does not need ``among``."""
        del among

        def formula(*key: Any) -> Any:
            return ite(cond(*key), _value(value, key), self(*key))

        return SymMap(self.arity, formula)


def _all_equal(one: Iterable[Any], other: Iterable[Any]) -> Any:
    return every(a == b for a, b in zip(one, other, strict=True))


@dataclass(eq=False)  # compared by identity, and used as a key
class Count:
    """A symbol for the sum of the weights of the members with a property; their number, if all weights are 1."""

    domain: SymDomain
    law: Callable[[Any], Any]
    term: Term
    delta: bool  # it counts what a transition moves, not what a law speaks about
    weight: Callable[[Any], Any] = lambda _: 1
    about: str = ""  # the law that it belongs to: lemmas relate the counts of one law

    @property
    def unweighted(self) -> bool:
        """Every weight is 1: the lemmas about how many members there are say nothing of other sums."""
        weight = lift(self.weight(Term(z3.Int("any!"))))
        return bool(z3.is_int_value(weight)) and int(weight.as_long()) == 1

    @cached_property
    def formulas(self) -> tuple[Any, Any]:
        """A member's property and its weight."""
        any_ = Term(z3.Int("any!"))
        with self.domain.world.quantified():
            return lift(self.law(any_)), lift(self.weight(any_))

    def is_written_as(self, other: Count) -> bool:
        """The other sum is over the members of one domain with this property and this weight, written alike."""
        return self.domain is other.domain and all(a.eq(b) for a, b in zip(self.formulas, other.formulas, strict=True))


@dataclass
class World:
    """Makes the symbols of one call. ``sizes``: the constants of a small world, by name; empty: an unbounded world.

    ``remembers``: a small world keeps its counts, too, which it writes out and needs no lemma for.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    remembers: bool = False
    axioms: list[Any] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    maps: dict[str, SymMap] = field(default_factory=dict)
    scalars: dict[str, Term] = field(default_factory=dict)
    _once: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _constants: dict[str, Any] = field(default_factory=dict)
    _fresh: Any = field(default_factory=itertools.count)
    sizes_of_sets: dict[tuple[SymDomain, int], tuple[Any, Term, list[Count]]] = field(default_factory=dict)
    depth: int = 0
    about: str = ""
    shared: dict[tuple[Any, ...], tuple[Any, ...]] | None = None

    @property
    def small(self) -> bool:
        """Every domain is finite."""
        return bool(self.sizes)

    def number(self, name: str, low: int | None = None) -> Term:
        """A number symbol, at least ``low``."""
        term = Term(z3.Int(name))
        if low is not None:
            self.axioms.append(term.z >= low)
        return self.scalars.setdefault(name, term)

    def truth(self, name: str) -> Term:
        """A truth symbol."""
        return self.scalars.setdefault(name, Term(z3.Bool(name)))

    def map(self, name: str, arity: int, truth: bool = False) -> SymMap:
        """An unknown total map."""
        if name in self.maps:
            return self.maps[name]
        sort = z3.BoolSort() if truth else z3.IntSort()
        function = z3.Function(name, *[z3.IntSort()] * arity, sort)
        of = _truth if truth else _number

        def value(*key: Any) -> Term:
            return of(z3.Z3_mk_app(REF, function.ast, *_asts(*map(lift, key))))

        self.maps[name] = SymMap(arity, value)
        return self.maps[name]

    def forget(self, name: str) -> None:
        """The next field of this name gets symbols of its own: it is of another kind than the earlier one."""
        self.maps.pop(name, None)
        self.scalars.pop(name, None)
        self._constants.pop(re.sub(NAMED_STATES, "", name), None)

    def constant(self, kind: str, name: str, path: str = "") -> Any:
        """A constant; one name always gives one constant. ``path``: the field that has the name without sharing it.

        Raises ``TypeError`` for a second kind of one name, and for a second field of one name.
        """
        if name not in self._constants:
            self._constants[name] = (kind, path, self._new_constant(kind, name))
        known, place, made = self._constants[name]
        if kind != known:
            raise TypeError(f"the constant {name} is shared by fields of two kinds, {known} and {kind}")
        if path != place:
            raise TypeError(f"the fields {place or name} and {path or name} would be one constant that nobody shares")
        return made

    def _new_constant(self, kind: str, name: str) -> Any:
        symbol = f"constant {name}"  # no other field has such a name
        if kind == "truth":
            return self.truth(symbol)
        if kind in ("number", "count"):
            return self.sizes[name] if self.small else self.number(symbol, low=1 if kind == "number" else 0)
        if kind == "offsets":
            return SymDomain(self, name, 0, self.constant("number", "page_size") - 1)
        if kind == "naturals":
            return SymDomain(
                self, name, 0, self.sizes[name] - 1 if self.small else self.number("size " + name, low=0) - 1
            )
        return SymDomain(self, name, 1, self.sizes[name] if self.small else self.number("size " + name, low=0))

    def once(self, make: Callable[..., Any], *of: Any, **fixed: Any) -> Any:
        """``make`` applied to counts or sequences, computed once for all proofs in this world."""
        if (make, *of) not in self._once:
            self._once[make, *of] = make(*of, **fixed)
        return self._once[make, *of]

    def mark(self) -> Callable[[], None]:
        """What makes the world forget all that it makes from now on; states that it has made stay as they are."""
        names = ("axioms", "counts", "maps", "scalars", "_once", "_constants", "sizes_of_sets")
        kept, number = {name: getattr(self, name).copy() for name in names}, next(self._fresh)

        def back() -> None:
            for name, value in kept.items():
                setattr(self, name, value.copy())
            self._fresh = itertools.count(number)

        back()
        return back

    @contextmanager
    def quantified(self) -> Iterator[None]:
        """The context in which formulas under a quantifier are made; counts are refused there."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def bound(self, hint: str) -> Any:
        """A variable to quantify over, named by its depth, so that equal laws on equal maps are one formula."""
        return z3.Int(f"{hint}.{self.depth}")

    def fresh(self, hint: str) -> Any:
        """A number symbol that occurs nowhere else."""
        return z3.Int(f"{hint}!{next(self._fresh)}")  # no field has such a name

    def named(self, domain: SymDomain, *said: Any) -> tuple[Term, bool]:
        """The symbol of the member of the domain that is described so, and whether it is new.

        Raises ``TypeError`` under a quantifier, where it would be one member for all.
        """
        if self.depth:
            raise TypeError("a member is named under a quantifier: name it outside")
        key = ("named", domain, *(formula.get_id() for formula in said))
        if new := key not in self._once:
            self._once[key] = (Term(self.fresh("named")), said)  # z3 keeps the number of a formula that is kept
        found: Term = self._once[key][0]
        return found, new

    def counted(
        self, domain: SymDomain, law: Callable[[Any], Any], delta: bool, weight: Callable[[Any], Any] = lambda _: 1
    ) -> Term:
        """The sum over the members that obey ``law``: written out in a small world, else a symbol for the lemmas."""
        if self.small:
            members = (Term(z3.If(lift(law(k)), lift(weight(k)), 0)) for k in domain.items())
            total = sum(members, start=Term(z3.IntVal(0)))
            if self.remembers:
                self.counts.append(Count(domain, law, total, delta, weight, self.about))
            return total
        if self.depth:
            raise TypeError("a count under a quantifier would be one number for all: register the law with each")
        made = Count(domain, law, Term(self.fresh("count")), delta, weight, self.about)
        if self.shared is not None:
            return self._as_before(self.shared, made)
        self.counts.append(made)
        return made.term

    def _as_before(self, shared: dict[tuple[Any, ...], tuple[Any, ...]], count: Count) -> Term:
        """The symbol of an earlier sum of equal members and weights over the domain, if there was one."""
        said = count.formulas
        key = (count.domain, *(formula.get_id() for formula in said))
        first: Term = shared.setdefault(key, (count.term, *said))[0]  # z3 keeps the number of a formula that is kept
        return first

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """The context in which equal sums are one symbol, and no lemma speaks of new sums."""
        self.shared = {}
        try:
            yield
        finally:
            self.shared = None


class SymDomain(Whole):
    """The integers from ``low`` to ``high``, both included."""

    def __init__(self, world: World, name: str, low: Any, high: Any) -> None:
        self.world, self.name, self.low, self.high = world, name, low, high

    @property
    def size(self) -> Any:
        """The number of members."""
        return self.high - self.low + 1

    def items(self) -> range:
        """The integers of a finite domain."""
        return range(self.low, self.high + 1)

    def has(self, item: Any) -> Any:
        """``item`` is in the domain."""
        return (item >= self.low) & (item <= self.high)

    def all(self, law: Callable[[Any], Any]) -> Term:
        """``law`` holds for each member."""
        if self.world.small:
            return Term(all_of(*[lift(law(k)) for k in self.items()]))
        bound = self.world.bound("k")
        with self.world.quantified():
            body = entails(lift(self.has(Term(bound))), lift(law(Term(bound))))
        return Term(z3.ForAll([bound], body))

    def any(self, law: Callable[[Any], Any]) -> Term:
        """``law`` holds for at least one member."""
        return self.all(lambda k: Term(z3.Not(lift(law(k))))).negated()

    def count(self, law: Callable[[Any], Any]) -> Term:
        """The number of members for which ``law`` holds."""
        return self.world.counted(self, law, delta=False)

    def total(self, law: Callable[[Any], Any], weight: Callable[[Any], Any]) -> Term:
        """The sum of the weights of the members for which ``law`` holds."""
        return self.world.counted(self, law, delta=False, weight=weight)

    def greatest(self, law: Callable[[Any], Any], value: Callable[[Any], Any]) -> Term:
        """The first member with the greatest value among those for which ``law`` holds; 0 where there is none.

        That there is one is the lemma ``greatest``.
        """
        if not isinstance(self.low, int) or self.low < 1:
            raise TypeError(f"0 is a member of {self.name}: it cannot say that there is none")
        any_ = Term(z3.Int("any!"))
        with self.world.quantified():  # a member that is named for each member would be one for all of them
            said = (lift(law(any_)), lift(value(any_)))
        found, new = self.world.named(self, *said)
        if new:
            self.world.axioms += first_with_the_greatest(self, law, value, found)
        return found

    def such(self, law: Callable[[Any], Any], among: Any = None) -> SymSet:
        """The set of the members for which ``law`` holds."""
        del among
        return SymSet(self.world, 1, lambda k: self.has(k) & law(k), self)


def first_with_the_greatest(
    domain: SymDomain, law: Callable[[Any], Any], value: Callable[[Any], Any], found: Term
) -> list[Any]:
    """Of finitely many members a first one has the greatest value; 0 where there is none."""

    def below(k: Any) -> Any:
        first = (value(k) < value(found)) | ((value(k) == value(found)) & (found <= k))
        return Term(entails(lift(law(k)), lift(domain.has(found) & law(found) & first)))

    nothing = z3.Implies(lift(domain.any(law).negated()), found.z == 0)
    return [lift(domain.all(below)), nothing]


class SymSet(Whole):
    """A set, given by the formula of its membership; ``size`` counts it over its domain.

    ``given``: a caller gives the set, so that it may have members outside of its domain. Nothing is known of its size
    where it has any.
    """

    def __init__(
        self, world: World, arity: int, formula: Callable[..., Any], domain: SymDomain | None, given: bool = False
    ) -> None:
        self.world, self.arity, self.formula, self.domain, self.given = world, arity, formula, domain, given
        self._size: Term | None = None

    def items(self) -> NoReturn:
        """Only the finite reading lists members."""
        raise TypeError("the members of a symbolic set cannot be listed")

    def has(self, *item: Any) -> Any:
        """``item`` is a member."""
        return self.formula(*item)

    @property
    def size(self) -> Term:
        """The number of members; always one symbol."""
        if self._size is None:
            assert self.domain is not None, "only sets over a domain are counted"
            self._size = self._if_inside(self._counted(self.domain))
        return self._size

    def _counted(self, domain: SymDomain) -> Term:
        """The symbol for the number of members. Sets of one domain whose membership is one formula share it."""
        world = self.world
        if world.small or world.depth:
            return world.counted(domain, self.formula, delta=True)
        with world.quantified():
            member = lift(self.formula(Term(z3.Int("any!"))))
        key = domain, member.get_id()  # z3 keeps the number of a formula that is kept
        if key not in world.sizes_of_sets:
            term = world.counted(domain, self.formula, delta=True)
            world.sizes_of_sets[key] = member, term, [count for count in world.counts if count.term is term]
        _, size, counts = world.sizes_of_sets[key]
        world.counts += [one for one in counts if all(one is not count for count in world.counts)]
        return size

    def total(self, weight: Callable[[Any], Any]) -> Term:
        """The sum of the weights of the members."""
        assert self.domain is not None, "only sets over a domain are counted"
        return self._if_inside(self.world.counted(self.domain, self.formula, delta=True, weight=weight))

    def pairs(self, domain: SymDomain, law: Callable[[Any, Any], Any]) -> SymSet:
        """The pairs of a member and a number of ``domain`` for which ``law`` holds."""
        return SymSet(self.world, 2, lambda k, n: self.has(k) & domain.has(n) & law(k, n), self.domain)

    def _if_inside(self, count: Term) -> Term:
        """A number that is the count where every member of the set is in the domain."""
        if not self.given or self.world.small:
            return count
        assert self.domain is not None
        size = Term(self.world.fresh("size"))
        self.world.axioms.append(entails(lift(self.all(self.domain.has)), lift(size == count)))
        return size

    def all(self, law: Callable[..., Any]) -> Term:
        """``law`` holds for each member."""
        if self.world.small:
            return Term(all_of(*[entails(lift(self.has(*k)), lift(law(*k))) for k in self._keys()]))
        bound = [self.world.bound(f"m{k}") for k in range(self.arity)]
        terms = [Term(b) for b in bound]
        with self.world.quantified():
            body = entails(lift(self.has(*terms)), lift(law(*terms)))
        return Term(z3.ForAll(bound, body))

    def _keys(self) -> Iterable[tuple[int, ...]]:
        assert self.domain is not None
        if self.arity == 1:
            return ((k,) for k in self.domain.items())
        return itertools.product(self.domain.items(), range(self.world.sizes["page_size"]))


def domain_of(domain: Callable[[Any], Any], of: Any) -> SymDomain | SymSet:
    """The domain, in the state ``of``, that a law speaks of.

    Raises ``TypeError`` for an object of any other class. A proof uses a law in two ways, for all members and for one
    member, and they say one thing because ``all`` of a domain is made from its ``has``.
    """
    found = domain(of)
    if type(found) in (SymDomain, SymSet):
        made: SymDomain | SymSet = found
        return made
    raise TypeError(f"a law on each member is about a domain of the state, not about a {type(found).__name__}")


class SymSeq(Whole):
    """A sequence as two maps: the item at a position, and the position of an item."""

    def __init__(self, world: World, name: str, domain: SymDomain) -> None:
        self.world, self.domain = world, domain
        self.length = world.number(name + ".length", low=0)
        self.at = world.map(name + ".at", 1)
        self.index = world.map(name + ".index", 1)
        if world.small:
            world.axioms.append(self.length.z <= domain.size)

    @classmethod
    def of(cls, domain: SymDomain, length: Any, at: SymMap, index: SymMap) -> SymSeq:
        """The sequence with this length and these two maps; nothing is assumed of them."""
        made = object.__new__(cls)
        made.world, made.domain, made.length, made.at, made.index = domain.world, domain, length, at, index
        return made

    def items(self) -> NoReturn:
        """Only the finite reading lists items."""
        raise TypeError("the items of a symbolic sequence cannot be listed")

    def has(self, item: Any) -> Term:
        """``item`` stands in the sequence."""
        position = self.index(item)
        found: Term = (position >= 0) & (position < self.length) & (self.at(position) == item)
        return found

    def _each(self, law: Callable[[Any], Any]) -> Term:
        if self.world.small:
            positions = range(self.domain.size)
            return Term(z3.And(*[z3.Implies(k < self.length.z, lift(law(k))) for k in positions]))
        k = self.world.bound("j")
        with self.world.quantified():
            body = z3.Implies(z3.And(k >= 0, k < self.length.z), lift(law(Term(k))))
        return Term(z3.ForAll([k], body))

    def all(self, law: Callable[[Any], Any]) -> Term:
        """``law`` holds for each item."""
        return self._each(lambda k: law(self.at(k)))

    def distinct(self) -> Term:
        """No item stands twice."""
        return self._each(lambda k: self.index(self.at(k)) == k)


def state(world: World, cls: Any, path: str = "", inside: str = "") -> Any:
    """A symbolic state: an unknown map, number or truth for each field of the dataclass ``cls``. ``path``: where its
    symbols are named from. ``inside``: where it stands in the state that it is a part of.
    """
    hints = hints_of_class(cls)
    return cls(**{f.name: _field(world, f, hints[f.name], f"{path}{f.name}", f"{inside}{f.name}") for f in fields(cls)})


hints_of_class = cache(get_type_hints)  # a class of states is read once for each state that is made


def _field(world: World, f: Any, hint: Any, name: str, inside: str) -> Any:
    kind = f.metadata.get("kind")
    if f.metadata.get("constant") and kind != "map":
        # now.full.pages and saved.full.pages are one constant: the part of the state does not matter
        path = "" if f.metadata["shared"] else re.sub(NAMED_STATES, "now.", inside)
        return world.constant(kind, f.metadata["shared"] or re.sub(NAMED_STATES, "", name), path)
    if kind == "map":
        return world.map(name, f.metadata["arity"])
    if kind == "number":
        return world.number(name)
    return world.truth(name) if kind == "truth" else state(world, hint, name + ".", inside + ".")


@lru_cache(maxsize=500)
def kinds_of(transition: Callable[..., Any]) -> Mapping[str, str]:
    """The arguments of a transition by name, each with the kind that the signature names; not the state."""
    return {p.name: str(p.annotation) for p in list(inspect.signature(transition).parameters.values())[1:]}


def arguments(
    world: World, transition: Callable[..., Any], over: Mapping[str, Callable[[Any], Any]], state: Any
) -> dict[str, Any]:
    """Symbolic arguments of a call in a state. ``over``: see ``proofs.hints.Hints``."""
    return {
        name: argument(world, kind, "the " + name, over[name](state) if name in over else None)
        for name, kind in kinds_of(transition).items()
    }


def argument(world: World, kind: str, name: str, domain: SymDomain | None) -> Any:
    """A symbolic argument of the kind that the signature of the transition names."""
    if kind == "Length":
        return Length(world.number(name + ".pages"), world.number(name + ".rest"))
    if kind == "Truth":
        return world.truth(name)
    if kind == "Number":
        return world.number(name)
    assert domain is not None, f"say over which pages {name} ranges"
    if kind == "Seq":
        return SymSeq(world, name, domain)
    arity = {"Set": 1, "Slots": 2}[kind]
    return SymSet(world, arity, world.map(name, arity, truth=True), domain, given=True)
