"""What a stem tells the provers beside its spec: over which pages its arguments range, small worlds, and mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spec.logic import S, Stem, Step, but

Transition = Callable[..., Step[Any]]


@dataclass(frozen=True)
class Mutant:
    """A wrong ``transition``, named by what it does wrong, that breaks ``invariant`` and no other."""

    name: str
    transition: str
    invariant: str
    wrong: Transition


def altered(step: Step[S], **wrong: Any) -> Step[S]:
    """The step to a state that is wrong in these fields."""
    return but(step, then=but(step.then, **wrong))


def unasked(step: Step[S], sentence: str) -> Step[S]:
    """The step of a caller that does not keep one promise."""
    kept = tuple(promise for promise in step.promises if promise.sentence != sentence)
    assert len(kept) < len(step.promises), f"no promise {sentence!r}"
    return but(step, promises=kept)


@dataclass(frozen=True)
class Assumption:
    """Something the proofs rest on and do not prove."""

    name: str
    reason: str


@dataclass(frozen=True)
class Hints:
    """The provers' view of a stem.

    ``over``: argument name to the pages it ranges over, given the state. ``sizes``: the constants of the small world.
    ``small``: small initial states (finite reading). ``moves``: transition name to lawful arguments in a state.
    ``places``: argument name to the domain whose member it names, for laws on each member and for sums.
    ``refusable``: the transitions that can run out of memory.
    ``routes``: for a transition far from the first state, those on a way to it, in order; ``name refused``: for one
    that runs out of memory. ``told``: what the proofs of a law (``promises_of_…``: of a call) rest on beside the law
    itself; each is tried from these laws first, and only where they do not do, from all. ``transition law``: of this
    transition alone.
    """

    stem: Stem
    over: Mapping[str, Callable[[Any], Any]]
    sizes: Mapping[str, int]
    small: Callable[[], tuple[Any, ...]]
    moves: Mapping[str, Callable[[Any], Iterable[tuple[Any, ...]]]]
    places: Mapping[str, str] = field(default_factory=dict)
    refusable: frozenset[str] = frozenset()
    routes: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    mutants: tuple[Mutant, ...] = ()
    assumptions: tuple[Assumption, ...] = field(default_factory=tuple)


COMMON = (
    Assumption("sequence_has_inverse", "A sequence argument comes with the map from item to position; every finite "
               "sequence has one, so nothing is assumed of the caller."),
    Assumption("constants_stay", "Page size, pool sizes and need_sort are the same in every state: no transition "
               "replaces them (checked: the constants after each step are the very same symbols)."),
    Assumption("counting_lemmas", "Counts are related by the lemmas of proofs/lemmas.py, each proved by induction by "
               "both solvers in the same run; that induction itself is the rule of the natural numbers."),
    Assumption("integers", "Page numbers and lengths are mathematical integers; int64 in the implementation does not "
               "overflow below 2**63 slots."),
)  # fmt: skip
