"""One text, two readings of every transition: listings leave nothing out, and both readings lead to one state."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import pytest
import z3
from driven import SOAK
from hypothesis import given, settings
from hypothesis import strategies as st

from proofs import explore, obligations
from proofs.counterexample import ModelReader, classify
from proofs.hints import Mutant, Transition
from proofs.registry import STEMS, hints_of
from proofs.symbols import SymMap, SymSeq, SymSet, Term, World, lift
from spec import finite
from spec.finite import Domain, Map
from spec.lengths import Length

LAST = 4  # the largest key of a map in the small worlds, with one to spare


# Listings are complete: an update changes no key that its ``among`` leaves out.


@pytest.fixture
def strict() -> Iterator[None]:
    def keys(arity: int) -> list[Any]:
        single = list(range(-1, LAST + 1))
        return single if arity == 1 else list(itertools.product(single, repeat=arity))

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


@cache
def state_before(stem: str, name: str, need_sort: bool) -> Any:
    """A reachable state in which a call of the transition is granted."""
    hints = hints_of(stem)
    starts = hints.small()
    state = starts[need_sort % len(starts)]
    for move in witnesses(stem)[name]["granted"][:-1]:
        state = explore.after(hints.stem.transitions[move.transition](state, *move.arguments), state)
    return state


@cache
def witnesses(stem: str) -> dict[str, dict[str, explore.Path]]:
    return explore.witnesses(hints_of(stem))


def examples(stem: str, one_in: int) -> int:
    """How many walks are drawn: a step of the whole cache takes as long as those of all other stems."""
    return max(1, settings().max_examples // one_in // (12 if stem == "cache" else 1))


# The whole cache takes half a minute each time, and so do the listings of session_trim: in ``make soak``.
LOOKED_AT = [stem for stem in STEMS if SOAK or stem != "cache"]


def walks(stem: str, least: int, most: int) -> Any:
    """A transition whose witness leads to the first state, whether pools sort, and choices of the calls to make."""
    names = st.sampled_from(list(hints_of(stem).stem.transitions))
    return st.tuples(names, st.booleans(), st.lists(st.integers(0, 10_000), min_size=least, max_size=most))


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("stem", [stem for stem in LOOKED_AT if SOAK or stem != "session_trim"])
def test_listings_are_complete(stem: str, strict: None) -> None:
    del strict
    hints, seen = hints_of(stem), Counter[tuple[str, bool]]()

    @settings(max_examples=examples(stem, 10))
    @given(walks(stem, 1, 12))
    def run(walk: tuple[str, bool, list[int]]) -> None:
        state = state_before(stem, walk[0], walk[1])
        for choice in walk[2]:
            moves = list(explore.moves(hints, hints.stem.transitions, state))
            seen.update((m.transition, m.granted) for m in moves)
            state = moves[choice % len(moves)].after
            assert hints.stem.broken(state) == []

    run()
    for name, found in witnesses(stem).items():  # whatever was drawn, every transition is looked at
        for path in found.values():
            seen.update(
                (m.transition, m.granted) for m in explore.moves(hints, hints.stem.transitions, path[-1].before)
            )
            hints.stem.transitions[name](path[-1].before, *path[-1].arguments)
    assert {name for name, granted in seen if granted} == set(hints.stem.transitions)
    assert any(not granted for _, granted in seen) or not hints.refusable


# Both readings of a transition lead to the same state.


@cache
def small_call(stem: str, name: str) -> tuple[obligations.SymbolicCall, list[Any], list[Any]]:
    """The transition on symbols, in a world as large as the finite one, the world's axioms, and the laws after it."""
    hints = hints_of(stem)
    world = World({**hints.sizes, "indices": LAST})
    made = obligations.call(hints, hints.stem.transitions[name], world)
    laws = [Term(lift(law.of(made.step.then))) for law in hints.stem.invariants.values()]
    return made, world.axioms, laws  # taken last: a law that names a member adds axioms about it


