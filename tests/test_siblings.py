"""Wrong transitions, written by a reader who had not seen the laws of what calls must achieve: refuted, or listed.

They were written beside eighteen holes that a review had found (``siblings``): three a hole, and two sets of three.
"""

from __future__ import annotations

import pytest
from siblings import SIBLINGS, Sibling

from proofs.counterexample import killed_by
from proofs.hints import Mutant
from proofs.mutation.right import LARGER, SMALL, right
from proofs.registry import hints_of

# No law refutes these yet. The first two only ask for more than their transitions: no law says what a promise may not
# ask for. Of the locks the law has the lower end of the window; the upper end is a promise alone.
LEFT = {
    "hands_over_from_the_first_page_alone",
    "allocates_one_block_at_a_time",
    "locks_one_token_too_far",
    "locks_the_window_to_the_root",
    "locks_one_live_token_too_far",
    "locks_one_node_too_far",
    "locks_the_parent_always",
    "locks_from_the_nodes_begin",
}
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
@pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda one: one.name)
def test_a_law_refutes_each_sibling_but_those_that_are_listed(sibling: Sibling) -> None:
    assert is_refuted(sibling) == (sibling.name not in LEFT)
