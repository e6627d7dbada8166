"""``slotproof engines STEM --release V``: what is known of other stems and other releases stays."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.driver.naming import UsageError
from conformance.traces import trace_files
from slotproof.commands import engines
from slotproof.commands.engines import beside, run

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


def test_a_trace_keeps_its_rows_of_other_releases() -> None:
    kept = {
        "checks": [],
        "subjects": {"one": ["1", "2"]},
        "traces": {"a": [{"subject": "one", "releases": ["1", "2"], "verdict": "conforms"}]},
    }
    later = {**WHOLE, "release": "2", "verdict": "violation"}
    _, found = beside(kept, [], {"a": [later]}, {"a": "cache"})
    assert found == {"a": [WHOLE, later]}


def test_a_release_that_is_not_known_is_named() -> None:
    with pytest.raises(UsageError, match=r"no release '9\.9' is checked"):
        run(None, only=["9.9"])


def test_a_new_trace_is_replayed_on_all_releases_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "names", lambda: ["never_kept"])
    monkeypatch.setattr(engines, "stems_of_traces", lambda: {"never_kept": "cache"})
    with pytest.raises(UsageError, match=r"never_kept yet: run without --release first"):
        run(None, only=["0.5.23"])
