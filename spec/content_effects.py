"""What calls write into pages and state slots: laws of two states of ``spec.cache``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.cache_state import FILLED, CacheState
from spec.cache_theorems import each_token
from spec.contents import UNWRITTEN
from spec.lengths import Length, at_most, covers, formed
from spec.logic import Number, Truth, implies, ite, no
from spec.mamba_slots_state import ABSENT, HELD, OWN, is_node
from spec.session_trim_state import RUNNING, allocated, committed, full_pool
from spec.state_isolation import holds_state, last, row_text


def draft_is_nobodys_text(was: CacheState, now: CacheState, row: Number) -> Truth:
    """The slots that a row gets for a draft hold nobody's text until the draft is verified.

    In a model with mamba states the pass over the draft has a state to go on from.
    """
    before, after = allocated(was.rows, row), allocated(now.rows, row)

    def drafted(i: Number, o: Number) -> Truth:
        there = no(covers(before, i, o)) & covers(after, i, o)
        return implies(there, now.contents.full(now.reads(row, i), o) == UNWRITTEN)

    return each_token(was, drafted) & implies(was.tree.stateful, was.mine(row) != 0)


def request_gets_the_nodes_state(was: CacheState, now: CacheState, request: Number, node: Number) -> Truth:
    """The own state slot of a matched request holds what the slot of the node holds, which has a state and keeps it:
    no pass in flight still writes one of the two, also no pass of a request that has ended (SGLang pull request 24954).
    """
    known, source = was.contents, was.states.table(was.states.first_node + node, OWN)
    at = Length(known.state_page(source), known.state_offset(source))
    copied = holds_state(now, now.states.table(request, OWN), known.state(source), at)
    return (source != ABSENT) & copied & holds_state(now, source, known.state(source), at)


def holds_what_it_held(was: CacheState, now: CacheState, slot: Number) -> Truth:
    """The state slot holds the state that it held."""
    before = was.contents
    return holds_state(now, slot, before.state(slot), Length(before.state_page(slot), before.state_offset(slot)))


def other_slots_hold_what_they_held(was: CacheState, now: CacheState, slot: Number) -> Truth:
    """A copy is written to the slot that is handed out for it, and to no other."""
    return was.states.slots.all(lambda s: (s == slot) | holds_what_it_held(was, now, s))


def slots_of_others_hold_what_they_held(was: CacheState, now: CacheState, request: Number) -> Truth:
    """A copy for a request that waits is written to the request's own state slot, and to no other."""
    return other_slots_hold_what_they_held(was, now, was.states.table(request, OWN))


def pass_goes_on_from_its_state(was: CacheState, now: CacheState, row: Number) -> Truth:
    """In a model with mamba states a forward pass goes on from the state after the tokens that are computed, and leaves
    in its place the one after all committed tokens of the row. It writes no other state of a request or a node.
    """
    slot = was.states.row(was.mine(row) - 1, OWN)
    before, after = last(was, committed(was.rows, row)), last(was, committed(now.rows, row))
    goes_on = holds_state(was, slot, row_text(was, row, before), before)
    left = holds_state(now, slot, row_text(was, row, after), after)
    others = was.states.slots.all(lambda s: (s == slot) | holds_what_it_held(was, now, s))
    return implies(was.tree.stateful, (was.mine(row) != 0) & (slot != ABSENT) & goes_on & left & others)


def track_gets_the_state_at_the_boundary(
    was: CacheState, now: CacheState, request: Number, track: Number, upto: Length
) -> Truth:
    """The slot of the track buffer holds the state after the tokens up to the boundary, of the request's own text. The
    row runs, and its computed tokens reach the boundary; it awaits no transfer. The request's own state, and what
    others have, are not written (SGLang ``mamba_track_seqlens``).
    """
    row, slot = was.carrier(request) - 1, was.states.table(request, track)
    reached = formed(upto, full_pool(was.rows).page_size) & at_most(upto, committed(was.rows, row))
    end = last(was, upto)
    prefix = row_text(was, row, end)
    others = was.states.slots.all(lambda s: (s == slot) | holds_what_it_held(was, now, s))
    runs = (was.rows.phase(row) == RUNNING) & (was.awaits(row) == FILLED)
    there = (track != OWN) & (slot != ABSENT) & runs & reached
    return there & holds_state(now, slot, prefix, end) & others


def request_begins_with_its_state(
    was: CacheState, now: CacheState, row: Number, request: Number, arrives: Truth
) -> Truth:
    """A request that begins on its row has the state after the tokens that are computed: the blank one where none is.
    Where the row awaits a transfer, this state comes with it.

    Where there are computed tokens and no state arrives from elsewhere, the request had this state before. No other
    state is written (SGLang ``HybridReqToTokenPool.alloc``).
    """
    slot = now.states.table(request, OWN)
    end = last(was, committed(was.rows, row))
    brought = arrives | (end.pages < 0) | (was.states.table(request, OWN) == slot)
    others = was.states.slots.all(lambda s: (s == slot) | holds_what_it_held(was, now, s))
    has = ite(
        was.awaits(row) == FILLED,
        holds_state(now, slot, row_text(was, row, end), end),
        holds_what_it_held(was, now, slot),
    )
    return (slot != ABSENT) & brought & has & others


def session_goes_on_from_an_earlier_state(was: CacheState, now: CacheState, session: Number, source: Number) -> Truth:
    """The session's own state slot holds the state that is taken back, which is one of the session or of a tree node;
    no other slot is written.
    """
    known, owner = was.contents, was.states.limit + session - 1
    slot, giver = was.states.table(owner, OWN), was.states.owner(source)
    its_own = (was.states.place(source) == HELD) & ((giver == owner) | is_node(was.states, giver))
    end = Length(known.state_page(source), known.state_offset(source))
    others = was.states.slots.all(lambda s: (s == slot) | holds_what_it_held(was, now, s))
    return (slot != ABSENT) & its_own & holds_state(now, slot, known.state(source), end) & others
