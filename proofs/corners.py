"""The corners of a transition: kinds of calls that a promise must not exclude, such as a decode that crosses a page.

A corner says of a granted call which of its sequences and sets are empty, have one member or more, which of its truths
hold, which lengths end within a page, and which calls of parts it makes. The corners that engines reach are derived
from the kept traces (``slotproof.pages.corners``) and kept in ``corners.json``. ``slotproof prove`` shows a granted
call at each of them: a promise that excludes a lawful call of an engine has no witness there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import z3

from proofs.symbols import kinds_of, lift
from spec.logic import Step, no

KEPT = Path(__file__).with_name("corners.json")


def corner(transition: Callable[..., Any], arguments: tuple[Any, ...], step: Step[Any]) -> str:
    """The corner of a granted call. ``arguments``: all but the state, in the order of the signature."""
    said = [_said(*named, value) for named, value in zip(kinds_of(transition).items(), arguments, strict=True)]
    made = [call.transition.__name__ for call in step.calls if call.then is not call.before]
    return "; ".join([*filter(None, said), *([f"calls {' '.join(made)}"] if made else [])])


def _said(name: str, kind: str, value: Any) -> str:
    """What a corner says of one argument; nothing of a number."""
    if kind == "Seq":
        return f"{name} {_many(value.length)}"
    if kind in ("Set", "Slots"):
        return f"{name} {_many(value.size)}"
    if kind == "Truth":
        return name if value else f"not {name}"
    if kind == "Length":
        return f"{name} within a page" if value.rest else f"{name} at the end of a page"
    return ""


def _many(count: int) -> str:
    return ("empty", "of one")[count] if count < 2 else "of several"


def formula(corner: str, kinds: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """What a corner says of the arguments of a call, on symbols; nothing of sets of slots, which symbols do not count,
    and of the calls of parts.

    ``kinds``: the kind of each argument, by name. Raises ``ValueError`` for a text that is no corner.
    """
    phrases = [phrase for phrase in corner.split("; ") if phrase and not phrase.startswith("calls ")]
    return z3.And(*(_meant(phrase, kinds, arguments) for phrase in phrases))


def _meant(phrase: str, kinds: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """The formula of one phrase, which ``_said`` says of one argument."""
    for name, kind in kinds.items():
        for said, holds in _phrases(name, kind, arguments[name]):
            if said == phrase:
                return lift(holds)
    raise ValueError(f"{phrase!r} is no corner: expected what is said of one of {', '.join(kinds)}")


def _phrases(name: str, kind: str, value: Any) -> list[tuple[str, Any]]:
    """All that a corner may say of a symbol."""
    if kind == "Slots":
        return [(f"{name} {_many(count)}", True) for count in range(3)]
    if kind in ("Seq", "Set"):
        many = value.length if kind == "Seq" else value.size
        return [(f"{name} {_many(0)}", many == 0), (f"{name} {_many(1)}", many == 1), (f"{name} {_many(2)}", many > 1)]
    if kind == "Truth":
        return [(name, value), (f"not {name}", no(value))]
    if kind == "Length":
        return [(f"{name} within a page", value.rest != 0), (f"{name} at the end of a page", value.rest == 0)]
    return []


@cache
def kept() -> Mapping[str, Mapping[str, list[str]]]:
    """For each stem and each of its transitions the corners that the kept traces reach."""
    found: Mapping[str, Mapping[str, list[str]]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def of(stem: str) -> set[tuple[str, str]]:
    """The corners of a stem, each with its transition."""
    return {(name, corner) for name, corners in kept().get(stem, {}).items() for corner in corners}
