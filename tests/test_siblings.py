"""Wrong transitions, written by a reader who had not seen the laws of what calls must achieve: each is refuted.

They were written beside eighteen holes that a review had found (``siblings``): three a hole, and two sets of three.
"""

from __future__ import annotations

import pytest
from siblings import SIBLINGS, Sibling

from proofs.counterexample import killed_by
from proofs.hints import Mutant
from proofs.mutation import asked
from proofs.mutation.right import LARGER, SMALL, right
from proofs.registry import hints_of
from slotproof.planted import kept_calls

# No law refutes these: their promises ask for too much, so that a call is refused which an engine may lawfully make.
# Each refuses a call that an engine makes on a kept trace.
ASKS_TOO_MUCH = {"hands_over_from_the_first_page_alone", "allocates_one_block_at_a_time"}
# These differ from the right transition only where a length can end inside a page, or a key has three pages: the law
# that refutes each, and what the world needs for it.
PAGES, KEYS = {"page_size": 2}, {"rows.pools.full.pages": 4, "rows.pools.swa.pages": 4, "indices": 4}
BY = {
    "rolls_back_whole_pages_alone": ("keeps_what_is_committed", PAGES),
    "rolls_back_the_partial_page": ("keeps_what_is_committed", PAGES),
    "prefills_whole_pages_alone": ("computes_what_is_asked", PAGES),
    "saves_whole_pages_alone": ("saves_what_was_sent", PAGES),
    "restores_whole_pages_alone": ("next_turn_begins_there", PAGES),
    "splits_one_page_too_low": ("upper_half_gets_its_pages", KEYS),
}


def is_refuted(sibling: Sibling) -> bool:
    """A law refutes it in a small world."""
    if sibling.name in BY:
        law, sizes = BY[sibling.name]
        hints = hints_of(sibling.stem)
        wrong = Mutant(sibling.name, sibling.transition, law, sibling.wrong, {"sizes": {**hints.sizes, **sizes}})
        return killed_by(hints, wrong) is not None
    return any(right(sibling.stem, sibling.transition, kind).refutes(sibling.wrong) for kind in (SMALL, LARGER))


@pytest.mark.soak(but=20)
@pytest.mark.parametrize(
    "sibling", [one for one in SIBLINGS if one.name not in ASKS_TOO_MUCH], ids=lambda one: one.name
)
def test_a_law_refutes_each_sibling(sibling: Sibling) -> None:
    assert is_refuted(sibling)


def test_a_sibling_that_asks_for_too_much_refuses_a_call_that_an_engine_makes() -> None:
    asked.learn(kept_calls.granted_calls())
    try:
        of = [one for one in SIBLINGS if one.name in ASKS_TOO_MUCH]
        assert len(of) == len(ASKS_TOO_MUCH)
        assert all(asked.refused(one.stem, one.transition, one.wrong) for one in of)
        assert not any(
            asked.refused(one.stem, one.transition, hints_of(one.stem).stem.transitions[one.transition]) for one in of
        )
    finally:
        asked.learn({})
