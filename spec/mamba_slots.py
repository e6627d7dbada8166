"""How mamba state slots move: from the pool to a request, its track buffer, a session or the tree, and back.

``spec.mamba_slots_state`` has the state, ``spec.state_laws`` the laws. A request waits (it may have a slot for a copy
of a node's state), runs on a row, and leaves: it donates its newest state to the tree and gives its other slots back,
or saves all of them in its session's slot. At any time a slot has one owner. The next turn of a session takes the slots
over, and has them until it is saved again.
"""

from __future__ import annotations

from spec import state_effects, state_laws
from spec.logic import Number, Seq, Stem, Step, but, implies, ite, no, requires
from spec.mamba_slots_state import (
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
    MambaSlotsState,
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
    lent,
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

stem = Stem("mamba_slots", state=MambaSlotsState, start=start)


# Groups: a batch sets slots aside, and its requests take them one by one.


@stem.transition
def begin_group(st: MambaSlotsState, need: Number, chosen: Seq) -> Step[MambaSlotsState]:
    """A group begins: it sets ``need`` slots aside, or none if fewer are free.

    Groups nest: an inner group keeps what the outer one has set aside.
    """
    count = ite(need <= st.available, need, 0)
    return Step(
        promises=(requires(need >= 0, "the group's size is at least 0"),),
        choice=(
            requires(chosen.length == count, "exactly the needed slots are set aside, or none if fewer are free"),
            requires(chosen.all(lambda s: st.slots.has(s) & (st.place(s) == FREE)), "the slots set aside were free"),
            requires(chosen.distinct(), "the slots set aside are all different"),
        ),
        then=but(
            st,
            place=st.place.where(chosen.has, GROUPED, chosen.items),
            available=st.available - chosen.length,
            group=st.group + 1,
        ),
    )


@stem.transition
def end_group(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """A group ends: only the end of the outermost group gives back the slots that nobody took."""
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
def clear(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """With every request gone, the pool starts anew: sessions and the tree lose their slots, and no group is open."""
    idle = st.owners.all(lambda o: implies(is_request(st, o), st.phase(o) == IDLE))
    return Step(promises=(requires(idle, "every request is gone"),), then=start(st))


# The tree.


@stem.transition
def alloc_copy(st: MambaSlotsState, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """A tree node gets a slot, into which a state is copied."""
    return Step(
        promises=(bare(st, node),),
        choice=(single(st, slot),),
        fits=some_open(st),
        then=take(st, node, OWN, slot),
    )


@stem.transition
def evict(st: MambaSlotsState, node: Number) -> Step[MambaSlotsState]:
    """A tree node loses its state: its slot is given back."""
    return Step(promises=(stateful(st, node),), then=drop(st, owned(st, node)))


@stem.transition
def alloc_for_match(st: MambaSlotsState, request: Number, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """Copy-on-write: a waiting request gets a slot for a copy of a node's state; the node keeps its own slot."""
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
def alloc(st: MambaSlotsState, request: Number, own: Number, first: Number, second: Number) -> Step[MambaSlotsState]:
    """A request is admitted: it gets the state slot and the track buffer that it lacks, or none if too few are free.

    It gets no slot in a role in which its record names one. A lazy buffer starts with its first slot alone.
    """
    needs = needed(st, request)
    new = taken(st, own, first, second)
    has = hold(hold(hold(st, request, OWN, own), request, FIRST, first), request, SECOND, second)
    equipped = written(lent(has, new), request)
    return Step(
        promises=(
            requires(is_request(st, request) & (st.phase(request) != LEAVING), "the request is not leaving"),
            requires(st.group == 0, "no group is open"),
        ),
        choice=(
            given(st, own, needs[0]),
            given(st, first, needs[1]),
            given(st, second, needs[2]),
            requires(
                apart(own, first) & apart(own, second) & apart(first, second), "the slots handed out are all different"
            ),
        ),
        fits=ite(needs[0], 1, 0) + ite(needs[1], 1, 0) + ite(needs[2], 1, 0) <= st.available,
        then=but(
            equipped,
            available=st.available - new.size,
            next=st.next.put(request, ite(needs[1], 0, st.next(request))),
            phase=st.phase.put(request, RUNNING),
        ),
    )


@stem.transition
def track(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """The state at a tracking boundary is written to the next slot of the track buffer; then the other slot is next."""
    return Step(
        promises=(
            running(st, request),
            requires(has_two(st) & no(st.lazy), "the track buffer has two slots from the start"),
        ),
        then=but(st, next=st.next.put(request, other(st.next(request)))),
    )


@stem.transition
def alloc_second(st: MambaSlotsState, request: Number, slot: Number) -> Step[MambaSlotsState]:
    """At a tracking boundary a lazy buffer gets its second slot, which is then written next.

    If no slot is free, the request goes on with one slot.
    """
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
def give_second(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """After a tracking boundary a lazy buffer gives back the slot that is not written next, if there is one."""
    return Step(
        promises=(running(st, request), lazily(st)),
        then=written(drop(st, only(st, request, across(st, request))), request),
    )


@stem.transition
def turn_lazy(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """While a lazy buffer has two slots, its other slot may count as the newest: that from before the boundary.

    An engine does so for a request that leaves before the step of its tracking boundary has ended.
    """
    there = requires(st.names(request, across(st, request)) != ABSENT, "the second slot is there")
    return Step(
        promises=(running(st, request), lazily(st), there),
        then=but(st, next=st.next.put(request, other(st.next(request)))),
    )


@stem.transition
def donate_and_replace(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A running request donates the slot of its newest tracked state to a node and gets the node's slot in exchange."""
    role = kept(st, request)
    old, new = st.table(request, role), st.table(node, OWN)
    given = hold(but(st, table=st.table.put((request, role), ABSENT)), node, OWN, old)
    return Step(
        promises=(running(st, request), requires(st.buffered, "requests have track buffers"), stateful(st, node)),
        then=written(hold(given, request, role, new), request),
    )


@stem.transition
def donate(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A request that ends donates the slot of its newest state to a node; next it gives its other slots back."""
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
def release(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A request that ends, is rejected, aborted or retracted gives back all its slots; its record names none."""
    there = is_request(st, request) & (st.phase(request) != IDLE)
    return Step(
        promises=(requires(there, "the request is there"),),
        then=gone(drop(st, owned(st, request)), request),
    )


def gone(st: MambaSlotsState, request: Number) -> MambaSlotsState:
    """The state in which the request is gone, and its record names no slot."""
    names = st.names.where(lambda o, _: o == request, ABSENT, lambda: [(request, k) for k in ROLES])
    return but(st, names=names, phase=st.phase.put(request, IDLE))


# A streaming session.


@stem.transition
def save(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn ends: all slots of the request go to its session's slot; the request's record names none."""
    stays = (st.phase(request) == WAITING) | (st.phase(request) == RUNNING)
    return Step(
        promises=(
            requires(is_request(st, request) & stays, "the request is waiting or running"),
            requires(is_session(st, session) & owns_nothing(st, session), "the session's slot is empty"),
        ),
        then=gone(move(st, request, session), request),
    )


@stem.transition
def restore(st: MambaSlotsState, session: Number, request: Number) -> Step[MambaSlotsState]:
    """The next turn gets all slots of its session's slot, and is their only owner until it is saved again."""
    return Step(
        promises=(
            requires(is_session(st, session) & no(owns_nothing(st, session)), "the session's slot has a state"),
            in_phase(st, request, IDLE, "the request is not there yet"),
        ),
        then=but(recorded(move(st, session, request), request), phase=st.phase.put(request, WAITING)),
    )


@stem.transition
def close(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A session ends between two turns: all slots of its session's slot are given back; an absent slot is not freed."""
    return Step(
        promises=(requires(is_session(st, session), "the owner is a session's slot"),),
        then=drop(st, owned(st, session)),
    )


# The laws, in the order in which their proofs may use one another.

for _law in (*state_laws.LAWS, *state_laws.LATENT):
    stem.invariant(latent=_law in state_laws.LATENT, ledger=_law is state_laws.freed_exactly_once)(_law)
stem.invariant()(state_laws.available_counts)
stem.each(state_laws.slots_of, uses=("no_leak", "group_is_open", "places_are_known", "available_counts"))(
    state_laws.quiet_is_full
)
stem.change()(state_laws.running_keeps_its_state)
stem.change()(state_laws.set_aside_until_the_end)
stem.change(besides=("release", "save"))(state_laws.requests_stay)

# What calls do.

stem.change(only=("begin_group",))(state_effects.sets_aside_all_or_none)
stem.change(only=("alloc",))(state_effects.is_equipped_with)
stem.change(only=("track", "alloc_second", "turn_lazy"))(state_effects.turns_to_the_other_track)
stem.change(only=("donate", "donate_and_replace"))(state_effects.donates_its_newest_state)
stem.change(only=("alloc_for_match",))(state_effects.waits_with_a_copy)
stem.change(only=("release",))(state_effects.goes_for_good)
stem.change(only=("restore",))(state_effects.comes_from_the_session)
stem.change(only=("alloc", "track", "alloc_second", "give_second", "turn_lazy", "release"))(
    state_effects.other_owners_keep
)
stem.change(only=("alloc_copy", "evict"))(state_effects.other_nodes_keep)
stem.change(only=("alloc_for_match", "donate", "donate_and_replace"))(state_effects.third_owners_keep)
stem.change(only=("save", "restore"))(state_effects.others_keep_in_a_turn)
stem.change(only=("close",))(state_effects.others_keep_at_a_close)
stem.change(only=("begin_group", "end_group"))(state_effects.owners_keep)
stem.change(only=("end_group",))(state_effects.group_is_over)
stem.change(only=("clear",))(state_effects.nobody_has_a_slot)
stem.change(only=("alloc_copy",))(state_effects.node_gets_the_slot)
stem.change(only=("evict",))(state_effects.node_gives_its_slot)
stem.change(only=("donate_and_replace",))(state_effects.request_gets_the_nodes_slot)
stem.change(only=("give_second",))(state_effects.keeps_what_it_writes_next)
stem.change(only=("alloc_second",))(state_effects.buffer_gets_the_slot)
stem.change(only=("save",))(state_effects.session_gets_every_slot)
stem.change(only=("close",))(state_effects.session_has_no_slot)

__all__ = ["MambaSlotsState", "initial", "running", "stem"]
