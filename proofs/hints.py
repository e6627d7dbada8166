"""What the provers need to know about a stem beside its spec: small worlds, calls to try, mutants, proof hints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from spec.logic import Drain, S, Stem, Step, but

Transition = Callable[..., Step[Any]]
Answer = Callable[[Any, Any, Mapping[str, Any]], dict[str, Any]]  # see ``proofs.answers``


@dataclass(frozen=True)
class Mutant:
    """A wrong version of ``transition`` that breaks ``invariant``; its name says what it does wrong.

    ``search``: the fields of ``Hints`` that replace those of the stem where a run to the bug is searched for, and its
    ``sizes`` also where the law refutes it. A wrong version that no longer asks for a promise is shown only by calls
    that break the promise, and the stem's ``moves`` offer no such call.
    """

    name: str
    transition: str
    invariant: str
    wrong: Transition
    search: Mapping[str, Any] = field(default_factory=dict)


def altered(step: Step[S], **wrong: Any) -> Step[S]:
    """The step, with these fields of the state after replaced by wrong values."""
    return but(step, then=but(step.then, **wrong))


def unasked(step: Step[S], sentence: str) -> Step[S]:
    """The step without one of its promises: the caller may break it."""
    kept = tuple(promise for promise in step.promises if promise.sentence != sentence)
    assert len(kept) < len(step.promises), f"no promise {sentence!r}"
    return but(step, promises=kept)


def unchosen(step: Step[S], sentence: str) -> Step[S]:
    """The step without one condition on what the implementation chooses: it may break it."""
    kept = tuple(choice for choice in step.choice if choice.sentence != sentence)
    assert len(kept) < len(step.choice), f"no choice {sentence!r}"
    return but(step, choice=kept)


def idle(transition: Transition) -> Transition:
    """The transition that asks what ``transition`` asks, and does nothing."""

    @wraps(transition)
    def wrong(st: Any, *arguments: Any, **named: Any) -> Step[Any]:
        return but(transition(st, *arguments, **named), then=st, calls=())

    return wrong


def idlers(stem: Stem, **laws: str) -> tuple[Mutant, ...]:
    """For each transition the mutant that does nothing, against the law that says what the transition does."""
    return tuple(Mutant(f"{name}_does_nothing", name, law, idle(stem.transitions[name])) for name, law in laws.items())


@dataclass(frozen=True)
class Assumption:
    """Something that the proofs take for granted, and why that is sound."""

    name: str
    reason: str


@dataclass(frozen=True)
class Hints:
    """What the provers need to know about a stem.

    ``over``: for an argument that is a sequence or a set, the pages or slots that it ranges over, given the state.
    ``sizes``: the constants of the small world. ``small``: small first states (finite reading). ``moves``: for each
    transition the calls to try in a concrete state. ``places``: for an argument that names a member of a domain, this
    domain; laws on each member and lemmas about sums are used for these members. ``refusable``: the transitions that
    can run out of memory. ``routes``: for a transition that is many calls away from the first state, the calls on the
    way to it, in order; the key ``name refused`` leads to a call that runs out of memory, ``name granted`` is a second
    way to a granted call. ``relevant_laws``: for a law, or for the promises of a call (``promises_of_NAME``), the names
    of the laws that its proof rests on. Each proof is tried from these laws first, and from all laws only where these
    do not suffice. The key ``transition law`` is for one transition. ``answers``: for a transition with a choice or a
    fit, a lawful answer to a call that fits (see ``proofs.fitting``). ``takes``: the slots that a call takes, where
    they are no sequence among its arguments. ``unanswered``: the transitions for which no lawful answer is known to
    exist, each with the reason. ``drain``: how calls bring every lawful state to rest. ``named``: for a theorem on each
    member, another member that its proof names, given the state and the member.
    """

    stem: Stem
    over: Mapping[str, Callable[[Any], Any]]
    sizes: Mapping[str, int]
    small: Callable[[], tuple[Any, ...]]
    moves: Mapping[str, Callable[[Any], Iterable[tuple[Any, ...]]]]
    places: Mapping[str, str] = field(default_factory=dict)
    refusable: frozenset[str] = frozenset()
    routes: Mapping[str, str] = field(default_factory=dict)
    relevant_laws: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    takes: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)
    drain: Drain | None = None
    named: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    mutants: tuple[Mutant, ...] = ()
    assumptions: tuple[Assumption, ...] = field(default_factory=tuple)

    def is_theorem(self, law: str) -> bool:
        """The law is said to follow from the others."""
        known = self.stem.invariants.get(law)
        return known is not None and known.theorem


def searched(hints: Hints, mutant: Mutant) -> Hints:
    """The hints of the stem for the search for a bug of this mutant."""
    return replace(hints, **mutant.search)


def without_mutant(hints: Hints) -> list[str]:
    """The laws that no mutant breaks: such a law could say nothing. Laws of a part have their mutants there."""
    laws = hints.stem.invariants.values()
    own = [*(law.name for law in laws if not law.inherited), *hints.stem.changes]
    return [name for name in own if name not in {mutant.invariant for mutant in hints.mutants}]


COMMON = (
    Assumption("sequence_has_inverse", "A sequence argument comes with the map from item to position; every finite "
               "sequence has one, so nothing is assumed of the caller."),
    Assumption("constants_stay", "Page size, pool sizes and need_sort never change: no transition "
               "replaces them (checked: the constants after each step are the very same symbols)."),
    Assumption("counting_lemmas", "Counts are related by the lemmas of proofs/lemmas.py, each proved by induction by "
               "both solvers in the same run; that induction itself is the rule of the natural numbers."),
    Assumption("integers", "Page numbers and lengths are mathematical integers; int64 in the implementation does not "
               "overflow below 2**63 slots."),
)  # fmt: skip
