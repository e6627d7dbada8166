"""Laws, theorems and laws of two states of both revisions: what changed in them, by the solvers.

A law is judged under all laws of a revision: what the new one says is *guaranteed* before where it follows from all old
laws. A theorem follows from the laws in any case, so two theorems are compared alone, on every state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from proofs.difference import beside, verdict
from proofs.difference.beside import NEW, OLD, RevisionPair, UnknownArgument, apart, arguments_of, kinds_of, states_of
from proofs.difference.decide import FALSE, TRUE, UNKNOWN, Answer, Build, Entailment, decide
from proofs.difference.row import (
    ADDED,
    DROPPED,
    INCOMPARABLE,
    LAW,
    NOT_KNOWN,
    OF_TWO_STATES,
    RENAMED,
    STATE_CHANGED,
    STRENGTHENED,
    THEOREM,
    WEAKENED,
    Example,
    Row,
    Side,
)
from proofs.difference.texts import Function, RevisionTexts, of_one_text
from proofs.obligations import law_at
from proofs.symbols import Term, World, lift
from spec.logic import Change, Invariant, Stem

Rule = Invariant | Change
Sources = tuple[RevisionTexts, RevisionTexts]
ONE_FORMULA = "Both formulas are one and the same."
META = {
    "about": "the parts that it relates",
    "latent": "latent: a state that breaks it does harm only when stale data is read later",
    "counts": "it counts",
    "uses": "laws of the state after that its proof uses",
    "ledger": "it speaks of a ledger of the law alone",
    "besides": "the transitions that it does not bind",
    "only": "the only transitions that it binds",
}


def rules_of(stem: Stem) -> dict[str, Rule]:
    """The stem's own laws, theorems and laws of two states, by name."""
    return {**{law.name: law for law in stem.invariants.values() if not law.inherited}, **stem.changes}


def kind_of(rule: Rule) -> str:
    """Whether it is a law, a theorem or a law of two states."""
    return OF_TWO_STATES if isinstance(rule, Change) else THEOREM if rule.theorem else LAW


def differing(pair: RevisionPair, sources: Sources) -> Iterator[str]:
    """The names of the rules of both revisions that differ in their formula, their sentence or what else they say."""
    was, now = (rules_of(stem) for stem in pair.stems)
    for name in was:
        if name in now and not (_alike(pair, sources, was[name], now[name]) and _one_text(pair, was[name], now[name])):
            yield name


def _one_text(pair: RevisionPair, one: Rule, other: Rule) -> bool:
    return one.sentence == other.sentence and not _meta(pair, one, other) and kind_of(one) == kind_of(other)


def _alike(pair: RevisionPair, sources: Sources, one: Rule, other: Rule) -> bool:
    """Both formulas are one, whatever the solvers say; where all that they are made of is one text, they are."""
    return of_one_text(sources, _function(one), _function(other)) or _one_formula(pair, one, other)


def _one_formula(pair: RevisionPair, one: Rule, other: Rule) -> bool:
    try:
        return beside.is_one_formula(*_said(pair, one, other))
    except UnknownArgument:
        return False


def _said(
    pair: RevisionPair, one: Rule, other: Rule, sides: tuple[int, int] = (OLD, NEW)
) -> tuple[beside.CountedFormula, beside.CountedFormula]:
    """What both rules say of one state, or of two; ``sides``: of which revision each is."""
    world = World()
    both = states_of(world, pair)
    states = [both[side] for side in sides]
    if isinstance(one, Change) and isinstance(other, Change):
        after = [beside.later(world, pair, both)[side] for side in sides]
        given = arguments_of(world, pair, both, *(kinds_of(law.holds, 2) for law in (one, other)))
        return (
            beside.change_said(world, one, states[0], after[0], given[0]),
            beside.change_said(world, other, states[1], after[1], given[1]),
        )
    member = Term(world.fresh("one"))
    if isinstance(one, Change) or isinstance(other, Change):
        return beside.CountedFormula(lift(True), ()), beside.CountedFormula(lift(False), ())
    return beside.law_said(world, one, states[0], member), beside.law_said(world, other, states[1], member)


def _meta(pair: RevisionPair, one: Rule, other: Rule) -> list[str]:
    """What the revisions say differently beside the formula and the sentence, in sentences."""
    found = []
    for name, what in META.items():
        was, now = getattr(one, name, None), getattr(other, name, None)
        if was is not None and now is not None and was != now:
            found.append(f"{name} ({what}): {_list(was)} before, {_list(now)} now.")
    del pair
    return found


