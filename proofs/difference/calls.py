"""Transitions of both revisions: what they promise, choose and do, and whether the solvers find it changed.

Requirements are known by their sentences: where one revision has a sentence that the other one lacks, the requirement
with the very formula, else one that implies it or follows from it, is taken for the old one in other words.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any

import z3

from proofs import prover
from proofs.difference import beside, verdict
from proofs.difference.beside import (
    KEYS,
    NEW,
    OLD,
    CountedFormula,
    RevisionPair,
    UnknownArgument,
    apart,
    arguments_of,
    formulas_of,
    kinds_of,
    plainly_true,
    states_of,
    values,
)
from proofs.difference.decide import FALSE, TRUE, UNKNOWN, Answer, Entailment, decide
from proofs.difference.laws import ONE_FORMULA, Sources, helpers
from proofs.difference.row import (
    ADDED,
    CHOICE,
    DROPPED,
    FIRST_STATE,
    FIT,
    INCOMPARABLE,
    NOT_KNOWN,
    PROMISE,
    RENAMED,
    SAME,
    SAME_MEANING,
    STATE_CHANGED,
    STRENGTHENED,
    TRANSITION,
    WEAKENED,
    Example,
    Row,
    Side,
)
from proofs.difference.texts import of_one_text
from proofs.difference.verdict import ChangeVerdict
from proofs.obligations import law_at
from proofs.symbols import SymSeq, Term, World, lift, state
from spec.logic import FIRST_STATE as START
from spec.logic import Requirement, Stem, Step, every

FITS = "the call fits"


@dataclass(frozen=True)
class Calls:
    """One call of a transition on symbols, as both revisions read it."""

    world: World
    states: tuple[Any, Any]
    arguments: tuple[dict[str, Any], ...]
    steps: tuple[Step[Any], Step[Any]]
    counts: tuple[tuple[Any, ...], tuple[Any, ...]]

    def said(self, side: int, formula: Any) -> CountedFormula:
        """A formula of a revision, with what is counted in it."""
        return CountedFormula(lift(formula), self.counts[side])

    def is_one(self, old: Any, new: Any) -> bool:
        """Both formulas are one, whatever the solvers say."""
        return beside.is_one_formula(self.said(OLD, old), self.said(NEW, new))


def calls_of(world: World, pair: RevisionPair, names: tuple[str, str]) -> Calls:
    """The call of a transition of each revision; ``START`` for the first state. Raises ``UnknownArgument``."""
    states = states_of(world, pair)
    functions = [_function(stem, name) for stem, name in zip(pair.stems, names, strict=True)]
    first = names[OLD] == START
    signatures = [{} if first else kinds_of(function) for function in functions]
    arguments = arguments_of(world, pair, states, *signatures)
    steps, counts = [], []
    for function, held, given in zip(functions, states, arguments, strict=True):
        start = len(world.counts)
        steps.append(Step(then=function(held)) if first else function(held, **given))
        counts.append(tuple(world.counts[start:]))
    return Calls(world, states, arguments, (steps[OLD], steps[NEW]), (counts[OLD], counts[NEW]))


def _function(stem: Stem, name: str) -> Any:
    return stem.start if name == START else stem.transitions[name]


# Which transitions differ.


def differing(pair: RevisionPair, sources: Sources) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The transitions of both revisions that differ; a transition that differs only in what the transitions of its
    parts do stands with the names of these, ``PART.TRANSITION``, and with no name where it differs by itself.
    """
    was, now = (stem.transitions for stem in pair.stems)
    for name in (START, *was):
        if name == START or name in now:
            same_text = name == START or _sentence(was[name]) == _sentence(now[name])
            if not (same_text and (_of_one_text(pair, sources, name) or _alike(pair, name, stubbed=False))):
                through = _parts_called(pair, name) if same_text and pair.stems[NEW].parts else ()
                yield name, through


def _of_one_text(pair: RevisionPair, sources: Sources, name: str) -> bool:
    if any(stem.start is None for stem in pair.stems) and name == START:
        return False
    one, other = (_function(stem, name) for stem in pair.stems)
    return of_one_text(sources, one, other)


def _parts_called(pair: RevisionPair, name: str) -> tuple[str, ...]:
    """The transitions of parts that a transition calls, if it does the same as before with whatever they do."""
    if name == START or not _alike(pair, name, stubbed=True):
        return ()
    made = calls_of(World(), pair, (name, name)).steps[NEW].calls
    return tuple(sorted({f"{pair.stems[NEW].parts[c.part].name}.{c.transition.__name__}" for c in made}))


