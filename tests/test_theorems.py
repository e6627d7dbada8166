"""The theorems in the words of users: what says them exactly is proved, and callers' promises are named."""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

import pytest

from proofs import obligations
from proofs.draining import sentences
from proofs.fitting import ANSWERED, FITS, assumed_choices
from proofs.registry import STEMS, hints_of
from proofs.symbols import World
from slotproof.proving.headlines import assumed, theorems
from spec import allocator
from spec.allocator import AllocatorState
from spec.finite import Seq as FiniteSeq
from spec.lengths import Length
from spec.logic import Number, Seq, Step, but, requires
from spec.theorems import HEADLINES, Headline


@pytest.mark.parametrize("headline", HEADLINES, ids=lambda headline: headline.name)
def test_each_law_of_a_theorem_is_a_law_that_is_proved(headline: Headline) -> None:
    for stem, name in headline.laws:
        hints = hints_of(stem)
        proved = {*hints.stem.invariants, *hints.stem.changes}
        proved |= {*sentences(hints.drain)} if hints.drain else set()
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
    transitions = {name for stem, _ in stuck.laws for name in hints_of(stem).stem.transitions}
    assert known == set(re.findall(r"`(\w+)`", stuck.sentence)) & transitions
    assert "state_admit" not in assumed("cache"), "the state that a request brings is asked of the caller"


def test_a_choice_that_no_answer_can_satisfy_is_told_as_assumed() -> None:
    """A choice about what the caller asks would otherwise be assumed by the proof in silence."""
    known = hints_of("allocator")

    def never(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
        """A choice that no engine can make, whatever it answers."""
        step = allocator.alloc_extend(st, row, to, chosen)
        return but(step, choice=(*step.choice, requires(to.rest < 0, "the length is negative")))

    made = obligations.call(known, never, World(), "alloc_extend")
    assert [choice.sentence for choice in assumed_choices(known, never, made)] == ["the length is negative"]


# Calls that keep every promise and fit, and have no lawful answer: what is assumed says so of each.

# The first was found by a review; the others were written by a reader who had not seen what the proofs assume.

ONE = ("admit", "extend", "finish", "insert_leaf")  # a node of one page
CACHED = (*ONE, "free_rest")
STATELESS = 2  # which of the small worlds has two pools and no mamba states
TAIL_SEQUENCES = [FiniteSeq(pages) for size in range(3) for pages in itertools.permutations(range(1, 4), size)]
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "admit_tail": [*itertools.product(TAIL_SEQUENCES, repeat=2)],
}


class Lawless(NamedTuple):
    """Calls from a first state, and a call in the state that they lead to that no answer makes lawful."""

    first: int
    calls: tuple[str, ...]
    transition: str
    asked: tuple[Any, ...]


def tail(story: int, match: tuple[int, int, int], pages: list[int], start: int, to: int) -> tuple[Any, ...]:
    """What a call of ``admit_tail`` asks for row 0, in whole pages of one token."""
    return (0, 0, story, *match, False, FiniteSeq(pages), start, Length(to, 0))


LAWLESS = {
    "the tail begins behind the window": Lawless(0, (), "admit_tail", tail(0, (0, 0, 0), [], 1, 1)),
    "the tail begins within the prefix": Lawless(STATELESS, CACHED, "admit_tail", tail(0, (1, 1, 1), [1], 0, 1)),
    "a match without a handle": Lawless(STATELESS, CACHED, "admit_tail", tail(0, (0, 1, 1), [1], 1, 2)),
    "pages that the node has not": Lawless(STATELESS, CACHED, "admit_tail", tail(0, (1, 1, 1), [2], 1, 2)),
    "a match of another text": Lawless(STATELESS, CACHED, "admit_tail", tail(2, (1, 1, 1), [1], 1, 2)),
    "a node without its SWA part": Lawless(
        STATELESS, (*CACHED, "evict_swa 1"), "admit_tail", tail(0, (1, 1, 1), [1], 1, 1)
    ),
}


def led_to(first: int, calls: tuple[str, ...]) -> Any:
    """The state after these calls of ``cache``: a transition, and the numbers with which its arguments begin."""
    known = hints_of("cache")
    state = known.small()[first]
    for transition, *begin in map(str.split, calls):
        tried = (asked for asked in known.moves[transition](state) if [*map(str, asked)][: len(begin)] == begin)
        steps = (known.stem.transitions[transition](state, *asked) for asked in tried)
        state = next(step.then for step in steps if step.granted)
    return state


@pytest.mark.parametrize("call", LAWLESS.values(), ids=LAWLESS.keys())
def test_where_no_answer_is_lawful_an_assumed_choice_is_false(call: Lawless) -> None:
    state, transition = led_to(call.first, call.calls), hints_of("cache").stem.transitions[call.transition]
    known = set(assumed("cache")[call.transition])
    for answer in ANSWERS[call.transition]:
        step = transition(state, *call.asked, *answer)
        assert step.kept
        assert step.fits
        assert set(step.broken()) & known


@pytest.mark.parametrize("calls", [("admit", "finish"), (*ONE, "evict_leaf 1"), (*ONE, "evict_swa 1")])
def test_a_leaving_row_may_have_no_node_to_go_on_from(calls: tuple[str, ...]) -> None:
    """So of ``continue_prefill`` nothing is proved."""
    state, transition = led_to(STATELESS, calls), hints_of("cache").stem.transitions["continue_prefill"]
    numbers = itertools.product(range(3), range(3), range(3), range(3), (False, True), TAIL_SEQUENCES)
    assert not any(transition(state, 0, *answer).granted for answer in numbers)
    assert "continue_prefill" in hints_of("cache").unanswered
