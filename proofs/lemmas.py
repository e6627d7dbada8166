"""Counting, proved once by induction and then used by instance.

``count(A)`` over a domain ``1..n`` is defined by recursion on ``n``. Each lemma below is proved from that definition
(base and step, ``prove_all``); ``instances`` applies them to the counts that occur in an obligation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import z3

from proofs.symbols import Count, SymDomain, SymSeq, Term, World, lift

Law = Callable[[Any], Any]


def _each(domain: SymDomain, law: Callable[[Any], Any]) -> Any:
    return lift(domain.all(law))


def equal(one: Count, other: Count) -> Any:
    """Two properties that hold for the same members are counted alike."""
    alike = _each(one.domain, lambda k: _same(one.law(k), other.law(k)))
    return z3.Implies(alike, one.term.z == other.term.z)


def additive(part: Count, delta: Count, whole: Count) -> Any:
    """The count of a disjoint union is the sum of the counts."""

    def splits(k: Any) -> Any:
        a, b, c = lift(part.law(k)), lift(delta.law(k)), lift(whole.law(k))
        return z3.And(c == z3.Or(a, b), z3.Not(z3.And(a, b)))

    return z3.Implies(_each(part.domain, splits), part.term.z + delta.term.z == whole.term.z)


def complete(one: Count) -> Any:
    """A property of every member is counted as often as there are members."""
    return z3.Implies(_each(one.domain, one.law), one.term.z == lift(one.domain.size))


def none(one: Count) -> Any:
    """A count is never negative, and is zero exactly where there is nothing to count."""
    empty = _each(one.domain, lambda k: z3.Not(lift(one.law(k))))
    return z3.And(one.term.z >= 0, (one.term.z == 0) == empty)


def sequence(seq: SymSeq, counted: Count) -> Any:
    """A sequence of distinct members of a domain has as many members as positions."""
    lawful = z3.And(lift(seq.distinct()), lift(seq.all(seq.domain.has)))
    return z3.Implies(lawful, counted.term.z == seq.length.z)


def _same(one: Any, other: Any) -> Any:
    return lift(one) == lift(other)


def instances(world: World, sequences: list[SymSeq]) -> Iterator[Any]:
    """The lemmas, applied to every count and sequence that an obligation speaks of."""
    deltas = [c for c in world.counts if c.delta]
    laws = [c for c in world.counts if not c.delta]
    for seq in sequences:
        counted = Count(seq.domain, seq.has, Term(world.bound("counted")), True)
        deltas.append(counted)
        yield sequence(seq, counted)
    yield from (none(c) for c in deltas)
    yield from (complete(c) for c in laws)
    for one, other in itertools.combinations(laws, 2):
        if one.domain is other.domain:
            yield equal(one, other)
    for part, whole in itertools.permutations(laws, 2):
        yield from (additive(part, d, whole) for d in deltas if part.domain is whole.domain is d.domain)


# The inductions. A is a property of 1..n; count is its recursive definition.


@dataclass(frozen=True)
class Lemma:
    """A lemma with the formulas whose negations must be unsatisfiable: base and step."""

    name: str
    sentence: str
    goals: tuple[Any, ...]


def _count(name: str) -> tuple[Any, Any, Callable[[Any], Any]]:
    """A property, its count, and the definition of the count at ``n``."""
    holds = z3.Function(name, z3.IntSort(), z3.BoolSort())
    count = z3.Function("count_" + name, z3.IntSort(), z3.IntSort())

    def definition(n: Any) -> Any:
        return z3.And(count(0) == 0, z3.Implies(n >= 1, count(n) == count(n - 1) + z3.If(holds(n), 1, 0)))

    return holds, count, definition


def _induction(name: str, why: str, claim: Callable[[Any], Any], facts: Callable[[Any], Any]) -> Lemma:
    """``claim(0)``, and ``claim(n - 1)`` implies ``claim(n)``."""
    n = z3.Int("n")
    base = z3.Implies(facts(z3.IntVal(0)), claim(z3.IntVal(0)))
    step = z3.Implies(z3.And(n >= 1, facts(n), claim(n - 1)), claim(n))
    return Lemma(name, " ".join(why.split()), (base, step))


def _upto(n: Any, law: Callable[[Any], Any]) -> Any:
    k = z3.Int("k")
    return z3.ForAll([k], z3.Implies(z3.And(k >= 1, k <= n), law(k)))


def _equal() -> Lemma:
    a, count_a, def_a = _count("A")
    b, count_b, def_b = _count("B")
    return _induction(
        "equal",
        equal.__doc__ or "",
        lambda n: z3.Implies(_upto(n, lambda k: a(k) == b(k)), count_a(n) == count_b(n)),
        lambda n: z3.And(def_a(n), def_b(n)),
    )


def _additive() -> Lemma:
    a, count_a, def_a = _count("A")
    b, count_b, def_b = _count("B")
    c, count_c, def_c = _count("C")

    def splits(k: Any) -> Any:
        return z3.And(c(k) == z3.Or(a(k), b(k)), z3.Not(z3.And(a(k), b(k))))

    return _induction(
        "additive",
        additive.__doc__ or "",
        lambda n: z3.Implies(_upto(n, splits), count_a(n) + count_b(n) == count_c(n)),
        lambda n: z3.And(def_a(n), def_b(n), def_c(n)),
    )


def _complete() -> Lemma:
    a, count_a, def_a = _count("A")
    return _induction("complete", complete.__doc__ or "", lambda n: z3.Implies(_upto(n, a), count_a(n) == n), def_a)


def _none() -> Lemma:
    a, count_a, def_a = _count("A")
    return _induction(
        "none",
        none.__doc__ or "",
        lambda n: z3.And(count_a(n) >= 0, (count_a(n) == 0) == _upto(n, lambda k: z3.Not(a(k)))),
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


def _singleton() -> Lemma:
    a, count_a, def_a = _count("A")
    x = z3.Int("x")
    only = lambda k: a(k) == (k == x)  # noqa: E731
    return _induction(
        "singleton",
        "One member is counted once.",
        lambda n: z3.Implies(_upto(n, only), count_a(n) == z3.If(z3.And(x >= 1, x <= n), 1, 0)),
        def_a,
    )


def all_lemmas() -> list[Lemma]:
    """The lemmas that ``instances`` uses, and what they rest on."""
    return [_equal(), _additive(), _complete(), _none(), _singleton(), _sequence()]
