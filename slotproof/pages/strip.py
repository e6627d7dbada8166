"""The pages of a pool as a strip of cells, with a line from each row or node to the pages that it holds or reads.

Everything is plain data with coordinates in pixels, which ``steps.html.j2`` draws as SVG. Who holds a page has one
letter and one colour on all steps of a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.driver.protocol import Json
from slotproof.pages.marking import Panels

WIDE, HIGH, GAP = 50, 40, 6  # of a cell
TITLE, BETWEEN, LANE, EDGE = (
    18,
    36,
    34,
    4,
)  # a strip's title; between two strips; a lane; room at the left and the right
COLOURS = 8  # how many ``style.css`` has
SAID = {"free": "free", "released": "freed", "pending": "set aside", "lost": "lost", "held": "in use"}
_WHO = re.compile(r"\b(?:request|session) \d+")
Place = tuple[float, float]


class Owners:
    """The letters and colours of those who have to do with pages, in the order in which they appear."""

    def __init__(self, steps: Sequence[Panels]) -> None:
        self._numbers: dict[str, int] = {}
        for name in (name for panels in steps for item in _pages(panels) for name in [*_users(item), *item["victims"]]):
            self._numbers.setdefault(self.who(name), len(self._numbers))

    @staticmethod
    def who(name: str) -> str:
        """The name without the row: a request is one whatever row it has."""
        found = _WHO.search(name)
        return found.group() if found else name

    def letter(self, name: str) -> str:
        """``A`` to ``Z``, then ``A1`` and so on."""
        number = self._numbers[self.who(name)]
        return chr(ord("A") + number % 26) + (str(number // 26) if number > 25 else "")

    def colour(self, name: str) -> int:
        """The number of the colour."""
        return self._numbers[self.who(name)] % COLOURS


def _pages(panels: Panels) -> Iterator[Json]:
    yield from (item for panel in panels if panel["kind"] == "pages" for item in panel["items"])


def _users(item: Json) -> list[str]:
    return [*item["uses"]["held"], *item["uses"]["kept"], *item["uses"]["read"]]


def figures(panels: Panels, owners: Owners) -> list[Json]:
    """The drawings of a step: the full pool with the SWA pool above it, and each other pool alone."""
    pools = [panel for panel in panels if panel["kind"] == "pages" and panel["items"]]
    below = {key for panel in pools for item in panel["items"] for key in item["uses"]["maps"]}
    above = [
        panel
        for panel in pools
        if below & {item["key"] for item in panel["items"]} or panel["title"].startswith("Pages of the SWA")
    ]
    alone = [panel for panel in pools if panel not in above]
    return [_figure([*above, panel] if n == 0 else [panel], owners) for n, panel in enumerate(alone)]


def repeated(steps: Sequence[list[Json]]) -> list[list[Json]]:
    """The drawings of all steps, each with ``same``: it is the drawing of the step before, and neither has a mark."""
    found = []
    for number, drawings in enumerate(steps):
        before = steps[number - 1] if number else []
        pairs = [(drawn, before[n] if n < len(before) else None) for n, drawn in enumerate(drawings)]
        found.append([{**drawn, "same": other is not None and _alike(drawn, other)} for drawn, other in pairs])
    return found


def _alike(drawn: Json, before: Json) -> bool:
    cells = [cell for one in (drawn, before) for strip in one["strips"] for cell in strip["cells"]]
    if any(cell["mark"] for cell in cells) or any(c["touched"] for strip in drawn["strips"] for c in strip["cells"]):
        return False
    return _without_touch(drawn) == _without_touch(before)


def _without_touch(drawn: Json) -> Json:
    strips = [{**s, "cells": [{**cell, "touched": False} for cell in s["cells"]]} for s in drawn["strips"]]
    return {**drawn, "strips": strips}


def _figure(pools: Sequence[Json], owners: Owners) -> Json:
    """One drawing: strips below each other, lines of the mapping between them, and the lanes below the last strip."""
    strips: list[Json] = []
    places: dict[str, Place] = {}
    top = 0.0
    for panel in pools:
        cells = [_cell(item, n, top + TITLE, owners) for n, item in enumerate(panel["items"])]
        places |= {cell["key"]: (cell["x"] + WIDE / 2, cell["y"]) for cell in cells}
        strips.append({"title": panel["title"], "y": top + TITLE - 6, "cells": cells})
        top += TITLE + HIGH + BETWEEN
    bottom = top - BETWEEN
    lanes = _lanes(pools[-1]["items"], places, bottom, owners)
    most = max(len(panel["items"]) for panel in pools)
    words = max((len(lane["name"]) for lane in lanes), default=0)
    titles = max(len(panel["title"]) for panel in pools)
    wide = max(most * (WIDE + GAP) + 2 * EDGE, words * 8.3 + 40, titles * 8.2)
    return {
        "strips": strips,
        "maps": [*_maps(pools[-1]["items"], places)],
        "lanes": lanes,
        "width": round(wide),
        "height": round(bottom + len(lanes) * LANE + 8),
        "title": ", ".join(panel["title"] for panel in pools),
    }


def _cell(item: Json, number: int, top: float, owners: Owners) -> Json:
    held = item["uses"]["held"]
    free = item["look"] in ("free", "released", "pending")
    tag = "+".join(owners.letter(name) for name in held[:2]) + ("+" if len(held) > 2 else "")
    return {
        "key": item["key"],
        "number": item["name"].split()[-1],
        "says": SAID[item["look"]] if free or not held else tag,
        "colour": owners.colour(held[0]) if held and not free else None,
        "look": item["look"],
        "mark": item["mark"],
        "touched": item["touched"],
        "x": EDGE + number * (WIDE + GAP),
        "y": top,
        "words": f"{item['name']}: " + ", ".join(f"{_named(f)}{f['value'] or 'nothing'}" for f in item["facts"]),
    }


def _named(fact: Json) -> str:
    return "" if fact["name"] == "place" else f"{fact['name']} "


def _maps(items: Sequence[Json], places: dict[str, Place]) -> Iterator[Json]:
    for item in items:
        wrong = any("maps to" in fact["name"] and (fact["wrong"] or fact["law"]) for fact in item["facts"])
        for key in item["uses"]["maps"]:
            if key in places:
                (x, y), (ax, ay) = places[item["key"]], places[key]
                yield {"from": item["key"], "to": key, "x": x, "y": y, "ax": ax, "ay": ay + HIGH, "wrong": wrong}


def _lanes(items: Sequence[Json], places: dict[str, Place], bottom: float, owners: Owners) -> list[Json]:
    """A line for each holder and reader, with an arrow to each of its pages."""
    found: dict[str, list[tuple[Json, str]]] = {}
    for item in items:
        for how in ("held", "kept", "read"):
            for name in item["uses"][how]:
                found.setdefault(name, []).append((item, how))
        for name in item["victims"]:  # who reads it by a lock handle has no other line
            if Owners.who(name) not in map(Owners.who, _users(item)):
                found.setdefault(name, []).append((item, "read"))
    order = sorted(found, key=lambda name: (not any(_is_hurt(item, name) for item, _ in found[name]), _natural(name)))
    lanes = []
    for number, name in enumerate(order):
        y = bottom + number * LANE + LANE - 6
        arrows = []
        for item, how in found[name]:
            beside = [other for other in order if any(one is item for one, _ in found[other])]
            x = places[item["key"]][0] + (beside.index(name) - (len(beside) - 1) / 2) * 9
            arrows.append({"x": x, "y": bottom + 3, "how": how, "bad": _is_hurt(item, name), "to": item["key"]})
        lanes.append(
            {
                "name": name,
                "letter": owners.letter(name),
                "colour": owners.colour(name),
                "y": y,
                "end": max(arrow["x"] for arrow in arrows),
                "arrows": arrows,
            }
        )
    return lanes


def _is_hurt(item: Json, name: str) -> bool:
    """The page is wrong for this one."""
    return Owners.who(name) in map(Owners.who, item["victims"])


def _natural(name: str) -> list[Any]:
    """A key that sorts ``row 2`` before ``row 10``, and rows and requests before nodes."""
    return ["node" in name, [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", name)], name]
