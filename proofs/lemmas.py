"""Lemmas about sums over the members of a domain: proved once by induction, and then used by instances.

Each lemma is a function of sums. ``instances`` applies it to the sums of an obligation; ``all_lemmas`` applies the very
same function to sums over ``low..n`` that are defined by recursion on ``n``, and proves it for every ``n`` by
induction: from ``n = low - 1``, where there is no member, and from ``n - 1`` to ``n``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from proofs.symbols import Count, SymDomain, SymMap, SymSeq, Term, World, first_with_the_greatest, lift
from spec.logic import implies, ite, no

Law = Callable[[Any], Any]


def _each(domain: SymDomain, law: Callable[[Any], Any]) -> Any:
    return lift(domain.all(law))


def points(one: Count, other: Count, places: tuple[Any, ...] = ()) -> Any:
    """Two sums that agree everywhere except at given places differ by what they have at these places."""
    if len(places) > 2:
        raise ValueError("the lemma is proved for two places: prove it for more before a call names more")

    def agree(k: Any) -> Any:
        elsewhere = [k.z != lift(place) for place in places]
        a, b = lift(one.law(k)), lift(other.law(k))
        alike = z3.And(a == b, z3.Implies(a, lift(one.weight(k)) == lift(other.weight(k))))
        return z3.Implies(z3.And(z3.BoolVal(True), *elsewhere), alike)

    apart = [lift(a) != lift(b) for a, b in itertools.combinations(places, 2)]
    before, after = (_at(one, places), _at(other, places))
    premise = z3.And(*apart, _each(one.domain, agree))
    return z3.Implies(premise, one.term.z - before == other.term.z - after)


def _at(count: Count, places: tuple[Any, ...]) -> Any:
    """What a sum has at these places; nothing at a place that is no member."""
    found = z3.IntVal(0)
    for place in places:
        counts = z3.And(lift(count.domain.has(place)), lift(count.law(place)))
        found = found + z3.If(counts, lift(count.weight(place)), 0)
    return found


def additive(part: Count, delta: Count, whole: Count) -> Any:
    """The sum over a disjoint union is the sum of the sums."""

    def splits(k: Any) -> Any:
        a, b, c = lift(part.law(k)), lift(delta.law(k)), lift(whole.law(k))
        u, v, w = lift(part.weight(k)), lift(delta.weight(k)), lift(whole.weight(k))
        weighs = z3.And(z3.Implies(a, u == w), z3.Implies(b, v == w))
        return z3.And(c == z3.Or(a, b), z3.Not(z3.And(a, b)), weighs)

    return z3.Implies(_each(part.domain, splits), part.term.z + delta.term.z == whole.term.z)


def complete(one: Count) -> Any:
    """A property of every member is counted once for each member."""
    _all_unweighted(one)
    return z3.Implies(_each(one.domain, one.law), one.term.z == lift(one.domain.size))


def none(one: Count) -> Any:
    """A count is never negative, and it is zero exactly where no member has the property."""
    _all_unweighted(one)
    empty = _each(one.domain, lambda k: z3.Not(lift(one.law(k))))
    return z3.And(one.term.z >= 0, (one.term.z == 0) == empty)


def weighty(one: Count) -> Any:
    """A sum of weights of at least 1 is never negative, and it is zero exactly where no member has the property."""
    heavy = _each(one.domain, lambda k: implies(one.law(k), one.weight(k) >= 1))
    empty = _each(one.domain, lambda k: no(one.law(k)))
    return z3.Implies(heavy, z3.And(one.term.z >= 0, (one.term.z == 0) == empty))


def empty(one: Count) -> Any:
    """The sum over no member is zero, whatever the weights are."""
    nobody = _each(one.domain, lambda k: z3.Not(lift(one.law(k))))
    return z3.Implies(nobody, one.term.z == 0)


def sequence(seq: SymSeq, counted: Count) -> Any:
    """A sequence of distinct members of a domain has as many members as positions."""
    _all_unweighted(counted)
    lawful = z3.And(lift(seq.length) >= 0, lift(seq.distinct()), lift(seq.all(seq.domain.has)))
    return z3.Implies(lawful, counted.term.z == seq.length.z)


def part_of(one: Count, other: Count) -> Any:
    """Where each member with one property has another property, too, the other property has no fewer members."""
    _all_unweighted(one, other)
    return z3.Implies(_each(one.domain, lambda k: implies(one.law(k), other.law(k))), one.term.z <= other.term.z)


def members(seq: SymSeq, size: Any, counted: Count) -> Any:
    """A set of c members has, for each n from 0 to c, a sequence of n different members."""
    _all_unweighted(counted)
    lawful = z3.And(lift(seq.distinct()), lift(seq.all(lambda k: seq.domain.has(k) & counted.law(k))))
    enough = z3.And(lift(size) >= 0, lift(size) <= counted.term.z)
    return z3.Implies(enough, z3.And(seq.length.z == lift(size), lawful))


def singleton(one: Count, member: Any) -> Any:
    """One member is counted once."""
    _all_unweighted(one)
    only = _each(one.domain, lambda k: one.law(k) == (k == member))
    return z3.Implies(only, one.term.z == z3.If(lift(one.domain.has(member)), 1, 0))


def _all_unweighted(*counts: Count) -> None:
    if not all(count.unweighted for count in counts):
        raise ValueError("the lemma is about counts: it says nothing of sums of other weights than 1")


def instances(world: World, sequences: list[SymSeq], places: Mapping[str, tuple[Any, ...]]) -> Iterator[Any]:
    """The lemmas, applied to every count and sequence in an obligation.

    ``places`` names, for a domain, the members at which the transition changes something.
    """
    deltas = [c for c in world.counts if c.delta]
    laws = [c for c in world.counts if not c.delta]
    for seq in sequences:
        deltas.append(world.once(counted, seq))
        yield world.once(sequence, seq, deltas[-1])
    unweighted = [c for c in (*deltas, *laws) if c.unweighted]
    yield from (world.once(none, c) for c in unweighted)
    yield from (world.once(empty, c) for c in laws if c not in unweighted)
    yield from (world.once(complete, c) for c in unweighted if not c.delta)
    for one, other in itertools.combinations(deltas, 2):
        if one.is_written_as(other):
            yield one.term.z == other.term.z  # the lemma ``points`` without a place, whose premise is clear
    for one, other in itertools.combinations(laws, 2):
        if one.domain is other.domain and one.about == other.about:
            yield world.once(points, one, other, places=places.get(one.domain.name, ()))
    for part, whole in itertools.permutations(laws, 2):
        if part.about == whole.about:
            yield from (world.once(additive, part, d, whole) for d in deltas if part.domain is whole.domain is d.domain)


def counted(seq: SymSeq) -> Count:
    """The count of the members of a sequence."""
    return Count(seq.domain, seq.has, Term(seq.world.fresh("counted")), delta=True)


# The inductions. The sums are over low..n, for any low; A, B and C are any properties.


@dataclass(frozen=True)
class Lemma:
    """A lemma, and the formulas of its proof by name; the negation of each must be unsatisfiable."""

    name: str
    sentence: str
    goals: Mapping[str, Any]


LOW = Term(z3.Int("low"))
BASE, STEP = "base", "step"


def _domain(world: World, n: Term) -> SymDomain:
    return SymDomain(world, "low..n", LOW, n)


def _function(name: str, sort: Any) -> Callable[[Any], Term]:
    function = z3.Function(name, z3.IntSort(), sort)
    return lambda k: Term(function(lift(k)))


@dataclass(frozen=True)
class Sums:
    """Sums over ``low..n``, for any ``n``, of properties with these names. Each member has a weight, or 1."""

    names: str
    weighted: bool = True
    world: World = field(default_factory=World)

    def upto(self, n: Any) -> list[Count]:
        """The sums over ``low..n``."""
        return [self._one(name, n) for name in self.names]

    def _one(self, name: str, n: Any) -> Count:
        law, total = _function(name, z3.BoolSort()), _function(f"sum_{name}", z3.IntSort())
        weight = _function(f"weight_{name}", z3.IntSort()) if self.weighted else lambda _: 1
        return Count(_domain(self.world, n), law, total(n), False, weight)

    def defined(self, n: Any) -> Any:
        """The recursive definition of the sums at ``n``: nothing below ``low``, and what ``n`` adds."""
        said = []
        for nothing, before, now in zip(self.upto(LOW - 1), self.upto(n - 1), self.upto(n), strict=True):
            adds = z3.If(lift(now.law(n)), lift(now.weight(n)), 0)
            said += [nothing.term.z == 0, z3.Implies(lift(n >= LOW), now.term.z == before.term.z + adds)]
        return z3.And(*said)


def _induction(name: str, text: Callable[..., Any], claim: Callable[[Any], Any], facts: Callable[[Any], Any]) -> Lemma:
    """``claim(low - 1)``, and ``claim(n - 1)`` implies ``claim(n)``. ``text``: the lemma, with its sentence."""
    n = Term(z3.Int("n"))
    base = z3.Implies(facts(LOW - 1), claim(LOW - 1))
    step = z3.Implies(z3.And(lift(n >= LOW), facts(n), claim(n - 1)), claim(n))
    return Lemma(name, " ".join((text.__doc__ or "").split()), {BASE: base, STEP: step})


def _of_sums(
    text: Callable[..., Any], names: str, weighted: bool = True, places: tuple[Any, ...] | None = None
) -> Lemma:
    """The induction for a lemma that speaks of sums alone, and of these places."""
    sums, at = Sums(names, weighted), {} if places is None else {"places": places}
    number = "" if places is None else f"_at_{len(places)}"
    return _induction(text.__name__ + number, text, lambda n: text(*sums.upto(n), **at), sums.defined)


def _singleton() -> Lemma:
    sums, member = Sums("A", weighted=False), Term(z3.Int("member"))
    return _induction("singleton", singleton, lambda n: singleton(sums.upto(n)[0], member), sums.defined)


def _sequence() -> Lemma:
    """By induction on the length: the last item is one more member, by ``additive`` and ``singleton``."""
    world, length, size = World(), Term(z3.Int("length")), Term(z3.Int("size"))
    domain, number = _domain(world, size), _function("number", z3.IntSort())
    at, index = (SymMap(1, _function(name, z3.IntSort())) for name in ("at", "index"))

    def upto(end: Any) -> tuple[SymSeq, Count]:
        seq = SymSeq.of(domain, end, at, index)
        return seq, Count(domain, seq.has, number(end), delta=True)

    zero = Term(z3.IntVal(0))
    last = Count(domain, lambda k: k == at(length - 1), Term(z3.Int("one")), delta=True)
    before, now = upto(length - 1), upto(length)
    facts = z3.And(additive(before[1], last, now[1]), singleton(last, at(length - 1)))
    step = z3.Implies(z3.And(lift(length >= 1), sequence(*before), facts), sequence(*now))
    base = z3.Implies(none(upto(zero)[1]), sequence(*upto(zero)))
    return Lemma("sequence", " ".join((sequence.__doc__ or "").split()), {BASE: base, STEP: step})


def _members() -> Lemma:
    """The member at a position is the one below which so many members are counted: by induction there is one for each
    position. So the position of a member is the number of members below it, and the members at two positions differ.
    """
    sums, position, size = Sums("A", weighted=False), Term(z3.Int("position")), Term(z3.Int("size"))

    def counted(n: Any) -> Count:
        return sums.upto(n)[0]

    def stands_there(n: Any) -> Any:
        def there(k: Any) -> Any:
            return counted(n).law(k) & (counted(k - 1).term == position)

        asked = (position >= 0) & (position < counted(n).term)
        return lift(implies(asked, counted(n).domain.any(there)))

    found = _induction("members", members, stands_there, sums.defined)
    n, at, index = Term(z3.Int("n")), _function("at", z3.IntSort()), _function("index", z3.IntSort())
    seq = SymSeq.of(counted(n).domain, size, SymMap(1, at), SymMap(1, index))
    j, k = Term(z3.Int("j")), Term(z3.Int("k"))
    there = counted(n).domain.has(at(j)) & counted(n).law(at(j)) & (counted(at(j) - 1).term == j)
    chosen = z3.ForAll([j.z], lift(implies((j >= 0) & (j < counted(n).term), there)))
    placed = z3.ForAll([k.z], lift(index(k) == counted(k - 1).term))
    use = z3.Implies(z3.And(chosen, placed), members(seq, size, counted(n)))
    return replace(found, goals={**found.goals, "use": use})


def _greatest() -> Lemma:
    """The member that a search from ``low`` on keeps, and 0 where it finds none."""
    world, law, value = World(), _function("A", z3.BoolSort()), _function("value", z3.IntSort())
    kept = _function("kept", z3.IntSort())

    def claim(n: Any) -> Any:
        return z3.And(*first_with_the_greatest(_domain(world, n), law, value, kept(n)))

    def search(n: Any) -> Any:
        better = law(n) & ((kept(n - 1) == 0) | (value(n) > value(kept(n - 1))))
        goes_on = implies(n >= LOW, kept(n) == ite(better, n, kept(n - 1)))
        return lift((LOW >= 1) & (kept(LOW - 1) == 0) & goes_on)

    return _induction("greatest", first_with_the_greatest, claim, search)


def all_lemmas() -> list[Lemma]:
    """The lemmas that ``instances`` uses, and the lemmas on which these rest."""
    x, y = Term(z3.Int("x")), Term(z3.Int("y"))
    return [
        *(_of_sums(points, "AB", places=places) for places in ((), (x,), (x, y))),
        _of_sums(additive, "ABC"),
        _of_sums(complete, "A", weighted=False),
        _of_sums(none, "A", weighted=False),
        _of_sums(empty, "A"),
        _of_sums(weighty, "A"),
        _of_sums(part_of, "AB", weighted=False),
        _singleton(),
        _sequence(),
        _members(),
        _greatest(),
    ]
