"""Breadth-first search through small states with the finite reading: witnesses, and shortest paths to a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from operator import attrgetter
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
    read = _changing(kind)
    if read is None:
        return state
    known = _KEYS.get(id(state))
    if known is None or known[0] is not state:
        if len(_KEYS) >= MOST_KEYS:
            _KEYS.clear()
        known = state, tuple([_of_map(v) if type(v) is Map else v if type(v) is int else key(v) for v in read(state)])
        _KEYS[id(state)] = known
    return known[1]


_KEYS: dict[int, tuple[Any, Any]] = {}  # of the last states and parts, by their address: a call leaves most parts
MOST_KEYS = 200


@lru_cache(maxsize=10_000)  # a call leaves most maps of a state as they were
def _of_map(known: Map) -> tuple[int, frozenset[Any]]:
    return known.default, frozenset([(k, v) for k, v in known.items() if v != known.default])


@cache
def _changing(kind: Any) -> Callable[[Any], Iterable[Any]] | None:
    """Reads the fields of a part of a state that are no constants; ``None`` for the type of a plain value."""
    if not is_dataclass(kind):
        return None
    names = [f.name for f in fields(kind) if not f.metadata.get("constant")]
    return attrgetter(*names) if len(names) > 1 else lambda state: [getattr(state, name) for name in names]


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
            if step.granted:
                yield PathMove(name, arguments, state, step.then, True)
            elif step.kept and not step.fits:
                yield PathMove(name, arguments, state, after(step, state), False)


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


@dataclass
class Routes:
    """Paths along transitions in a given order; what several routes begin with is walked once."""

    hints: Hints
    transitions: Mapping[str, Transition]

    def __post_init__(self) -> None:
        self._edges: dict[tuple[str, ...], list[tuple[Any, Path]]] = {(): [(one, ()) for one in self.hints.small()]}
        self._ways: dict[tuple[str, ...], list[Path]] = {}

    def along(self, route: str, name: str) -> Iterator[Path]:
        """Paths along the transitions of ``route``, in order, and then ``name``; all but the last move are granted.

        The paths to each transition of the route are included. Where several paths lead from one first state to one
        state, only the first of them is followed.
        """
        names = (*route.split(), name)
        for number in range(len(names)):
            yield from self._last(names[: number + 1])

    def _last(self, names: tuple[str, ...]) -> list[Path]:
        """The paths by these transitions, all of them."""
        if names not in self._ways:
            only = {names[-1]: self.transitions[names[-1]]}
            edge = self._edge(names[:-1])
            self._ways[names] = [(*path, move) for state, path in edge for move in moves(self.hints, only, state)]
        return self._ways[names]

    def _edge(self, names: tuple[str, ...]) -> list[tuple[Any, Path]]:
        """The states to which these paths lead, each with the first path to it."""
        if names not in self._edges:
            met: dict[Any, tuple[Any, Path]] = {}
            for way in self._last(names):
                if changes(way[-1]):
                    met.setdefault((id(way[0].before), key(way[-1].after)), (way[-1].after, way))
            self._edges[names] = list(met.values())
        return self._edges[names]


def along(hints: Hints, route: str, name: str, transitions: Mapping[str, Transition]) -> Iterator[Path]:
    """The paths of one route, see ``Routes``."""
    return Routes(hints, transitions).along(route, name)


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
    routes = Routes(hints, hints.stem.transitions)
    for key_of, route in hints.routes.items():
        name, outcome = (*key_of.split(), "granted")[:2]
        if way := next((w for w in routes.along(route, name) if ends(w, name, outcome)), None):
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
