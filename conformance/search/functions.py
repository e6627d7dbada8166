"""Which functions of a release each operation of a stem's runs calls, and which transitions of the law it takes: an
engine's developer finds the transition of a function by it.

Runs are drawn on the release, and each is then repeated while it is watched. Of the calls of an operation those count
that took a transition. A function is named that the driver itself calls, not one that such a function calls, where at
least half of these calls in a run call it, and this in a sixth of the runs that have the operation: an engine has other
functions for another kind of tree or for pages of one token. Functions are left out that the driver also calls to build
an engine or to read its state.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.check import Search, draw
from conformance.search.elsewhere import ask, tell
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import STEMS, start
from conformance.telling.where import CallRecorder, Roots

RUNS = 60  # how many are drawn of each stem
SHARE = 1 / 2  # of the calls of an operation in one run, in which a function must be called
OF_RUNS = 1 / 6  # of the runs that have the operation, in which it must be so


@dataclass
class WatchedOperation:
    """What one operation did. ``took``: how often it took a transition; ``functions``: in how many of these calls each
    function was called; ``transitions``: how often it took each.
    """

    took: int = 0
    functions: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)

    @property
    def usual(self) -> set[str]:
        """The functions that it calls most times."""
        return {name for name, times in self.functions.items() if times >= SHARE * self.took}


Watched = dict[str, WatchedOperation]  # by operation, of one run


def functions(loaded: Loaded, stems: Collection[str] = (), runs: int = RUNS) -> Json:
    """For each stem that the release has, and each operation: the ``functions`` and the ``transitions``. ``stems``:
    only these, where some are named.
    """
    return {
        stem: of_stem(stem, loaded.makers[stem], loaded.roots, runs)
        for stem in STEMS
        if stem in loaded.makers and (not stems or stem in stems)
    }


def of_stem(stem: str, make: Callable[[Json], Any], code: Sequence[Path], runs: int = RUNS) -> Json:
    """What ``functions`` finds of one stem. ``make`` builds an engine, whose ``code`` is in these folders."""
    roots, reading = Roots(code), set[str]()
    found = [_watched(trace, make, roots, reading) for trace in _drawn(stem, make, runs)]
    names = sorted({op for run in found for op in run})
    return {op: _shown([run[op] for run in found if op in run], reading, STEMS[stem].claims) for op in names}


def _shown(several: Sequence[WatchedOperation], reading: Collection[str], transitions: Collection[str]) -> Json:
    """What one operation did in several runs."""
    runs = Counter(name for one in several for name in one.usual if name not in reading)
    taken = {name for one in several for name in one.transitions}
    return {
        "functions": sorted(name for name, times in runs.items() if times >= OF_RUNS * len(several)),
        "transitions": [name for name in transitions if name in taken],
    }


def _drawn(stem: str, make: Callable[[Json], Any], runs: int) -> list[Trace]:
    """The drawn runs, each as far as it went. One that breaks a law steps back and goes on."""
    traces: dict[int, Trace] = {}
    sink = Sink(passes=lambda *_: True, after=lambda trace, _: traces.setdefault(id(trace), trace))
    draw(stem, make, sink, Search(runs, strict=False))
    return [*traces.values()]


def _watched(trace: Trace, make: Callable[[Json], Any], roots: Roots, reading: set[str]) -> Watched:
    """What a run did, when it is repeated. It ends where the engine breaks a law or does not take a call. ``reading``
    gets the functions that are called to build the engine and to read it.
    """
    built, known = CallRecorder(roots), STEMS[trace.stem].claims
    with built.watched():
        lock = start(trace.stem, make, trace.config, strict=False)
        lock.run.project()
    reading |= _named(built)
    found: defaultdict[str, WatchedOperation] = defaultdict(WatchedOperation)
    for step in trace.steps:
        calls, before = CallRecorder(roots), _done(lock, known)
        lock.watch = calls.watched
        try:
            lock.do(**step)
        except (Finding, Misuse, Unsupported):
            break
        if taken := _done(lock, known) - before:
            one = found[step["op"]]
            one.took += 1
            one.functions.update(_named(calls))
            one.transitions.update(taken)
    return found


def _done(lock: LockStep, known: Collection[str]) -> Counter[str]:
    """How often each of the known transitions was done; operations are counted beside them."""
    return Counter({name: times for (name, how), times in lock.law.counts.items() if how == "done" and name in known})


def _named(calls: CallRecorder) -> set[str]:
    """The functions that the driver itself called, without those that Python calls for an operator or a class."""
    frames, _, _ = calls.frames()
    names = {frame.function for frame in frames if frame.depth == 1}
    return {name for name in names if not name.rpartition(".")[2].startswith("__")}


def elsewhere(engine: str, release: str, stems: Collection[str] = ()) -> Json:
    """What ``functions`` finds of a release, in a process of its own. Raises ``EngineError`` if it cannot be loaded."""
    found: Json = ask(f"{__package__}.functions", [engine, release, *stems], f"watching {engine} {release}")
    return found


def main() -> int:
    """``python -m conformance.search.functions ENGINE RELEASE [STEM…]`` prints what ``functions`` finds, as JSON."""
    engine, release, *stems = sys.argv[1:]
    return tell(lambda: functions(registry.load(engine, release=release), stems))


if __name__ == "__main__":
    sys.exit(main())
