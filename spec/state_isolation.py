"""Isolation of mamba states: a request goes on from the state after its own tokens, all of them and no more.

``contents.state(s)`` is the prefix whose state the slot ``s`` holds, which ends at the token at the page index
``state_page(s)`` and the offset ``state_offset(s)``; ``EMPTY`` is the prefix without a token, whose state is blank.
Four things write a state: a forward pass (the request's own state, and at a tracking boundary a slot of its track
buffer), a copy, an admission, and the arrival of what was computed elsewhere. Where a slot goes from one owner to
another, it keeps what it holds. A pass in flight of a request that has ended still writes its slots
(``spec.cache_flight``).
"""

from __future__ import annotations

from spec.cache_state import FILLED, CacheState, home
from spec.contents import EMPTY, UNWRITTEN
from spec.in_flight import NO_JOB, uses
from spec.isolation import prefix_at
from spec.lengths import NOTHING, Length, same
from spec.logic import Number, Requirement, Truth, but, implies, ite, no, requires
from spec.mamba_slots_state import ABSENT, OWN, is_node, kept
from spec.session_trim_state import LEAVING, RUNNING, committed, each_request, full_pool


def put_state(st: CacheState, slot: Number, prefix: Number, end: Length) -> CacheState:
    """The state in which the slot holds the state after this prefix; a write to an absent slot is lost.

    ``end``: the page index and the offset of the last token of the prefix.
    """
    known = st.contents

    def here(s: Number) -> Truth:
        return (s != ABSENT) & (s == slot)

    return but(
        st,
        contents=but(
            known,
            state=known.state.where(here, prefix, lambda: [slot]),
            state_page=known.state_page.where(here, end.pages, lambda: [slot]),
            state_offset=known.state_offset.where(here, end.rest, lambda: [slot]),
        ),
    )


def last(st: CacheState, length: Length) -> Length:
    """The page index and the offset of the last token of this length; before the first token, the page index is -1."""
    full = full_pool(st.rows)
    return Length(length.pages - ite(length.rest == 0, 1, 0), ite(length.rest == 0, full.page_size, length.rest) - 1)


def row_text(st: CacheState, row: Number, end: Length) -> Number:
    """The prefix of the row's text that ends with this token; ``EMPTY`` where there is no such token."""
    return ite(full_pool(st.rows).indices.has(end.pages), prefix_at(st, row, end.pages, end.rest), EMPTY)


def node_text(st: CacheState, node: Number) -> Number:
    """The prefix that ends where the node's key ends, as its last page holds it; ``EMPTY`` where it has no token."""
    full, end = full_pool(st.rows), last(st, Length(st.tree.stop(node), 0))
    held = st.contents.full(full.table(home(st, node), end.pages), end.rest)
    return ite(full.indices.has(end.pages), held, EMPTY)


def holds_state(st: CacheState, slot: Number, prefix: Number, end: Length) -> Truth:
    """The slot holds the state after this prefix, whose last token is at this page index and offset."""
    known = st.contents
    return (known.state(slot) == prefix) & same(Length(known.state_page(slot), known.state_offset(slot)), end)


def is_after(st: CacheState, slot: Number, row: Number, length: Length) -> Truth:
    """The slot holds the state after so many tokens of the row's text; after none it holds the blank state."""
    end = last(st, length)
    return holds_state(st, slot, row_text(st, row, end), end)


def is_at_node(st: CacheState, slot: Number, node: Number) -> Truth:
    """The slot holds the state after the last token of the node's key."""
    return holds_state(st, slot, node_text(st, node), last(st, Length(st.tree.stop(node), 0)))


# What is written.


def at(st: CacheState, row: Number, slot: Number, length: Length) -> CacheState:
    """The state in which the slot holds the state after so many tokens of the row."""
    end = last(st, length)
    return put_state(st, slot, row_text(st, row, end), end)


def computed(st: CacheState, row: Number) -> CacheState:
    """The state after a forward pass went on from the state that the row's request has, to its committed length."""
    slot = ite(st.mine(row) != 0, st.states.row(st.mine(row) - 1, OWN), ABSENT)
    return at(st, row, slot, committed(st.rows, row))


def is_in_use(st: CacheState, slot: Number) -> Truth:
    """A pass in flight reads and writes the state slot."""
    return st.flight.jobs.any(lambda j: (st.flight.kind(j) != NO_JOB) & uses(st.flight, j, slot))


