"""What a reader of a picture must look at: what an operation changed, where the law has something else, what a finding
names. Pictures are plain data, see ``conformance.telling.picture``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from conformance.driver.protocol import Json

Panels = list[Json]
GIVEN_BACK = {"free": "is free", "released": "was freed"}  # looks of a page that can be handed out, in words
MANY = re.compile(r"\b((?:full |SWA |state )?)(page|slot)s (\d+(?:(?: to |, )\d+)*)")


def marked(now: Panels, before: Panels, law: Panels, detail: str = "", harmed: Json | None = None) -> Panels:
    """The panels with each fact as ``{"name", "value", "was", "law", "wrong"}``.

    ``was``: the value before, where the operation changed it. ``law``: what the law has, where this is something else;
    ``law`` empty: there is nothing to compare with. ``detail``: the words of a finding; an item whose name stands in
    them is ``named``. ``state``: ``new``, ``gone`` (it was there before), ``absent`` (only the law has it) or empty.
    ``harmed``: what a request read that was not written for it, see ``conformance.telling.tell``.

    ``hurts``: sentences that say who is hurt by a page, for example that it is free and who reads it; ``victims``: who
    that is. ``mark``: ``bad``
    for the pages that are wrong: those that hurt; where none does, those that the finding names or that the law has
    otherwise; where there are none, those that the step brought into a state that no law allows. ``odd`` for what else
    the finding names, the law has otherwise, or no law allows.
    """
    kinds = {_panel_key(panel): panel for panels in (law, before, now) for panel in panels}
    words = spelled_out(detail)
    found = []
    for key, panel in sorted(kinds.items(), key=lambda pair: _order(pair[0], (now, before, law))):
        items = _items(key, now, before, law)
        shown = [{**_item(*row, compared=bool(law), words=words), "same": False} for row in items]
        found.append({**panel, "items": shown, "rest": "", "same": False})
    return _with_marks(found, harmed or {}, broken=bool(detail))


def _with_marks(panels: Panels, harmed: Json, broken: bool) -> Panels:
    """The panels with ``hurts``, ``victims`` and ``mark`` of each item. ``broken``: the step breaks a law."""
    hurts = {
        _place(panel, item): [*who_is_hurt(item), *[harmed.get("says")] * (item["key"] == harmed.get("page"))]
        for panel in panels
        for item in panel["items"]
    }
    pages = [(_place(panel, item), item) for panel in panels if panel["kind"] == "pages" for item in panel["items"]]
    # The gravest that there is: a page that hurts somebody, one that the finding is about, one that is wrong now.
    bad = {place for place, _ in pages if hurts[place]}
    bad = bad or {place for place, item in pages if item["named"] or item["differs"]}
    bad = bad or {place for place, item in pages if broken and _is_wrong(item) and _changed(item)}

    def with_mark(panel: Json, item: Json) -> Json:
        place = _place(panel, item)
        odd = item["named"] or item["differs"] or _is_wrong(item)
        mark = "bad" if place in bad else "odd" if odd else ""
        read = [harmed["reader"]] if item["key"] == harmed.get("page") else []
        victims = read or (_having(item) if hurts[place] else [])
        touched = item["touched"] or bool(mark)
        return {**item, "hurts": hurts[place], "victims": victims, "mark": mark, "touched": touched}

    marked_panels = [{**panel, "items": [with_mark(panel, item) for item in panel["items"]]} for panel in panels]
    return [
        {**panel, "items": with_guides(panel["items"])} if panel["kind"] == "tree" else panel for panel in marked_panels
    ]


def _is_wrong(item: Json) -> bool:
    return any(fact["wrong"] for fact in item["facts"])


def _changed(item: Json) -> bool:
    return bool(item["state"]) or any(fact["was"] is not None for fact in item["facts"])


def with_guides(nodes: Sequence[Json]) -> list[Json]:
    """The nodes of a tree, each above what is below it, with ``guides``: for each depth down to its own a piece of the
    lines between nodes. ``tee``: the node is not the last below its parent; ``elbow``: it is; ``pass``: a line goes by
    to a later node; ``blank``.
    """
    depths = [node["depth"] for node in nodes]

    def goes_on(place: int, depth: int) -> bool:
        later = next((other for other in depths[place + 1 :] if other <= depth), 0)
        return later == depth

    return [
        {
            **node,
            "guides": [
                ("tee" if goes_on(place, depth) else "elbow")
                if depth == node["depth"]
                else ("pass" if goes_on(place, depth) else "blank")
                for depth in range(1, node["depth"] + 1)
            ],
        }
        for place, node in enumerate(nodes)
    ]


def _place(panel: Json, item: Json) -> tuple[str, str]:
    return _panel_key(panel), item["key"]


def who_is_hurt(item: Json) -> list[str]:
    """That a page can be handed out though somebody has it; empty where this is not so. ``item``: of a picture."""
    uses, how = item["uses"], GIVEN_BACK.get(item["look"])
    if how is None or item["state"] in ("gone", "absent"):
        return []
    having, reading = [*uses["held"], *uses["kept"]], uses["read"]
    said = [f"{item['name']} {how}, and {_listed(having)} still {_verb('has', having)} it"] if having else []
    said += [f"{item['name']} {how}, and {_listed(reading)} still {_verb('reads', reading)} it"] if reading else []
    return said


def _having(item: Json) -> list[str]:
    return [*item["uses"]["held"], *item["uses"]["kept"], *item["uses"]["read"]]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _verb(word: str, names: Sequence[str]) -> str:
    """The verb for one, or for several."""
    return word if len(names) == 1 else {"has": "have", "reads": "read"}[word]


def _panel_key(panel: Json) -> str:
    return f"{panel['kind']} {panel['title']}"


def _order(key: str, pictures: Sequence[Panels]) -> int:
    """Where a panel stands, in the picture in which most stands above it."""
    orders = [[_panel_key(panel) for panel in panels] for panels in pictures]
    return max(keys.index(key) for keys in orders if key in keys)


def _items(key: str, *pictures: Panels) -> list[tuple[Json | None, Json | None, Json | None]]:
    """The items of a panel in the order of the pictures: each now, before, and in the law."""
    sides = [{item["key"]: item for p in panels if _panel_key(p) == key for item in p["items"]} for panels in pictures]
    keys = dict.fromkeys(name for side in sides for name in side)
    now, before, law = sides
    return [(now.get(name), before.get(name), law.get(name)) for name in keys]


def _item(now: Json | None, before: Json | None, law: Json | None, compared: bool, words: str) -> Json:
    item: Json = now or before or law or {}
    state = "" if now and before else "new" if now else "gone" if before else "absent"
    names = dict.fromkeys(fact for side in (now, before, law) if side for fact in side["facts"])
    facts = [_fact(name, now, before, law, compared) for name in names]
    named = bool(words) and re.search(rf"(?<!\w){re.escape(item['name'])}(?![\w\]])", words) is not None
    differs = compared and any(fact["law"] is not None for fact in facts)
    touched = bool(state) or named or differs or any(fact["was"] is not None for fact in facts)
    return {**item, "state": state, "named": named, "differs": differs, "facts": facts, "touched": touched}


def _fact(name: str, now: Json | None, before: Json | None, law: Json | None, compared: bool) -> Json:
    value, was, lawful = (None if side is None else side["facts"].get(name, "") for side in (now, before, law))
    item = now or before or law or {}
    return {
        "name": name,
        "value": value if now else was if before else "",
        "was": (was or "nothing") if now and before and was != value else None,
        "law": (lawful or "nothing") if compared and (lawful or "") != (value or "") else None,
        "wrong": name in item["wrong"],
    }


def spelled_out(detail: str) -> str:
    """The words of a finding, with each page and slot by its own number: ``full pages 1, 3 to 5`` becomes ``full page
    1, full page 3, full page 4, full page 5``.
    """

    def each(match: re.Match[str]) -> str:
        side, what, numbers = match.groups()
        return ", ".join(f"{side}{what} {number}" for number in _numbers(numbers))

    return MANY.sub(each, detail)


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


def folded(steps: Sequence[Panels]) -> list[Panels]:
    """The steps without the pages, blocks and slots that stay free in all of them; ``rest`` says which these are.
    ``same``: the step touches nothing of the panel, or of the item.
    """
    busy = {
        (_panel_key(panel), item["key"])
        for panels in steps
        for panel in panels
        for item in panel["items"]
        if panel["kind"] != "pages" or item["touched"] or item["look"] != "free" or item["wrong"] or item["hurts"]
    }
    return [[_folded(panel, busy, first=n == 0) for panel in panels] for n, panels in enumerate(steps)]


def _folded(panel: Json, busy: set[tuple[str, str]], first: bool) -> Json:
    key = _panel_key(panel)
    left = [item["name"] for item in panel["items"] if (key, item["key"]) not in busy]
    same = not first and not any(item["touched"] for item in panel["items"])
    items = [{**item, "same": not first and not item["touched"]} for item in panel["items"]]
    if len(left) < 2:
        return {**panel, "items": items, "same": same}
    shown = [item for item in items if (key, item["key"]) in busy]
    rest = f"{left[0]} to {left[-1].split()[-1]} are free, and nothing happens to them"
    return {**panel, "items": shown, "rest": rest if _follow(left) else f"{len(left)} others stay free", "same": same}


def _follow(names: Sequence[str]) -> bool:
    """The numbers at the end of the names follow each other."""
    numbers = [int(name.split()[-1]) for name in names]
    return numbers == [*range(numbers[0], numbers[0] + len(numbers))]
