"""The pages about the law: ``docs/laws.md`` with the theorems and a table of the stems, ``docs/laws/STEM.md`` with the
laws and transitions of one stem, and ``docs/laws/runs.md`` with what runs judge beside them.

Each sentence of the spec stands at one place: a law, a transition and its promises on the page of their stem, a theorem
in ``docs/laws.md``. Whatever speaks of them links there. The anchor of a law, a transition or a claim about each call
is its name; on one page these names are different ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import z3
from jinja2 import Environment

import spec
from proofs import constants, draining, fitting
from proofs.hints import COMMON
from proofs.obligations import ATOMIC, call
from proofs.registry import STEMS, hints_of
from proofs.symbols import World, lift
from slotproof.checks import arguments
from slotproof.pages.engine_functions import FunctionTable
from slotproof.pages.engine_functions import table as functions_of
from slotproof.pages.run_rules import rules
from slotproof.proving.headlines import promisers, theorems
from spec.logic import Invariant, Stem
from spec.scope import OUTSIDE

FOLDER = "laws"  # in the folder of the documents: one page a stem
RUNS = "runs"  # the page of what runs judge beside the laws
EVENTS = "kv_events"  # the stem of KV events, which runs of other stems publish
WHOLE = "cache"  # the stem whose theorems leave transitions of its parts out


class CallerDuties(NamedTuple):
    """What the caller of a transition must promise, what the engine decides, and what the transition calls."""

    promises: list[str]
    calls: list[str]
    can_be_refused: bool
    choices: list[str]


class NamedSentence(NamedTuple):
    """A claim about a stem: its name and its sentence. ``latent``: as of ``Invariant``."""

    name: str
    sentence: str
    latent: bool = False


class TransitionEntry(NamedTuple):
    """A transition on the page of its stem.

    ``arguments``: their names. ``laws``: the names of the laws of two states that say what this call does.
    """

    name: str
    sentence: str
    arguments: list[str]
    duties: CallerDuties
    laws: list[str]


class ChangeEntry(NamedTuple):
    """A law of two states. ``only``: it binds these transitions; where it is empty all but those of ``besides``."""

    name: str
    sentence: str
    only: tuple[str, ...]
    besides: tuple[str, ...]


class StemPage(NamedTuple):
    """What the page of a stem shows. ``laws``: its own, ``follow``: those that follow from the others. ``each_call``:
    what is proved of each call beside its laws. ``rest``: how it comes to rest, where that is proved. ``theorems``:
    each theorem that says laws of this stem, with their names. ``outside``: what the theorems about this stem leave
    out.
    ``functions``: which functions of engines lead to which transitions.
    """

    name: str
    about: list[str]
    parts: list[dict[str, Any]]
    laws: list[Invariant]
    follow: list[Invariant]
    changes: list[ChangeEntry]
    each_call: list[NamedSentence]
    rest: list[NamedSentence]
    unanswered: Mapping[str, str]
    transitions: list[TransitionEntry]
    arguments: list[tuple[str, str]]
    assumptions: list[NamedSentence]
    theorems: list[tuple[str, list[str]]]
    outside: list[tuple[str, str, str]]
    functions: FunctionTable


def pages(templates: Environment, docs: Path) -> dict[Path, str]:
    """The index and the page of each stem, by path."""
    said = theorems(STEMS)
    made = [stem_page(name, said, functions_of(docs, name)) for name in STEMS]
    index = templates.get_template("laws.md.j2").render(
        stems=made, theorems=[_theorem(one) for one in said], assumptions=COMMON, whole=WHOLE
    )
    page, of_runs = templates.get_template("law.md.j2"), templates.get_template("run_rules.md.j2")
    texts = {docs / "laws.md": index, **{docs / FOLDER / f"{one.name}.md": page.render(page=one) for one in made}}
    texts[docs / FOLDER / f"{RUNS}.md"] = of_runs.render(rules=rules())
    return {path: f"{text.rstrip()}\n" for path, text in texts.items()}


def _theorem(said: Mapping[str, Any]) -> dict[str, Any]:
    """A theorem for the index; the laws that say it and those that it rests on by the stems on whose pages they are."""
    laws = [(law["stem"], law["name"]) for law in said["laws"]]
    rests = [(stem, law) for stem, _, law in (name.partition(".") for name in said["rests_on"])]
    return {
        **said,
        "said": _by_stem(stated(*law) for law in laws),
        "rests": _by_stem(stated(*law) for law in rests),
        "callers": _by_stem((stem, name) for stem, law in rests for name in promisers(stem, law)),
    }


def stated(stem: str, law: str) -> tuple[str, str]:
    """The stem on whose page a law stands, and its name there: a law that is inherited stands on the page of the part.

    Claims about each call are laws too.
    """
    known = hints_of(stem).stem
    if law in known.invariants and (field := known.invariants[law].inherited):
        part = known.parts[field]
        return stated(part.name, law if law in part.invariants else law.removeprefix(f"{field}."))
    return stem, law


def place(stem: str, name: str) -> str | None:
    """Where a law, a transition or a claim about each call of a stem stands, or a rule of runs, from the folder of the
    documents; ``None`` for another name. A run judges the KV events that an engine publishes by their own law.
    """
    known = hints_of(stem).stem
    if name in known.invariants.keys() | known.changes.keys() | known.transitions.keys() | of_each_call(known).keys():
        of, anchor = stated(stem, name)
        return f"{FOLDER}/{of}.md#{anchor}"
    events = hints_of(EVENTS).stem
    if name in events.invariants.keys() | events.changes.keys():
        return f"{FOLDER}/{EVENTS}.md#{name}"
    return f"{FOLDER}/{RUNS}.md#{name}" if name in {rule.name for rule in rules()} else None


def _by_stem(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for stem, name in dict.fromkeys(names):
        found.setdefault(stem, []).append(name)
    return {stem: found[stem] for stem in STEMS if stem in found}


def stem_page(name: str, said: Iterable[Mapping[str, Any]], functions: FunctionTable) -> StemPage:
    """What the page of a stem shows. ``said``: the theorems, see ``headlines.theorems``."""
    hints = hints_of(name)
    stem, own = hints.stem, own_laws(hints.stem)
    rest = [NamedSentence(*one) for one in draining.sentences(hints.drain).items()] if hints.drain else []
    of_theorems = [(one["name"], [law["name"] for law in one["laws"] if law["stem"] == name]) for one in said]
    return StemPage(
        name,
        paragraphs(stem),
        parts_of(stem),
        [law for law in own if not law.theorem],
        [law for law in own if law.theorem],
        [ChangeEntry(law.name, law.sentence, law.only, law.besides) for law in stem.changes.values()],
        [NamedSentence(*one) for one in of_each_call(stem).items()],
        rest,
        hints.unanswered,
        [_transition(stem, transition) for transition in stem.transitions],
        arguments_of_stem(stem),
        _assumptions(name),
        [(theorem, laws) for theorem, laws in of_theorems if laws],
        [(part, transition, reason) for (part, transition), reason in OUTSIDE] if name == WHOLE else [],
        functions,
    )


def paragraphs(stem: Stem) -> list[str]:
    """What the stem is about: the docstring of its module in ``spec/``, by paragraphs; each list is one of them."""
    text = inspect.getdoc(import_module(f"{spec.__name__}.{stem.name}")) or ""
    return text.split("\n\n")


def _transition(stem: Stem, name: str) -> TransitionEntry:
    function = stem.transitions[name]
    return TransitionEntry(
        name,
        function.__doc__ or "",
        arguments.arguments_of(function),
        said_by(stem.name, name),
        [law.name for law in stem.changes.values() if name in law.only],
    )


def _assumptions(name: str) -> list[NamedSentence]:
    """What the proofs of this stem take for granted beside what those of every stem do."""
    hints = hints_of(name)
    every = (*hints.assumptions, *constants.assumptions(hints.stem))
    return [NamedSentence(one.name, one.reason) for one in every if one not in COMMON]


def arguments_of_stem(stem: Stem) -> list[tuple[str, str]]:
    """What the arguments of a stem's transitions mean: the name of each, or ``transition.name`` where an argument means
    something else there, and its meaning; in the order of names.
    """
    said: dict[str, dict[str, list[str]]] = {}
    for transition, function in stem.transitions.items():
        for name in arguments.arguments_of(function):
            means = arguments.meaning(stem.name, transition, name)
            said.setdefault(name, {}).setdefault(means, []).append(transition)
    return [
        (f"`{name}`" if len(of) == 1 else ", ".join(f"`{transition}.{name}`" for transition in transitions), means)
        for name, of in sorted(said.items())
        for means, transitions in of.items()
    ]


@cache
def said_by(stem: str, transition: str) -> CallerDuties:
    """What the caller of a transition must promise, what the engine decides, and what the transition calls."""
    hints = hints_of(stem)
    step = call(hints, hints.stem.transitions[transition], World()).step
    calls = [f"{hints.stem.parts[c.part].name}.{c.transition.__name__}" for c in step.calls]
    fits = z3.simplify(lift(step.fits))
    promises, choices = (_once(one.sentence for one in asked) for asked in (step.promises, step.choice))
    return CallerDuties(promises, calls, not z3.is_true(fits), choices)


def _once(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def parts_of(stem: Stem) -> list[dict[str, Any]]:
    """The stems that a stem is made of, and how many laws it inherits from each."""
    laws = [law.inherited for law in stem.invariants.values()]
    return [{"field": at, "name": part.name, "laws": laws.count(at)} for at, part in stem.parts.items()]


def of_each_call(stem: Stem) -> dict[str, str]:
    """What is proved of each call of the stem beside its laws, each with its sentence."""
    found = {ATOMIC: "A call that does not fit leaves the state as it was."}
    if hints_of(stem.name).answers:
        found |= fitting.SENTENCES
    return found


def own_laws(stem: Stem) -> list[Invariant]:
    """The laws that the stem adds to those of its parts; those that follow from the others are last."""
    own = [law for law in stem.invariants.values() if not law.inherited]
    return sorted(own, key=lambda law: law.theorem)
