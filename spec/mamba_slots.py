"""The life of mamba state slots: from the pool to a request, its track buffer, a session or the tree, and back.

``spec.states`` is the noun and its laws. A request waits (it may have been given a copy of a node's state), runs on a
row, and leaves: it donates its newest state to the tree and gives the rest back, or is saved in its session's slot.
At any time a slot has one owner; what the next turn of a session runs on is the turn's until it is saved again.
"""

from __future__ import annotations

from spec import state_laws
from spec.logic import Number, Seq, Stem, Step, but, implies, ite, no, requires
from spec.states import (
    ABSENT,
    FIRST,
    FREE,
    GROUPED,
    IDLE,
    LEAVING,
    OWN,
    ROLES,
    RUNNING,
    SECOND,
    WAITING,
    MambaSlots,
    across,
    apart,
    bare,
    drop,
    given,
    has_two,
    hold,
    in_phase,
    initial,
    is_request,
    is_session,
    kept,
    lazily,
    move,
    needed,
    only,
    other,
    owned,
    owns_nothing,
    recorded,
    running,
    single,
    some_open,
    start,
    stateful,
    take,
    taken,
    written,
)

stem = Stem("mamba_slots", state=MambaSlots, start=start)


# Groups: slots that a batch sets aside before its requests ask one by one.


@stem.transition
def begin_group(st: MambaSlots, need: Number, chosen: Seq) -> Step[MambaSlots]:
    """A group sets ``need`` slots aside, none where they do not suffice; groups nest, and none forgets another's."""
    count = ite(need <= st.available, need, 0)
    return Step(
        promises=(requires(need >= 0, "a group has a size"),),
        choice=(
            requires(chosen.length == count, "as many slots are set aside as the group needs, or none"),
            requires(chosen.all(lambda s: st.slots.has(s) & (st.place(s) == FREE)), "the slots set aside were free"),
            requires(chosen.distinct(), "no slot is set aside twice"),
        ),
        then=but(
            st,
            place=st.place.where(chosen.has, GROUPED, chosen.items),
            available=st.available - chosen.length,
            group=st.group + 1,
        ),
    )


@stem.transition
def end_group(st: MambaSlots) -> Step[MambaSlots]:
    """The end of the outermost group gives back what nobody asked for; an inner end gives back nothing."""
    rest = st.slots.such(lambda s: (st.group == 1) & (st.place(s) == GROUPED), st.slots.items)
    return Step(
        promises=(requires(st.group > 0, "a group is open"),),
        then=but(
            st,
            place=st.place.where(rest.has, FREE, rest.items),
            available=st.available + rest.size,
            group=st.group - 1,
        ),
    )


@stem.transition
def clear(st: MambaSlots) -> Step[MambaSlots]:
    """The pool starts anew between requests: sessions and the tree have nothing, and a group that was open is over."""
    idle = st.owners.all(lambda o: implies(is_request(st, o), st.phase(o) == IDLE))
    return Step(promises=(requires(idle, "no request is there"),), then=start(st))


# The tree.


@stem.transition
def alloc_copy(st: MambaSlots, node: Number, slot: Number) -> Step[MambaSlots]:
    """A new slot for a node of the tree, which copies a state into it."""
    return Step(
        promises=(bare(st, node),),
        choice=(single(st, slot),),
        fits=some_open(st),
        then=take(st, node, OWN, slot),
    )


@stem.transition
def evict(st: MambaSlots, node: Number) -> Step[MambaSlots]:
    """A node loses its state; the slot is given back."""
    return Step(promises=(stateful(st, node),), then=drop(st, owned(st, node)))


@stem.transition
def alloc_for_match(st: MambaSlots, request: Number, node: Number, slot: Number) -> Step[MambaSlots]:
    """Copy-on-write: a request that waits gets a slot for a copy of a node's state; the node keeps its own."""
    came = is_request(st, request) & ((st.phase(request) == IDLE) | (st.phase(request) == WAITING))
    copied = recorded(take(st, request, OWN, slot), request)
    return Step(
        promises=(
            requires(came, "the request is not admitted yet"),
            requires(st.names(request, OWN) == ABSENT, "the request names no state yet"),
            stateful(st, node),
        ),
        choice=(single(st, slot),),
        fits=some_open(st),
        then=but(copied, phase=st.phase.put(request, WAITING)),
    )


# A request.


@stem.transition
def alloc(st: MambaSlots, request: Number, own: Number, first: Number, second: Number) -> Step[MambaSlots]:
    """A request is admitted: it gets the state and the track buffer that it does not have, all or nothing.

    What it names already it does not get again; a lazy buffer starts with its first slot alone.
    """
    needs = needed(st, request)
    equipped = written(hold(hold(hold(st, request, OWN, own), request, FIRST, first), request, SECOND, second), request)
    return Step(
        promises=(
            requires(is_request(st, request) & (st.phase(request) != LEAVING), "the request is not about to leave"),
            requires(st.group == 0, "requests are admitted when the group has ended"),
        ),
        choice=(
            given(st, own, needs[0]),
            given(st, first, needs[1]),
            given(st, second, needs[2]),
            requires(apart(own, first) & apart(own, second) & apart(first, second), "no slot is handed out twice"),
        ),
        fits=ite(needs[0], 1, 0) + ite(needs[1], 1, 0) + ite(needs[2], 1, 0) <= st.available,
        then=but(
            equipped,
            available=st.available - taken(st, own, first, second).size,
            next=st.next.put(request, ite(needs[1], 0, st.next(request))),
            phase=st.phase.put(request, RUNNING),
        ),
    )


