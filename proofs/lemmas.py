"""Lemmas about counting: proved once by induction, and then used by instances.

``count(A)`` over a domain ``1..n`` is defined by recursion on ``n``. Each lemma below is proved from this definition by
induction (``all_lemmas`` has the base and the step). ``instances`` applies the lemmas to the counts of an obligation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from proofs.symbols import Count, SymDomain, SymSeq, Term, World, lift
from spec.logic import implies, no

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
    inside = [lift(one.domain.has(place)) for place in places]
    before, after = (_at(one, places), _at(other, places))
    premise = z3.And(*apart, *inside, _each(one.domain, agree))
    return z3.Implies(premise, one.term.z - before == other.term.z - after)


def _at(count: Count, places: tuple[Any, ...]) -> Any:
    found = z3.IntVal(0)
    for place in places:
        found = found + z3.If(lift(count.law(place)), lift(count.weight(place)), 0)
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
    return z3.Implies(_each(one.domain, one.law), one.term.z == lift(one.domain.size))


def none(one: Count) -> Any:
    """A count is never negative, and it is zero exactly where no member has the property."""
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
    lawful = z3.And(lift(seq.distinct()), lift(seq.all(seq.domain.has)))
    return z3.Implies(lawful, counted.term.z == seq.length.z)


def part_of(one: Count, other: Count) -> Any:
    """Where each member with one property has another property, too, the other property has no fewer members."""
    return z3.Implies(_each(one.domain, lambda k: implies(one.law(k), other.law(k))), one.term.z <= other.term.z)


def members(seq: SymSeq, size: Any, counted: Count) -> Any:
    """A set of c members has, for each n from 0 to c, a sequence of n different members."""
    lawful = z3.And(lift(seq.distinct()), lift(seq.all(lambda k: seq.domain.has(k) & counted.law(k))))
    enough = z3.And(lift(size) >= 0, lift(size) <= counted.term.z)
    return z3.Implies(enough, z3.And(seq.length.z == lift(size), lawful))


def instances(world: World, sequences: list[SymSeq], places: Mapping[str, tuple[Any, ...]]) -> Iterator[Any]:
    """The lemmas, applied to every count and sequence in an obligation.

    ``places`` names, for a domain, the members at which the transition changes something.
    """
    deltas = [c for c in world.counts if c.delta]
    laws = [c for c in world.counts if not c.delta]
    for seq in sequences:
        deltas.append(world.once(counted, seq))
        yield world.once(sequence, seq, deltas[-1])
    plain = [c for c in (*deltas, *laws) if c.plain]
    yield from (world.once(none, c) for c in plain)
    yield from (world.once(empty, c) for c in laws if c not in plain)
    yield from (world.once(complete, c) for c in plain if not c.delta)
    for one, other in itertools.combinations(laws, 2):
        if one.domain is other.domain and one.about == other.about:
            yield world.once(points, one, other, places=places.get(one.domain.name, ()))
    for part, whole in itertools.permutations(laws, 2):
        if part.about == whole.about:
            yield from (world.once(additive, part, d, whole) for d in deltas if part.domain is whole.domain is d.domain)


def counted(seq: SymSeq) -> Count:
    """The count of the members of a sequence."""
    return Count(seq.domain, seq.has, Term(seq.world.fresh("counted")), delta=True)


# The inductions. A is a property of 1..n; count is its recursive definition.


@dataclass(frozen=True)
class Lemma:
    """A lemma, with the formulas of its base and its step; their negations must be unsatisfiable."""

    name: str
    sentence: str
    goals: tuple[Any, ...]


def _count(name: str, weighted: bool = True) -> tuple[Any, Any, Any, Callable[[Any], Any]]:
    """A property, its weights, its sum, and the definition of the sum at ``n``."""
    holds = z3.Function(name, z3.IntSort(), z3.BoolSort())
    weigh = z3.Function("weight_" + name, z3.IntSort(), z3.IntSort()) if weighted else lambda _: z3.IntVal(1)
    count = z3.Function("count_" + name, z3.IntSort(), z3.IntSort())

    def definition(n: Any) -> Any:
        return z3.And(count(0) == 0, z3.Implies(n >= 1, count(n) == count(n - 1) + z3.If(holds(n), weigh(n), 0)))

    return holds, weigh, count, definition


def _induction(name: str, why: str, claim: Callable[[Any], Any], facts: Callable[[Any], Any]) -> Lemma:
    """``claim(0)``, and ``claim(n - 1)`` implies ``claim(n)``."""
    n = z3.Int("n")
    base = z3.Implies(facts(z3.IntVal(0)), claim(z3.IntVal(0)))
    step = z3.Implies(z3.And(n >= 1, facts(n), claim(n - 1)), claim(n))
    return Lemma(name, " ".join(why.split()), (base, step))


def _upto(n: Any, law: Callable[[Any], Any]) -> Any:
    k = z3.Int("k")
    return z3.ForAll([k], z3.Implies(z3.And(k >= 1, k <= n), law(k)))


def _points() -> Lemma:
    """The lemma for two places, the most that a transition changes; fewer places are places outside ``1..n``."""
    a, u, count_a, def_a = _count("A")
    b, v, count_b, def_b = _count("B")
    x, y = z3.Ints("x y")

    def agree(k: Any) -> Any:
        alike = z3.And(a(k) == b(k), z3.Implies(a(k), u(k) == v(k)))
        return z3.Implies(z3.And(k != x, k != y), alike)

    def at(n: Any, holds: Any, weigh: Any) -> Any:
        return z3.Sum([z3.If(z3.And(1 <= p, p <= n, holds(p)), weigh(p), 0) for p in (x, y)])  # noqa: SIM300

    return _induction(
        "points",
        points.__doc__ or "",
        lambda n: z3.Implies(z3.And(x != y, _upto(n, agree)), count_a(n) - at(n, a, u) == count_b(n) - at(n, b, v)),
        lambda n: z3.And(def_a(n), def_b(n)),
    )


def _additive() -> Lemma:
    a, u, count_a, def_a = _count("A")
    b, v, count_b, def_b = _count("B")
    c, w, count_c, def_c = _count("C")

    def splits(k: Any) -> Any:
        weighs = z3.And(z3.Implies(a(k), u(k) == w(k)), z3.Implies(b(k), v(k) == w(k)))
        return z3.And(c(k) == z3.Or(a(k), b(k)), z3.Not(z3.And(a(k), b(k))), weighs)

    return _induction(
        "additive",
        additive.__doc__ or "",
        lambda n: z3.Implies(_upto(n, splits), count_a(n) + count_b(n) == count_c(n)),
        lambda n: z3.And(def_a(n), def_b(n), def_c(n)),
    )


def _complete() -> Lemma:
    a, _, count_a, def_a = _count("A", weighted=False)
    return _induction("complete", complete.__doc__ or "", lambda n: z3.Implies(_upto(n, a), count_a(n) == n), def_a)


def _none() -> Lemma:
    a, _, count_a, def_a = _count("A", weighted=False)
    return _induction(
        "none",
        none.__doc__ or "",
        lambda n: z3.And(count_a(n) >= 0, (count_a(n) == 0) == _upto(n, lambda k: z3.Not(a(k)))),
        def_a,
    )


def _empty() -> Lemma:
    a, _, count_a, def_a = _count("A")
    return _induction(
        "empty",
        empty.__doc__ or "",
        lambda n: z3.Implies(_upto(n, lambda k: z3.Not(a(k))), count_a(n) == 0),
        def_a,
    )


def _sequence() -> Lemma:
    """By induction on the length L: without its last item, a distinct sequence has one member less.

    The induction is on how many positions are counted: C(L) counts the members that stand below position L; one more
    position adds exactly one member (by ``additive`` with a singleton), since distinct positions hold distinct items.
    """
    at = z3.Function("at", z3.IntSort(), z3.IntSort())
    index = z3.Function("index", z3.IntSort(), z3.IntSort())
    size, length, k, j = z3.Ints("size length k j")

    def below(top: Any, item: Any) -> Any:
        return z3.And(index(item) >= 0, index(item) < top, at(index(item)) == item)

    lawful = z3.ForAll(
        [j], z3.Implies(z3.And(j >= 0, j < length), z3.And(index(at(j)) == j, at(j) >= 1, at(j) <= size))
    )
    last = length - 1
    nothing = z3.ForAll([k], z3.Not(below(0, k)))
    one_more = z3.ForAll(
        [k],
        z3.And(below(length, k) == z3.Or(below(last, k), k == at(last)), z3.Not(z3.And(below(last, k), k == at(last)))),
    )
    step = z3.Implies(z3.And(length >= 1, lawful), z3.And(one_more, at(last) >= 1, at(last) <= size))
    return Lemma("sequence", " ".join((sequence.__doc__ or "").split()), (nothing, step))


def _part_of() -> Lemma:
    a, _, count_a, def_a = _count("A", weighted=False)
    b, _, count_b, def_b = _count("B", weighted=False)
    return _induction(
        "part_of",
        part_of.__doc__ or "",
        lambda n: z3.Implies(_upto(n, lambda k: z3.Implies(a(k), b(k))), count_a(n) <= count_b(n)),
        lambda n: z3.And(def_a(n), def_b(n)),
    )


def _members() -> Lemma:
    """The member at a position j, any but fixed, is the one below which exactly j members are counted.

    So the position of a member p is count(p - 1), and the members at two positions are different.
    """
    a, _, count_a, def_a = _count("A", weighted=False)
    j, k = z3.Ints("j k")

    def stands_at_j(n: Any) -> Any:
        found = z3.Exists([k], z3.And(k >= 1, k <= n, a(k), count_a(k - 1) == j))
        return z3.Implies(z3.And(j >= 0, j < count_a(n)), found)

    return _induction("members", members.__doc__ or "", stands_at_j, def_a)


def _greatest() -> Lemma:
    """``m(n)``, defined by recursion, is a member up to ``n`` with the greatest value, and 0 where there is none."""
    a, value, _, _ = _count("A")
    m = z3.Function("m", z3.IntSort(), z3.IntSort())

    def found(n: Any) -> Any:
        first = m(n - 1) == 0
        return z3.And(m(0) == 0, m(n) == z3.If(z3.And(a(n), z3.Or(first, value(n) > value(m(n - 1)))), n, m(n - 1)))

    def behind(n: Any, k: Any) -> Any:
        return z3.Or(value(k) < value(m(n)), z3.And(value(k) == value(m(n)), m(n) <= k))

    def claim(n: Any) -> Any:
        real = z3.And(1 <= m(n), m(n) <= n, a(m(n)), _upto(n, lambda k: z3.Implies(a(k), behind(n, k))))  # noqa: SIM300
        return z3.If(m(n) == 0, _upto(n, lambda k: z3.Not(a(k))), real)

    return _induction("greatest", "Of finitely many members a first one has the greatest value.", claim, found)


def _weighty() -> Lemma:
    a, weigh, count_a, def_a = _count("A")
    return _induction(
        "weighty",
        weighty.__doc__ or "",
        lambda n: z3.Implies(
            _upto(n, lambda k: z3.Implies(a(k), weigh(k) >= 1)),
            z3.And(count_a(n) >= 0, (count_a(n) == 0) == _upto(n, lambda k: z3.Not(a(k)))),
        ),
        def_a,
    )


def _singleton() -> Lemma:
    a, _, count_a, def_a = _count("A", weighted=False)
    x = z3.Int("x")
    only = lambda k: a(k) == (k == x)  # noqa: E731
    return _induction(
        "singleton",
        "One member is counted once.",
        lambda n: z3.Implies(_upto(n, only), count_a(n) == z3.If(z3.And(x >= 1, x <= n), 1, 0)),
        def_a,
    )


def all_lemmas() -> list[Lemma]:
    """The lemmas that ``instances`` uses, and the lemmas on which these rest."""
    return [
        _points(),
        _additive(),
        _complete(),
        _none(),
        _empty(),
        _singleton(),
        _sequence(),
        _part_of(),
        _members(),
        _greatest(),
        _weighty(),
    ]
