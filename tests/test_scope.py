"""What the theorems about the whole cache leave out is listed exactly, each with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proofs import scope
from proofs.registry import hints_of
from spec.scope import OUTSIDE

REASONS = dict(OUTSIDE)


def test_the_list_is_exact() -> None:
    assert [*REASONS] == scope.outside("cache")
    assert all(reason and not reason.endswith(".") for reason in REASONS.values())


def test_what_the_cache_calls_through_a_part_is_inside() -> None:
    found = scope.called("cache")
    assert "admit" in found["session_trim"]
    assert "adopt" in found["swa_mapping"], "session_trim.admit calls it"
    assert "release_swa" in found["lock_ref"]


def test_a_transition_that_nobody_calls_any_more_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the only transition that calls ``merge`` of the tree, ``merge`` is outside."""
    stem = hints_of("cache").stem
    left = {name: made for name, made in stem.transitions.items() if name != "merge"}
    shrunk = replace(hints_of("cache"), stem=replace(stem, transitions=left))
    monkeypatch.setattr(scope, "hints_of", lambda name: shrunk if name == "cache" else hints_of(name))
    assert set(scope.outside("cache")) - set(REASONS) == {("lock_ref", "merge")}


def test_a_call_that_is_made_only_sometimes_counts() -> None:
    """``admit`` locks a node only where a prefix was found; ``acquire`` is inside all the same."""
    assert "acquire" in scope.called("cache")["lock_ref"]
