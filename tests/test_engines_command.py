"""``slotproof engines STEM``: what is known of other stems stays."""

from __future__ import annotations

from typing import Any

from slotproof.commands.engines import beside

OLD = {"subject": "one", "release": "1", "verdict": "violation", "known": 1, "ran": {}}
NEW = {**OLD, "known": 2}
ROW = {"subject": "one", "release": "1", "verdict": "conforms", "step": None, "law": None, "kind": None}
WHOLE = {**ROW, "detail": "", "harm": None}


def of(check: dict[str, Any], *stems: str, release: str = "1") -> list[dict[str, Any]]:
    return [{**check, "release": release, "stem": stem} for stem in stems]


def test_checks_of_the_named_stems_take_the_place_of_the_old_ones() -> None:
    kept = {"checks": of(OLD, "allocator", "cache") + of(OLD, "allocator", release="2"), "subjects": {}, "traces": {}}
    new = of(NEW, "cache", "server") + of(NEW, "server", release="2") + of(NEW, "server", release="3")
    checks, _ = beside(kept, new, {}, {})
    first = [*of(OLD, "allocator"), *of(NEW, "cache", "server")]
    second = [*of(OLD, "allocator", release="2"), *of(NEW, "server", release="2")]
    assert checks == [*first, *second, *of(NEW, "server", release="3")]


def test_traces_of_other_stems_stay_and_those_that_are_gone_are_left_out() -> None:
    traces = {"b": [{"subject": "one", "releases": ["1"], "verdict": "conforms"}], "gone": []}
    kept = {"checks": [], "subjects": {"one": ["1"]}, "traces": traces}
    _, found = beside(kept, [], {"a": [WHOLE]}, {"a": "server", "b": "cache"})
    assert found == {"a": [WHOLE], "b": [WHOLE]}
    assert list(found) == ["a", "b"]
