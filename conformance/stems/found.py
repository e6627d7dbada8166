"""The rooms of the stems, found by their folders: what a stem has for a purpose is a file of one name in its room."""

from __future__ import annotations

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
    """For each stem whose room has a file of this name, its module."""
    return {stem: import_module(f"{__package__}.{stem}.{name}") for stem in _stems_with(name)}


def _stems_with(name: str) -> list[str]:
    return [stem for stem in STEMS if (HERE / stem / f"{name}.py").is_file()]


def room_of(stem: str) -> Any:
    """What the room of a stem offers (``conformance.stems.room``); ``KeyError`` where no engine is driven on it."""
    return with_file("room")[stem].ROOM


def driven() -> list[str]:
    """The stems on which engines are driven. No room is imported."""
    return _stems_with("room")


def law_of(stem: str) -> Stem:
    """The law of a stem."""
    found: Stem = import_module(f"{SPEC}.{stem}").stem
    return found
