"""Breadth-first search through small states with the finite reading: witnesses, and shortest paths to a bug."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

from proofs.hints import Hints, Transition
from spec.finite import Domain, Map, Seq, Set
from spec.lengths import Length
from spec.logic import Step

LIMIT = 4_000  # states; every witness is found within a few hundred


@dataclass(frozen=True)
class PathMove:
    """One call on a path: the transition, its arguments, the state before and after, and whether it was granted."""

    transition: str
    arguments: tuple[Any, ...]
    before: Any
    after: Any
    granted: bool

    def __str__(self) -> str:
        words = ", ".join(show(a) for a in self.arguments)
        return f"{self.transition}({words})" + ("" if self.granted else " refused")

    __repr__ = __str__


Path = tuple[PathMove, ...]


def show(value: Any) -> str:
    """An argument of a call as a short text."""
    if isinstance(value, Length):
        return f"{value.pages}p+{value.rest}"
    if isinstance(value, Seq):
        return str(list(value.items()))
    return "{" + ", ".join(str(i) for i in sorted(value.items())) + "}" if isinstance(value, Set) else str(value)


def told(state: Any) -> str:
    """A state as a short text: each field that is not 0, false or empty, of a map the keys that have such a value."""
    return ", ".join(f"{name}={said}" for name, said in _fields(state)) or "everything is 0"


def _fields(state: Any, path: str = "") -> Iterator[tuple[str, str]]:
    for f in fields(state):
        name, value = path + f.name, getattr(state, f.name)
        if isinstance(value, Map):
            entries = ", ".join(f"{key}: {held}" for key, held in sorted(value.items()) if held)
            said = f"{{{entries}}}" if entries else ""
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _fields(value, f"{name}.")
            continue
        else:
            said = show(value) if value and not isinstance(value, Domain) else ""
        if said:
            yield name, said


def key(state: Any) -> Any:
    """A hashable value that is equal for equal states."""
    if isinstance(state, Map):
        return _of_map(state)
    kind: Any = type(state)
    names = _changing(kind)
    return state if names is None else tuple([key(getattr(state, name)) for name in names])


@lru_cache(maxsize=10_000)  # a call leaves most maps of a state as they were
def _of_map(known: Map) -> tuple[int, frozenset[Any]]:
    return known.default, frozenset([(k, v) for k, v in known.items() if v != known.default])


@cache
def _changing(kind: Any) -> list[str] | None:
    """The fields of a part of a state that are no constants; ``None`` for the type of a plain value."""
    return [f.name for f in fields(kind) if not f.metadata.get("constant")] if is_dataclass(kind) else None


def after(step: Step[Any], before: Any) -> Any:
    """The state after a call that keeps its promises, granted or refused."""
    if step.granted:
        return step.then
    return before if step.otherwise is None else step.otherwise


def moves(hints: Hints, transitions: Mapping[str, Transition], state: Any) -> Iterator[PathMove]:
    """Every call that keeps its promises: granted ones, and those that run out of memory."""
    for name, transition in transitions.items():
        for arguments in hints.moves[name](state):
            step = transition(state, *arguments)
            if step.kept and (step.granted or not step.fits):
                yield PathMove(name, arguments, state, after(step, state), bool(step.granted))


def paths(hints: Hints, transitions: Mapping[str, Transition], limit: int = LIMIT) -> Iterator[Path]:
    """Every path to a new state and by each call, shortest paths first, from each first state.

    At most ``limit`` states are visited from each.
    """
    for first in hints.small():
        yield from _paths_from(first, hints, transitions, limit)


def _paths_from(first: Any, hints: Hints, transitions: Mapping[str, Transition], limit: int) -> Iterator[Path]:
    edge: list[tuple[Any, Path]] = [(first, ())]
    seen = {key(first)}
    while edge and len(seen) < limit:
        following = []
        for state, path in edge:
            for move in moves(hints, transitions, state):
                yield (*path, move)
                mark = key(move.after)
                if mark not in seen:
                    seen.add(mark)
                    following.append((move.after, (*path, move)))
        edge = following


def along(hints: Hints, route: str, name: str, transitions: Mapping[str, Transition]) -> Iterator[Path]:
    """Paths along the transitions of ``route``, in order, and then ``name``; all but the last move are granted.

    The paths to each transition of the route are included. Where several paths lead from one first state to one state,
    only the first of them is followed.
    """
    edge: list[tuple[Any, Path]] = [(first, ()) for first in hints.small()]
    for step in (*route.split(), name):
        only = {step: transitions[step]}
        ways = [(*path, move) for state, path in edge for move in moves(hints, only, state)]
        yield from ways
        met: dict[Any, tuple[Any, Path]] = {}
        for way in ways:
            if changes(way[-1]):
                met.setdefault((id(way[0].before), key(way[-1].after)), (way[-1].after, way))
        edge = list(met.values())


def changes(move: PathMove) -> bool:
    """The call was granted and changed the state."""
    return move.granted and key(move.before) != key(move.after)


def ends(way: Path, name: str, outcome: str) -> bool:
    """The last call of the path is of this transition, and was refused or changed the state, as ``outcome`` says."""
    move = way[-1]
    return move.transition == name and (changes(move) if outcome == "granted" else not move.granted)


def witnesses(hints: Hints) -> dict[str, dict[str, Path]]:
    """For each transition a path to a granted call that changes the state, and one to a refused call if possible.

    Raises ``ValueError`` where a path would not begin in a first state of the stem.
    """
    if any(key(hints.stem.start(first)) != key(first) for first in hints.small() if hints.stem.start is not None):
        raise ValueError(f"a small world of {hints.stem.name} does not begin in its first state")
    found: dict[str, dict[str, Path]] = {name: {} for name in hints.stem.transitions}
    wanted = {(name, "granted") for name in found} | {(name, "refused") for name in hints.refusable}
    for key_of, route in hints.routes.items():
        name, outcome = (*key_of.split(), "granted")[:2]
        if way := next((w for w in along(hints, route, name, hints.stem.transitions) if ends(w, name, outcome)), None):
            found[name][outcome] = way
            wanted.discard((name, outcome))
    for path in paths(hints, hints.stem.transitions) if wanted else ():
        move = path[-1]
        seen = (move.transition, "granted" if move.granted else "refused")
        if seen in wanted and (not move.granted or changes(move)):
            wanted.discard(seen)
            found[move.transition][seen[1]] = path
        if not wanted:
            break
    return found
