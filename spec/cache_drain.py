"""How the whole cache comes to rest: from every lawful state finitely many calls give back every page and every slot.

Transfers end, as where each has failed. A request that runs is ended, its mamba states are freed, its row gives back
its pages and its lock; a session's slot is closed; then the leaves of the tree are evicted, one by one, and open groups
end. ``spec.logic.Drain`` says what is proved of these calls.
"""

from __future__ import annotations

from spec import cache, cache_transfers, mamba_in_cache, mamba_slots_state
from spec.cache_state import FILLED, CacheState
from spec.cache_theorems import deserted, nobody, requests_are_gone, rows_of
from spec.in_flight import WRITES, flies
from spec.lengths import Length, formed, touched
from spec.lock_ref_state import lives
from spec.logic import Descent, Domain, Drain, Measure, Number, Return, Truth, ite, no
from spec.mamba_in_cache import session_owner
from spec.mamba_slots_state import is_request, owns_nothing
from spec.session_trim_state import IDLE, LEAVING, RUNNING, SAVED, full_pool, is_row, swa_pool


def at_rest(st: CacheState) -> Truth:
    """No request and no session uses a row or a state slot, the tree is empty, and no group is open."""
    return deserted(st) & requests_are_gone(st) & (st.rows.pools.group == 0) & (st.states.group == 0)


def numbered(st: CacheState) -> Truth:
    """Requests, the slots of sessions, and tree nodes have numbers of their own among the owners of state slots."""
    slots = st.states
    return slots.limit + st.rows.sessions.size <= slots.first_node


# The measures: how far each row, each waiting request, each node and each group is from rest.


def slot_is_empty(st: CacheState, r: Number) -> Truth:
    """The slot of the row's session owns no state slot."""
    return owns_nothing(st.states, session_owner(st, st.rows.session(r)))


def of_row(st: CacheState, r: Number) -> Number:
    """2 where the request runs, 1 in any other use; 2 more with states, 1 more where its session's slot has states."""
    used = ite(st.rows.phase(r) == RUNNING, 2, ite(st.rows.phase(r) == IDLE, 0, 1))
    kept = (st.rows.phase(r) == SAVED) & no(slot_is_empty(st, r))
    return ite(is_row(st.rows, r), used + ite(st.mine(r) != 0, 2, 0) + ite(kept, 1, 0), 0)


def of_request(st: CacheState, o: Number) -> Number:
    """1 for a request that waits with states and has no row."""
    return ite(is_request(st.states, o) & (st.states.phase(o) == mamba_slots_state.WAITING), 1, 0)


def owners_of(st: CacheState) -> Domain:
    """The owners of state slots."""
    return st.states.owners


def jobs_of(st: CacheState) -> Domain:
    """The numbers that passes and transfers can have."""
    return st.flight.jobs


def is_transfer(st: CacheState, j: Number) -> Truth:
    """The job is a transfer in flight."""
    return flies(st.flight, j) & (st.flight.kind(j) == WRITES)


TRANSFERS = Measure(lambda st, j: ite(is_transfer(st, j), 1, 0), jobs_of)
ROWS = Measure(of_row, rows_of)
REQUESTS = Measure(of_request, owners_of)
NODES = Measure(lambda st, n: ite(lives(st.tree, n), 1, 0), lambda st: st.tree.nodes)
GROUPS = Measure(lambda st, _: st.rows.pools.group)
STATE_GROUPS = Measure(lambda st, _: st.states.group)


# The calls.


def row_in(st: CacheState, r: Number, phase: Number) -> Truth:
    """The row belongs to a request and is in this phase."""
    return is_row(st.rows, r) & (st.rows.phase(r) == phase)


def mine_of(st: CacheState, r: Number) -> Number:
    """The request whose states belong to the row."""
    return st.mine(r) - 1


def deepest(st: CacheState) -> Number:
    """The node whose key ends farthest from the root; it is a leaf."""
    return st.tree.nodes.greatest(lambda n: lives(st.tree, n), st.tree.stop)


def alone(st: CacheState, n: Number) -> Truth:
    """Nobody uses a row, and the node is in the tree."""
    return nobody(st) & lives(st.tree, n)


