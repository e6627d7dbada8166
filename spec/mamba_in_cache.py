"""Mamba state slots in the whole cache: which request on which row has states, which tree node and which session.

In ``spec.mamba_slots_state`` every owner of state slots is a number: first the requests, then ``limit + s - 1`` for the
slot of the streaming session ``s``, then ``first_node + n`` for the tree node ``n``. ``mine(r)`` is the request whose
states belong to the row ``r``, plus one; 0 where the row has no states. ``carrier(o)`` is the row of the request ``o``,
plus one; 0 where the request has no states or no row. Steps that move states stand beside the steps that move pages: a
request gets its row before its states, and gives its states back before its row.
"""

from __future__ import annotations

from spec import lock_ref, mamba_slots, mamba_slots_state, session_trim, state_isolation
from spec.cache_flight import is_undisturbed
from spec.cache_state import FILLED, CacheState, home, is_filled
from spec.lengths import Length, at_most, formed
from spec.lock_ref_state import lives
from spec.logic import Call, Number, Requirement, Seq, Step, Truth, but, call, implies, ite, no, requires
from spec.mamba_slots_state import ABSENT, FIRST, OWN, SECOND, is_node, is_request, is_session, kept, owns_nothing
from spec.session_trim_state import IDLE, LEAVING, RUNNING, SAVED, committed, each_request, full_pool, is_row


def node_owner(st: CacheState, node: Number) -> Number:
    """The number of a tree node among the owners of state slots."""
    return st.states.first_node + node


def session_owner(st: CacheState, session: Number) -> Number:
    """The number of a session's slot among the owners of state slots."""
    return st.states.limit + session - 1


def states_only(st: CacheState, asked: Call) -> Step[CacheState]:
    """The step that makes one call on the state slots and changes nothing else."""
    return Step(
        calls=(asked,),
        promises=asked.step.promises,
        choice=asked.step.choice,
        fits=asked.step.fits,
        then=but(st, states=asked.then),
    )


def row_has_no_states(st: CacheState, row: Number) -> Requirement:
    """The row's request has donated its states or given them back."""
    return requires(st.mine(row) == 0, "the row's request has no states left")


def still_has_states(st: CacheState, row: Number) -> Requirement:
    """A row that runs again has not donated its states before."""
    running = st.states.phase(st.mine(row) - 1) == mamba_slots_state.RUNNING
    return requires((st.mine(row) == 0) | running, "the row's request has not donated its states")


def slot_has_no_states(st: CacheState, session: Number) -> Requirement:
    """The session's slot owns no state slot."""
    return requires(owns_nothing(st.states, session_owner(st, session)), "the session's slot has no states left")


def off_its_row(st: CacheState, request: Number) -> CacheState:
    """The state in which the request has no row."""
    row = st.carrier(request) - 1
    return but(
        st,
        mine=st.mine.where(lambda r: (st.carrier(request) != 0) & (r == row), 0, lambda: [row]),
        carrier=st.carrier.put(request, 0),
    )


def has_place(st: CacheState, node: Number) -> Requirement:
    """The tree node can own a state slot."""
    return requires(is_node(st.states, node_owner(st, node)), "the node has a number among the owners of states")


# Groups, and a request that waits.


def state_group_begin(st: CacheState, need: Number, chosen: Seq) -> Step[CacheState]:
    """A batch sets ``need`` state slots aside for its requests, or none if fewer are free."""
    return states_only(st, call("states", mamba_slots.begin_group, st.states, need, chosen))


def state_group_end(st: CacheState) -> Step[CacheState]:
    """The batch is done: the end of the outermost group gives back the state slots that nobody took."""
    return states_only(st, call("states", mamba_slots.end_group, st.states))


def state_match(st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth) -> Step[CacheState]:
    """Copy-on-write: a waiting request gets a state slot, into which the state of its matched node is copied.

    ``at_once``: the engine makes the copy at once, beside the passes in flight, and not in the order of the passes.
    """
    owner = node_owner(st, node)
    source = st.states.table(owner, OWN)
    step = states_only(st, call("states", mamba_slots.alloc_for_match, st.states, request, owner, slot))
    return but(
        step,
        choice=(*step.choice, is_undisturbed(st, source, slot, at_once)),
        then=state_isolation.copied(step.then, source, slot, at_once),
    )


def state_match_again(st: CacheState, request: Number, node: Number, at_once: Truth) -> Step[CacheState]:
    """A waiting request that has a state slot matches again: the state of its matched node is copied into the slot.

    ``at_once``: see ``state_match``.
    """
    slot, source = st.states.table(request, OWN), st.states.table(node_owner(st, node), OWN)
    waits = mamba_slots_state.in_phase(st.states, request, mamba_slots_state.WAITING, "the request waits")
    return Step(
        promises=(
            waits,
            requires(slot != ABSENT, "the request has a state slot"),
            mamba_slots_state.stateful(st.states, node_owner(st, node)),
        ),
        choice=(is_undisturbed(st, source, slot, at_once),),
        then=state_isolation.copied(st, source, slot, at_once),
    )