def _alike(pair: RevisionPair, name: str, stubbed: bool) -> bool:
    """Both revisions read one and the same of the transition. ``stubbed``: whatever the transitions of parts do."""
    if any(stem.start is None for stem in pair.stems) and name == START:
        return all(stem.start is None for stem in pair.stems)
    world = World()
    try:
        if not stubbed:
            made = calls_of(world, pair, (name, name))
        else:
            with _stubs(pair, world) as asked:
                made = calls_of(world, pair, (name, name))
            if not _all_one(made, asked[OLD], asked[NEW]):
                return False
    except UnknownArgument:
        return False
    if made.arguments[OLD].keys() != made.arguments[NEW].keys():
        return False
    old, new = made.steps
    if [c.sentence for c in _requirements(old)] != [c.sentence for c in _requirements(new)]:
        return False
    asked_alike = all(
        made.is_one(a.holds, b.holds) for a, b in zip(_requirements(old), _requirements(new), strict=True)
    )
    return asked_alike and _called(old) == _called(new) and not _changed_values(made) and not _set_alone(made, pair)


def _all_one(made: Calls, old: list[Any], new: list[Any]) -> bool:
    was, now = ([list(formulas_of(value)) for value in one] for one in (old, new))
    return [len(one) for one in was] == [len(one) for one in now] and all(
        made.is_one(a, b) for one, other in zip(was, now, strict=True) for a, b in zip(one, other, strict=True)
    )


def _requirements(step: Step[Any]) -> list[Requirement]:
    return [*step.promises, *step.choice, Requirement(FITS, step.fits)]


def _called(step: Step[Any]) -> list[tuple[str, str]]:
    return [(call.part, call.transition.__name__) for call in step.calls]


@contextmanager
def _stubs(pair: RevisionPair, world: World) -> Iterator[tuple[list[Any], list[Any]]]:
    """While this is open, the transitions of the parts ask and do what nobody knows; what they are asked is kept."""
    asked: tuple[list[Any], list[Any]] = ([], [])
    replaced = []
    try:
        for side, stem in enumerate(pair.stems):
            for part in stem.parts.values():
                for name, function in part.transitions.items():
                    module = vars(sys.modules[function.__module__])
                    if module.get(name) is function:
                        replaced.append((module, name, function))
                        module[name] = partial(_unknown, world, part, name, asked[side])
                        module[name].__name__ = name
        yield asked
    finally:
        for module, name, function in replaced:
            module[name] = function


def _unknown(
    world: World, part: Stem, name: str, asked: list[Any], before: Any, *given: Any, **named: Any
) -> Step[Any]:
    """The step of a transition of which nothing is known."""
    number = len([one for one in asked if one is _MARK])
    asked += [_MARK, before, *given, *named.values()]
    path = f"after {number} {name}."
    kept, chosen, fits = (Term(z3.Bool(f"{path}{what}")) for what in ("kept", "chosen", "fits"))
    return Step(
        then=beside.with_constants(state(world, part.state, path), before),
        promises=(Requirement(f"promises of {name}", kept),),
        choice=(Requirement(f"choice of {name}", chosen),),
        fits=fits,
    )


_MARK = "a call of a part begins"


def _changed_values(made: Calls) -> list[str]:
    """The names of the values of the state after a granted call whose formulas are not one."""
    return [name for name, old, new in _values_after(made) if not made.is_one(old, new)]


def _values_after(made: Calls) -> Iterator[tuple[str, Any, Any]]:
    """Each value that both revisions have: its name, and the old and new formula after a granted and a refused call."""
    for what in ("then", "otherwise"):
        ends = [getattr(step, what) for step in made.steps]
        if what == "otherwise" and all(end is None for end in ends):
            continue
        old, new = (
            {name: value for name, value, _ in values(held if end is None else end)}
            for end, held in zip(ends, made.states, strict=True)
        )
        label = "" if what == "then" else "refused: "
        yield from (
            (f"{label}{name}", old[name], new[name]) for name in old if name in new and _sorts_agree(old, new, name)
        )


