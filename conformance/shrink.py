"""Makes a failing run small: fewer steps, then smaller numbers and pools, as long as the same law breaks.

Hypothesis finds the run; shrinking happens here on the trace itself, so that it never slips to another law and costs a
few replays instead of thousands of draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance.machine import Finding, Json, LockStep, Misuse, Trace


def shrink(found: Finding, trace: Trace, start: Callable[[Json], LockStep]) -> tuple[Finding, Trace]:
    """The smallest run that a greedy search finds; ``start`` makes a fresh run of a configuration."""
    best = (found, _cut(trace, len(trace.steps)))
    improved = True
    while improved:
        improved = False
        for candidate in _smaller(best[1]):
            shown = _same(candidate, start, found.law)
            if shown is not None:
                best, improved = shown, True
                break
    return best


def _cut(trace: Trace, length: int) -> Trace:
    return Trace(trace.stem, dict(trace.config), [dict(s) for s in trace.steps[:length]])


def _same(trace: Trace, start: Callable[[Json], LockStep], law: str) -> tuple[Finding, Trace] | None:
    """The finding, if the run breaks the law at some step; the run is cut there."""
    run = start(trace.config)
    for number, step in enumerate(trace.steps, start=1):
        try:
            run.do(step["op"], **{k: v for k, v in step.items() if k != "op"})
        except Finding as finding:
            return (finding, _cut(trace, number)) if finding.law == law else None
        except (Misuse, IndexError, KeyError):
            return None  # without the steps before it this one can no longer be sent
        if run.latent is not None and run.latent.law == law:
            return run.latent, _cut(trace, number)
    return None


def _smaller(trace: Trace) -> Iterator[Trace]:
    """Runs with fewer steps first: long stretches, then single steps and pairs; then smaller numbers."""
    count = len(trace.steps)
    for length in (count // 2, count // 4, 2, 1):
        for first in range(count - length, -1, -1) if length else ():
            yield Trace(trace.stem, dict(trace.config), trace.steps[:first] + trace.steps[first + length :])
    for first in range(count):
        for last in range(first + 2, count):
            kept = [s for n, s in enumerate(trace.steps) if n not in (first, last)]
            yield Trace(trace.stem, dict(trace.config), kept)
    yield from _smaller_numbers(trace)


def _smaller_numbers(trace: Trace) -> Iterator[Trace]:
    for key, value in trace.config.items():
        if key in ("size", "size_swa", "size_mamba") and value > 1:
            yield Trace(trace.stem, {**trace.config, key: value - 1}, trace.steps)
        if value is True:
            yield Trace(trace.stem, {**trace.config, key: False}, trace.steps)
    for number, step in enumerate(trace.steps):
        for key, value in step.items():
            for less in _shorter(value) if key == "tokens" and isinstance(value, list) else _less(value):
                steps = [*trace.steps[:number], {**step, key: less}, *trace.steps[number + 1 :]]
                yield Trace(trace.stem, dict(trace.config), steps)


def _less(value: Any) -> Iterator[Any]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield from {0, value // 2, value - 1} - {value}
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from ([*value[:place], less, *value[place + 1 :]] for less in _less(item))


def _shorter(tokens: list[int]) -> Iterator[list[int]]:
    """A key sequence gets shorter; its tokens stay, since others share them."""
    yield from (tokens[:length] for length in sorted({len(tokens) // 2, len(tokens) - 1} - {0, len(tokens)}))
