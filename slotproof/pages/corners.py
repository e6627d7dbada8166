"""Which corners of the transitions the kept traces reach (``proofs.corners``): each trace on which an engine or a known
bug broke a law is run on our implementation, and each granted call of the law is looked at.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from conformance.engines import registry
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import ALL
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from proofs.corners import corner
from proofs.registry import STEMS, hints_of
from spec.logic import Stem, Step

Reached = dict[str, dict[str, set[str]]]


def derived() -> str:
    """The text of ``proofs/corners.json``: for each stem and transition its corners, in order."""
    makers = registry.own().load(None, None, "cpu").makers
    with _watched() as reached:
        for trace in (*(kept.trace for kept in trace_files.every()), *(kept_run(fault).trace for fault in ALL)):
            if trace.stem in makers:
                outcome(trace, makers[trace.stem])
    found = {stem: {name: sorted(corners) for name, corners in reached[stem].items()} for stem in STEMS}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


@contextmanager
def _watched() -> Iterator[Reached]:
    """While this lasts, the corner of each granted call of each transition is noted."""
    reached: Reached = {stem: defaultdict(set) for stem in STEMS}
    transitions = {stem: hints_of(stem).stem.transitions for stem in STEMS}
    known = {stem: dict(named) for stem, named in transitions.items()}
    for stem, named in transitions.items():
        for name, transition in known[stem].items():
            named[name] = _noting(hints_of(stem).stem, transition, reached)
    try:
        yield reached
    finally:
        for stem, named in transitions.items():
            named.update(known[stem])


def _noting(stem: Stem, transition: Callable[..., Step[Any]], reached: Reached) -> Callable[..., Step[Any]]:
    @wraps(transition)
    def noting(state: Any, *arguments: Any) -> Step[Any]:
        step = transition(state, *arguments)
        _note(stem, transition, arguments, step, reached)
        return step

    return noting


def _note(
    stem: Stem, transition: Callable[..., Step[Any]], arguments: tuple[Any, ...], step: Step[Any], reached: Reached
) -> None:
    """Notes the corner of a granted call, and those of the calls of parts that it makes."""
    if step.granted:
        reached[stem.name][transition.__name__].add(corner(transition, arguments, step))
        for call in step.calls:
            if call.then is not call.before:
                _note(stem.parts[call.part], call.transition, call.arguments, call.step, reached)
