"""Steps of the lock-step a second, without Hypothesis: runs are drawn once from a seed, then done again and timed.

What may be sent in a state, the rules of ``conformance.stateful`` decide; here only their arguments are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.timing import a_second
from conformance.check import STEMS
from conformance.machine import Json, LockStep, Trace
from conformance.stateful import ROWS, Sink, busy
from conformance.subjects import ours

POOLS = ("allocator", "swa_mapping")  # the stems whose operations are drawn here
DRAWS: dict[str, Callable[[Random], Json]] = {
    "extend_batch": lambda r: {"batch": _batch(r), "more": r.randint(1, 6)},
    "decode": lambda r: {"batch": _batch(r)},
    "alloc": lambda r: {"row": r.randrange(ROWS), "pages": r.randint(1, 3)},
    "free": lambda r: {"row": r.randrange(ROWS), "first": r.randint(0, 9), "pages": r.randint(1, 3)},
    "trim": lambda r: {"row": r.randrange(ROWS), "keep": r.randint(0, 9)},
    "finish": lambda r: {"row": r.randrange(ROWS), "overrun": r.randint(0, 5)},
    "group": lambda r: {"pick": r.randint(0, 9)},
    "draft": lambda r: {"pick": r.randint(0, 9)},
    "clear": lambda r: {"sure": r.random() < 0.2},
    "tail": lambda r: {"row": r.randrange(ROWS), "tokens": r.randint(1, 12), "tail": r.randint(0, 12)},
    "evict": lambda r: {"row": r.randrange(ROWS), "first": r.randint(0, 9), "pages": r.randint(1, 3)},
    "free_full": lambda r: {"row": r.randrange(ROWS), "first": r.randint(0, 9), "pages": r.randint(1, 3)},
}
NEED_TOKENS = {"decode", "free", "trim", "finish", "evict", "free_full", "clear"}


@dataclass(frozen=True)
class Rate:
    """Steps a second of one stem: as the check does them, and with no law evaluated."""

    stem: str
    steps: int
    steps_a_second: float
    without_laws: float


def measure(stem: str, runs: int = 100, steps: int = 40, seed: int = 1) -> Rate:
    """Times ``runs`` runs of ``steps`` steps against our implementation."""
    random = Random(seed)
    traces = [draw(stem, random, steps) for _ in range(runs)]
    run_class = STEMS[stem][1]
    lawless: type[LockStep] = type("Lawless", (run_class,), {"broken": lambda _, __: []})
    rates = [a_second(lambda kind=kind: _do(stem, kind, traces)) for kind in (run_class, lawless)]  # type: ignore[misc]
    return Rate(stem, sum(len(t.steps) for t in traces), *rates)


def draw(stem: str, random: Random, steps: int) -> Trace:
    """One lawful run on a pool of a drawn size."""
    rules, run_class = STEMS[stem]
    fixed = {"make": staticmethod(ours.MAKERS[stem]), "run_class": run_class, "sink": Sink()}
    machine: Any = type(rules.__name__, (rules,), fixed)()
    sizes = {"page_size": random.randint(0, 2), "size": random.randint(1, 6), "size_swa": random.randint(1, 4)}
    machine.start({**sizes, "need_sort": random.random() < 0.5})
    names = [name for name in DRAWS if hasattr(rules, name)]
    while len(machine.run.trace.steps) < steps:
        name = random.choice(names)
        if name not in NEED_TOKENS or busy(machine):
            getattr(machine, name)(**DRAWS[name](random))
    trace: Trace = machine.run.trace
    return trace


def _batch(random: Random) -> list[int]:
    return random.sample(range(ROWS), random.randint(1, ROWS))


def _do(stem: str, run_class: type[LockStep], traces: list[Trace]) -> int:
    """Does the runs; building the subjects is part of it, as it is of a check."""
    done = 0
    for trace in traces:
        run = run_class(ours.MAKERS[stem](trace.config), trace.config)
        for step in trace.steps:
            run.do(**step)
        done += len(trace.steps)
    return done
