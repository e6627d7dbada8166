"""Random walks through the finite states of a stem, in worlds that are larger than the small worlds of the proofs:
several pages, tokens within pages, two rows, two requests, two stories.

``slotproof prove`` walks (``seen``): each corner of a transition that engines reach has a granted call, see
``proofs.corners``; each law is true of what runs; and each update lists the keys that it changes. The seed is fixed.
The last two are looked at in the first 10,000 calls, and later at each corner that had no granted call before.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from proofs import corners, isolation
from proofs.hints import Hints
from proofs.registry import hints_of
from proofs.symbols import kinds_of
from spec import (
    allocator,
    block_cache,
    block_pool,
    finite,
    host_tier,
    lock_ref,
    mamba_slots,
    session_trim_state,
    swa_mapping,
)
from spec import cache as whole_cache
from spec.finite import Map, Seq, Set
from spec.lengths import Length
from spec.logic import Step, but

SEED = 20261125
STEPS = 60  # of one walk
CALLS = 2_000  # of all walks, at least
JUDGED = 10_000  # of all walks, the first ones: what a granted call does is judged by all laws
MOST = 150_000  # of all walks, at most: then a corner counts as one that no call reaches
PROPOSED = 60  # calls that are tried of one transition in one state
RETRIES = 20  # of a call on a route, with other arguments, until it is granted
KEYS = range(-1, 8)  # of the maps of these worlds, with one to spare on each side


# Finite worlds that are larger than the small worlds of the proofs.


def _allocators() -> Iterator[Any]:
    yield from (allocator.initial(3, 4, 3, sorts) for sorts in (True, False))


def _mappings() -> Iterator[Any]:
    yield swa_mapping.initial(3, 5, 4, 3, need_sort=True)
    yield swa_mapping.initial(1, 5, 4, 3, need_sort=False)
    yield swa_mapping.initial(2, 5, 4, 3, need_sort=False, windowed=False)


def _trees() -> Iterator[Any]:
    yield lock_ref.initial(nodes=4, handles=3, window=2, windowed=True, stateful=True)


def _rows() -> Iterator[Any]:
    for size in (1, 2, 3):
        pools = [swa_mapping.initial(size, 5, 4, rows=5, need_sort=False, windowed=w) for w in (True, False)]
        window = Length(1, min(1, size - 1))
        yield session_trim_state.initial(pools[0], limit=2, sessions=2, window=window)
        yield session_trim_state.initial(pools[1], limit=2, sessions=2, window=window, all_sliding=True)


def _slots() -> Iterator[Any]:
    kinds = ((True, True, True), (True, True, False), (True, False, False), (False, False, False))
    yield from (mamba_slots.initial(4, 2, 2, nodes=2, kind=kind) for kind in kinds)


def _caches() -> Iterator[Any]:
    for size, lazy in ((2, False), (1, True), (3, False)):
        pools = swa_mapping.initial(size, 4, 3, rows=6, need_sort=size == 1)
        empty = session_trim_state.initial(
            pools, limit=2, sessions=1, window=Length(0, 1) if size > 1 else Length(1, 0)
        )
        tree = lock_ref.initial(nodes=3, handles=2, window=1, windowed=True, stateful=True)
        slots = mamba_slots.initial(4, 2, 1, nodes=4, kind=(True, True, lazy))
        yield whole_cache.initial(empty, tree, slots, isolation.stories())
        yield whole_cache.initial(empty, but(tree, stateful=False), slots, isolation.stories())
    pools = swa_mapping.initial(2, 4, 3, rows=6, need_sort=False, windowed=False)
    empty = session_trim_state.initial(pools, limit=2, sessions=1, window=Length(0, 1))
    tree = lock_ref.initial(nodes=3, handles=2, window=1, windowed=False, stateful=False)
    slots = mamba_slots.initial(4, 2, 1, nodes=4, kind=(False, False, False))
    yield whole_cache.initial(empty, tree, slots, isolation.stories())


def _blocks(groups: int = 1) -> Any:
    told = Map(2)
    for story, index in itertools.product((0, 1), range(4)):
        told = told.put((story, index), 1 + index + 4 * story * (index > 0))
    return block_pool.initial(5, 4, 4, groups=groups, stories=2, tells=told)


def _block_caches() -> Iterator[Any]:
    yield block_cache.initial(_blocks(2), [2, 4], [None, 1], [False, False], jobs=3)
    yield block_cache.initial(_blocks(2), [3, 2], [None, 1], [False, True], jobs=3)


LARGER: dict[str, Callable[[], Iterable[Any]]] = {
    "allocator": _allocators,
    "swa_mapping": _mappings,
    "lock_ref": _trees,
    "session_trim": _rows,
    "mamba_slots": _slots,
    "cache": _caches,
    "block_pool": lambda: [_blocks()],
    "block_cache": _block_caches,
    "host_tier": lambda: [host_tier.initial(keys=3, slots=2, blocks=4, parts=2, jobs=3)],
    "kv_events": hints_of("kv_events").small,
}


# Finite calls.


@dataclass(frozen=True)
class Finite:
    """One finite call; ``lawful``: calls led to the state, so that every law is true of it."""

    state: Any
    arguments: tuple[Any, ...]
    lawful: bool = True


def calls(stem: str, missing: set[tuple[str, str]] | None = None) -> Iterator[tuple[str, Finite, Step[Any]]]:
    """Calls without end, each with its transition and its step, in states to which random walks lead.

    A walk begins with the calls of a route of the stem's hints, each tried until it is granted, or at random. One in
    three steps is of a transition that was granted seldom, and one in six has other arguments than those that the
    stem's hints propose. ``missing``: corners, each with its transition; while a corner of a transition is missing, a
    call at this corner is preferred, and three of four walks begin with a route to such a transition.
    """
    hints, draw, missing = hints_of(stem), random.Random(SEED), missing or set()
    routes = ["", *(f"{route} {way.split()[0]}" for way, route in hints.routes.items())]
    granted = dict.fromkeys(hints.stem.transitions, 0)
    while True:
        for first in (*(LARGER[stem]() if stem in LARGER else ()), *hints.small()):
            sought = {name for name, _ in missing} if missing and draw.random() < 3 / 4 else set()
            wanted = [route for route in routes if {*route.split()[-1:]} & sought]
            at, route = first, draw.choice(wanted or routes).split()
            for number in range(STEPS):
                names = route[number : number + 1] * RETRIES or _names(draw, granted)
                for name, call, step in _tried(hints, at, draw, names, missing):
                    yield name, call, step
                    if step.granted:
                        at = step.then
                        granted[name] += 1
                        break


def _names(draw: random.Random, granted: dict[str, int]) -> list[str]:
    """The transitions in a random order; in one of three cases those first that were granted seldom."""
    names = draw.sample([*granted], len(granted))
    return sorted(names, key=granted.__getitem__) if draw.random() < 1 / 3 else names


def _tried(
    hints: Hints, at: Any, draw: random.Random, names: Sequence[str], missing: set[tuple[str, str]]
) -> Iterator[tuple[str, Finite, Step[Any]]]:
    """A call of each of these transitions."""
    for name in names:
        proposed = list(itertools.islice(hints.moves[name](at), 8 * PROPOSED))
        if proposed := draw.sample(proposed, min(len(proposed), PROPOSED)):
            arguments = draw.choice(proposed)
            other = draw.random() < 1 / 6
            arguments = tuple(twist(draw, one) for one in arguments) if other else arguments
            if sought := {corner for of, corner in missing if of == name}:
                wanted = (one for one in proposed if _is_at(hints, name, at, one, sought))
                arguments = next(wanted, arguments)
            yield name, Finite(at, arguments), hints.stem.transitions[name](at, *arguments)


def _is_at(hints: Hints, name: str, at: Any, arguments: tuple[Any, ...], sought: set[str]) -> bool:
    """A call is granted, and is at one of these corners of its transition. Where its arguments are those of none of
    them, it is not made.
    """
    transition = hints.stem.transitions[name]
    said = corners.of_arguments(transition, arguments)
    if not any(corners.begins_with(corner, said) for corner in sought):
        return False
    step = transition(at, *arguments)
    return bool(step.granted) and corners.corner(transition, arguments, step) in sought


@dataclass(frozen=True)
class Seen:
    """What walks through the states of a stem have seen.

    ``missing``: corners without a granted call, each with its transition. ``wrong``: laws that are false of what runs,
    and updates that do not list each key that they change, each with the transition. ``remembered``: seen by an earlier
    run of the very same code.
    """

    stem: str
    calls: int
    missing: tuple[tuple[str, str], ...]
    wrong: tuple[str, ...]
    remembered: bool = False


def seen(stem: str) -> Seen:
    """Walks until each corner has a granted call, and at least ``CALLS`` calls are made, but no more than ``MOST``.

    What is wrong is looked for in the first ``JUDGED`` calls, and later where a corner has its first granted call.
    """
    hints, missing, wrong, lawful = hints_of(stem), corners.of(stem), list[str](), dict[tuple[str, str], Any]()
    for number, (name, call, step) in enumerate(calls(stem, missing)):
        if step.granted:
            reached = (name, corners.corner(hints.stem.transitions[name], call.arguments, step))
            if reached in missing or number < JUDGED:
                wrong = [f"{name} {what}" for what in _wrong(hints, name, call, step, lawful)]
            missing.discard(reached)
        if wrong or number >= MOST or (number >= CALLS and not missing):
            break
    return Seen(stem, number + 1, tuple(sorted(missing)), tuple(wrong))


def _wrong(hints: Hints, name: str, call: Finite, step: Step[Any], lawful: dict[tuple[str, str], Any]) -> Iterator[str]:
    """What is wrong with a granted call: laws that it breaks, and updates that do not list what they change.

    ``lawful``: for each law and part of a state the last part of which it was true. It is true of the very same part.
    """
    transition = hints.stem.transitions[name]
    named = dict(zip(kinds_of(transition), call.arguments, strict=True))
    for law in hints.stem.invariants.values():
        for label, part in law.parts(step.then):
            if lawful.get((law.name, label)) is not part:
                if law.holds(part):
                    lawful[law.name, label] = part
                else:
                    yield f"breaks {law.name}"
    changes = [law for law in hints.stem.changes.values() if law.binds(name)]
    yield from (f"breaks {law.name}" for law in changes if not law.of(call.state, step.then, named))
    finite.STRICT.append(lambda arity: KEYS if arity == 1 else itertools.product(KEYS, repeat=arity))
    try:
        transition(call.state, *call.arguments)
    except AssertionError as missed:
        yield f"changes what it does not list: {missed}"
    finally:
        finite.STRICT.pop()


@cache
def walked(stem: str) -> dict[str, tuple[list[Finite], list[Finite]]]:
    """For each transition calls that are granted, and others; at least one is granted of each."""
    found: dict[str, tuple[list[Finite], list[Finite]]] = {name: ([], []) for name in hints_of(stem).stem.transitions}
    for number, (name, call, step) in enumerate(calls(stem)):
        found[name][not step.granted].append(call)
        if number >= CALLS and all(granted for granted, _ in found.values()):
            break
    return found


def twist(draw: random.Random, argument: Any) -> Any:
    """In half of the cases the argument, else another one of its kind."""
    if draw.random() < 0.5:
        return argument
    if isinstance(argument, bool):
        return not argument
    if isinstance(argument, int):
        return max(0, argument + draw.choice((-1, 1)))
    if isinstance(argument, Length):
        return Length(argument.pages, max(0, argument.rest - 1))
    items = [*argument.items()]
    return type(argument)(items[1:]) if isinstance(argument, Seq | Set) else argument
