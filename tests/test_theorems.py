"""The theorems in the words of users: what says them exactly is proved, and callers' promises are named."""

from __future__ import annotations

import pytest

from proofs.draining import COMES_TO_REST
from proofs.fitting import ANSWERED, FITS
from proofs.registry import STEMS, hints_of
from slotproof.headlines import theorems
from spec.theorems import HEADLINES, Headline


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline.name)
def test_each_law_of_a_theorem_is_a_law_that_is_proved(headline: Headline) -> None:
    for stem, name in headline.laws:
        hints = hints_of(stem)
        proved = {*hints.stem.invariants, *hints.stem.changes}
        proved |= {COMES_TO_REST} if hints.drain else set()
        proved |= {FITS, ANSWERED} if hints.answers else set()
        assert name in proved, f"{stem} has no law {name}"


def test_a_theorem_names_what_it_rests_on_and_what_callers_promise() -> None:
    found = {theorem["name"]: theorem for theorem in theorems(STEMS)}
    assert set(found) == {headline.name for headline in HEADLINES}
    free = found["freed_exactly_once"]
    assert "every freed page is held by a row" in free["promises"]
    assert "allocator.freed_exactly_once" in free["rests_on"]
    reads = found["no_use_after_free"]
    assert "cache.window_is_locked" in reads["rests_on"]
    assert "cache.reads_held_window" not in reads["rests_on"], "a theorem rests on laws"
    assert "the new lock finds the SWA part of each node in the window before the next token" not in reads["promises"]
    assert "every node of the row's cached prefix is behind the window before the next token" in reads["promises"]
    assert found["cursor_within_committed"]["rests_on"] == ["session_trim.cursor_committed_allocated"]


def test_a_theorem_is_told_where_all_its_stems_are_proved() -> None:
    assert [theorem["name"] for theorem in theorems(["session_trim"])] == ["cursor_within_committed"]
