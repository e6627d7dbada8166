"""Mamba states in the whole cache: which row's request carries which states, and which node and slot have one.

In ``spec.states`` the owners are numbers: a request's, then ``limit + s - 1`` for the slot of the session ``s``, then
``first_node + n`` for the node ``n``. ``mine(r)`` is the number of the request on the row ``r`` plus one, 0 where the
row carries no state; ``carrier`` is its inverse. A step that moves states stands beside the step that moves pages: the
row is there first when a request comes, and last when it goes.
"""

from __future__ import annotations

from spec import lock_ref, mamba_slots, session_trim
from spec.logic import Call, Number, Requirement, Seq, Step, Truth, but, call, implies, no, requires
from spec.rows import IDLE, LEAVING, SAVED, each_request, is_row
from spec.states import IDLE as GONE
from spec.states import LEAVING as GIVING
from spec.states import OWN, WAITING, is_node, is_request, is_session, owns_nothing
from spec.states import RUNNING as CARRIED
from spec.tree import lives
from spec.whole import Whole, deserted, home, living


def node_owner(st: Whole, node: Number) -> Number:
    """The owner that a node is."""
    return st.states.first_node + node


def session_owner(st: Whole, session: Number) -> Number:
    """The owner that a session's slot is."""
    return st.states.limit + session - 1


def beside(st: Whole, asked: Call) -> Step[Whole]:
    """The call on the states, and nothing else."""
    return Step(
        calls=(asked,),
        promises=asked.step.promises,
        choice=asked.step.choice,
        fits=asked.step.fits,
        then=but(st, states=asked.then),
    )


def carries_nothing(st: Whole, row: Number) -> Requirement:
    """The row's request has given its states away, or back."""
    return requires(st.mine(row) == 0, "the request carries no state any more")


def slot_carries_nothing(st: Whole, session: Number) -> Requirement:
    """The session's slot has no state."""
    return requires(owns_nothing(st.states, session_owner(st, session)), "the session's slot has no state any more")


def carried_no_more(st: Whole, request: Number) -> Whole:
    """The request is on no row."""
    row = st.carrier(request) - 1
    return but(
        st,
        mine=st.mine.where(lambda r: (st.carrier(request) != 0) & (r == row), 0, lambda: [row]),
        carrier=st.carrier.put(request, 0),
    )


def has_place(st: Whole, node: Number) -> Requirement:
    """The node is one of the owners of states."""
    return requires(is_node(st.states, node_owner(st, node)), "the node has its place among the owners of states")


# Groups, and a request that waits.


def state_group_begin(st: Whole, need: Number, chosen: Seq) -> Step[Whole]:
    """A batch sets states aside."""
    return beside(st, call("states", mamba_slots.begin_group, st.states, need, chosen))


def state_group_end(st: Whole) -> Step[Whole]:
    """What nobody asked for is given back."""
    return beside(st, call("states", mamba_slots.end_group, st.states))


def state_match(st: Whole, request: Number, node: Number, slot: Number) -> Step[Whole]:
    """Copy-on-write: a request that waits gets a slot for a copy of the state of the node that it matched."""
    return beside(st, call("states", mamba_slots.alloc_for_match, st.states, request, node_owner(st, node), slot))


# A request on a row.


def state_admit(st: Whole, row: Number, request: Number, own: Number, first: Number, second: Number) -> Step[Whole]:
    """The request on a row gets the state and the track buffer that it does not have."""
    equipped = call("states", mamba_slots.alloc, st.states, request, own, first, second)
    comes = (st.states.phase(request) == GONE) | (st.states.phase(request) == WAITING)
    return Step(
        calls=(equipped,),
        promises=(
            *equipped.step.promises,
            requires(comes, "the request comes to its row"),
            session_trim.at_work(st.life, row),
            requires(st.mine(row) == 0, "the row carries no state yet"),
        ),
        choice=equipped.step.choice,
        fits=equipped.step.fits,
        then=but(
            st,
            states=equipped.then,
            mine=st.mine.put(row, request + 1),
            carrier=st.carrier.put(request, row + 1),
        ),
    )


def state_track(st: Whole, request: Number) -> Step[Whole]:
    """The state at a boundary is written to the buffer."""
    return beside(st, call("states", mamba_slots.track, st.states, request))


def state_second(st: Whole, request: Number, slot: Number) -> Step[Whole]:
    """A lazy buffer gets its second slot."""
    return beside(st, call("states", mamba_slots.alloc_second, st.states, request, slot))


def state_give_second(st: Whole, request: Number) -> Step[Whole]:
    """A lazy buffer gives its second slot back."""
    return beside(st, call("states", mamba_slots.give_second, st.states, request))


def state_release(st: Whole, request: Number) -> Step[Whole]:
    """A request that leaves its row, or was turned away before it had one, gives back the states that it has."""
    freed = call("states", mamba_slots.release, st.states, request)
    row = st.carrier(request) - 1
    going = (st.carrier(request) == 0) | (st.life.phase(row) == LEAVING)
    return Step(
        calls=(freed,),
        promises=(*freed.step.promises, requires(going, "the request's row is leaving, if it has one")),
        then=but(carried_no_more(st, request), states=freed.then),
    )


# The tree.


def state_copy(st: Whole, node: Number, slot: Number) -> Step[Whole]:
    """A node without a state gets a slot for a copy of a request's."""
    copied = call("states", mamba_slots.alloc_copy, st.states, node_owner(st, node), slot)
    noted = call("tree", lock_ref.set_mamba, st.tree, node)
    return Step(
        calls=(copied, noted),
        promises=(*noted.step.promises, has_place(st, node)),
        choice=copied.step.choice,
        fits=copied.step.fits,
        then=but(st, states=copied.then, tree=noted.then),
    )


