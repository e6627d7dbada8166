"""Which functions of a release each operation of a stem's runs calls, and which transitions of the law it takes: an
engine's developer finds the transition of a function by it.

Runs are drawn on the release, and each is then repeated while it is watched. Of the calls of an operation those count
that took a transition. A function is named that the driver itself calls, not one that such a function calls, in at
least half of them; a method that several classes have is one function in this, and the classes are named that each have
a tenth of the calls. Functions are left out that the driver also calls to build an engine or to read its state.
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
SHARE = 0.5  # of the calls of an operation, in which a function must be called
OF_CLASS = 0.1  # of the calls of an operation, in which the method of one class must be called


@dataclass
class WatchedOperation:
    """What one operation did: how often it took a transition, in how many of these calls each function was called, with
    its class and without, and how often it took each transition.
    """

    took: int = 0
    functions: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)


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
    found: defaultdict[str, WatchedOperation] = defaultdict(WatchedOperation)
    for trace in _drawn(stem, make, runs):
        _watch(trace, make, roots, found, reading)
    return {op: _shown(one, reading, STEMS[stem].claims) for op, one in sorted(found.items())}


def _shown(one: WatchedOperation, reading: Collection[str], transitions: Collection[str]) -> Json:
    often = {name for name, times in one.names.items() if times >= SHARE * one.took}
    of_class = {name for name, times in one.functions.items() if times >= OF_CLASS * one.took and _bare(name) in often}
    taken = [name for name in transitions if one.transitions[name]]
    return {"functions": sorted(of_class.difference(reading)), "transitions": taken}


def _drawn(stem: str, make: Callable[[Json], Any], runs: int) -> list[Trace]:
    """The drawn runs, each as far as it went. One that breaks a law steps back and goes on."""
    traces: dict[int, Trace] = {}
    sink = Sink(passes=lambda *_: True, after=lambda trace, _: traces.setdefault(id(trace), trace))
    draw(stem, make, sink, Search(runs, strict=False))
    return [*traces.values()]


def _watch(
    trace: Trace, make: Callable[[Json], Any], roots: Roots, found: dict[str, WatchedOperation], reading: set[str]
) -> None:
    """Repeats a run, and adds what it did. It ends where the engine breaks a law or does not take a call."""
    built, known = CallRecorder(roots), STEMS[trace.stem].claims
    with built.watched():
        lock = start(trace.stem, make, trace.config, strict=False)
        lock.run.project()
    reading |= _named(built)
    for step in trace.steps:
        calls, before = CallRecorder(roots), _done(lock, known)
        lock.watch = calls.watched
        try:
            lock.do(**step)
        except (Finding, Misuse, Unsupported):
            return
        if taken := _done(lock, known) - before:
            one, called = found[step["op"]], _named(calls)
            one.took += 1
            one.functions.update(called)
            one.names.update({*map(_bare, called)})
            one.transitions.update(taken)


def _done(lock: LockStep, known: Collection[str]) -> Counter[str]:
    """How often each of the known transitions was done; operations are counted beside them."""
    return Counter({name: times for (name, how), times in lock.law.counts.items() if how == "done" and name in known})


def _named(calls: CallRecorder) -> set[str]:
    """The functions that the driver itself called, without those that Python calls for an operator or a class."""
    frames, _, _ = calls.frames()
    names = {frame.function for frame in frames if frame.depth == 1}
    return {name for name in names if not _bare(name).startswith("__")}


def _bare(function: str) -> str:
    return function.rpartition(".")[2]


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
