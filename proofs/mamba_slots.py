"""What the provers need for mamba state slots: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Iterator

from proofs import answers
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked
from spec import mamba_slots as law
from spec.finite import Seq
from spec.logic import Number, Step, Truth, but, every, ite, no, requires
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    FREE,
    GROUPED,
    HELD,
    LEAVING,
    NOWHERE,
    OWN,
    ROLES,
    RUNNING,
    SECOND,
    MambaSlotsState,
    drop,
    each_role,
    has_two,
    hold,
    is_node,
    is_open,
    is_request,
    is_session,
    kept,
    only,
    other,
    recorded,
    take,
    written,
)

SIZES = {"states": 3, "owners": 4, "requests": 2, "first_node": 3}
KINDS = ((True, True, False), (True, True, True), (True, False, False), (False, False, False))


def small() -> tuple[MambaSlotsState, ...]:
    """Three slots, two requests, a session and a node, with each kind of track buffer and without one."""
    return tuple(law.initial(size=3, requests=2, sessions=1, nodes=1, kind=kind) for kind in KINDS)


def requests(st: MambaSlotsState) -> list[int]:
    """The requests."""
    return [o for o in st.owners.items() if is_request(st, o)]


def sessions(st: MambaSlotsState) -> list[int]:
    """The sessions."""
    return [o for o in st.owners.items() if is_session(st, o)]


def nodes(st: MambaSlotsState) -> list[int]:
    """The nodes."""
    return [o for o in st.owners.items() if is_node(st, o)]


def free(st: MambaSlotsState) -> list[int]:
    """The slots on the free list."""
    return [s for s in st.slots.items() if st.place(s) == FREE]


def open_slot(st: MambaSlotsState) -> int:
    """A slot that can be handed out by itself, 0 where there is none."""
    return next((s for s in st.slots.items() if is_open(st, s)), ABSENT)


def wanted(st: MambaSlotsState, request: int) -> list[bool]:
    """In which roles an admitted request would get a slot."""
    bare = st.names(request, FIRST) == st.names(request, SECOND) == ABSENT
    two = st.doubled and not st.lazy
    return [st.names(request, OWN) == ABSENT, bare and st.buffered, bare and st.buffered and two]


def _alloc(st: MambaSlotsState) -> Iterator[tuple[int, ...]]:
    for request in requests(st):
        slots = iter(free(st))
        yield request, *(next(slots, ABSENT) if want else ABSENT for want in wanted(st, request))


def _begin(st: MambaSlotsState) -> Iterator[tuple[int, Seq]]:
    """Sizes of groups that fit, and one that does not fit; groups nest at most twice."""
    for need in (1, 2, st.slots.size + 1)[: 2 if st.group else 3] if st.group < 2 else ():
        yield need, Seq(free(st)[:need] if need <= st.available else [])


def _each_request(st: MambaSlotsState) -> Iterator[tuple[int]]:
    yield from ((r,) for r in requests(st))


def _given(st: MambaSlotsState) -> Iterator[tuple[int, int]]:
    yield from ((r, n) for r in requests(st) for n in nodes(st))


MOVES = {
    "begin_group": _begin,
    "end_group": lambda _: [()],
    "clear": lambda _: [()],
    "alloc_copy": lambda st: ((n, open_slot(st)) for n in nodes(st)),
    "evict": lambda st: ((n,) for n in nodes(st)),
    "alloc_for_match": lambda st: ((r, n, open_slot(st)) for r in requests(st) for n in nodes(st)),
    "alloc": _alloc,
    "track": _each_request,
    "alloc_second": lambda st: ((r, open_slot(st)) for r in requests(st)),
    "give_second": _each_request,
    "turn_lazy": _each_request,
    "donate_and_replace": _given,
    "donate": _given,
    "release": _each_request,
    "save": lambda st: ((r, s) for r in requests(st) for s in sessions(st)),
    "restore": lambda st: ((s, r) for s in sessions(st) for r in requests(st)),
    "close": lambda st: ((s,) for s in sessions(st)),
}


# Mutants: what each transition would do without one line of the law.


def throws_away(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """The end of a group moves its slots to no place at all."""
    step = law.end_group(st)
    place = step.then.place.where(lambda s: step.then.place(s) != st.place(s), NOWHERE, st.slots.items)
    return altered(step, place=place)


def in_no_phase(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn that is saved leaves its request in a phase that does not exist."""
    return altered(law.save(st, request, session), phase=st.phase.put(request, LEAVING + 1))