# A request on a row.


def state_admit(
    st: CacheState, row: Number, request: Number, own: Number, first: Number, second: Number, arrives: Truth
) -> Step[CacheState]:
    """The request that runs on a row gets the state slot and the track buffer slots that it does not have yet.

    Where the row has computed tokens, the request brings the state after these tokens. ``arrives``: it comes from
    elsewhere, where the tokens were computed, and is written to the request's state slot; where the row awaits a
    transfer, by this transfer.
    """
    equipped = call("states", mamba_slots.alloc, st.states, request, own, first, second)
    comes = (st.states.phase(request) == mamba_slots_state.IDLE) | (
        st.states.phase(request) == mamba_slots_state.WAITING
    )
    slot = equipped.then.table(request, OWN)
    written = (arrives | state_isolation.has_no_token(st, row)) & (st.awaits(row) == FILLED)
    return Step(
        calls=(equipped,),
        promises=(
            *equipped.step.promises,
            requires(comes, "the request is not on a row yet"),
            session_trim.at_work(st.rows, row),
            requires(st.mine(row) == 0, "the row has no states yet"),
            state_isolation.brings_its_state(st, row, request, arrives),
        ),
        choice=equipped.step.choice,
        fits=equipped.step.fits,
        then=but(
            state_isolation.at(st, row, ite(written, slot, ABSENT), committed(st.rows, row)),
            states=equipped.then,
            mine=st.mine.put(row, request + 1),
            carrier=st.carrier.put(request, row + 1),
        ),
    )


def state_write(st: CacheState, request: Number, track: Number, upto: Length) -> Step[CacheState]:
    """At a tracking boundary a forward pass writes the state after ``upto`` tokens to a slot of the track buffer.

    ``track``: the role of this slot among those of the request.
    """
    row, slot = st.carrier(request) - 1, st.states.row(request, track)
    in_buffer = ((track == FIRST) | (track == SECOND)) & (st.states.table(request, track) != ABSENT)
    return Step(
        promises=(
            mamba_slots.running(st.states, request),
            session_trim.at_work(st.rows, row),
            is_filled(st, row),
            requires(in_buffer, "the slot is one of the request's track buffer"),
            requires(formed(upto, full_pool(st.rows).page_size), "the boundary's length is well formed"),
            requires(at_most(upto, committed(st.rows, row)), "the tokens up to the boundary are computed"),
        ),
        then=state_isolation.at(st, row, slot, upto),
    )


def state_track(st: CacheState, request: Number) -> Step[CacheState]:
    """A tracking boundary is over: the other slot of the request's track buffer is written next."""
    return states_only(st, call("states", mamba_slots.track, st.states, request))


def state_second(st: CacheState, request: Number, slot: Number) -> Step[CacheState]:
    """A lazy track buffer gets its second slot."""
    return states_only(st, call("states", mamba_slots.alloc_second, st.states, request, slot))


def state_give_second(st: CacheState, request: Number) -> Step[CacheState]:
    """A lazy track buffer gives its second slot back."""
    return states_only(st, call("states", mamba_slots.give_second, st.states, request))


def state_turn_lazy(st: CacheState, request: Number) -> Step[CacheState]:
    """While a lazy track buffer has two slots, its other slot may count as the newest state."""
    return states_only(st, call("states", mamba_slots.turn_lazy, st.states, request))


def state_release(st: CacheState, request: Number) -> Step[CacheState]:
    """A request whose row is leaving, or that never got a row, gives back all its state slots."""
    freed = call("states", mamba_slots.release, st.states, request)
    row = st.carrier(request) - 1
    going = (st.carrier(request) == 0) | (st.rows.phase(row) == LEAVING)
    return Step(
        calls=(freed,),
        promises=(*freed.step.promises, requires(going, "the request has no row, or its row is leaving")),
        then=but(off_its_row(st, request), states=freed.then),
    )


# The tree.


def state_copy(st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth) -> Step[CacheState]:
    """A tree node without a state gets a state slot, into which the newest state of a running request is copied.

    ``at_once``: see ``state_match``.
    """
    source = st.states.table(request, kept(st.states, request))
    copied = call("states", mamba_slots.alloc_copy, st.states, node_owner(st, node), slot)
    noted = call("tree", lock_ref.set_mamba, st.tree, node)
    return Step(
        calls=(copied, noted),
        promises=(
            *noted.step.promises,
            has_place(st, node),
            mamba_slots.running(st.states, request),
            state_isolation.gives_state_at_its_end(st, request, node),
        ),
        choice=(*copied.step.choice, is_undisturbed(st, source, slot, at_once)),
        fits=copied.step.fits,
        then=but(state_isolation.copied(st, source, slot, at_once), states=copied.then, tree=noted.then),
    )