def numbers(plain: Any) -> set[int]:
    """The values of every map in a state: a law may look up one of them in another map."""
    if is_dataclass(plain):
        return set[int]().union(*(numbers(getattr(plain, f.name)) for f in fields(plain)))
    return {int(value) for _, value in plain.items()} if isinstance(plain, Map) else set()


def written_out(plain: Any) -> Any:
    """The state with maps that have another value than 0 at each key written out on the keys of the small world."""
    if isinstance(plain, Map):
        if not plain.default:
            return plain
        keys = range(LAST + 1) if plain.arity == 1 else itertools.product(range(LAST + 1), repeat=plain.arity)
        found = Map(plain.arity)
        for key in keys:
            found = found.put(key, plain(*key) if isinstance(key, tuple) else plain(key))
        return found
    if is_dataclass(plain) and not isinstance(plain, type):
        return replace(plain, **{f.name: written_out(getattr(plain, f.name)) for f in fields(plain)})
    return plain


def equations(symbols: Any, plain: Any, single: Collection[int]) -> Iterator[Any]:
    """That the symbols are these plain values, on every key of the small world. ``single``: the keys of a map."""
    if is_dataclass(symbols):
        for f in fields(symbols):
            yield from equations(getattr(symbols, f.name), getattr(plain, f.name), single)
    elif isinstance(symbols, Length):
        yield from (lift(s) == lift(p) for s, p in zip(symbols, plain, strict=True))
    elif isinstance(symbols, SymMap):
        keys = itertools.product(single, repeat=symbols.arity)
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
    made, axioms, laws = small_call(stem, name)
    changes = [law for law in hints_of(stem).stem.changes.values() if law.binds(name) or not law.arguments]
    step = (oracle or hints_of(stem).stem.transitions[name])(state, *arguments)
    single = sorted({*range(-1, LAST + 1), *numbers(state)})
    solver = z3.SolverFor("QF_UFLIA")  # a new one: a solver that is asked again and again has taken gigabytes
    solver.add(*axioms, *equations(made.pre, state, single))
    for symbols, plain in zip(made.arguments.values(), arguments, strict=True):
        solver.add(*equations(symbols, plain, single))
    assert solver.check() == z3.sat
    read = ModelReader(solver.model(), LAST)
    assert explore.key(read.value(made.pre)) == explore.key(written_out(state))
    for word in ("kept", "fits", "granted"):
        assert read.value(getattr(made.step, word)) == getattr(step, word), (name, word)
    assert [read.value(r.holds) for r in made.step.promises] == [r.holds for r in step.promises]
    if step.granted:
        assert explore.key(read.value(made.step.then)) == explore.key(written_out(step.then)), name
    assert [read.value(law) for law in laws] == [law.of(step.then) for law in hints_of(stem).stem.invariants.values()]
    said = [read.value(Term(lift(law.of(made.pre, made.step.then, made.arguments)))) for law in changes]
    named = dict(zip(made.arguments, arguments, strict=True))
    assert said == [law.of(state, step.then, named) for law in changes]
    return bool(step.granted)


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("stem", LOOKED_AT)
def test_both_readings_agree(stem: str) -> None:
    hints, seen = hints_of(stem), Counter[tuple[str, bool]]()

    @settings(max_examples=examples(stem, 8))
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
    assert seen.total() >= 30
    assert {name for name, granted in seen if granted} == set(hints.stem.transitions)
    assert any(not granted for _, granted in seen)


@pytest.mark.parametrize("mutant", hints_of("allocator").mutants, ids=lambda m: m.name)
def test_disagreement_is_seen(mutant: Mutant) -> None:
    """A finite reading that does one thing differently does not agree with the symbolic one."""
    hints = hints_of("allocator")
    _, path = classify(hints, {**hints.stem.transitions, mutant.transition: mutant.wrong})
    for move in path or ():
        if move.transition != mutant.transition:
            continue
        agree("allocator", mutant.transition, move.before, move.arguments)
        try:
            agree("allocator", mutant.transition, move.before, move.arguments, mutant.wrong)
        except AssertionError:
            return
    assert path is None, "no call on the way to the bug shows what is wrong"
    pytest.skip("the bug of this mutant is not reached")