def _list(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value).lower()


# One rule of both revisions.


def judged(pair: RevisionPair, sources: Sources, name: str) -> Row:
    """What changed in a rule that both revisions have."""
    one, other = (rules_of(stem)[name] for stem in pair.stems)
    row = partial(
        Row,
        kind_of(other),
        name,
        stem=pair.name,
        old=side(sources[OLD], one),
        new=side(sources[NEW], other),
        helpers=helpers(sources, _function(one), _function(other)),
    )
    notes = _meta(pair, one, other)
    if kind_of(one) != kind_of(other):
        notes.append(f"It was a {kind_of(one).replace('_', ' ')} before.")
    if isinstance(one, Change) != isinstance(other, Change):
        return row(change=INCOMPARABLE, guarantee=NOT_KNOWN, decided=False, notes=tuple(notes))
    try:
        said = _said(pair, one, other)
    except UnknownArgument as error:
        return row(change=INCOMPARABLE, guarantee=NOT_KNOWN, decided=False, notes=(*notes, f"Not judged: {error}."))
    if beside.is_one_formula(*said):
        found, answers = verdict.of_law(TRUE, TRUE), []
        notes.append(ONE_FORMULA)
    else:
        if fields := apart(*(stem.state for stem in pair.stems)).read_by(said[OLD].symbols | said[NEW].symbols):
            notes.append("The formulas read fields that only one revision has, so that they are not compared.")
            return row(change=STATE_CHANGED, guarantee=NOT_KNOWN, notes=tuple(notes), fields=tuple(fields))
        answers = [decide(claim(pair, OLD, other, one), pair), decide(claim(pair, NEW, one, other), pair)]
        found = verdict.of_law(*(answer.answer for answer in answers))
        notes += told(*answers)
    found, more = _with_bound(pair, one, other, found)
    return row(
        change=found.change,
        guarantee=found.guarantee,
        decided=found.decided,
        notes=(*notes, *more),
        examples=tuple(shown(answers, _where(one, other))),
    )


def _with_bound(
    pair: RevisionPair, one: Rule, other: Rule, found: verdict.ChangeVerdict
) -> tuple[verdict.ChangeVerdict, list[str]]:
    """The verdict on a law of two states, whose transitions may be others than before."""
    if not (isinstance(one, Change) and isinstance(other, Change)):
        return found, []
    common = pair.stems[OLD].transitions.keys() & pair.stems[NEW].transitions.keys()
    lost = sorted(name for name in common if one.binds(name) and not other.binds(name))
    gained = sorted(name for name in common if other.binds(name) and not one.binds(name))
    bound = verdict.of_law(FALSE if gained else TRUE, FALSE if lost else TRUE)
    notes = [f"It no longer binds {', '.join(lost)}."] if lost else []
    return verdict.of_both([found, bound]), [*notes, *([f"It now binds {', '.join(gained)}."] if gained else [])]


def _where(one: Rule, other: Rule) -> str:
    if isinstance(one, Change):
        return "A call from one lawful state to another"
    return "A state, lawful or not," if isinstance(other, Invariant) and other.theorem else "A state"


def told(nothing_new: Answer, still_said: Answer) -> list[str]:
    """How both questions about a law were answered, in sentences."""
    return [
        "What the new revision says, the old one said: " + _answered(nothing_new),
        "What the old revision said, the new one still says: " + _answered(still_said),
    ]


def _answered(answer: Answer) -> str:
    word = {TRUE: "yes", FALSE: "no", UNKNOWN: "not known"}[answer.answer]
    return f"{word}; {answer.by}." if answer.by else f"{word}."


def shown(answers: Iterable[Answer], what: str) -> Iterator[Example]:
    """The examples of the answers: of what only the new revision forbids, and of what only the old one forbade."""
    words = (
        f"{what} that keeps what the old revision says and breaks what the new one says.",
        f"{what} that keeps what the new revision says and breaks what the old one said.",
    )
    for said, answer in zip(words, answers, strict=False):
        if answer.example is not None:
            yield Example(said, dict(answer.example))


# Claims.