@stem.transition
def track(st: MambaSlots, request: Number) -> Step[MambaSlots]:
    """The state at a boundary is written to the next slot of the buffer; then the other one is next."""
    return Step(
        promises=(
            running(st, request),
            requires(has_two(st) & no(st.lazy), "the buffer has two slots from the start"),
        ),
        then=but(st, next=st.next.put(request, other(st.next(request)))),
    )


@stem.transition
def alloc_second(st: MambaSlots, request: Number, slot: Number) -> Step[MambaSlots]:
    """At a boundary a lazy buffer gets its second slot, and that one is next; without room it goes on with one."""
    role = across(st, request)
    return Step(
        promises=(
            running(st, request),
            lazily(st),
            requires(st.names(request, role) == ABSENT, "the second slot is absent"),
        ),
        choice=(single(st, slot),),
        fits=some_open(st),
        then=but(written(take(st, request, role, slot), request), next=st.next.put(request, other(st.next(request)))),
    )


@stem.transition
def give_second(st: MambaSlots, request: Number) -> Step[MambaSlots]:
    """After the boundary a lazy buffer gives back the slot that is not next, if it is there; nothing else."""
    return Step(
        promises=(running(st, request), lazily(st)),
        then=written(drop(st, only(st, request, across(st, request))), request),
    )


@stem.transition
def donate_and_replace(st: MambaSlots, request: Number, node: Number) -> Step[MambaSlots]:
    """A running request gives its newest tracked state to a node, whose own slot takes that one's place."""
    role = kept(st, request)
    old, new = st.table(request, role), st.table(node, OWN)
    given = hold(but(st, table=st.table.put((request, role), ABSENT)), node, OWN, old)
    return Step(
        promises=(running(st, request), requires(st.buffered, "the request tracks its state"), stateful(st, node)),
        then=written(hold(given, request, role, new), request),
    )


@stem.transition
def donate(st: MambaSlots, request: Number, node: Number) -> Step[MambaSlots]:
    """A request that ends gives its newest state to a node, and has it no more; the rest it gives back next."""
    role = kept(st, request)
    left = hold(st, node, OWN, st.table(request, role))
    return Step(
        promises=(running(st, request), bare(st, node)),
        then=but(
            recorded(but(left, table=left.table.put((request, role), ABSENT)), request),
            phase=st.phase.put(request, LEAVING),
        ),
    )


@stem.transition
def release(st: MambaSlots, request: Number) -> Step[MambaSlots]:
    """A request that ends, is rejected, aborted or retracted gives back all that it still has, and names nothing."""
    there = is_request(st, request) & (st.phase(request) != IDLE)
    return Step(
        promises=(requires(there, "the request is there"),),
        then=gone(drop(st, owned(st, request)), request),
    )


def gone(st: MambaSlots, request: Number) -> MambaSlots:
    """The request is not there any more, and its record is empty."""
    names = st.names.where(lambda o, _: o == request, ABSENT, lambda: [(request, k) for k in ROLES])
    return but(st, names=names, phase=st.phase.put(request, IDLE))


# A streaming session.


@stem.transition
def save(st: MambaSlots, request: Number, session: Number) -> Step[MambaSlots]:
    """A turn ends: all that the request has is the session's, and the request names nothing."""
    stays = (st.phase(request) == WAITING) | (st.phase(request) == RUNNING)
    return Step(
        promises=(
            requires(is_request(st, request) & stays, "the request is there, and has given nothing away"),
            requires(is_session(st, session) & owns_nothing(st, session), "the session's slot is empty"),
        ),
        then=gone(move(st, request, session), request),
    )


@stem.transition
def restore(st: MambaSlots, session: Number, request: Number) -> Step[MambaSlots]:
    """The next turn gets all that the session's slot has; until it is saved again it is the turn's alone."""
    return Step(
        promises=(
            requires(is_session(st, session) & no(owns_nothing(st, session)), "the session's slot has a state"),
            in_phase(st, request, IDLE, "the request is new"),
        ),
        then=but(recorded(move(st, session, request), request), phase=st.phase.put(request, WAITING)),
    )


@stem.transition
def close(st: MambaSlots, session: Number) -> Step[MambaSlots]:
    """A session ends between turns: all that its slot has is given back, and what is absent is not."""
    return Step(
        promises=(requires(is_session(st, session), "the session is a session"),),
        then=drop(st, owned(st, session)),
    )


# The laws, in the order in which their proofs may use one another.

for _law in (*state_laws.LAWS, *state_laws.LATENT):
    stem.invariant(latent=_law in state_laws.LATENT)(_law)
stem.invariant()(state_laws.available_counts)
stem.each(state_laws.slots_of, uses=("no_leak", "group_is_open", "places_are_known", "available_counts"))(
    state_laws.quiet_is_full
)

__all__ = ["MambaSlots", "initial", "running", "stem"]
