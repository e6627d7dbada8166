"""Stories for the small world, and the mutants of the law of contents; ``proofs.cache`` uses them.

In each of these mutants every count is right, and each page is freed once: what is wrong is what a page holds.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import immutables

from proofs.hints import Mutant, Transition, altered, unasked, unchosen
from spec import cache as law
from spec import contents, isolation, mamba_in_cache, state_isolation
from spec.cache_state import CacheState
from spec.contents import Contents
from spec.finite import Map
from spec.lengths import Length
from spec.logic import Number, Seq, Step, Truth, but
from spec.mamba_slots_state import ABSENT, FIRST, OWN, SECOND, kept
from spec.session_trim_state import committed, protected


def stories() -> Contents:
    """Three stories of tokens that fill a page each: two begin alike and differ from the second token on, the third
    differs from the first on.
    """
    told = {(x, i, 0): 1 + i + (10 * x if i or x == 2 else 0) for x in range(3) for i in range(4)}
    return contents.initial(3, Map(3, 0, immutables.Map(told)))


def matches_another_text(
    st: CacheState,
    row: Number,
    session: Number,
    story: Number,
    handle: Number,
    node: Number,
    top: Number,
    counting: Truth,
    pages: Seq,
) -> Step[CacheState]:
    """A prefix match answers with pages that were computed for another text."""
    step = law.admit(st, row, session, story, handle, node, top, counting, pages)
    return unchosen(step, "the matched pages were computed for the request's own text")


def goes_on_in_another_text(
    st: CacheState, row: Number, old: Number, handle: Number, node: Number, top: Number, counting: Truth, pages: Seq
) -> Step[CacheState]:
    """A request goes on after an insert on pages of the tree that were computed for another text."""
    step = law.continue_prefill(st, row, old, handle, node, top, counting, pages)
    return unchosen(step, "the matched pages were computed for the request's own text")


def has_no_text(
    st: CacheState,
    row: Number,
    session: Number,
    story: Number,
    handle: Number,
    node: Number,
    top: Number,
    counting: Truth,
    pages: Seq,
) -> Step[CacheState]:
    """A request is admitted whose text has no number."""
    step = law.admit(st, row, session, story, handle, node, top, counting, pages)
    return unasked(step, "the request's text has a number")


def commits_an_unwritten_draft(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A draft counts as computed, and its slots still hold the draft."""
    return altered(law.commit(st, row, to), contents=st.contents)