def _sorts_agree(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> bool:
    return bool(old[name].sort() == new[name].sort())


def _set_alone(made: Calls, pair: RevisionPair) -> list[str]:
    """The fields of one revision alone that its transition sets."""
    found: list[str] = []
    own = {*apart(*(stem.state for stem in pair.stems)).all}
    for side in (OLD, NEW) if own else ():
        before = {name: value for name, value, _ in values(made.states[side])}
        after = {name: value for name, value, _ in values(made.steps[side].then)}
        found += [name for name in after if name in own and name in before and not before[name].eq(after[name])]
    return sorted({*found})


# What changed in a transition.


def judged(
    pair: RevisionPair, sources: Sources, name: str, new_name: str = "", also_in: tuple[str, ...] = ()
) -> list[Row]:
    """The rows of a transition, and of its promises, choices and fit. ``new_name``: where it has another name now."""
    names = (name, new_name or name)
    first = name == START
    functions = tuple(_function(stem, one) for stem, one in zip(pair.stems, names, strict=True))
    sides = [Side(one, _sentence(f), t.formula(f)) for one, f, t in zip(names, functions, sources, strict=True)]
    row = partial(
        Row,
        FIRST_STATE if first else TRANSITION,
        names[NEW],
        stem=pair.name,
        old=sides[OLD],
        new=sides[NEW],
        helpers=helpers(sources, *functions),
        also_in=also_in,
    )
    unknown = partial(row, change=INCOMPARABLE, guarantee=NOT_KNOWN, decided=False)
    try:
        made = calls_of(World(), pair, names)
    except UnknownArgument as error:
        return [unknown(notes=(f"Not judged: {error}.",))]
    notes, verdicts, examples = [], [], []
    lost, gained = ({*kinds_of(f).items()} for f in functions) if not first else (set(), set())
    if lost != gained:
        notes.append(f"Its arguments were {_words(functions[OLD])}; they are {_words(functions[NEW])}.")
        verdicts.append(ChangeVerdict(INCOMPARABLE, INCOMPARABLE, True))
    if _called(made.steps[OLD]) != _called(made.steps[NEW]):
        notes.append(f"It called {_dots(made.steps[OLD])}; it calls {_dots(made.steps[NEW])}.")
    fields = tuple(_fields_read(made, pair, functions))
    asked = list(_asked(pair, sources, names, made)) if not first else []
    verdicts += [found for _, found in asked]
    if changed := _changed_values(made):
        answer = decide(partial(_does_alike, pair=pair, names=names), pair)
        verdicts.append(
            {
                TRUE: ChangeVerdict(SAME_MEANING, SAME, True),
                FALSE: ChangeVerdict(INCOMPARABLE, INCOMPARABLE, True),
                UNKNOWN: ChangeVerdict(INCOMPARABLE, NOT_KNOWN, False),
            }[answer.answer]
        )
        notes.append(_told_effect(answer, changed))
        if answer.example is not None:
            examples.append(
                Example("A call that both revisions grant, and after which their states differ.", dict(answer.example))
            )
    found = verdict.of_both(verdicts)
    change = found.change
    if fields:
        change = STATE_CHANGED
        notes.append("It reads or sets fields that only one revision has.")
    elif new_name and change == SAME_MEANING:
        change = RENAMED
    elif not notes and not asked and sides[OLD].sentence != sides[NEW].sentence:
        notes.append(ONE_FORMULA)
    rows = [one for one, _ in asked]
    if rows and change == SAME_MEANING and not notes and sides[OLD].sentence == sides[NEW].sentence:
        return rows  # only requirements changed, and none of them in its meaning
    return [
        row(
            change=change,
            guarantee=NOT_KNOWN if fields else found.guarantee,
            decided=found.decided,
            notes=tuple(notes),
            examples=tuple(examples),
            fields=fields,
        ),
        *rows,
    ]


def _fields_read(made: Calls, pair: RevisionPair, functions: Any) -> list[str]:
    del functions
    differ = apart(*(stem.state for stem in pair.stems))
    if not differ.all:
        return []
    asked = [lift(r.holds) for step in made.steps for r in _requirements(step)]
    after = [value for _, old, new in _values_after(made) for value in (old, new) if not old.eq(new)]
    counts = [count for known in made.counts for count in known]
    return sorted({*differ.read_by(beside.symbols_in([*asked, *after], counts)), *_set_alone(made, pair)})


def _told_effect(answer: Answer, changed: list[str]) -> str:
    what = ", ".join(changed[:8]) + (", …" if len(changed) > 8 else "")
    return {
        TRUE: f"It does what it did: {answer.by} ({what} are written otherwise).",
        FALSE: f"It does something else to {what}: {answer.by}.",
        UNKNOWN: f"Whether it still does what it did to {what} is not known: {answer.by}.",
    }[answer.answer]


def _sentence(function: Any) -> str:
    return " ".join((getattr(function, "__doc__", "") or "").split())


def _words(function: Any) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in kinds_of(function).items()) or "none"


