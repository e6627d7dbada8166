"""Makes a failing run small: fewer steps, then smaller numbers and pools, as long as the same law breaks.

Hypothesis finds the run; shrinking happens here on the trace itself, so that it never slips to another law and costs a
few replays instead of thousands of draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from conformance.machine import Finding, Json, LockStep, Misuse, Trace

COUNTED = ("more", "count", "sent", "fork")  # arguments that are numbers of tokens


def shrink(found: Finding, trace: Trace, start: Callable[[Json], LockStep]) -> tuple[Finding, Trace]:
    """The smallest run that a greedy search finds; ``start`` makes a fresh run of a configuration."""
    best = (found, _cut(trace, len(trace.steps)))
    for paged in _smaller_pages(best[1]):
        best = _same(paged, start, found.law) or best
    while True:
        best = _fewer(*best, start)
        candidates = (_same(candidate, start, found.law) for candidate in _smaller(best[1]))
        smaller = next((shown for shown in candidates if shown is not None), None)
        if smaller is None:
            return best
        best = smaller


def _fewer(found: Finding, trace: Trace, start: Callable[[Json], LockStep]) -> tuple[Finding, Trace]:
    """Without every stretch of steps that can be left out, the long ones first, from the end on."""
    best, count = (found, trace), len(trace.steps)
    for length in sorted({count // 2, count // 4, count // 8, 4, 3, 2, 1} - {0}, reverse=True):
        first = len(best[1].steps) - length
        while first >= 0:
            shown = _same(_without(best[1], first, length), start, found.law)
            best = shown or best
            first = min(first, len(best[1].steps) - length + 1) - 1 if shown or length < 5 else first - length // 2
    return best


def _without(trace: Trace, first: int, length: int) -> Trace:
    return Trace(trace.stem, dict(trace.config), trace.steps[:first] + trace.steps[first + length :])


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


def _smaller_pages(trace: Trace) -> Iterator[Trace]:
    """The run with smaller and smaller pages, and numbers of tokens in proportion: it replays faster."""
    size = trace.config.get("page_size", 1)
    for parts in (2**n for n in range(1, size.bit_length())):
        config, *steps = ({k: _part(k, v, parts) for k, v in kept.items()} for kept in (trace.config, *trace.steps))
        yield Trace(trace.stem, {**config, "page_size": size // parts}, steps)


def _part(key: str, value: Any, parts: int) -> Any:
    return -(-value // parts) if key in (*COUNTED, "window") and isinstance(value, int) else value


def _merged(trace: Trace) -> Iterator[Trace]:
    """Two steps that differ in a number of tokens alone become one; so do a look and what comes of it."""
    for first, one in enumerate(trace.steps):
        for second, other in enumerate(trace.steps[first + 1 :], start=first + 1):
            if one["op"] == "look" and one.get("request") == other.get("request"):
                steps = [*trace.steps[:second], {**one, **other}, *trace.steps[second + 1 :]]
                yield _without(Trace(trace.stem, dict(trace.config), steps), first, 1)
            for key in COUNTED:
                if key in other and isinstance(one.get(key), int) and {**one, key: 0} == {**other, key: 0}:
                    steps = [*trace.steps[:first], {**one, key: one[key] + other[key]}, *trace.steps[first + 1 :]]
                    yield _without(Trace(trace.stem, dict(trace.config), steps), second, 1)


def _smaller(trace: Trace) -> Iterator[Trace]:
    """Runs with fewer steps first, two merged or a pair left out, then with smaller numbers."""
    count = len(trace.steps)
    yield from _merged(trace)
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