def state_swap(st: CacheState, request: Number, node: Number, slot: Number) -> Step[CacheState]:
    """A running request donates the slot of its newest state to a tree node, and gets a free slot in exchange.

    The law makes the exchange in two calls: the node gets the free slot, and then both exchange their slots.
    """
    taken = call("states", mamba_slots.alloc_copy, st.states, node_owner(st, node), slot)
    swapped = call("states", mamba_slots.donate_and_replace, taken.then, request, node_owner(st, node))
    noted = call("tree", lock_ref.set_mamba, st.tree, node)
    return Step(
        calls=(taken, swapped, noted),
        promises=(
            *noted.step.promises,
            has_place(st, node),
            mamba_slots.running(st.states, request),
            requires(st.states.buffered, "requests have track buffers"),
            state_isolation.gives_state_at_its_end(st, request, node),
        ),
        choice=taken.step.choice,
        fits=taken.step.fits,
        then=but(st, states=swapped.then, tree=noted.then),
    )


def state_renew(st: CacheState, request: Number, spare: Number, slot: Number) -> Step[CacheState]:
    """A running request gives back its newest state, which the tree has already, and gets a free slot in exchange.

    The next state is tracked in this slot. ``spare``: a node number whose owner has no state slot; the law uses it to
    make the exchange in three calls.
    """
    owner = node_owner(st, spare)
    taken = call("states", mamba_slots.alloc_copy, st.states, owner, slot)
    swapped = call("states", mamba_slots.donate_and_replace, taken.then, request, owner)
    back = call("states", mamba_slots.evict, swapped.then, owner)
    return Step(
        calls=(taken, swapped, back),
        promises=(
            *taken.step.promises,
            mamba_slots.running(st.states, request),
            requires(st.states.buffered, "requests have track buffers"),
        ),
        choice=taken.step.choice,
        fits=taken.step.fits,
        then=but(st, states=back.then),
    )


def state_donate(st: CacheState, request: Number, node: Number) -> Step[CacheState]:
    """A request that ends donates the slot of its newest state to a tree node that has no state."""
    given = call("states", mamba_slots.donate, st.states, request, node_owner(st, node))
    noted = call("tree", lock_ref.set_mamba, st.tree, node)
    return Step(
        calls=(given, noted),
        promises=(
            *noted.step.promises,
            has_place(st, node),
            mamba_slots.running(st.states, request),
            requires(st.rows.phase(st.carrier(request) - 1) == LEAVING, "the request's row is leaving"),
            state_isolation.gives_state_at_its_end(st, request, node),
        ),
        then=but(st, states=given.then, tree=noted.then),
    )


def state_evict(st: CacheState, node: Number) -> Step[CacheState]:
    """A tree node whose state nobody holds gives its state slot back; its pages stay."""
    gone = call("tree", lock_ref.evict_mamba, st.tree, node)
    freed = call("states", mamba_slots.evict, st.states, node_owner(st, node))
    return Step(
        calls=(gone, freed),
        promises=(*gone.step.promises, has_place(st, node)),
        then=but(st, states=freed.then, tree=gone.then),
    )


