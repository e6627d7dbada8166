"""Which transitions of the parts the composed theorem speaks about: those that some transition of the whole calls."""

from __future__ import annotations

from proofs import obligations
from proofs.hints import Hints
from proofs.registry import hints_of
from proofs.symbols import World
from spec.logic import Stem


def called(whole: str) -> dict[str, set[str]]:
    """For each part of the whole, by name, the transitions that the whole calls, itself or through a part."""
    found: dict[str, set[str]] = {}
    todo = [(hints_of(whole), name) for name in hints_of(whole).stem.transitions]
    while todo:
        hints, name = todo.pop()
        for part, transition in _calls(hints, name):
            known = found.setdefault(part.name, set())
            if transition not in known:
                known.add(transition)
                todo.append((hints_of(part.name), transition))
    return found


def _calls(hints: Hints, name: str) -> list[tuple[Stem, str]]:
    made = obligations.call(hints, hints.stem.transitions[name], World(), name)
    return [(hints.stem.parts[call.part], call.transition.__name__) for call in made.step.calls]


def outside(whole: str) -> list[tuple[str, str]]:
    """The stem and the name of each transition of a part that no transition of the whole calls."""
    known = called(whole)
    return [
        (part.name, name)
        for part in _parts(hints_of(whole).stem)
        for name in part.transitions
        if name not in known.get(part.name, set())
    ]


def _parts(whole: Stem) -> list[Stem]:
    """The parts of a stem and their parts, each once."""
    found: dict[str, Stem] = {}
    for part in whole.parts.values():
        found |= {part.name: part} | {deeper.name: deeper for deeper in _parts(part)}
    return [*found.values()]