def _dots(step: Step[Any]) -> str:
    return ", ".join(f"{part}.{name}" for part, name in _called(step)) or "nothing"


# Requirements.


@dataclass(frozen=True)
class _Match:
    """A requirement of both revisions, by the numbers in each; ``None`` where one revision lacks it."""

    kind: str
    old: Requirement | None
    new: Requirement | None


def _asked(
    pair: RevisionPair, sources: Sources, names: tuple[str, str], made: Calls
) -> Iterator[tuple[Row, ChangeVerdict]]:
    """The rows of the requirements that changed, each with its verdict."""
    for match in _matches(pair, names, made):
        yield _weighed(pair, sources, names, made, match)


def _matches(pair: RevisionPair, names: tuple[str, str], made: Calls) -> Iterator[_Match]:
    old, new = made.steps
    for kind, was, now in ((PROMISE, old.promises, new.promises), (CHOICE, old.choice, new.choice)):
        yield from _paired(pair, names, made, kind, [*was], [*now])
    if not made.is_one(old.fits, new.fits):
        yield _Match(FIT, Requirement(FITS, old.fits), Requirement(FITS, new.fits))


def _paired(
    pair: RevisionPair, names: tuple[str, str], made: Calls, kind: str, was: list[Requirement], now: list[Requirement]
) -> Iterator[_Match]:
    for one in [*was]:
        twin = next(
            (other for other in now if other.sentence == one.sentence and made.is_one(one.holds, other.holds)), None
        )
        if twin is not None:
            _take(was, one)
            _take(now, twin)
    for alike in (
        lambda one, other: one.sentence == other.sentence,
        lambda one, other: made.is_one(one.holds, other.holds),
        lambda one, other: _near(pair, names, made, one, other),
    ):
        for one in [*was]:
            twin = next((other for other in now if alike(one, other)), None)
            if twin is not None:
                _take(was, one)
                _take(now, twin)
                yield _Match(kind, one, twin)
    yield from (_Match(kind, one, None) for one in was)
    yield from (_Match(kind, None, other) for other in now)


def _take(found: list[Requirement], one: Requirement) -> None:
    """Takes out this very requirement: two of them cannot be compared by what they say."""
    del found[next(number for number, other in enumerate(found) if other is one)]


def _near(pair: RevisionPair, names: tuple[str, str], made: Calls, one: Requirement, other: Requirement) -> bool:
    """One of two requirements follows from the other, whatever else is asked, and neither says nothing."""
    del pair, names
    was, now = lift(one.holds), beside.in_terms_of(made.said(NEW, other.holds), made.said(OLD, one.holds))
    if _always(made, was) or _always(made, now):
        return False
    return _always(made, z3.Implies(was, now)) or _always(made, z3.Implies(now, was))


