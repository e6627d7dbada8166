"""What calls write into pages and state slots: laws of two states of ``spec.cache``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.cache_state import CacheState
from spec.cache_theorems import each_token
from spec.contents import UNWRITTEN
from spec.lengths import Length, covers, same
from spec.logic import Number, Truth, implies, no
from spec.mamba_slots_state import ABSENT, OWN
from spec.session_trim_state import allocated, committed
from spec.state_isolation import last, node_text, row_text


def draft_is_nobodys_text(was: CacheState, now: CacheState, row: Number) -> Truth:
    """The slots that a row gets for a draft hold nobody's text until the draft is verified."""
    before, after = allocated(was.rows, row), allocated(now.rows, row)

    def drafted(i: Number, o: Number) -> Truth:
        there = no(covers(before, i, o)) & covers(after, i, o)
        return implies(there, now.contents.full(now.reads(row, i), o) == UNWRITTEN)

    return each_token(was, drafted)


def holds_state(st: CacheState, slot: Number, prefix: Number, at: Length) -> Truth:
    """The state slot holds the state after this prefix, whose last token is at this page index and offset."""
    known = st.contents
    return (known.state(slot) == prefix) & same(Length(known.state_page(slot), known.state_offset(slot)), at)


def node_gets_the_state_at_its_end(was: CacheState, now: CacheState, node: Number) -> Truth:
    """The tree node that gets a state has the state after the last token of its key."""
    slot = now.states.table(now.states.first_node + node, OWN)
    return holds_state(now, slot, node_text(was, node), last(was, Length(was.tree.stop(node), 0)))


def request_gets_the_nodes_state(was: CacheState, now: CacheState, request: Number, node: Number) -> Truth:
    """The slot that a matched request gets holds what the slot of the node holds, which keeps what it held."""
    known, source = was.contents, was.states.table(was.states.first_node + node, OWN)
    at = Length(known.state_page(source), known.state_offset(source))
    copied = holds_state(now, now.states.table(request, OWN), known.state(source), at)
    return copied & holds_state(now, source, known.state(source), at)


def session_gets_the_state_of_its_row(was: CacheState, now: CacheState, request: Number, session: Number) -> Truth:
    """The state that a session saves is the one after all committed tokens of its row."""
    row, slot = was.carrier(request) - 1, now.states.table(was.states.limit + session - 1, OWN)
    upto = committed(was.rows, row)
    end = last(was, upto)
    prefix = row_text(was, row, end)
    return implies(slot != ABSENT, holds_state(now, slot, prefix, end))


def pass_goes_on_from_its_state(was: CacheState, now: CacheState, row: Number) -> Truth:
    """After a forward pass the state of the row's request is the one after all committed tokens of the row."""
    upto, slot = committed(now.rows, row), was.states.row(was.mine(row) - 1, OWN)
    end = last(was, upto)
    prefix = row_text(was, row, end)
    return implies((was.mine(row) != 0) & (slot != ABSENT), holds_state(now, slot, prefix, end))
