"""One text, two readings: every word of ``spec.logic`` means the same on finite values and on symbols."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from proofs.symbols import SymMap, SymSeq, SymSet, Term, World, lift
from spec.finite import Domain, Map, Seq, Set
from spec.lengths import Length
from spec.logic import Map as AnyMap
from spec.logic import Number, Step, but, call, every, implies, ite, no, number, requires, total

TRUTHS = (False, True)


# Symbols are not asked for their truth.


@pytest.mark.parametrize(
    "ask",
    [
        bool,
        operator.not_,
        lambda t: 1 if t else 2,
        lambda t: t and t,
        lambda t: t or t,
        lambda t: t in [1],
        lambda t: 0 < t < 2,
        lambda t: max(t, 1),
        lambda t: any([t]),
        lambda t: Length(t, t) == Length(0, 0),
        lambda t: [k for k in range(2) if t == k],
    ],
)
def test_python_cannot_branch_on_a_symbol(ask: Callable[[Term], Any]) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        ask(Term(z3.Int("x")))


@pytest.mark.parametrize("use", [hash, lambda t: {t: 1}, lambda t: {t}])
def test_a_symbol_is_no_key(use: Callable[[Term], Any]) -> None:
    with pytest.raises(TypeError, match="unhashable"):
        use(Term(z3.Int("x")))


@pytest.mark.parametrize("make", [SymSet, SymSeq])
def test_only_the_finite_reading_lists_members(make: type[SymSet] | type[SymSeq]) -> None:
    world = World()
    pages = world.constant("pages", "pages")
    some = SymSeq(world, "s", pages) if make is SymSeq else SymSet(world, 1, lambda _: Term(z3.BoolVal(True)), pages)
    with pytest.raises(TypeError, match="cannot be listed"):
        some.items()


# The vocabulary.


def value(term: Any) -> Any:
    """The value of a symbol without unknowns."""
    found = z3.simplify(lift(term))
    return z3.is_true(found) if z3.is_bool(found) else found.as_long()


def symbol(plain: bool | int) -> Term:
    return Term(lift(plain))


@pytest.mark.parametrize(("a", "b"), [*itertools.product(TRUTHS, TRUTHS)])
def test_truths_mean_the_same(a: bool, b: bool) -> None:
    words: list[Callable[[Any, Any], Any]] = [
        implies,
        lambda x, y: ite(x, y, no(y)),
        lambda x, y: no(x & y),
        lambda x, y: no(x) | y,
        lambda x, y: every([x, y, no(no(x))]),
        lambda x, y: ite(x, 3, ite(y, 4, 5)),
        operator.eq,
        operator.ne,
    ]
    plain = [word(a, b) for word in words]
    assert plain[:2] == [not a or b, b if a else not b]
    for other in ([(symbol(a), symbol(b))], [(symbol(a), b)]):
        assert [value(word(*other[0])) for word in words] == plain
    assert [value(word(a, symbol(b))) for word in words[:6]] == plain[:6]


@given(st.integers(-9, 9), st.integers(-9, 9))
def test_numbers_mean_the_same(a: int, b: int) -> None:
    words: list[Callable[[Any, Any], Any]] = [
        *(operator.add, operator.sub, operator.eq, operator.ne),
        *(operator.lt, operator.le, operator.gt, operator.ge),
    ]
    for word in words:
        assert value(word(symbol(a), b)) == value(word(a, symbol(b))) == value(word(symbol(a), symbol(b))) == word(a, b)


def test_negation_is_not_pythons_tilde() -> None:
    assert no(True) is False
    assert no(False) is True
    assert value(no(symbol(True))) is False


def both_domains(size: int) -> tuple[Domain, Any]:
    return Domain(1, size), World({"pages": size, "page_size": 2}).constant("pages", "pages")


@given(st.integers(1, 4), st.sets(st.integers(0, 5)))
def test_domains_mean_the_same(size: int, chosen: set[int]) -> None:
    plain, symbols = both_domains(size)
    law, picked = Set(chosen).has, [z3.IntVal(c) for c in chosen]

    def on_symbols(k: Any) -> Term:
        return Term(z3.Or([lift(k) == c for c in picked]))

    assert value(symbols.all(on_symbols)) == plain.all(law)
    assert value(symbols.any(on_symbols)) == plain.any(law)
    assert value(symbols.count(on_symbols)) == plain.count(law)
    assert value(symbol(symbols.size)) == plain.size
    assert value(symbols.such(on_symbols).size) == plain.such(law, plain.items).size
    assert [value(symbol(k) == k) and symbols.has(k) for k in range(6)] == [plain.has(k) for k in range(6)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=4), st.integers(0, 3))
def test_updates_of_maps_mean_the_same(puts: list[tuple[int, int]], low: int) -> None:
    plain, symbols = Map(1, 7), SymMap(1, lambda _: 7)
    for key, written in puts:
        plain, symbols = plain.put(key, written), symbols.put(key, written)
    plain = plain.where(lambda k: k >= low, lambda k: 2 * k, lambda: range(4))
    symbols = symbols.where(lambda k: symbol(k) >= low, lambda k: 2 * k)
    assert [value(symbols(k)) for k in range(4)] == [plain(k) for k in range(4)]
    assert [value(symbol(symbols.all_to(2)(k))) for k in range(4)] == [plain.all_to(2)(k) for k in range(4)]


def test_a_sequence_knows_its_positions() -> None:
    sequence = Seq([3, 1])
    assert [sequence.at(k) for k in (-1, 0, 1, 2)] == [0, 3, 1, 0]
    assert [sequence.index(k) for k in (1, 2, 3)] == [1, -1, 0]
    assert sequence.distinct()
    assert not Seq([1, 1]).distinct()


# A call of a part that is made only where a condition holds.


@dataclass(frozen=True)
class Counter:
    """A number, and what was added to it."""

    value: Number = number()
    added: AnyMap = total(1)


def add(st: Counter, more: Number, answer: Number) -> Step[Counter]:
    """Adds ``more`` where there is room for it."""
    return Step(
        promises=(requires(more > 0, "something is added"),),
        choice=(requires(answer == 1, "the answer is one"),),
        fits=st.value + more <= 3,
        then=but(st, value=st.value + more, added=st.added.put(st.value, more)),
    )


@given(st.booleans(), st.integers(0, 4), st.integers(-1, 4), st.integers(0, 1))
def test_a_conditional_call_means_the_same_on_symbols(made: bool, first: int, more: int, answer: int) -> None:
    plain = call("counter", add, Counter(first, Map(1, 7)), more, answer, when=made)
    arguments = symbol(more), symbol(answer)
    symbols = call("counter", add, Counter(symbol(first), SymMap(1, lambda _: 7)), *arguments, when=symbol(made))
    for word in ("kept", "fits", "granted"):
        assert value(getattr(symbols.step, word)) == getattr(plain.step, word), word
    assert value(symbols.then.value) == plain.then.value
    assert [value(symbols.then.added(k)) for k in range(9)] == [plain.then.added(k) for k in range(9)]


def test_a_call_that_is_not_made_is_not_evaluated() -> None:
    def never(_: Counter) -> Step[Counter]:
        raise AssertionError("the transition is evaluated")

    before = Counter(1, Map(1))
    left_out = call("counter", never, before, when=False)
    assert left_out.then is before
    assert (left_out.step.granted, left_out.step.promises, left_out.step.choice) == (True, (), ())


def test_the_condition_of_a_call_is_a_truth() -> None:
    with pytest.raises(AttributeError):
        call("counter", add, Counter(1, Map(1)), 1, 1, when=1)


def test_only_call_makes_calls() -> None:
    """A call that is made by hand could say of itself what it likes."""
    root = Path(__file__).resolve().parents[1]
    makers = [p for folder in ("spec", "proofs") for p in sorted((root / folder).glob("*.py"))]
    made_by_hand = [p.name for p in makers if p.name != "logic.py" and re.search(r"\bCall\(", p.read_text("utf-8"))]
    assert made_by_hand == []


MIXTURES: dict[str, Callable[[Any, Any], Any]] = {
    "number & True": lambda number, _: number & True,
    "number | False": lambda number, _: number | False,
    "True & number": lambda number, _: True & number,
    "truth & 1": lambda _, truth: truth & 1,
    "truth + 1": lambda _, truth: truth + 1,
    "number + True": lambda number, _: number + True,
    "number == True": lambda number, _: number == True,  # noqa: E712  # == makes a formula
    "truth == 1": lambda _, truth: truth == 1,
    "truth > False": lambda _, truth: truth > False,
    "number * True": lambda number, _: number * True,
    "True - number": lambda number, _: True - number,
    "number - truth": lambda number, truth: number - truth,
    "no(number)": lambda number, _: no(number),
    "ite(number, …)": lambda number, _: ite(number, 1, 2),
    "ite(truth, 1, True)": lambda _, truth: ite(truth, 1, True),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_numbers_and_truths_are_never_mixed(name: str) -> None:
    """Python takes True for 1, and ``x & True`` for a bit of x; the solvers do not. So a law with a mixture has no
    reading on symbols, and cannot be proved.
    """
    world = World()
    with pytest.raises(TypeError, match="on both sides"):
        MIXTURES[name](world.number("number"), world.truth("truth"))


def test_numbers_beside_numbers_and_truths_beside_truths_are_taken() -> None:
    world = World()
    number, truth = world.number("number"), world.truth("truth")
    taken = (truth & True, truth | (number > 0), number + 1, 1 - number, truth == False, ite(truth, number, 2))  # noqa: E712  # == makes a formula
    assert [made.is_truth for made in taken] == [True, True, False, False, True, False]
