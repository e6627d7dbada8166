"""The plain data of a picture: panels and items, see ``conformance.telling.picture``."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.driver.protocol import Json


def item(
    key: str,
    name: str,
    facts: Json,
    look: str = "",
    depth: int = 0,
    wrong: Iterable[str] = (),
    uses: Json | None = None,
) -> Json:
    """One thing of a picture. ``uses``: of a page, a block or a slot, who has to do with it, see ``uses_of``."""
    shown = {"key": key, "name": name, "look": look, "depth": depth, "facts": facts, "wrong": [*wrong]}
    return {**shown, "uses": uses_of() if uses is None else uses}


def uses_of(
    held: Iterable[str] = (), kept: Iterable[str] = (), read: Iterable[str] = (), maps: Iterable[str] = ()
) -> Json:
    """Who has to do with a page, by the names that a picture gives them.

    ``held``: who holds it. ``kept``: who has it in a table, and does not hold it. ``read``: who reads it, and neither
    holds it nor has it in a table. ``maps``: the keys of the SWA pages that its slots map to.
    """
    return {"held": [*held], "kept": [*kept], "read": [*read], "maps": [*dict.fromkeys(maps)]}


def panel(kind: str, title: str, items: Iterable[Json]) -> Json:
    """The things of one kind."""
    return {"kind": kind, "title": title, "items": [*items]}


def listed(values: Iterable[object]) -> str:
    """Values in one line; a dash where there is none."""
    return ", ".join(map(str, values)) or "-"