def computes_the_full_pool_alone(
    st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[CacheState]:
    """A prefill writes the slots of the full pool, and leaves those of the SWA pool as they were."""
    step = law.extend(st, row, to, full_pages, swa_pages)
    return altered(step, contents=but(step.then.contents, swa=st.contents.swa))


def decodes_into_the_prefix(st: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
    """A decode writes its token into the last page of the cached prefix, too, which other requests read."""
    step = law.decode(st, row, full_pages, swa_pages)
    at, end = committed(st.rows, row), protected(st.rows, row)
    last = Length(end.pages - 1, 0)
    return but(
        step,
        then=isolation.writes(step.then, row, last, end, lambda _, __: isolation.prefix_at(st, row, at.pages, at.rest)),
    )


def revives_with_another_text(st: CacheState, row: Number, node: Number, later: Truth) -> Step[CacheState]:
    """A tombstone comes to life with SWA pages that were computed for another text than its full pages."""
    step = law.revive_in_place(st, row, node, later)
    return unasked(step, "the node's pages hold the text that the row's own pages hold")


def resumes_another_text(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """The next turn of a session runs on the session's row, and its text begins otherwise."""
    step = law.resume(st, session, story, given)
    return unasked(step, "the turn's text begins with the text so far of its session")


def brings_another_state(
    st: CacheState, row: Number, request: Number, own: Number, first: Number, second: Number, arrives: Truth
) -> Step[CacheState]:
    """A request goes on from a copy of the state of another node than its matched one, or from a blank one."""
    step = mamba_in_cache.state_admit(st, row, request, own, first, second, arrives)
    return unasked(step, "the request brings the state after the computed tokens of its row")


def wipes_its_track(
    st: CacheState, row: Number, request: Number, own: Number, first: Number, second: Number, arrives: Truth
) -> Step[CacheState]:
    """An admission wipes the state slots of the request's track buffer, too."""
    step = mamba_in_cache.state_admit(st, row, request, own, first, second, arrives)
    wiped = state_isolation.copied(step.then, ABSENT, step.then.states.table(request, FIRST), False)
    return but(step, then=wiped)


def copies_over_a_state(
    st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth
) -> Step[CacheState]:
    """The state that a node gets is written over the own state of the request that gives it."""
    step = mamba_in_cache.state_copy(st, request, node, slot, at_once)
    newest, own = (st.states.table(request, role) for role in (kept(st.states, request), OWN))
    return but(step, then=but(step.then, contents=state_isolation.copied(st, newest, own, False).contents))


def copies_over_the_other_track(
    st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth
) -> Step[CacheState]:
    """The state that a node gets is also written over the track that is not the newest."""
    step = mamba_in_cache.state_copy(st, request, node, slot, at_once)
    newest = kept(st.states, request)
    other = st.states.table(request, FIRST + SECOND - newest)
    return but(step, then=state_isolation.copied(step.then, slot, other, False))


def copies_over_its_track(st: CacheState, request: Number, node: Number, at_once: Truth) -> Step[CacheState]:
    """A request that matches again gets the state of the node into its track buffer, too."""
    step = mamba_in_cache.state_match_again(st, request, node, at_once)
    own, track = (st.states.table(request, role) for role in (OWN, FIRST))
    return but(step, then=state_isolation.copied(step.then, own, track, False))


def donates_an_old_track(st: CacheState, request: Number, node: Number) -> Step[CacheState]:
    """A request that ends donates a state from before the end of the node's key."""
    step = mamba_in_cache.state_donate(st, request, node)
    return unasked(step, "the request's newest state is the one at the end of the node's key")


def swaps_an_old_track(st: CacheState, request: Number, node: Number, slot: Number) -> Step[CacheState]:
    """A request that goes on donates a state from before the end of the node's key."""
    step = mamba_in_cache.state_swap(st, request, node, slot)
    return unasked(step, "the request's newest state is the one at the end of the node's key")


def revives_another_text(st: CacheState, row: Number, node: Number) -> Step[CacheState]:
    """A tombstone with a state gets full pages of another text."""
    step = law.revive_tombstone(st, row, node)
    return unasked(step, "the node's pages hold the text that the row's own pages hold")


def resumes_a_longer_state(st: CacheState, session: Number, story: Number, given: Length) -> Step[CacheState]:
    """A session's row is cut, and its next turn goes on with the state from before the cut."""
    return unasked(law.resume(st, session, story, given), "the row's state is the one after its computed tokens")


def computes_without_a_state(
    st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[CacheState]:
    """In a model with mamba states a request without a state computes its prompt."""
    step = law.extend(st, row, to, full_pages, swa_pages)
    return unasked(step, "in a model with mamba states the request has its own")


def rolls_back_under_a_state(st: CacheState, row: Number, to: Length) -> Step[CacheState]:
    """A row with a state loses computed tokens, and the state stays the one after them."""
    return unasked(law.roll_back(st, row, to), "a request with states keeps its computed tokens")


def tracks_the_whole_row(st: CacheState, request: Number, track: Number, upto: Length) -> Step[CacheState]:
    """At a tracking boundary the state after all computed tokens is written, not the one at the boundary."""
    step = mamba_in_cache.state_write(st, request, track, upto)
    row = st.carrier(request) - 1
    wrong = state_isolation.at(st, row, st.states.row(request, track), committed(st.rows, row))
    return but(step, then=wrong)


def writes_nothing(transition: Transition) -> Transition:
    """The transition that does what ``transition`` does, and leaves the contents of all slots as they were."""

    @wraps(transition)
    def wrong(st: CacheState, *arguments: Any, **named: Any) -> Step[CacheState]:
        return altered(transition(st, *arguments, **named), contents=st.contents)

    return wrong


# On these ways, after a leaf was inserted, a slot or a node has another text than the request that comes next.
WAYS = {
    "reserve": "admit",
    "decode": "admit",
    "commit": "admit reserve",
    "continue_prefill": "admit extend finish drop_duplicates",
}
SILENT = {
    "reserve": "draft_is_nobodys_text",
    "commit": "own_state_is_of_own_text",
    "state_match": "request_gets_the_nodes_state",
    "state_match_again": "request_gets_the_nodes_state",
    "state_write": "track_gets_the_state_at_the_boundary",
    "state_copy": "node_state_is_at_its_end",
    "state_take_back": "session_goes_on_from_an_earlier_state",
}
COMPUTED = "admit state_admit extend"  # a request with states has computed its prompt
# A request has written a state to its track buffer, and the next one gets the same slots.
WRITTEN_BEFORE = {"routes": {"state_admit": f"{COMPUTED} state_write finish state_release free_rest admit"}}
# The tree has a node with a state, the node becomes a tombstone, and a request with another text leaves.
WITH_A_STATE = {
    "routes": {
        "revive_tombstone": f"{COMPUTED} state_write finish insert_leaf state_donate state_release free_rest evict_swa "
        f"{COMPUTED} finish"
    }
}
ROLLED = {"routes": {"roll_back": COMPUTED}}
CUT = {"routes": {"resume": f"{COMPUTED} save restore"}}
SAVED = {"routes": {"resume": "admit extend save"}}
MUTANTS = (
    *(
        Mutant(f"{name}_writes_nothing", name, broken, writes_nothing(law.stem.transitions[name]))
        for name, broken in SILENT.items()
    ),
    Mutant("brings_another_state", "state_admit", "own_state_is_of_own_text", brings_another_state),
    Mutant("copies_over_a_state", "state_copy", "own_state_is_of_own_text", copies_over_a_state),
    Mutant("reads_another_state", "state_admit", "reads_state_of_own_text", brings_another_state),
    Mutant("wipes_its_track", "state_admit", "request_begins_with_its_state", wipes_its_track, WRITTEN_BEFORE),
    Mutant("copies_over_its_track", "state_match_again", "slots_of_others_hold_what_they_held", copies_over_its_track),
    Mutant("donates_an_old_track", "state_donate", "node_state_is_at_its_end", donates_an_old_track),
    Mutant("swaps_an_old_track", "state_swap", "node_state_is_at_its_end", swaps_an_old_track),
    Mutant("revives_another_text", "revive_tombstone", "node_state_is_at_its_end", revives_another_text, WITH_A_STATE),
    Mutant("resumes_a_longer_state", "resume", "own_state_is_of_own_text", resumes_a_longer_state, CUT),
    Mutant("computes_without_a_state", "extend", "pass_goes_on_from_its_state", computes_without_a_state),
    Mutant("rolls_back_under_a_state", "roll_back", "own_state_is_of_own_text", rolls_back_under_a_state, ROLLED),
    Mutant("tracks_the_whole_row", "state_write", "track_gets_the_state_at_the_boundary", tracks_the_whole_row),
    Mutant("has_no_text", "admit", "texts_are_known", has_no_text),
    Mutant("matches_another_text", "admit", "prefix_holds_own_text", matches_another_text),
    Mutant("goes_on_in_another_text", "continue_prefill", "prefix_holds_own_text", goes_on_in_another_text),
    Mutant("decodes_into_the_prefix", "decode", "prefix_holds_own_text", decodes_into_the_prefix),
    Mutant("commits_an_unwritten_draft", "commit", "own_pages_hold_own_text", commits_an_unwritten_draft),
    Mutant("resumes_another_text", "resume", "own_pages_hold_own_text", resumes_another_text, SAVED),
    Mutant("computes_the_full_pool_alone", "extend", "own_window_holds_own_text", computes_the_full_pool_alone),
    Mutant("revives_with_another_text", "revive_in_place", "node_window_holds_its_text", revives_with_another_text),
    Mutant("reads_another_text", "admit", "reads_own_text", matches_another_text),
    Mutant("reads_an_unwritten_draft", "commit", "reads_own_text", commits_an_unwritten_draft),
    Mutant("reads_an_unwritten_window", "extend", "window_reads_own_text", computes_the_full_pool_alone),
)