NOWHERE = Length(-2, 0)  # the end of no prefix


def copied(st: CacheState, source: Number, slot: Number, at_once: Truth) -> CacheState:
    """The state in which the slot holds what the slot ``source`` holds.

    Where a copy that is made at once (see ``spec.cache_flight``) meets a pass in flight in one of the two slots, the
    slot holds nobody's state: the pass writes it after the copy, or has not written the source before.
    """
    known = st.contents
    lost = at_once & (is_in_use(st, source) | is_in_use(st, slot))
    end = Length(
        ite(lost, NOWHERE.pages, known.state_page(source)), ite(lost, NOWHERE.rest, known.state_offset(source))
    )
    return put_state(st, slot, ite(lost, UNWRITTEN, known.state(source)), end)


# What is asked of callers, and of an engine.


def has_no_token(st: CacheState, row: Number) -> Truth:
    """No token of the row is computed."""
    return same(committed(st.rows, row), NOTHING)


def brings_its_state(st: CacheState, row: Number, request: Number, arrives: Truth) -> Requirement:
    """What a request brings to a row with computed tokens is the state after these tokens.

    It comes from a matched node, from the request's session, or from elsewhere with the tokens. A pass over the first
    tokens of a text reads no state.
    """
    slot = st.states.table(request, OWN)
    right = (slot != ABSENT) & is_after(st, slot, row, committed(st.rows, row))
    return requires(
        has_no_token(st, row) | arrives | right, "the request brings the state after the computed tokens of its row"
    )


def has_a_state(st: CacheState, row: Number) -> Requirement:
    """In a model with mamba states a forward pass has a state to go on from."""
    return requires(no(st.tree.stateful) | (st.mine(row) != 0), "in a model with mamba states the request has its own")


def goes_on_from_its_state(st: CacheState, row: Number) -> Requirement:
    """A turn that goes on with the states that its row still has goes on from the state after the row's tokens."""
    slot = st.states.table(st.mine(row) - 1, OWN)
    right = is_after(st, slot, row, committed(st.rows, row))
    return requires((st.mine(row) == 0) | right, "the row's state is the one after its computed tokens")


def gives_state_at_its_end(st: CacheState, request: Number, node: Number) -> Requirement:
    """The newest state of the request, which the node gets, is the one after the last token of the node's key."""
    newest = st.states.table(request, kept(st.states, request))
    return requires(is_at_node(st, newest, node), "the request's newest state is the one at the end of the node's key")


# The laws, and the theorem.


def own_state_is_of_own_text(st: CacheState) -> Truth:
    """The own state of a request on a row that awaits no transfer is the one after all committed tokens of the row's
    text.

    So it is neither the state of another text, nor one from before a token that the row has, nor one from after a token
    that the row has lost. This is not said of a saved row: a session's row may be cut, and then the next turn cannot go
    on from the session's state.
    """

    def own(r: Number) -> Truth:
        slot = st.states.table(st.mine(r) - 1, OWN)
        here = (st.rows.phase(r) == RUNNING) | (st.rows.phase(r) == LEAVING)
        has_one = (st.mine(r) != 0) & (slot != ABSENT) & (st.awaits(r) == FILLED)
        return implies(here & has_one, is_after(st, slot, r, committed(st.rows, r)))

    return each_request(st.rows, own)


def node_state_is_at_its_end(st: CacheState) -> Truth:
    """The state of a tree node is the one after the last token of the node's key, of the text that its pages hold."""

    def there(o: Number) -> Truth:
        slot = st.states.table(o, OWN)
        return implies(is_node(st.states, o) & (slot != ABSENT), is_at_node(st, slot, o - st.states.first_node))

    return st.states.owners.all(there)


def reads_state_of_own_text(st: CacheState) -> Truth:
    """While a row's request runs and awaits no transfer, the state that the kernels read for it is the one after all
    committed tokens of its own text.

    So no request goes on from a mamba state that was computed for another text, or after fewer or more tokens.
    """

    def own(r: Number) -> Truth:
        slot = st.states.row(st.mine(r) - 1, OWN)
        runs = (st.rows.phase(r) == RUNNING) & (st.mine(r) != 0) & (st.awaits(r) == FILLED)
        return implies(runs & (slot != ABSENT), is_after(st, slot, r, committed(st.rows, r)))

    return each_request(st.rows, own)
