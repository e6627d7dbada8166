"""Isolation of mamba states: the state that the kernels read for a request was computed for its own text.

``contents.state(s)`` is the prefix whose state the slot ``s`` holds, which ends at the token at the page index
``state_page(s)`` and the offset ``state_offset(s)``; ``EMPTY`` is the prefix without a token. A forward pass reads and
writes the request's own state. A match copies the state of a node. The law does not say at which boundary a track was
written: that the state that a node gets is the one at the node's end, and that the state that a session saves is the
one at the row's committed length, is taken from the engine; that the text there is the giver's own is judged.
"""

from __future__ import annotations

from spec.cache_state import CacheState, home
from spec.contents import EMPTY
from spec.isolation import prefix_at
from spec.lengths import Length
from spec.logic import Number, Requirement, Truth, but, implies, ite, requires
from spec.mamba_slots_state import ABSENT, OWN
from spec.session_trim_state import RUNNING, committed, each_request, full_pool


def put_state(st: CacheState, slot: Number, prefix: Number, page: Number, offset: Number) -> CacheState:
    """The state in which the slot holds the state after this prefix; a write to an absent slot is lost."""
    known = st.contents

    def here(s: Number) -> Truth:
        return (s != ABSENT) & (s == slot)

    return but(
        st,
        contents=but(
            known,
            state=known.state.where(here, prefix, lambda: [slot]),
            state_page=known.state_page.where(here, page, lambda: [slot]),
            state_offset=known.state_offset.where(here, offset, lambda: [slot]),
        ),
    )


def last(st: CacheState, length: Length) -> Length:
    """The page index and the offset of the last token of this length."""
    full = full_pool(st.rows)
    return Length(length.pages - ite(length.rest == 0, 1, 0), ite(length.rest == 0, full.page_size, length.rest) - 1)


def row_text(st: CacheState, row: Number, end: Length) -> Number:
    """The prefix of the row's text that ends with this token; ``EMPTY`` where there is no such token."""
    return ite(full_pool(st.rows).indices.has(end.pages), prefix_at(st, row, end.pages, end.rest), EMPTY)


def at_end(st: CacheState, row: Number, slot: Number) -> CacheState:
    """The state in which the slot holds the state after all committed tokens of the row."""
    end = last(st, committed(st.rows, row))
    return put_state(st, slot, row_text(st, row, end), end.pages, end.rest)


def computed(st: CacheState, row: Number) -> CacheState:
    """The state after a forward pass went on from the state that the row's request has, to its committed length."""
    return at_end(st, row, ite(st.mine(row) != 0, st.states.row(st.mine(row) - 1, OWN), ABSENT))


def fresh(st: CacheState, slot: Number) -> CacheState:
    """The state in which the slot holds the state before the first token."""
    return put_state(st, slot, EMPTY, 0, 0)


def copied(st: CacheState, source: Number, slot: Number) -> CacheState:
    """The state in which the slot holds what the slot ``source`` holds."""
    known = st.contents
    return put_state(st, slot, known.state(source), known.state_page(source), known.state_offset(source))


def node_text(st: CacheState, node: Number) -> Number:
    """The prefix that ends where the node's key ends, as its last page holds it; ``EMPTY`` where it has no token."""
    full, end = full_pool(st.rows), last(st, Length(st.tree.stop(node), 0))
    held = st.contents.full(full.table(home(st, node), end.pages), end.rest)
    return ite(full.indices.has(end.pages), held, EMPTY)


def given(st: CacheState, node: Number, slot: Number) -> CacheState:
    """The state in which the slot holds the state at the end of the node's key."""
    end = last(st, Length(st.tree.stop(node), 0))
    return put_state(st, slot, node_text(st, node), end.pages, end.rest)


# What is asked of callers, and of an engine.


def of_story(st: CacheState, slot: Number, story: Number) -> Truth:
    """The slot holds the state after a prefix of the story, or the state before the first token."""
    known, full = st.contents, full_pool(st.rows)
    page, offset = known.state_page(slot), known.state_offset(slot)
    there = full.indices.has(page) & full.offsets.has(offset)
    return (known.state(slot) == EMPTY) | (there & (known.state(slot) == known.tells(story, page, offset)))


def brings_own_text(st: CacheState, row: Number, request: Number) -> Requirement:
    """What a request brings to its row, from a matched node or from its session, is a state of its own text."""
    slot = st.states.table(request, OWN)
    own = of_story(st, slot, st.contents.story(row))
    return requires((slot == ABSENT) | own, "the state that the request brings was computed for its own text")


def still_of_story(st: CacheState, row: Number, story: Number) -> Requirement:
    """The state of the row's request, if it has one, is a state of the story."""
    slot = st.states.table(st.mine(row) - 1, OWN)
    fine = (st.mine(row) == 0) | (slot == ABSENT) | of_story(st, slot, story)
    return requires(fine, "the row's state was computed for the beginning of the turn's text")


def gives_own_text(st: CacheState, request: Number, node: Number) -> Requirement:
    """The text of the node is the beginning of the text of the request that gives it a state."""
    row, end = st.carrier(request) - 1, last(st, Length(st.tree.stop(node), 0))
    return requires(
        node_text(st, node) == row_text(st, row, end), "the node's text is the beginning of the request's own text"
    )


# The law, and the theorem.


def own_state_is_of_own_text(st: CacheState) -> Truth:
    """The own state of a request on a row was computed for a prefix of the row's text."""

    def own(r: Number) -> Truth:
        slot = st.states.table(st.mine(r) - 1, OWN)
        return implies((st.mine(r) != 0) & (slot != ABSENT), of_story(st, slot, st.contents.story(r)))

    return each_request(st.rows, own)


def reads_state_of_own_text(st: CacheState) -> Truth:
    """While a row's request runs, the state that the kernels read for it was computed for a prefix of its own text.

    So no request goes on from a mamba state that was computed for another text.
    """

    def own(r: Number) -> Truth:
        slot = st.states.row(st.mine(r) - 1, OWN)
        runs = (st.rows.phase(r) == RUNNING) & (st.mine(r) != 0)
        return implies(runs & (slot != ABSENT), of_story(st, slot, st.contents.story(r)))

    return each_request(st.rows, own)
