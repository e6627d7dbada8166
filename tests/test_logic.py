"""One text, two readings: the vocabulary means the same on finite values and on symbols, and so does every transition."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from proofs import explore, obligations
from proofs.counterexample import Reader, find
from proofs.hints import Mutant, Transition
from proofs.registry import STEMS, hints_of
from proofs.symbols import SymMap, SymSeq, SymSet, Term, World, lift
from spec import finite
from spec.finite import Domain, Map, Seq, Set
from spec.lengths import Length
from spec.logic import every, implies, ite, no
from spec.pool import Pool

TRUTHS = (False, True)
LAST = 4  # the largest key of a map in the small worlds, with one to spare


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


# Listings are complete: an update changes no key that its ``among`` leaves out.


@pytest.fixture()
def strict() -> Iterator[None]:
    def keys(arity: int) -> list[Any]:
        single = list(range(-1, LAST + 1))
        return single if arity == 1 else list(itertools.product(single, repeat=2))

    finite.STRICT.append(keys)
    yield
    finite.STRICT.pop()


def test_strict_reading_sees_a_listing_that_is_too_short(strict: None) -> None:
    del strict
    with pytest.raises(AssertionError, match="among misses the key 2"):
        Map(1).where(lambda k: k >= 2, 1, lambda: [3, 4])
    with pytest.raises(AssertionError, match="among misses the key"):
        Map(2).where(lambda k, j: k == j == 1, 1, list)
    with pytest.raises(AssertionError, match=r"among misses \[2\]"):
        Domain(1, 3).such(lambda k: k >= 2, lambda: [3])


def unsorted(state: Any) -> Any:
    """The state with pools that have no release list."""
    if isinstance(state, Pool):
        return replace(state, need_sort=False)
    changed = {f.name: unsorted(getattr(state, f.name)) for f in fields(state) if is_dataclass(getattr(state, f.name))}
    return replace(state, **changed)


@cache
def state_before(stem: str, name: str, need_sort: bool) -> Any:
    """A reachable state in which a call of the transition is granted."""
    hints = hints_of(stem)
    state = hints.small() if need_sort else unsorted(hints.small())
    for move in witnesses(stem)[name]["granted"][:-1]:
        state = explore.after(hints.stem.transitions[move.transition](state, *move.arguments), state)
    return state


@cache
def witnesses(stem: str) -> dict[str, dict[str, explore.Path]]:
    return explore.witnesses(hints_of(stem))


def walks(stem: str, least: int, most: int) -> Any:
    """A transition whose witness leads to the first state, whether pools sort, and choices of the calls to make."""
    names = st.sampled_from(list(hints_of(stem).stem.transitions))
    return st.tuples(names, st.booleans(), st.lists(st.integers(0, 10_000), min_size=least, max_size=most))


@pytest.mark.parametrize("stem", STEMS)
def test_listings_are_complete(stem: str, strict: None) -> None:
    del strict
    hints, seen = hints_of(stem), Counter[tuple[str, bool]]()

    @settings(max_examples=40)
    @given(walks(stem, 1, 12))
    def run(walk: tuple[str, bool, list[int]]) -> None:
        state = state_before(stem, walk[0], walk[1])
        for choice in walk[2]:
            moves = list(explore.moves(hints, hints.stem.transitions, state))
            seen.update((m.transition, m.granted) for m in moves)
            state = moves[choice % len(moves)].after
            assert hints.stem.broken(state) == []

    run()
    assert {name for name, granted in seen if granted} == set(hints.stem.transitions)
    assert any(not granted for _, granted in seen)


# Both readings of a transition lead to the same state.


@cache
def small_call(stem: str, name: str) -> tuple[obligations.Call, Any, list[Any]]:
    """The transition on symbols, in a world as large as the finite one, its solver, and the laws after it."""
    hints = hints_of(stem)
    world = World({**hints.sizes, "indices": LAST})
    made = obligations.call(hints, hints.stem.transitions[name], world)
    solver = z3.SolverFor("QF_UFLIA")
    solver.add(*world.axioms)
    return made, solver, [Term(lift(law.of(made.step.then))) for law in hints.stem.invariants.values()]


def equations(symbols: Any, plain: Any) -> Iterator[Any]:
    """That the symbols are these plain values, on every key of the small world."""
    if is_dataclass(symbols):
        for f in fields(symbols):
            yield from equations(getattr(symbols, f.name), getattr(plain, f.name))
    elif isinstance(symbols, Length):
        yield from (lift(s) == lift(p) for s, p in zip(symbols, plain, strict=True))
    elif isinstance(symbols, SymMap):
        keys = itertools.product(range(-1, LAST + 1), repeat=symbols.arity)
        yield from (lift(symbols(*k)) == plain(*k) for k in keys)
    elif isinstance(symbols, SymSeq):
        yield lift(symbols.length) == plain.length
        yield from (lift(symbols.at(k)) == plain.at(k) for k in range(-LAST, 2 * LAST))
        yield from (lift(symbols.index(k)) == plain.index(k) for k in range(-1, LAST + 1))
    elif isinstance(symbols, SymSet):
        sides = [range(-1, LAST + 1)] * symbols.arity
        yield from (lift(symbols.has(*k)) == plain.has(*k) for k in itertools.product(*sides))
    elif isinstance(symbols, Term):
        yield lift(symbols) == lift(plain)


def agree(stem: str, name: str, state: Any, arguments: tuple[Any, ...], oracle: Transition | None = None) -> bool:
    """Both readings of one call say the same; whether it was granted. ``oracle``: what is read on finite values."""
    made, solver, laws = small_call(stem, name)
    step = (oracle or hints_of(stem).stem.transitions[name])(state, *arguments)
    solver.push()
    solver.add(*equations(made.pre, state))
    for symbols, plain in zip(made.arguments.values(), arguments, strict=True):
        solver.add(*equations(symbols, plain))
    assert solver.check() == z3.sat
    read = Reader(solver.model(), LAST)
    solver.pop()
    assert explore.key(read.value(made.pre)) == explore.key(state)
    for word in ("kept", "fits", "granted"):
        assert read.value(getattr(made.step, word)) == getattr(step, word), (name, word)
    assert [read.value(r.holds) for r in made.step.promises] == [r.holds for r in step.promises]
    if step.granted:
        assert explore.key(read.value(made.step.then)) == explore.key(step.then), name
    assert [read.value(law) for law in laws] == [law.of(step.then) for law in hints_of(stem).stem.invariants.values()]
    return bool(step.granted)


@pytest.mark.parametrize("stem", STEMS)
def test_both_readings_agree(stem: str) -> None:
    hints, seen = hints_of(stem), Counter[tuple[str, bool]]()

    @settings(max_examples=30)
    @given(walks(stem, 2, 6))
    def run(walk: tuple[str, bool, list[int]]) -> None:
        state, name = state_before(stem, walk[0], walk[1]), walk[0]
        for choice in walk[2]:
            calls = list(hints.moves[name](state))
            if calls:
                arguments = calls[choice // 20 % len(calls)]
                step = hints.stem.transitions[name](state, *arguments)
                seen[name, agree(stem, name, state, arguments)] += 1
                state = step.then if step.granted else state
            name = list(hints.stem.transitions)[choice % len(hints.stem.transitions)]

    run()
    for name in hints.stem.transitions:
        for path in witnesses(stem)[name].values():
            seen[name, agree(stem, name, path[-1].before, path[-1].arguments)] += 1
    assert seen.total() >= 80
    assert {name for name, granted in seen if granted} == set(hints.stem.transitions)
    assert any(not granted for _, granted in seen)


@pytest.mark.parametrize("mutant", hints_of("allocator").mutants, ids=lambda m: m.name)
def test_disagreement_is_seen(mutant: Mutant) -> None:
    """A finite reading that does one thing differently does not agree with the symbolic one."""
    found = find(hints_of("allocator"), mutant.transition, mutant.wrong, mutant.invariant)
    assert found is not None
    arguments = tuple(found.arguments.values())
    assert agree("allocator", mutant.transition, found.before, arguments)
    with pytest.raises(AssertionError):
        agree("allocator", mutant.transition, found.before, arguments, mutant.wrong)


def test_a_sequence_knows_its_positions() -> None:
    sequence = Seq([3, 1])
    assert [sequence.at(k) for k in (-1, 0, 1, 2)] == [0, 3, 1, 0]
    assert [sequence.index(k) for k in (1, 2, 3)] == [1, -1, 0]
    assert sequence.distinct()
    assert not Seq([1, 1]).distinct()
