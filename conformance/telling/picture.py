"""A state as a picture: panels with items, as plain data that a template draws (``conformance.stems.panels``).

Each stem has the panels of its states in its room, in ``picture.py``.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.found import law_of, with_file


def frame(state: Any, names: Names | None = None) -> Json:
    """A picture of a state of a stem: ``{"panels": [...]}``. ``names``: what the law's numbers are called."""
    panels: list[Json] = _pictures()[type(state)].panels(state, names or Names())
    return {"panels": [panel for panel in panels if panel["items"]]}


@cache
def _pictures() -> dict[type, ModuleType]:
    """For each class of states the module that draws them."""
    return {law_of(stem).state: module for stem, module in with_file("picture").items()}
