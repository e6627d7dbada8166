"""The plain data of a picture: panels and items, see ``conformance.telling.picture``."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.driver.protocol import Json


def item(key: str, name: str, facts: Json, look: str = "", depth: int = 0, wrong: Iterable[str] = ()) -> Json:
    """One thing of a picture."""
    return {"key": key, "name": name, "look": look, "depth": depth, "facts": facts, "wrong": [*wrong]}


def panel(kind: str, title: str, items: Iterable[Json]) -> Json:
    """The things of one kind."""
    return {"kind": kind, "title": title, "items": [*items]}


def listed(values: Iterable[object]) -> str:
    """Values in one line; a dash where there is none."""
    return ", ".join(map(str, values)) or "-"
