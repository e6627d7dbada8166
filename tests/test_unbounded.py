"""The formulas that the solvers get say of finite states what the finite reading says.

Each transition is read on symbols as for a proof, in a world without bounds. Its formulas are then evaluated on finite
states: states to which calls lead, in worlds with several pages, tokens within pages, two rows, two requests and two
stories, and such states damaged at random, so that laws are false, too.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import pytest
import z3
from driven import SOAK
from evaluator import KEYS, Remembering, Values, compiled, places, remembering

from proofs import obligations
from proofs.draining import COMES_BACK, law_of
from proofs.fitting import FITS
from proofs.hints import Hints
from proofs.obligations import ATOMIC, CALLS, START
from proofs.registry import STEMS, hints_of
from proofs.symbols import SymMap, Term, lift, state
from proofs.walks import SEED, Finite, twist, walked
from spec import finite
from spec.finite import Map
from spec.logic import Change, Invariant, Step, but

LOOKS = 3  # at granted calls of each transition, and as many at others, with other arguments, and in damaged states
DAMAGES = 1_000  # at most, until each law is false of a damaged state; ten times as many where laws hold of most
SELDOM = 0.15  # the part of the laws that hardly any single number makes false, so that this need not happen
LOOKED_AT = [stem for stem in STEMS if SOAK or stem != "cache"]  # the whole cache takes a minute: in ``make soak``
PARTS = {"cache": 12, "session_trim": 2}  # in which the transitions of a large stem are looked at


# Finite calls.


def calls_of(stem: str, name: str) -> list[Finite]:
    """Calls of walks, granted ones and others, such calls with other arguments, and calls in damaged states."""
    draw = random.Random(f"{SEED} {stem} {name}")
    granted, others = walked(stem)[name]
    found = [*draw.sample(granted, min(LOOKS, len(granted))), *draw.sample(others, min(LOOKS, len(others)))]
    twisted = [Finite(one.state, tuple(twist(draw, a) for a in one.arguments), False) for one in found[:LOOKS]]
    damaged = [
        Finite(damage(draw, draw.choice(found).state), draw.choice(found).arguments, False) for _ in range(LOOKS)
    ]
    return [*found, *twisted, *damaged]


def damage(draw: random.Random, at: Any) -> Any:
    """The state with a wrong number at one to three places."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = _damaged(draw, at)
    return at


def _damaged(draw: random.Random, at: Any) -> Any:
    path, value = draw.choice([*_leaves(at)])
    if isinstance(value, Map):
        any_key = draw.choices(range(4), k=value.arity)
        key = draw.choice([*(key for key, _ in value.items()), tuple(any_key) if value.arity > 1 else any_key[0]])
        return _with(at, path, value.put(key, draw.randint(-1, 5)))
    return _with(at, path, not value if isinstance(value, bool) else value + draw.choice((-1, 1)))


