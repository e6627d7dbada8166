"""The calls of the law that are granted on kept traces: each trace on which an engine or a known bug broke a law is run
on our implementation beside the law.
"""

from __future__ import annotations

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
from proofs.mutation.asked import FiniteCall
from proofs.registry import STEMS, hints_of
from spec.logic import Stem, Step

Seen = Callable[[str, FiniteCall, Step[Any]], None]  # the stem, the call, and its step


def granted_calls() -> dict[tuple[str, str], list[FiniteCall]]:
    """By stem and transition every call that is granted on a kept trace, in order."""
    found: dict[tuple[str, str], list[FiniteCall]] = defaultdict(list)
    watch(lambda stem, call, _: found[stem, call.transition].append(call))
    return dict(found)


def watch(seen: Seen) -> None:
    """Runs the kept traces on our implementation beside the law; each granted call of the law is ``seen``, and so is
    each call of a part that it makes.
    """
    makers = registry.own().load(None, None, "cpu").makers
    with _watched(seen):
        for trace in (*(kept.trace for kept in trace_files.every()), *(kept_run(fault).trace for fault in ALL)):
            if trace.stem in makers:
                outcome(trace, makers[trace.stem])


@contextmanager
def _watched(seen: Seen) -> Iterator[None]:
    """While this lasts, each granted call of each transition is seen."""
    transitions = {stem: hints_of(stem).stem.transitions for stem in STEMS}
    known = {stem: dict(named) for stem, named in transitions.items()}
    for stem, named in transitions.items():
        for name, transition in known[stem].items():
            named[name] = _telling(hints_of(stem).stem, transition, seen)
    try:
        yield
    finally:
        for stem, named in transitions.items():
            named.update(known[stem])


def _telling(stem: Stem, transition: Callable[..., Step[Any]], seen: Seen) -> Callable[..., Step[Any]]:
    @wraps(transition)
    def telling(state: Any, *arguments: Any) -> Step[Any]:
        step = transition(state, *arguments)
        _tell(stem, FiniteCall(transition.__name__, state, arguments), step, seen)
        return step

    return telling


def _tell(stem: Stem, call: FiniteCall, step: Step[Any], seen: Seen) -> None:
    """Tells of a granted call, and of the calls of parts that it makes."""
    if step.granted:
        seen(stem.name, call, step)
        for made in step.calls:
            if made.then is not made.before:
                of_part = FiniteCall(made.transition.__name__, made.before, made.arguments)
                _tell(stem.parts[made.part], of_part, made.step, seen)