def claim(pair: RevisionPair, by: int, target: Rule, namesake: Rule | None) -> Build:
    """What a revision (``by``) says implies the ``target``, a rule of the other one. A theorem is compared with its
    ``namesake`` alone.
    """
    if isinstance(target, Change):
        premises = [namesake] if isinstance(namesake, Change) else _binding(pair, by, target)
        return partial(_change_follows, pair=pair, by=by, target=target, premises=premises)
    alone = target.theorem and namesake is not None
    return partial(_law_follows, pair=pair, by=by, target=target, namesake=namesake, alone=alone)


def _law_follows(
    world: World, pair: RevisionPair, by: int, target: Invariant, namesake: Any = None, alone: bool = False
) -> Entailment:
    states, stem = states_of(world, pair), pair.stems[by]
    one = Term(world.fresh("one"))
    goal = law_at(world, target, states[1 - by], [one])[-1]
    fewest = [namesake] if isinstance(namesake, Invariant) else []
    relevant = pair.relevant(target.name)
    laws = [law for law in stem.invariants.values() if not law.theorem]

    def given(laws: list[Invariant]) -> list[Any]:
        return [fact for law in laws for fact in law_at(world, law, states[by], [one])]

    def all_given() -> list[Any]:
        if world.small:
            return given(laws)
        about = {*target.about}
        known = [law for law in laws if (law.inherited in about if law.inherited else about.issuperset(law.about))]
        return given([law.current() if law.inherited else law for law in known])

    def confirmed(values: Mapping[str, Any]) -> bool:
        kept = fewest if alone else laws
        return all(law.of(values["state"]) for law in kept) and not target.of(values["other"])

    few = partial(given, fewest)
    some = partial(given, [*fewest, *(law for law in laws if law.name in relevant and law not in fewest)])
    lists = (few,) if alone else (few, some, all_given)
    return Entailment(lists, goal, {"state": states[by]}, confirmed, {"other": states[1 - by]})


def _binding(pair: RevisionPair, by: int, target: Change) -> list[Change]:
    """The laws of two states of a revision that bind each transition that the target binds."""
    common = pair.stems[OLD].transitions.keys() & pair.stems[NEW].transitions.keys()
    bound = [name for name in common if target.binds(name)]
    return [law for law in pair.stems[by].changes.values() if all(map(law.binds, bound))]


def _change_follows(world: World, pair: RevisionPair, by: int, target: Change, premises: list[Change]) -> Entailment:
    states, stem = states_of(world, pair), pair.stems[by]
    after = beside.later(world, pair, states)
    given = arguments_of(world, pair, states, *(kinds_of(rule.holds, 2) for rule in (target, *premises)))
    arguments = {name: symbol for known in given for name, symbol in known.items()}
    goal = lift(target.of(states[1 - by], after[1 - by], arguments))
    laws = [law for law in stem.invariants.values() if not law.theorem]

    def few() -> list[Any]:
        return [lift(rule.of(states[by], after[by], arguments)) for rule in premises]

    def every() -> list[Any]:
        held = (states[by], after[by])
        kept = [law.current() if law.inherited and not world.small else law for law in laws]
        return [*few(), *(fact for law in kept for one in held for fact in law_at(world, law, one, []))]

    def confirmed(values: Mapping[str, Any]) -> bool:
        named = {name: value for name, value in values.items() if name in arguments}
        lawful = all(law.of(values[name]) for law in laws for name in ("before", "after"))
        kept = all(rule.of(values["before"], values["after"], named) for rule in premises)
        return lawful and kept and not target.of(values["other before"], values["other after"], named)

    return Entailment(
        (few, every),
        goal,
        {"before": states[by], "after": after[by], **arguments},
        confirmed,
        {"other before": states[1 - by], "other after": after[1 - by]},
    )


# Rules of one revision alone.


def alone(pair: RevisionPair, sources: Sources) -> list[Row]:
    """The rules that only one revision has: renamed where both say one thing under two names, else dropped or added."""
    was, now = (rules_of(stem) for stem in pair.stems)
    dropped = [rule for name, rule in was.items() if name not in now]
    added = [rule for name, rule in now.items() if name not in was]
    rows = []
    for one in [*dropped]:
        twin = next(
            (other for other in added if kind_of(one) == kind_of(other) and _is_renamed(pair, one, other)), None
        )
        if twin is not None:
            dropped.remove(one)
            added.remove(twin)
            rows.append(_renamed(pair, sources, one, twin))
    rows += [_single(pair, sources, rule, OLD) for rule in dropped]
    return rows + [_single(pair, sources, rule, NEW) for rule in added]