def _leaves(at: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The maps, numbers and truths of a state that can change."""
    for f in fields(at):
        value = getattr(at, f.name)
        if is_dataclass(value):
            yield from _leaves(value, (*path, f.name))
        elif not f.metadata.get("constant"):
            yield (*path, f.name), value


def _with(at: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *others = path
    return but(at, **{first: _with(getattr(at, first), tuple(others), value) if others else value})


# What the provers read, and what the finite reading says of the same call.


@dataclass(frozen=True)
class Said:
    """A formula, and what the finite reading says of a call, the step and an arbitrary member."""

    what: str
    formula: Any
    meant: Callable[[Finite, Step[Any], int], Any]


@dataclass(frozen=True)
class Obligation:
    """What the solvers get for one obligation."""

    what: str
    given: list[Any]
    core: list[Any]
    goal: Any


@dataclass(frozen=True)
class Read:
    """One transition as the provers read it. ``lemmas``: axioms and instances of lemmas, true of every state."""

    world: Remembering
    made: obligations.SymbolicCall
    said: list[Said]
    obligations: list[Obligation]
    lemmas: list[Any]

    @property
    def formulas(self) -> tuple[Any, ...]:
        """All formulas, those of ``said`` first."""
        asked = [fact for one in self.obligations for fact in (*one.given, *one.core, one.goal)]
        return (*(one.formula for one in self.said), *self.lemmas, *asked)


def read(stem: str, name: str) -> Read:
    """The transition as the provers read it."""
    hints = hints_of(stem)
    with remembering() as found:
        asked = [
            Obligation(formula.invariant, [*formula.given], [*(formula.core_facts or ())], formula.goal)
            for formula in obligations.all_of(hints, name, hints.stem.transitions[name])
        ]
        (made,) = found.calls
        said = [*_of_the_call(made), *_of_the_laws(stem, made), *_of_the_goals(stem, made, asked)]
        return Read(found.worlds[0], made, said, asked, [*made.world.axioms, *found.lemmas])


def _of_the_call(made: obligations.SymbolicCall) -> Iterator[Said]:
    for kind in ("promises", "choice"):
        for k, asked in enumerate(getattr(made.step, kind)):
            yield Said(asked.sentence, lift(asked.holds), partial(_asked, made, kind, k))
    for word in ("kept", "fits", "granted"):
        yield Said(word, lift(getattr(made.step, word)), partial(_word, word))


def _asked(made: obligations.SymbolicCall, kind: str, k: int, _: Finite, step: Step[Any], __: int) -> Any:
    """A promise or a choice; ``None`` where a call within the step is not made, which then asks nothing."""
    asked = getattr(step, kind)
    return asked[k].holds if len(asked) == len(getattr(made.step, kind)) else None


def _word(word: str, _: Finite, step: Step[Any], __: int) -> Any:
    return getattr(step, word)


def _of_the_laws(stem: str, made: obligations.SymbolicCall) -> Iterator[Said]:
    """Each law on the state before, as a whole and of one member."""
    for law in hints_of(stem).stem.invariants.values():
        *whole, last = obligations.law_at(made.world, law, made.pre, [made.one])
        yield Said(f"{law.name} before", last, partial(_before, law))
        for fact in whole:
            yield Said(f"{law.name} before, as a whole", fact, partial(_before, replace(law, at=None)))


def at_one(law: Invariant, at: Any, one: int) -> Any:
    """What the law says of one number, which may be no member; of the whole state where it is no law on each member."""
    if law.at is None or law.domain is None:
        return law.of(at)
    return law.at(at, one) if law.domain(at).has(one) else True


def _before(law: Invariant, call: Finite, _: Step[Any], one: int) -> Any:
    return at_one(law, call.state, one)


def _after(law: Invariant, _: Finite, step: Step[Any], one: int) -> Any:
    return at_one(law, step.then, one)


def _change(law: Change, names: list[str], call: Finite, step: Step[Any], _: int) -> Any:
    return law.of(call.state, step.then, dict(zip(names, call.arguments, strict=True)))


def _call(number: int, _: Finite, step: Step[Any], __: int) -> Any:
    return step.calls[number].step.granted


def _of_the_goals(stem: str, made: obligations.SymbolicCall, asked: list[Obligation]) -> Iterator[Said]:
    """The goals of the obligations. That a fitting call has a lawful answer is left out: no single call shows it."""
    laws, called = hints_of(stem).stem, itertools.count()
    for obligation in asked:
        name = obligation.what
        if name in laws.invariants:
            yield Said(f"{name} after", obligation.goal, partial(_after, laws.invariants[name]))
        elif name in laws.changes:
            yield Said(f"{name} of both", obligation.goal, partial(_change, laws.changes[name], [*made.arguments]))
        elif name.startswith(CALLS):
            yield Said(name, obligation.goal, partial(_call, next(called)))
        elif name == FITS:
            yield Said(name, obligation.goal, partial(_word, "fits"))


@contextmanager
def strictly() -> Iterator[None]:
    """The context in which a finite update that its listing leaves out is an error."""
    finite.STRICT.append(lambda arity: itertools.product(KEYS, repeat=arity) if arity > 1 else KEYS)
    try:
        yield
    finally:
        finite.STRICT.pop()


def differences(stem: str, name: str, known: Read, call: Finite, draw: random.Random, seen: Counter[str]) -> list[str]:
    """Where the formulas say something else of a finite call than the finite reading does."""
    one = draw.choice(KEYS)
    lawful = call.lawful and hints_of(stem).stem.transitions[name](call.state, *call.arguments).granted
    try:
        with nullcontext() if lawful else strictly():
            step = hints_of(stem).stem.transitions[name](call.state, *call.arguments)
            meant = [said.meant(call, step, one) for said in known.said]
    except AssertionError as error:
        if lawful or "among misses" not in str(error):
            raise
        return []  # the listing is right for granted calls in lawful states alone
    values = Values(known.world, lambda free: one if free.startswith("one!") else draw.choice(KEYS))
    values.say(known.made.pre, call.state)
    for symbols, plain in zip(known.made.arguments.values(), call.arguments, strict=True):
        values.say(symbols, plain)
    got = iter(compiled(known.formulas)(values, values.maps))
    wrong = []
    for said, value, plain in zip(known.said, got, meant, strict=False):
        if plain is not None and value is not bool(plain):
            wrong.append(f"{said.what}: {value} and not {plain}")
    wrong += [f"a lemma is false: {fact}" for fact, value in zip(known.lemmas, got, strict=False) if not value]
    for asked in known.obligations:
        given, core = (list(itertools.islice(got, len(facts))) for facts in (asked.given, asked.core))
        goal = next(got)
        seen[f"{asked.what} {'follows' if all(given) else 'is not asked'}"] += 1
        if all(given) and not goal:
            wrong.append(f"{asked.what} does not follow")
        if lawful and asked.what != ATOMIC and not all((*given, *core)):
            wrong.append(f"{asked.what} is proved from what is not true of a lawful call")
    assert next(got, None) is None
    return wrong + _otherwise_after(known.made, step, values)


def _otherwise_after(made: obligations.SymbolicCall, step: Step[Any], values: Values) -> list[str]:
    """The fields of which the formulas say another value after the call than the finite reading."""
    wrong = []
    for path, symbols, plain in _pairs(made.step.then, step.then, ""):
        if isinstance(symbols, SymMap):
            written = {key if isinstance(key, tuple) else (key,) for key, _ in plain.items()}
            names = [z3.Int(f"at {k}") for k in range(symbols.arity)]
            evaluated = compiled((lift(symbols(*map(Term, names))),))
            for key in {*written, *itertools.product(KEYS[:3], repeat=symbols.arity)}:
                values.update(zip((f"at {k}" for k in range(symbols.arity)), key, strict=True))
                if evaluated(values, values.maps)[0] != plain(*key):
                    wrong.append(f"{path}{key} after the call")
        elif values.value(symbols) != plain:
            wrong.append(f"{path} after the call")
    return wrong


def _pairs(symbols: Any, plain: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """The fields of a state that can change, in both readings."""
    for f in fields(symbols):
        one, other = getattr(symbols, f.name), getattr(plain, f.name)
        if is_dataclass(one):
            yield from _pairs(one, other, f"{path}{f.name}.")
        elif not f.metadata.get("constant"):
            yield path + f.name, one, other


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("stem", "part"),
    [
        pytest.param(stem, part, marks=[pytest.mark.soak] if part else [])
        for stem in LOOKED_AT
        for part in range(PARTS.get(stem, 1))
    ],
)
def test_the_formulas_say_what_the_finite_reading_says(stem: str, part: int) -> None:
    draw = random.Random(SEED)
    for name in [*hints_of(stem).stem.transitions][part :: PARTS.get(stem, 1)]:
        known, seen = read(stem, name), Counter[str]()
        for call in calls_of(stem, name):
            assert differences(stem, name, known, call, draw, seen) == [], (name, call)
        asked = {obligation.what for obligation in known.obligations} - {ATOMIC}
        assert {what for what in asked if not seen[f"{what} follows"]} == set(), "never were all hypotheses true"


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("stem", LOOKED_AT)
def test_both_readings_agree_on_laws_that_are_false(stem: str) -> None:
    """The states are damaged ones. Laws of a part are looked at in the stem of the part."""
    hints, draw = hints_of(stem), random.Random(SEED)
    laws, world = [law for law in hints.stem.invariants.values() if not law.inherited], Remembering()
    pre, member = state(world, hints.stem.state), Term(world.fresh("one"))
    read_so = [obligations.law_at(world, law, pre, [member]) for law in laws]
    evaluated, symbols = compiled(tuple(fact for facts in read_so for fact in facts)), places(pre)
    met = [call.state for granted, _ in walked(stem).values() for call in granted]
    never = {law.name for law in laws}
    for number in range(10 * DAMAGES):
        at, one = damage(draw, draw.choice(met)), draw.choice(KEYS)
        values = Values(world, partial(_always, one))
        values.say_of(symbols, at)
        got = iter(evaluated(values, values.maps))
        for law, facts in zip(laws, read_so, strict=True):
            said = list(itertools.islice(got, len(facts)))
            whole = [bool(law.of(at))] if len(facts) == 2 else []
            assert said == [*whole, bool(at_one(law, at, one))], (law.name, at, one)
            never -= set() if all(said) else {law.name}
        if not never or (number >= DAMAGES and len(never) <= SELDOM * len(laws)):
            break
    assert len(never) <= SELDOM * len(laws), never


@pytest.mark.parametrize("stem", LOOKED_AT)
def test_what_is_proved_of_all_states_is_true_of_finite_ones(stem: str) -> None:
    """The first state, the theorems, and the calls that bring a state to rest."""
    hints, draw, followed = hints_of(stem), random.Random(SEED), set[str]()
    assert hints.stem.start is not None
    met = [call.state for granted, others in walked(stem).values() for call in (*granted[:3], *others[:1])]
    with remembering() as found:
        for formula in obligations.all_of(hints, START, hints.stem.start):
            if law_of(formula.invariant) == COMES_BACK:
                continue  # it is about calls with arguments: tests/test_drain.py makes them
            world = found.worlds[-1]
            symbols = places(state(world, hints.stem.state))
            evaluated = compiled((*formula.given, *(formula.core_facts or ()), formula.goal))
            for at, one in [(at, draw.choice(KEYS)) for at in draw.sample(met, min(12, len(met)))]:
                values = Values(world, partial(_always, one))
                values.say_of(symbols, at)
                *given, goal = evaluated(values, values.maps)
                plain = _meant_of_all(hints, formula.invariant, at, one)
                assert plain is None or goal is plain, (formula.invariant, at, one)
                assert goal or not all(given), f"{formula.invariant} does not follow"
                followed |= {formula.invariant} if all(given) else set()
    laws = {name for name in hints.stem.invariants if hints.stem.invariants[name].theorem}
    assert laws <= followed


def _meant_of_all(hints: Hints, what: str, at: Any, one: int) -> bool | None:
    """What the finite reading says of a theorem on a state, or of a law on the first state of the same sizes."""
    law = hints.stem.invariants.get(what)
    if law is None:
        return None
    if not law.theorem:
        assert hints.stem.start is not None
        at = hints.stem.start(at)
    return bool(at_one(law, at, one))


def _always(one: int, _: str) -> int:
    return one
