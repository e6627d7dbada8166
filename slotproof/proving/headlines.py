"""The theorems in the words of users: what each says, which laws say it exactly, and what its callers promise."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import Any

from proofs import constants, draining
from proofs.fitting import ANSWERED, SENTENCES, assumed_choices, is_available_counts
from proofs.obligations import SymbolicCall, call, touches
from proofs.registry import hints_of
from proofs.symbols import World
from spec.logic import Invariant
from spec.theorems import HEADLINES, Headline


def assumptions(stems: Sequence[str]) -> list[dict[str, str]]:
    """What the proofs of these stems assume, each assumption once."""
    every = (a for stem in stems for a in (*hints_of(stem).assumptions, *constants.assumptions(hints_of(stem).stem)))
    found = {a.name: a.reason for a in every}
    return [{"name": name, "reason": reason} for name, reason in found.items()]


def theorems(stems: Collection[str]) -> list[dict[str, Any]]:
    """The theorems about these stems.

    Of each: its ``name`` and ``sentence``; the ``laws`` that say it, with their sentences; what it ``rests_on``: these
    laws, and the laws from which those that are theorems follow; the ``promises`` of callers that its proof uses: of
    each transition that can touch one of these laws; and what it ``assumes`` of choices, by transition.
    """
    return [_theorem(headline) for headline in HEADLINES if {stem for stem, _ in headline.laws} <= set(stems)]


def _theorem(headline: Headline) -> dict[str, Any]:
    rests_on = dict.fromkeys(law for stem, name in headline.laws for law in _rests_on(stem, name))
    promises = dict.fromkeys(said for stem, name in rests_on for said in _promised(stem, name))
    return {
        "name": headline.name,
        "sentence": headline.sentence,
        "laws": [{"stem": stem, "name": name, "sentence": _sentence(stem, name)} for stem, name in headline.laws],
        "rests_on": [f"{stem}.{name}" for stem, name in rests_on],
        "promises": list(promises),
        "assumes": {of: said for stem, name in headline.laws if name == ANSWERED for of, said in assumed(stem).items()},
    }


@cache
def assumed(stem: str) -> dict[str, list[str]]:
    """For each transition the choices that the proof that a call has a lawful answer assumes, or why there is no such
    proof.
    """
    hints = hints_of(stem)
    found = {}
    for name, transition in hints.stem.transitions.items():
        choices = assumed_choices(hints, transition, call(hints, transition, World()))
        if said := [hints.unanswered[name]] if name in hints.unanswered else [choice.sentence for choice in choices]:
            found[name] = said
    return found


def _sentence(stem: str, name: str) -> str:
    hints = hints_of(stem)
    if hints.drain and name in (said := draining.sentences(hints.drain)):
        return said[name]
    if name in SENTENCES:
        return SENTENCES[name]
    laws = hints.stem
    return (laws.invariants.get(name) or laws.changes[name]).sentence


def _rests_on(stem: str, name: str) -> list[tuple[str, str]]:
    """The law itself, or, of a theorem, the laws from which it is proved."""
    hints = hints_of(stem)
    known, named = hints.stem.invariants, hints.relevant_laws
    if name in SENTENCES:
        return [(stem, law) for law in known if is_available_counts(law)]
    if hints.drain and name in draining.sentences(hints.drain):
        claims = draining.claim_names(hints.drain, name)
        rests_on = [*dict.fromkeys(law for claim in claims for law in named.get(claim, "").split())]
    elif name in known and known[name].theorem:
        rests_on = named.get(name, "").split() or [*known]
    else:
        return [(stem, name)]
    earlier = [law for used in rests_on if used in named and known[used].theorem for law in _rests_on(stem, used)]
    return [*dict.fromkeys([*((stem, used) for used in rests_on if not known[used].theorem), *earlier])]


@cache
def promisers(stem: str, name: str) -> tuple[str, ...]:
    """The transitions whose callers' promises keep a law: those after which the law is not plainly what it was before.

    None of a law that is inherited: its own stem says what callers promise.
    """
    laws = hints_of(stem).stem
    law = laws.invariants.get(name) or laws.changes[name]
    if isinstance(law, Invariant):
        bound = [] if law.inherited else [*laws.transitions]
    else:
        bound = [transition for transition in laws.transitions if law.binds(transition)]
    made = [_made(stem, transition) for transition in bound]
    return tuple(one.name for one in made if one.step.promises and touches(one, law))


def _promised(stem: str, name: str) -> Iterator[str]:
    """What callers promise of these transitions."""
    for transition in promisers(stem, name):
        yield from (promise.sentence for promise in _made(stem, transition).step.promises)


@cache
def _made(stem: str, transition: str) -> SymbolicCall:
    """One call of a transition; all laws look at it."""
    hints = hints_of(stem)
    return call(hints, hints.stem.transitions[transition], World())