def frees_the_absent(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A closed session frees its whole track buffer, also a slot that is absent."""
    step = law.close(st, session)
    gone = st.table(session, SECOND)
    return altered(step, place=step.then.place.where(lambda s: s == gone, FREE, lambda: [gone]))


def shares_the_slot(st: MambaSlotsState, request: Number, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """Copy-on-write without a copy: the request gets the node's own slot."""
    step = law.alloc_for_match(st, request, node, slot)
    shared = recorded(but(st, table=st.table.put((request, OWN), st.table(node, OWN))), request)
    return but(step, then=but(shared, phase=step.then.phase))


def forgets_to_free(st: MambaSlotsState, node: Number) -> Step[MambaSlotsState]:
    """A node loses its state, and its slot is not given back."""
    return but(law.evict(st, node), then=but(st, table=st.table.put((node, OWN), ABSENT)))


def keeps_the_rest(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """The end of a group leaves the slots that nobody took set aside."""
    return but(law.end_group(st), then=but(st, group=st.group - 1))


def copies_into_a_track(st: MambaSlotsState, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """A node gets a slot in the role of a track buffer."""
    return but(law.alloc_copy(st, node, slot), then=take(st, node, FIRST, slot))


def tracks_past_the_buffer(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """The index of the next track grows past the buffer."""
    return altered(law.track(st, request), next=st.next.put(request, st.next(request) + 1))


def runs_unequipped(st: MambaSlotsState, request: Number, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """A request that matched runs at once, without a track buffer."""
    return altered(law.alloc_for_match(st, request, node, slot), phase=st.phase.put(request, RUNNING))


def forgets_what_it_had(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A request is gone, and its slots are not given back (SGLang PR 26941, abort)."""
    return but(law.release(st, request), then=law.gone(st, request))


def second_without_a_name(st: MambaSlotsState, request: Number, slot: Number) -> Step[MambaSlotsState]:
    """The second slot of a track buffer is not noted in the request's record."""
    return altered(law.alloc_second(st, request, slot), names=st.names)


def turns_to_no_slot(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """The other slot of a lazy buffer counts as the newest, also where it is absent."""
    return unasked(law.turn_lazy(st, request), "the second slot is there")


def keeps_the_names(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A request gives its slots back, and its record still names the track buffer (SGLang PR 26941, free)."""
    return _names_buffer(st, request, law.release(st, request))


def _names_buffer(st: MambaSlotsState, request: Number, step: Step[MambaSlotsState]) -> Step[MambaSlotsState]:
    """The step after which the record clears the name of the request's own state alone."""
    names = step.then.names.where(
        lambda o, k: (o == request) & (k != OWN), st.names, lambda: [(request, k) for k in ROLES]
    )
    return altered(step, names=names)


def row_stays_behind(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A donated slot stays in the row that the kernels read."""
    return altered(law.donate_and_replace(st, request, node), row=st.row)


def frees_by_old_row(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A request frees what its row shows to the kernels, also slots that it gave back before."""
    step = law.release(st, request)
    shown = st.slots.such(
        lambda s: no(each_role(lambda k: st.row(request, k) != s)), lambda: [st.row(request, k) for k in ROLES]
    )
    return but(step, then=law.gone(drop(st, shown), request))


def counts_the_group(st: MambaSlotsState, need: Number, chosen: Seq) -> Step[MambaSlotsState]:
    """Slots that are set aside still count as available."""
    return altered(law.begin_group(st, need, chosen), available=st.available)


def passes_its_own(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A running request donates the state that it computes with, and not a state of its track buffer."""
    old, new = st.table(request, OWN), st.table(node, OWN)
    swapped = hold(hold(st, node, OWN, old), request, OWN, new)
    return but(law.donate_and_replace(st, request, node), then=written(swapped, request))


def clears_under_requests(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """The pool is cleared while requests have slots."""
    return unasked(law.clear(st), "every request is gone")


def inner_end_gives_back(st: MambaSlotsState) -> Step[MambaSlotsState]:
    """The end of a group within a group gives back what the outer group has set aside, too."""
    given = law.end_group(but(st, group=1)).then
    return altered(law.end_group(st), place=given.place, available=given.available)


def loses_an_evicted_slot(st: MambaSlotsState, node: Number) -> Step[MambaSlotsState]:
    """A node loses its state, and nobody owns or frees the slot."""
    return forgets_to_free(st, node)


# Mutants of what calls must achieve.


def turned(step: Step[MambaSlotsState], *but_not: Number) -> Step[MambaSlotsState]:
    """The step after which every other owner writes its other track next."""
    st = step.then

    def others(o: Number) -> Truth:
        return every(o != one for one in but_not) & st.owners.has(o)

    return altered(step, next=st.next.where(others, lambda o: other(st.next(o)), st.owners.items))


def tracks_for_all(st: MambaSlotsState, request: Number) -> Step[MambaSlotsState]:
    """A request reaches a tracking boundary, and all owners of slots write their other track next."""
    return turned(law.track(st, request), request)


def evicts_and_turns(st: MambaSlotsState, node: Number) -> Step[MambaSlotsState]:
    """A node loses its state, and all other owners of slots write their other track next."""
    return turned(law.evict(st, node), node)


def matches_and_turns(st: MambaSlotsState, request: Number, node: Number, slot: Number) -> Step[MambaSlotsState]:
    """A request matches a node, and all other owners of slots write their other track next."""
    return turned(law.alloc_for_match(st, request, node, slot), request, node)


def saves_and_turns(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn is saved, and all other owners of slots write their other track next."""
    return turned(law.save(st, request, session), request, session)


def closes_and_turns(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A session ends, and all other owners of slots write their other track next."""
    return turned(law.close(st, session), session)


def groups_and_turns(st: MambaSlotsState, need: Number, chosen: Seq) -> Step[MambaSlotsState]:
    """A group begins, and all owners of slots write their other track next."""
    return turned(law.begin_group(st, need, chosen))


def exchanged(st: MambaSlotsState, request: Number) -> MambaSlotsState:
    """The state in which the two slots of the request's track buffer have changed their places."""
    one, two = (st.table(request, role) for role in (FIRST, SECOND))
    role = st.role.where(
        lambda s: (s != ABSENT) & ((s == one) | (s == two)), lambda s: ite(s == one, SECOND, FIRST), lambda: [one, two]
    )
    table = st.table.put((request, FIRST), two).put((request, SECOND), one)
    return written(but(st, role=role, table=table), request)


def donates_and_swaps(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A running request donates its newest state, and its two track slots change their places."""
    step = law.donate_and_replace(st, request, node)
    two = requires(has_two(st) & no(st.lazy), "the track buffer has two slots from the start")
    return but(step, promises=(*step.promises, two), then=exchanged(step.then, request))


def swaps_its_tracks(st: MambaSlotsState, request: Number, slot: Number) -> Step[MambaSlotsState]:
    """A lazy buffer gets its second slot, and the two slots change their places."""
    step = law.alloc_second(st, request, slot)
    return but(step, then=exchanged(step.then, request))


def saves_by_freeing(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn is saved, and all its slots are given back."""
    return but(law.save(st, request, session), then=law.release(st, request).then)


def closes_its_own_state(st: MambaSlotsState, session: Number) -> Step[MambaSlotsState]:
    """A session ends, and its track buffer stays with it."""
    return but(law.close(st, session), then=drop(st, only(st, session, OWN)))


def four_slots() -> tuple[MambaSlotsState, ...]:
    """Four slots: room for a request with two tracks beside a node with a state."""
    return (law.initial(size=4, requests=2, sessions=1, nodes=1, kind=(True, True, False)),)


FOUR = {"sizes": {**SIZES, "states": 4}, "small": four_slots}


MUTANTS = (
    Mutant("tracks_for_all", "track", "other_owners_keep", tracks_for_all),
    Mutant("evicts_and_turns", "evict", "other_nodes_keep", evicts_and_turns),
    Mutant("matches_and_turns", "alloc_for_match", "third_owners_keep", matches_and_turns),
    Mutant("saves_and_turns", "save", "others_keep_in_a_turn", saves_and_turns),
    Mutant("closes_and_turns", "close", "others_keep_at_a_close", closes_and_turns),
    Mutant("groups_and_turns", "begin_group", "owners_keep", groups_and_turns),
    Mutant("donates_and_swaps", "donate_and_replace", "request_gets_the_nodes_slot", donates_and_swaps, FOUR),
    Mutant("swaps_its_tracks", "alloc_second", "buffer_gets_the_slot", swaps_its_tracks),
    Mutant("saves_by_freeing", "save", "session_gets_every_slot", saves_by_freeing),
    Mutant("closes_its_own_state", "close", "session_has_no_slot", closes_its_own_state),
    *idlers(
        law.stem,
        end_group="group_is_over",
        clear="nobody_has_a_slot",
        alloc_copy="node_gets_the_slot",
        evict="node_gives_its_slot",
        give_second="keeps_what_it_writes_next",
        begin_group="sets_aside_all_or_none",
        alloc="is_equipped_with",
        track="turns_to_the_other_track",
        turn_lazy="turns_to_the_other_track",
        donate="donates_its_newest_state",
        alloc_for_match="waits_with_a_copy",
        release="goes_for_good",
        restore="comes_from_the_session",
    ),
    Mutant("loses_an_evicted_slot", "evict", "quiet_is_full", loses_an_evicted_slot),
    Mutant("passes_its_own", "donate_and_replace", "running_keeps_its_state", passes_its_own),
    Mutant("clears_under_requests", "clear", "requests_stay", clears_under_requests),
    Mutant("inner_end_gives_back", "end_group", "set_aside_until_the_end", inner_end_gives_back),
    Mutant("throws_away", "end_group", "places_are_known", throws_away),
    Mutant("in_no_phase", "save", "request_phases", in_no_phase),
    Mutant("frees_the_absent", "close", "absent_is_no_slot", frees_the_absent),
    Mutant("shares_the_slot", "alloc_for_match", "one_owner", shares_the_slot),
    Mutant("forgets_to_free", "evict", "no_leak", forgets_to_free),
    Mutant("keeps_the_rest", "end_group", "group_is_open", keeps_the_rest),
    Mutant("copies_into_a_track", "alloc_copy", "nodes_have_states_alone", copies_into_a_track),
    Mutant("tracks_past_the_buffer", "track", "buffer_is_whole", tracks_past_the_buffer),
    Mutant("runs_unequipped", "alloc_for_match", "running_is_equipped", runs_unequipped),
    Mutant("forgets_what_it_had", "release", "gone_owns_nothing", forgets_what_it_had),
    Mutant("second_without_a_name", "alloc_second", "names_what_it_owns", second_without_a_name),
    Mutant("turns_to_no_slot", "turn_lazy", "buffer_is_whole", turns_to_no_slot),
    Mutant("keeps_the_names", "release", "gone_names_nothing", keeps_the_names),
    Mutant("row_stays_behind", "donate_and_replace", "row_says_what_is_owned", row_stays_behind),
    Mutant("frees_by_old_row", "release", "freed_exactly_once", frees_by_old_row),
    Mutant("counts_the_group", "begin_group", "available_counts", counts_the_group),
)


# Wrong transitions of known bugs; the faults of conformance use them.


def keeps_the_names_of_a_saved_turn(st: MambaSlotsState, request: Number, session: Number) -> Step[MambaSlotsState]:
    """A turn is saved, and its request's record still names the track buffer (SGLang PR 26941, save)."""
    return _names_buffer(st, request, law.save(st, request, session))


def forgets_outer_group(st: MambaSlotsState, need: Number, chosen: Seq) -> Step[MambaSlotsState]:
    """A group that begins within another one takes its place, and the slots that the outer one set aside are lost."""
    step = law.begin_group(st, need, chosen)
    lost = st.slots.such(lambda s: st.place(s) == GROUPED, st.slots.items)
    return altered(step, place=step.then.place.where(lost.has, HELD, lost.items))


def donates_to_nobody(st: MambaSlotsState, request: Number, node: Number) -> Step[MambaSlotsState]:
    """A request gives its newest state away, and the tree does not take it."""
    step = law.donate(st, request, node)
    given = step.then.table.put((request, kept(st, request)), ABSENT)
    return altered(step, table=given.where(lambda o, _: o == node, ABSENT, lambda: [(node, k) for k in ROLES]))


# Transitions whose first granted or refused call is three calls away, or needs another kind of track buffer.
ROUTES = {
    "alloc_second": "alloc",
    "restore": "alloc save",
    "close": "alloc save",
    "give_second": "alloc alloc_second",
    "turn_lazy": "alloc alloc_second",
    "donate_and_replace": "alloc_copy alloc",
    "alloc_second refused": "alloc_copy alloc",
    "alloc_for_match refused": "alloc donate",
}
RELEVANT_LAWS = {
    "one_owner": "buffer_is_whole running_is_equipped",
    "no_leak": "gone_owns_nothing names_what_it_owns buffer_is_whole running_is_equipped",
    "available_counts": "one_owner buffer_is_whole running_is_equipped",
    "gone_owns_nothing": "one_owner",
    "buffer_is_whole": "one_owner running_is_equipped gone_owns_nothing",
    "running_is_equipped": "one_owner names_what_it_owns gone_names_nothing buffer_is_whole",
    "names_what_it_owns": "one_owner",
    "row_says_what_is_owned": "one_owner",
}

ANSWERS = {
    "begin_group": lambda pick, st, given: answers.set_aside(pick, st, given["need"]),
    "alloc": lambda pick, st, given: answers.equipment(pick, st, given["request"]),
    **dict.fromkeys(("alloc_copy", "alloc_for_match", "alloc_second"), lambda pick, st, _: answers.open_slot(pick, st)),
}

TAKES = {"alloc": answers.handed_out}

HINTS = Hints(
    stem=law.stem,
    over={"chosen": lambda st: st.slots},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    refusable=frozenset(name for name in law.stem.transitions if "alloc" in name),
    routes=ROUTES,
    relevant_laws=RELEVANT_LAWS,
    answers=ANSWERS,
    takes=TAKES,
    mutants=MUTANTS,
    assumptions=COMMON,
)