def _is_renamed(pair: RevisionPair, one: Rule, other: Rule) -> bool:
    """Both rules say one thing in every state, whether it is lawful or not."""
    try:
        said = _said(pair, one, _named(other, one.name))
    except UnknownArgument:
        return False
    if isinstance(one, Change) and isinstance(other, Change):
        names = pair.stems[OLD].transitions.keys() & pair.stems[NEW].transitions.keys()
        if any(one.binds(name) != other.binds(name) for name in names):
            return False
    if beside.is_one_formula(*said):
        return True
    if beside.plainly_true(said[OLD].formula) or beside.plainly_true(said[NEW].formula):
        return False
    if apart(*(stem.state for stem in pair.stems)).read_by(said[OLD].symbols | said[NEW].symbols):
        return False
    ways = ((OLD, _named(other, one.name), one), (NEW, one, _named(other, one.name)))
    return all(decide(_plain_claim(pair, *way), pair).answer == TRUE for way in ways)


def _plain_claim(pair: RevisionPair, by: int, target: Rule, namesake: Rule) -> Build:
    if isinstance(target, Change):
        assert isinstance(namesake, Change)
        return _first_list(partial(_change_follows, pair=pair, by=by, target=target, premises=[namesake]))
    return partial(_law_follows, pair=pair, by=by, target=target, namesake=namesake, alone=True)


def _first_list(build: Callable[..., Entailment]) -> Build:
    def built(world: World) -> Entailment:
        made = build(world)
        return replace(made, given=made.given[:1], confirmed=lambda _: True)

    return built


def _named(rule: Rule, name: str) -> Rule:
    return replace(rule, name=name)


def _renamed(pair: RevisionPair, sources: Sources, one: Rule, other: Rule) -> Row:
    notes = (
        [ONE_FORMULA]
        if _one_formula(pair, one, _named(other, one.name))
        else ["z3 and cvc5 prove that both say one thing."]
    )
    return Row(
        kind_of(other),
        other.name,
        RENAMED,
        pair.name,
        old=side(sources[OLD], one),
        new=side(sources[NEW], other),
        notes=(f"It was called {one.name} before.", *notes, *_meta(pair, one, other)),
    )


def _single(pair: RevisionPair, sources: Sources, rule: Rule, where: int) -> Row:
    """A rule that only one revision has, and whether the other one guarantees it without it."""
    dropped = where == OLD
    change, loss = (DROPPED, WEAKENED) if dropped else (ADDED, STRENGTHENED)
    texts = side(sources[where], rule)
    row = partial(
        Row, kind_of(rule), rule.name, change, pair.name, old=texts if dropped else None, new=None if dropped else texts
    )
    try:
        said = _said(pair, rule, rule, (where, where))[0]
    except UnknownArgument as error:
        return row(guarantee=NOT_KNOWN, decided=False, notes=(f"Not judged: {error}.",))
    if fields := apart(*(stem.state for stem in pair.stems)).read_by(said.symbols):
        return row(guarantee=loss, notes=("It reads fields that only one revision has.",), fields=tuple(fields))
    answer = decide(claim(pair, 1 - where, rule, None), pair)
    revision, said_it = ("new", "still says it") if dropped else ("old", "said it already")
    what = f"{_where(rule, rule)} that keeps every law of the {revision} revision and breaks this one."
    return row(
        guarantee=verdict.of_one(answer.answer, loss),
        decided=answer.answer != UNKNOWN,
        notes=(f"The {revision} revision {said_it}, by its other laws: {_answered(answer)}",),
        examples=() if answer.example is None else (Example(what, dict(answer.example)),),
    )


# Texts.


def side(texts: RevisionTexts, rule: Rule) -> Side:
    """What a revision says in a rule."""
    return Side(rule.name, rule.sentence, texts.formula(_function(rule)))


def _function(rule: Rule) -> Callable[..., Any]:
    at = getattr(rule, "at", None)
    return at or rule.holds


def helpers(sources: Sources, one: Callable[..., Any], other: Callable[..., Any]) -> tuple[tuple[str, str, str], ...]:
    """What both are made of that is not one text in both revisions: its name, and its old and new text."""
    was, now = sources[OLD].reached(one), sources[NEW].reached(other)
    found: list[tuple[str, str, str]] = []
    for function in sorted({*was, *now}):
        old, new = (source.text(function) for source in sources)
        if old != new and function[1] not in (one.__name__, other.__name__):
            found.append((_dotted(function), old, new))
    return tuple(found)


def _dotted(function: Function) -> str:
    return ".".join(function)
