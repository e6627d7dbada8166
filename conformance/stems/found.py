"""The rooms of the stems, found by their folders: what a stem has for a purpose is a file of one name in its room.

Beside the rooms of stems there are rooms for whole servers, which are held against the law of a stem: the package of
such a room names the stem (``FOLLOWS``).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from proofs.registry import STEMS
from spec.logic import Stem

HERE = Path(__file__).parent
SPEC = str(__package__).rpartition("conformance")[0] + "spec"  # in a wheel our packages are below ``slotproof``


@cache
def with_file(name: str) -> dict[str, ModuleType]:
    """For each room that has a file of this name, its module."""
    return {room: import_module(f"{__package__}.{room}.{name}") for room in _having(name, (*STEMS, *servers()))}


def _having(name: str, rooms: Iterable[str]) -> list[str]:
    return [room for room in rooms if (HERE / room / f"{name}.py").is_file()]


@cache
def servers() -> tuple[str, ...]:
    """The rooms for whole servers."""
    return tuple(sorted({path.parent.name for path in HERE.glob("*/room.py")} - {*STEMS}))


def rooms() -> list[str]:
    """Everything on which engines can be driven: stems, and whole servers."""
    return [*driven(), *servers()]


def room_of(stem: str) -> Any:
    """What the room of a stem offers (``conformance.stems.room``); ``KeyError`` where no engine is driven on it."""
    return with_file("room")[stem].ROOM


def driven() -> list[str]:
    """The stems on which engines are driven. No room is imported."""
    return _having("room", STEMS)


def law_of(room: str) -> Stem:
    """The law of a stem, or of the stem that a room for whole servers follows."""
    stem = import_module(f"{__package__}.{room}").FOLLOWS if room in servers() else room
    found: Stem = import_module(f"{SPEC}.{stem}").stem
    return found
