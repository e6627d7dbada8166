"""The theorems in the words of users: what says them exactly is proved, and callers' promises are named."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest

from proofs import obligations
from proofs.draining import COMES_TO_REST
from proofs.fitting import ANSWERED, FITS, assumed_choices
from proofs.registry import STEMS, hints_of
from proofs.symbols import World
from slotproof.headlines import assumed, theorems
from spec import allocator
from spec.allocator import Allocator
from spec.lengths import Length
from spec.logic import Number, Seq, Step, but, requires
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


def test_the_sentence_names_each_transition_of_which_choices_are_assumed() -> None:
    """What a proof assumes of choices is found by the proof; the sentence that users read names the transitions."""
    stuck = next(headline for headline in HEADLINES if headline.name == "nothing_is_stuck")
    known = {name for stem, law in stuck.laws if law == ANSWERED for name in assumed(stem)}
    assert known == set(re.findall(r"`(\w+)`", stuck.sentence))
    assert assumed("cache")["state_admit"] == ["the state that the request brings was computed for its own text"]


def test_a_choice_that_no_answer_can_satisfy_is_told_as_assumed() -> None:
    """A choice about what the caller asks would otherwise be assumed by the proof in silence."""
    known = hints_of("allocator")

    def never(st: Allocator, row: Number, to: Length, chosen: Seq) -> Step[Allocator]:
        """A choice that no engine can make, whatever it answers."""
        step = allocator.alloc_extend(st, row, to, chosen)
        return but(step, choice=(*step.choice, requires(to.rest < 0, "the length is negative")))

    made = obligations.call(known, never, World(), "alloc_extend")
    assert [choice.sentence for choice in assumed_choices(known, never, made)] == ["the length is negative"]


# Calls that keep every promise and fit, and have no lawful answer: what is assumed says so of each.

MATCHED = ("admit", "extend", "finish", "insert_leaf", "state_copy 1 1", "free_rest", "state_match 0 1 2")


def state_of_another_text(_: Any) -> tuple[str, tuple[Any, ...]]:
    """A request brings the state that a node has for one text, and is admitted with another text."""
    return "state_admit", (0, 0)


LAWLESS: dict[Callable[[Any], tuple[str, tuple[Any, ...]]], tuple[str, ...]] = {
    state_of_another_text: (*MATCHED, "admit 0 0 2"),
}


def led_to(calls: tuple[str, ...]) -> Any:
    """The state after these calls of ``cache``: a transition, and the numbers with which its arguments begin. The track
    buffers of the first state are lazy.
    """
    known = hints_of("cache")
    state = known.small()[1]
    for transition, *begin in map(str.split, calls):
        tried = (asked for asked in known.moves[transition](state) if [*map(str, asked)][: len(begin)] == begin)
        steps = (known.stem.transitions[transition](state, *asked) for asked in tried)
        state = next(step.then for step in steps if step.granted)
    return state


@pytest.mark.parametrize("lawless", LAWLESS, ids=lambda lawless: lawless.__name__)
def test_where_no_answer_is_lawful_an_assumed_choice_is_false(lawless: Callable[[Any], Any]) -> None:
    state = led_to(LAWLESS[lawless])
    name, asked = lawless(state)
    transition = hints_of("cache").stem.transitions[name]
    for answer in itertools.product(range(state.states.slots.size + 1), repeat=3):
        step = transition(state, *asked, *answer)
        assert step.kept
        assert step.fits
        assert set(step.broken()) & set(assumed("cache")[name])
