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

from proofs.symbols import kinds_of
from spec.logic import Step

KEPT = Path(__file__).with_name("corners.json")
CALLS = "calls "  # before the calls of parts that a call makes


def corner(transition: Callable[..., Any], arguments: tuple[Any, ...], step: Step[Any]) -> str:
    """The corner of a granted call. ``arguments``: all but the state, in the order of the signature."""
    said = of_arguments(transition, arguments)
    made = [call.transition.__name__ for call in step.calls if call.then is not call.before]
    return "; ".join([*([said] if said else []), *([f"{CALLS}{' '.join(made)}"] if made else [])])


def of_arguments(transition: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What each corner of a call with these arguments begins with; the rest are the calls of parts that it makes."""
    said = [_said(*named, value) for named, value in zip(kinds_of(transition).items(), arguments, strict=True)]
    return "; ".join(filter(None, said))


def begins_with(corner: str, said: str) -> bool:
    """A call whose arguments are described so may be at this corner."""
    return corner == said or corner.startswith(f"{said}; {CALLS}" if said else CALLS)


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


@cache
def kept() -> Mapping[str, Mapping[str, list[str]]]:
    """For each stem and each of its transitions the corners that the kept traces reach."""
    found: Mapping[str, Mapping[str, list[str]]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def of(stem: str) -> set[tuple[str, str]]:
    """The corners of a stem, each with its transition."""
    return {(name, corner) for name, corners in kept().get(stem, {}).items() for corner in corners}