def nothing(_: CacheState) -> Number:
    """The only member of a measure that is one number."""
    return 0


DESCENTS = (
    Descent(
        "end_transfer", is_transfer, cache_transfers.fall_short, lambda st, j: (st.flight.row(j), j), TRANSFERS, jobs_of
    ),
    Descent(
        "finish",
        lambda st, r: row_in(st, r, RUNNING) & (st.awaits(r) <= FILLED),
        cache.finish,
        lambda _, r: (r,),
        ROWS,
        rows_of,
    ),
    Descent(
        "free_states",
        lambda st, r: row_in(st, r, LEAVING) & (st.mine(r) != 0),
        mamba_in_cache.state_release,
        lambda st, r: (mine_of(st, r),),
        ROWS,
        rows_of,
    ),
    Descent(
        "free_rest",
        lambda st, r: row_in(st, r, LEAVING) & (st.mine(r) == 0),
        cache.free_rest,
        lambda st, r: (r, st.handle(r)),
        ROWS,
        rows_of,
    ),
    Descent(
        "save_states",
        lambda st, r: row_in(st, r, SAVED) & (st.mine(r) != 0),
        mamba_in_cache.state_save,
        lambda st, r: (mine_of(st, r), st.rows.session(r)),
        ROWS,
        rows_of,
    ),
    Descent(
        "close_states",
        lambda st, r: row_in(st, r, SAVED) & (st.mine(r) == 0) & no(slot_is_empty(st, r)),
        mamba_in_cache.state_close,
        lambda st, r: (st.rows.session(r),),
        ROWS,
        rows_of,
    ),
    Descent(
        "close",
        lambda st, r: row_in(st, r, SAVED) & (st.mine(r) == 0) & slot_is_empty(st, r),
        cache.close,
        lambda st, r: (st.rows.session(r), st.handle(r)),
        ROWS,
        rows_of,
    ),
    Descent(
        "free_waiting",
        lambda st, o: is_request(st.states, o) & (st.states.phase(o) == mamba_slots_state.WAITING),
        mamba_in_cache.state_release,
        lambda _, o: (o,),
        REQUESTS,
        owners_of,
    ),
    Descent(
        "evict_leaf",
        lambda st, n: alone(st, n) & (st.tree.mamba(n) == 0),
        cache.evict_leaf,
        lambda _, n: (n,),
        NODES,
        pick=deepest,
    ),
    Descent(
        "evict_leaf_and_state",
        lambda st, n: alone(st, n) & (st.tree.mamba(n) == 1),
        mamba_in_cache.evict_leaf_and_state,
        lambda _, n: (n,),
        NODES,
        pick=deepest,
    ),
    Descent(
        "end_group",
        lambda st, _: st.rows.pools.group > 0,
        cache.free_group_end,
        lambda *_: (),
        GROUPS,
        pick=nothing,
    ),
    Descent(
        "end_state_group",
        lambda st, _: st.states.group > 0,
        mamba_in_cache.state_group_end,
        lambda *_: (),
        STATE_GROUPS,
        pick=nothing,
    ),
)


def has_room(st: CacheState, row: Number, session: Number, story: Number, to: Length) -> Truth:
    """The model has no mamba states; the tokens need no more pages than each pool of the model has, and no more than a
    row has room for. The prefix cache may find nothing for it, and all tokens may be computed in one pass.
    """
    full, swa = full_pool(st.rows), swa_pool(st.rows)
    need = touched(to)
    fits = formed(to, full.page_size) & full.indices.has(need) & (need <= full.pages.size)
    fits_swa = no(st.rows.pools.windowed) | (need <= swa.pages.size)
    opened = (session == 0) | st.rows.sessions.has(session)
    return no(st.tree.stateful) & fits & fits_swa & opened & is_row(st.rows, row) & st.contents.stories.has(story)


RETURNS = Return((cache.admit, cache.extend), has_room)
DRAIN = Drain(at_rest, (TRANSFERS, ROWS, REQUESTS, NODES, GROUPS, STATE_GROUPS), DESCENTS, numbered, RETURNS)