def evict_leaf_and_state(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf that nobody holds is evicted: its pages and its state slot are given back."""
    gone = call("tree", lock_ref.evict_leaf, st.tree, node)
    freed = call("rows", session_trim.drop, st.rows, home(st, node))
    empty = call("states", mamba_slots.evict, st.states, node_owner(st, node))
    stateful = requires(st.tree.mamba(node) == 1, "the leaf has a state")
    return Step(
        calls=(gone, freed, empty),
        promises=(*gone.step.promises, has_place(st, node), stateful),
        then=but(st, rows=freed.then, tree=gone.then, states=empty.then),
    )


# A streaming session.


def state_save(st: CacheState, request: Number, session: Number) -> Step[CacheState]:
    """A turn whose row was saved in its session's slot saves its states there, too."""
    moved = call("states", mamba_slots.save, st.states, request, session_owner(st, session))
    row = st.carrier(request) - 1
    with_row = (st.carrier(request) != 0) & (st.rows.phase(row) == SAVED) & (st.rows.session(row) == session)
    return Step(
        calls=(moved,),
        promises=(*moved.step.promises, requires(with_row, "the turn's row is saved in the session's slot")),
        then=but(off_its_row(st, request), states=moved.then),
    )


def state_take_back(st: CacheState, session: Number, source: Number, at_once: Truth) -> Step[CacheState]:
    """A session whose row was cut goes on from an earlier state, which is copied into the session's own state slot.

    ``source``: the slot that has this state, one of the session's track buffer or of a tree node. ``at_once``: see
    ``state_match``.
    """
    owner = session_owner(st, session)
    slot, giver = st.states.table(owner, OWN), st.states.owner(source)
    there = mamba_slots_state.is_held(st.states, source) & ((giver == owner) | is_node(st.states, giver))
    return Step(
        promises=(
            requires(is_session(st.states, owner) & (slot != ABSENT), "the session's slot has a state"),
            requires(there, "the copied state is one of the session or of a tree node"),
        ),
        choice=(is_undisturbed(st, source, slot, at_once),),
        then=state_isolation.copied(st, source, slot, at_once),
    )


def state_restore(st: CacheState, session: Number, request: Number) -> Step[CacheState]:
    """The next turn takes over the states of its session's slot, and waits with them until it has a row."""
    return states_only(st, call("states", mamba_slots.restore, st.states, session_owner(st, session), request))


def state_close(st: CacheState, session: Number) -> Step[CacheState]:
    """A session that ends gives back the state slots that its session slot owns."""
    return states_only(st, call("states", mamba_slots.close, st.states, session_owner(st, session)))


TRANSITIONS = (
    *(state_group_begin, state_group_end, state_match, state_match_again, state_admit),
    *(state_write, state_track, state_second, state_give_second, state_turn_lazy),
    *(state_release, state_copy, state_swap, state_renew, state_donate, state_evict, evict_leaf_and_state),
    *(state_save, state_take_back, state_restore, state_close),
)


# The laws.


def node_has_its_state(st: CacheState) -> Truth:
    """A tree node owns a state slot exactly where the tree says that it has a state; no other node number owns one."""
    first = st.states.first_node

    def same(o: Number) -> Truth:
        has = lives(st.tree, o - first) & (st.tree.mamba(o - first) == 1)
        return implies(is_node(st.states, o), (st.states.table(o, OWN) != 0) == has)

    return st.states.owners.all(same)


def states_go_with_rows(st: CacheState) -> Truth:
    """A request that runs or leaves with states is on exactly one row in use, and this row names the request."""
    slots = st.states

    def on_a_row(o: Number) -> Truth:
        there = is_request(slots, o) & (
            (slots.phase(o) == mamba_slots_state.RUNNING) | (slots.phase(o) == mamba_slots_state.LEAVING)
        )
        row = st.carrier(o) - 1
        tied = is_row(st.rows, row) & (st.mine(row) == o + 1)
        return implies(is_request(slots, o), there == (st.carrier(o) != 0)) & implies(there, tied)

    def names_its_request(r: Number) -> Truth:
        o = st.mine(r) - 1
        real = (st.rows.phase(r) != IDLE) & is_request(slots, o) & (st.carrier(o) == r + 1)
        return implies(st.mine(r) != 0, real)

    return slots.owners.all(on_a_row) & each_request(st.rows, names_its_request)


def running_row_has_running_states(st: CacheState) -> Truth:
    """A row that runs, or is saved, with mamba states has them until it leaves: none is donated or freed before."""

    def runs(r: Number) -> Truth:
        reads = (st.rows.phase(r) == RUNNING) | (st.rows.phase(r) == SAVED)
        return implies(reads & (st.mine(r) != 0), st.states.phase(st.mine(r) - 1) == mamba_slots_state.RUNNING)

    return each_request(st.rows, runs)


def states_are_saved_once(st: CacheState) -> Truth:
    """The states of a session between two turns are in one place: with the request of its saved row, or in its slot."""

    def once(r: Number) -> Truth:
        slot = session_owner(st, st.rows.session(r))
        saved = (st.rows.phase(r) == SAVED) & (st.mine(r) != 0) & is_session(st.states, slot)
        return implies(saved, owns_nothing(st.states, slot))

    return each_request(st.rows, once)


def slot_has_row_and_states(st: CacheState) -> Truth:
    """A session's slot has states only while it has a saved row: both are closed together and resumed together."""

    def with_row(o: Number) -> Truth:
        s = o - st.states.limit + 1
        row = st.rows.slot(s) - 1
        saved = st.rows.sessions.has(s) & (st.rows.slot(s) != 0) & (st.rows.phase(row) == SAVED)
        return implies(is_session(st.states, o) & no(owns_nothing(st.states, o)), saved)

    return st.states.owners.all(with_row)


# The law of two states.


def running_keeps_its_states(was: CacheState, now: CacheState) -> Truth:
    """A row whose request runs before and after a call keeps its mamba states: nobody frees them under the request."""

    def kept(r: Number) -> Truth:
        runs = (was.rows.phase(r) == RUNNING) & (now.rows.phase(r) == RUNNING)
        return implies(runs & (was.mine(r) != 0), was.mine(r) == now.mine(r))

    return each_request(was.rows, kept)
