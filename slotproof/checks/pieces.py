"""How the time of a check is dealt out.

A stem gets a share by its weight (``Room.weight``). Where the share is more than one process can use, several search
the stem at once, each with seeds of its own: the first one also replays the kept traces, and goes on until enough was
done. What they found is one judgement.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.search.enough import NOT_ENOUGH, OPERATIONS, too_seldom
from conformance.stems.stem_registry import ROOMS
from conformance.traces.trace_files import LISTS

SEEDS = 104_729  # the seeds of two pieces of one stem differ by so much
SHORTEST = 0.1  # seconds that each piece gets at least


@dataclass(frozen=True)
class Piece:
    """What one process does of the search on a stem. ``number``: 0 for the first of a stem."""

    stem: str
    number: int
    weight: float

    @property
    def run(self) -> str:
        """The name under which the process keeps the run that it sends."""
        return f"{self.stem}-{self.number}" if self.number else self.stem

    def seed(self, seed: int | None) -> int | None:
        """The seed of its runs. ``seed``: of the check."""
        return seed if self.number == 0 else (seed or 0) + SEEDS * self.number


def pieces(stems: Sequence[str], workers: int, limited: bool) -> list[Piece]:
    """The pieces of a check, those with the most weight first. ``limited``: by a budget alone; where the number of
    runs is given, each stem is one piece, so that a seed draws the same runs on every machine.
    """
    weights = {stem: ROOMS[stem].weight for stem in stems}
    whole = sum(weights.values())
    found = []
    for stem, weight in weights.items():
        count = min(workers, math.ceil(weight * workers / whole)) if limited else 1
        found += [Piece(stem, number, weight / count) for number in range(count)]
    return sorted(found, key=lambda piece: -piece.weight)


class Shares:
    """The seconds of each piece. ``deadline``: when all are done, by ``time.monotonic``; ``None`` for no limit."""

    def __init__(self, todo: Sequence[Piece], workers: int, deadline: float | None) -> None:
        self.workers, self.deadline, self._todo = workers, deadline, list(todo)
        self._ends: dict[Piece, float] = {}  # of those that run
        self._lock = Lock()

    def begins(self, piece: Piece) -> float | None:
        """The seconds of a piece that begins now: by its weight among those that wait, of the time that the running
        ones leave of all workers.
        """
        with self._lock:
            weight = sum(each.weight for each in self._todo)
            self._todo.remove(piece)
            if self.deadline is None:
                return None
            now = time.monotonic()
            left = self.deadline - now
            free = left * self.workers - sum(max(end - now, 0.0) for end in self._ends.values())
            seconds = max(min(left, free * piece.weight / weight), SHORTEST)
            self._ends[piece] = now + seconds
            return seconds

    def ends(self, piece: Piece) -> None:
        """The piece is done."""
        with self._lock:
            self._ends.pop(piece, None)


def together(parts: Sequence[Json]) -> Json:
    """The judgements of the pieces of one stem as one. A law that several have found is one finding, that of the first
    of them, and says in how many runs it was met altogether.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    lists = {name: _one_a_law([row for part in parts for row in part.get(name, [])]) for name in LISTS}
    transitions = _sum(parts, "transitions")
    claimed = sorted({name for part in parts for name in part["claimed"]})
    seldom = too_seldom(claimed, transitions)
    steps = sum(part["steps"] for part in parts)
    enough = any(part["enough"] for part in parts) or (steps >= OPERATIONS and not seldom)
    ran: dict[str, list[str]] = {}
    for part in parts:
        for name, values in part["ran"].items():
            ran[name] = list(dict.fromkeys([*ran.get(name, []), *values]))
    return {
        **first,
        **lists,
        **{"verdict": _verdict(parts, enough), "enough": enough, "steps": steps, "claimed": claimed},
        **{name: sum(part[name] for part in parts) for name in ("runs", "refused")},
        **{"transitions": transitions, "avoided": _sum(parts, "avoided"), "too_seldom": seldom, "ran": ran},
        "never_reached": [name for name in first["never_reached"] if all(name in p["never_reached"] for p in parts)],
        "cut_short": any(part["cut_short"] for part in parts),
        **{name: max(part[name] for part in parts) for name in ("seconds", "over")},
    }


def _one_a_law(rows: Sequence[Json]) -> list[Json]:
    """Kept traces are each a finding of their own."""
    found: dict[tuple[str, ...], Json] = {}
    for row in rows:
        key = (row["law"], row["kind"], row["severity"], row["name"])
        seen = found.get(key)
        found[key] = row if seen is None else {**seen, "times": seen["times"] + row["times"]}
    named = {key[:3] for key in found if key[3]}
    return [row for key, row in found.items() if key[3] or key[:3] not in named]


def _sum(parts: Sequence[Json], name: str) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part[name])
    return dict(sorted(counts.items()))


def _verdict(parts: Sequence[Json], enough: bool) -> str:
    verdicts = {part["verdict"] for part in parts}
    if VIOLATION in verdicts:
        return VIOLATION
    if not enough:
        return NOT_ENOUGH
    if LATENT in verdicts:
        return LATENT
    return CONFORMS if any(part["runs"] for part in parts) else UNSUPPORTED