def _always(made: Calls, formula: Any) -> bool:
    assertions = [*made.world.axioms, z3.Not(formula)]
    return plainly_true(formula) or prover.looking(assertions, prover.QUICK, prover.GLANCE.z3 // 5).check() == z3.unsat


def _weighed(
    pair: RevisionPair, sources: Sources, names: tuple[str, str], made: Calls, match: _Match
) -> tuple[Row, ChangeVerdict]:
    one, other = match.old, match.new
    sides = [
        None if r is None else Side(r.sentence, r.sentence, _formula(texts, r, stem, name))
        for r, texts, stem, name in zip((one, other), sources, pair.stems, names, strict=True)
    ]
    known = other or one
    assert known is not None
    row = partial(
        Row, match.kind, known.sentence, stem=pair.name, transition=names[NEW], old=sides[OLD], new=sides[NEW]
    )
    differ = apart(*(stem.state for stem in pair.stems))
    symbols = {
        name
        for side, r in ((OLD, one), (NEW, other))
        if r is not None
        for name in beside.symbols_in([lift(r.holds)], made.counts[side] if differ.all else ())
    }
    if fields := differ.read_by(symbols):
        change = STATE_CHANGED if one and other else ADDED if other else DROPPED
        note = "It reads fields that only one revision has, so that it is not compared."
        made_row = row(change=change, guarantee=NOT_KNOWN, notes=(note,), fields=tuple(fields))
        return made_row, ChangeVerdict(INCOMPARABLE, NOT_KNOWN, True)
    if one is not None and other is not None and made.is_one(one.holds, other.holds):
        return row(change=SAME_MEANING, notes=(ONE_FORMULA,)), ChangeVerdict(SAME_MEANING, SAME, True)
    says_new = _answer(pair, names, match.kind, OLD, other)
    says_old = _answer(pair, names, match.kind, NEW, one)
    of = verdict.of_law if match.kind == CHOICE else verdict.of_asked
    found = of(says_new.answer, says_old.answer)
    change = DROPPED if other is None else ADDED if one is None else found.change
    notes = _told(match.kind, says_new if other else None, says_old if one else None)
    examples = _examples(match.kind, says_new, says_old)
    made_row = row(
        change=change, guarantee=found.guarantee, decided=found.decided, notes=tuple(notes), examples=tuple(examples)
    )
    return made_row, found


def _formula(texts: Any, asked: Requirement, stem: Stem, name: str) -> str:
    function = stem.transitions[name]
    return "" if asked.sentence == FITS else texts.asked(asked.sentence, function)


def _told(kind: str, says_new: Answer | None, says_old: Answer | None) -> Iterator[str]:
    new, old = {
        PROMISE: ("A caller who kept the old promises keeps it", "A caller who keeps the new promises kept it"),
        CHOICE: ("An answer that the old revision allowed keeps it", "An answer that the new revision allows keeps it"),
        FIT: ("A call that fitted fits", "A call that fits fitted"),
    }[kind]
    for said, answer in ((new, says_new), (old, says_old)):
        if answer is not None:
            word = {TRUE: "yes", FALSE: "no", UNKNOWN: "not known"}[answer.answer]
            yield f"{said}: {word}; {answer.by}."


def _examples(kind: str, says_new: Answer, says_old: Answer) -> Iterator[Example]:
    new, old = {
        PROMISE: (
            "A call that only the old revision lets a caller make.",
            "A call that only the new revision lets a caller make.",
        ),
        CHOICE: ("An answer that only the old revision allows.", "An answer that only the new revision allows."),
        FIT: ("A call that fitted and no longer fits.", "A call that fits and did not fit."),
    }[kind]
    for said, answer in ((new, says_new), (old, says_old)):
        if answer.example is not None:
            yield Example(said, dict(answer.example))


# Claims.


def _answer(pair: RevisionPair, names: tuple[str, str], kind: str, by: int, target: Requirement | None) -> Answer:
    """Whether all that a revision (``by``) asks of this kind implies the requirement of the other one."""
    if target is None:
        return Answer(TRUE)
    return decide(partial(_asks, pair=pair, names=names, kind=kind, by=by, sentence=target.sentence), pair)


def _asks(world: World, pair: RevisionPair, names: tuple[str, str], kind: str, by: int, sentence: str) -> Entailment:
    made = calls_of(world, pair, names)
    world.counts += [count for known in made.counts for count in known]

    def asked(steps: tuple[Step[Any], ...]) -> list[Any]:
        mine = steps[by]
        if kind == PROMISE:
            return [mine.kept]
        both = [step.kept for step in steps]
        if kind == FIT:
            return [*both, mine.fits]
        return [*both, *(step.fits for step in steps), *(r.holds for r in mine.choice)]

    def goal(step: Step[Any]) -> Any:
        if kind == FIT:
            return step.fits
        found = step.promises if kind == PROMISE else step.choice
        return every(r.holds for r in found if r.sentence == sentence)

    return _claim(pair, names, made, asked, lambda steps: goal(steps[1 - by]), lift(goal(made.steps[1 - by])))


def _does_alike(world: World, pair: RevisionPair, names: tuple[str, str]) -> Entailment:
    """Where both revisions grant a call, the states after it are equal wherever anybody reads them."""
    made = calls_of(world, pair, names)
    world.counts += [count for known in made.counts for count in known]
    where = {name: read for name, _, read in values(made.steps[NEW].then)}
    goals = [z3.Implies(where.get(name, lift(True)), old == new) for name, old, new in _values_after(made)]
    claim = _claim(pair, names, made, lambda steps: [step.granted for step in steps], None, z3.And(*goals))
    if not world.small:
        return claim
    largest = max(world.sizes.values(), default=2)
    near = z3.And(*(z3.And(key.z >= 0, key.z <= largest) for key in KEYS))
    return replace(claim, goal=z3.Implies(near, claim.goal))


def _claim(pair: RevisionPair, names: tuple[str, str], made: Calls, asked: Any, holds: Any, goal: Any) -> Entailment:
    """A claim about a call in a state that is lawful in both revisions. ``holds``: the goal in the finite reading;
    ``None`` where the states after both steps are compared.
    """
    world, first = made.world, names[OLD] == START

    def required() -> list[Any]:
        return [] if first else [lift(truth) for truth in asked(made.steps)]

    def lawful() -> list[Any]:
        facts = []
        for stem, held in zip(pair.stems, made.states, strict=True):
            for law in stem.invariants.values():
                if not law.theorem:
                    one = law.current() if law.inherited and not world.small else law
                    facts += law_at(world, one, held, _members(pair, made))
        return [*required(), *([] if first else facts)]

    def confirmed(read: Mapping[str, Any]) -> bool:
        held = (read["other before"], read["before"])
        if not first and any(stem.broken(st) for stem, st in zip(pair.stems, held, strict=True)):
            return False
        functions = [_function(stem, name) for stem, name in zip(pair.stems, names, strict=True)]
        steps = tuple(
            Step(then=f(st)) if first else f(st, **{name: read[name] for name in given})
            for f, st, given in zip(functions, held, made.arguments, strict=True)
        )
        if not all(first or truth for truth in asked(steps)):
            return False
        return _differ(*(step.then for step in steps)) if holds is None else not holds(steps)

    arguments = {name: symbol for given in made.arguments for name, symbol in given.items()}
    return Entailment(
        (required, lawful),
        goal,
        {"before": made.states[NEW], **arguments},
        confirmed,
        {"other before": made.states[OLD]},
        [symbol for symbol in arguments.values() if isinstance(symbol, SymSeq)],
        list(itertools.product(*made.counts)),
    )


def _members(pair: RevisionPair, made: Calls) -> list[Any]:
    """The members that the arguments of the call name."""
    places = {} if pair.hints is None else pair.hints.places
    return [symbol for name, symbol in made.arguments[NEW].items() if name in places]


def _differ(one: Any, other: Any) -> bool:
    """Two states of the finite reading differ in a field that both have."""
    names = [name for name in vars(one) if hasattr(other, name)]
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        if is_dataclass(a):
            if _differ(a, b):
                return True
        elif hasattr(a, "items") and hasattr(a, "arity"):
            if {k: v for k, v in a.items() if v != a.default} != {k: v for k, v in b.items() if v != b.default}:
                return True
        elif not hasattr(a, "items") and a != b:
            return True
    return False


# Transitions of one revision alone.


def alone(pair: RevisionPair, sources: Sources) -> list[Row]:
    """The transitions that only one revision has: renamed, dropped or added."""
    was, now = (stem.transitions for stem in pair.stems)
    dropped, added = [n for n in was if n not in now], [n for n in now if n not in was]
    rows = []
    for name in [*dropped]:
        for other in [*added]:
            if kinds_of(was[name]) == kinds_of(now[other]) and _may_be_one(pair, name, other):
                found = judged(pair, sources, name, other)
                if found[0].change == RENAMED:
                    rows += [replace(found[0], notes=(f"It was called {name} before.", *found[0].notes)), *found[1:]]
                    dropped.remove(name)
                    added.remove(other)
                    break
    for names, side, change in ((dropped, OLD, DROPPED), (added, NEW, ADDED)):
        for name in names:
            function = pair.stems[side].transitions[name]
            said = Side(name, _sentence(function), sources[side].formula(function))
            rows.append(
                Row(
                    TRANSITION,
                    name,
                    change,
                    pair.name,
                    guarantee=WEAKENED if change == DROPPED else STRENGTHENED,
                    old=said if side == OLD else None,
                    new=said if side == NEW else None,
                    notes=(
                        "Callers can no longer make this call."
                        if change == DROPPED
                        else "Callers can make a new call.",
                    ),
                )
            )
    return rows


def _may_be_one(pair: RevisionPair, name: str, other: str) -> bool:
    """Both transitions ask as many promises and choices; else nobody has to ask the solvers."""
    try:
        made = calls_of(World(), pair, (name, other))
    except UnknownArgument:
        return False
    old, new = made.steps
    return (len(old.promises), len(old.choice)) == (len(new.promises), len(new.choice))