def state_swap(st: Whole, request: Number, node: Number) -> Step[Whole]:
    """A running request gives its newest state to a node, and gets the node's slot in its place."""
    return beside(st, call("states", mamba_slots.donate_and_replace, st.states, request, node_owner(st, node)))


def state_renew(st: Whole, request: Number, spare: Number, slot: Number) -> Step[Whole]:
    """A running request whose newest state the tree has already gives it back, and tracks the next one in a free slot.

    ``spare``: the number of a node that has no state, or of none.
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
            requires(st.states.buffered, "the request tracks its state"),
        ),
        choice=taken.step.choice,
        fits=taken.step.fits,
        then=but(st, states=back.then),
    )


def state_donate(st: Whole, request: Number, node: Number) -> Step[Whole]:
    """A request that ends gives its newest state to a node that has none."""
    given = call("states", mamba_slots.donate, st.states, request, node_owner(st, node))
    noted = call("tree", lock_ref.set_mamba, st.tree, node)
    return Step(
        calls=(given, noted),
        promises=(*noted.step.promises, has_place(st, node), mamba_slots.running(st.states, request)),
        then=but(st, states=given.then, tree=noted.then),
    )


def state_evict(st: Whole, node: Number) -> Step[Whole]:
    """A node whose state nobody holds loses it."""
    gone = call("tree", lock_ref.evict_mamba, st.tree, node)
    freed = call("states", mamba_slots.evict, st.states, node_owner(st, node))
    return Step(
        calls=(gone, freed),
        promises=(*gone.step.promises, has_place(st, node)),
        then=but(st, states=freed.then, tree=gone.then),
    )


def evict_leaf_and_state(st: Whole, node: Number) -> Step[Whole]:
    """A leaf with a state gives back its pages, and the state."""
    gone = call("tree", lock_ref.evict_leaf, st.tree, node)
    freed = call("life", session_trim.drop, st.life, home(st, node))
    empty = call("states", mamba_slots.evict, st.states, node_owner(st, node))
    stateful = requires(st.tree.mamba(node) == 1, "the leaf has a state")
    return Step(
        calls=(gone, freed, empty),
        promises=(*gone.step.promises, has_place(st, node), stateful),
        then=but(living(st, freed.then), tree=gone.then, states=empty.then),
    )


# A streaming session.


def state_save(st: Whole, request: Number, session: Number) -> Step[Whole]:
    """The states of a turn whose row is in its session's slot go there too."""
    moved = call("states", mamba_slots.save, st.states, request, session_owner(st, session))
    row = st.carrier(request) - 1
    with_row = (st.carrier(request) != 0) & (st.life.phase(row) == SAVED) & (st.life.session(row) == session)
    return Step(
        calls=(moved,),
        promises=(*moved.step.promises, requires(with_row, "the turn's row is in the session's slot")),
        then=but(carried_no_more(st, request), states=moved.then),
    )


def state_restore(st: Whole, session: Number, request: Number) -> Step[Whole]:
    """The next turn takes over the states of its session's slot; until it has a row, it waits with them."""
    return beside(st, call("states", mamba_slots.restore, st.states, session_owner(st, session), request))


def state_close(st: Whole, session: Number) -> Step[Whole]:
    """A session that ends gives back the states of its slot."""
    return beside(st, call("states", mamba_slots.close, st.states, session_owner(st, session)))


TRANSITIONS = (
    *(state_group_begin, state_group_end, state_match, state_admit, state_track, state_second, state_give_second),
    *(state_release, state_copy, state_swap, state_renew, state_donate, state_evict, evict_leaf_and_state),
    *(state_save, state_restore, state_close),
)


# The laws.


def node_has_its_state(st: Whole) -> Truth:
    """A node owns a state slot exactly if the tree says that it has a state, and nobody else owns one as a node."""
    first = st.states.first_node

    def same(o: Number) -> Truth:
        has = lives(st.tree, o - first) & (st.tree.mamba(o - first) == 1)
        return implies(is_node(st.states, o), (st.states.table(o, OWN) != 0) == has)

    return st.states.owners.all(same)


def states_go_with_rows(st: Whole) -> Truth:
    """A request carries states on one row that is not idle, and a row says whose it carries."""
    slots = st.states

    def carried(o: Number) -> Truth:
        there = is_request(slots, o) & ((slots.phase(o) == CARRIED) | (slots.phase(o) == GIVING))
        row = st.carrier(o) - 1
        tied = is_row(st.life, row) & (st.mine(row) == o + 1)
        return implies(is_request(slots, o), there == (st.carrier(o) != 0)) & implies(there, tied)

    def carries(r: Number) -> Truth:
        o = st.mine(r) - 1
        real = (st.life.phase(r) != IDLE) & is_request(slots, o) & (st.carrier(o) == r + 1)
        return implies(st.mine(r) != 0, real)

    return slots.owners.all(carried) & each_request(st.life, carries)


def slot_has_row_and_states(st: Whole) -> Truth:
    """A session's slot has states only while it has the row: with the row they are closed and resumed."""

    def with_row(o: Number) -> Truth:
        s = o - st.states.limit + 1
        row = st.life.slot(s) - 1
        saved = st.life.sessions.has(s) & (st.life.slot(s) != 0) & (st.life.phase(row) == SAVED)
        return implies(is_session(st.states, o) & no(owns_nothing(st.states, o)), saved)

    return st.states.owners.all(with_row)


def states_are_quiescent(st: Whole) -> Truth:
    """With no request on a row or waiting, no session, an evicted tree and no open group, every state slot is free."""
    slots = st.states
    gone = slots.owners.all(lambda o: implies(is_request(slots, o), slots.phase(o) == GONE))
    return implies(deserted(st) & gone & (slots.group == 0), slots.available == slots.slots.size)
