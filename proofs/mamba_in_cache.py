"""Calls to try, routes and mutants for the mamba states in the whole cache; ``proofs.cache`` uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import mamba_slots as alone
from proofs.hints import Mutant, altered, unasked
from proofs.lock_ref import alive
from proofs.session_trim import requests
from spec import cache, mamba_slots_state
from spec import mamba_in_cache as law
from spec.cache_state import CacheState
from spec.lengths import Length
from spec.logic import Number, Step, but
from spec.mamba_slots_state import ABSENT, FIRST, OWN, SECOND
from spec.session_trim_state import RUNNING

ALONE: dict[str, Any] = dict(alone.MOVES)


def _alone(name: str) -> Any:
    asked = ALONE[name]
    return lambda st: asked(st.states)


def _first_node(st: CacheState) -> int:
    return int(st.states.first_node)


def _admit(st: CacheState) -> Iterator[tuple[Any, ...]]:
    ways = ((row, *move) for row in requests(st.rows, RUNNING) for move in ALONE["alloc"](st.states))
    yield from ((*way, arrives) for way in ways for arrives in (False, True))


def _running(st: CacheState) -> list[int]:
    return [o for o in range(int(st.states.limit)) if st.states.phase(o) == mamba_slots_state.RUNNING]


def _write(st: CacheState) -> Iterator[tuple[Any, ...]]:
    """Each slot of each track buffer, at each length up to the committed one."""
    for request in _running(st):
        upto = st.rows.committed(st.carrier(request) - 1)
        yield from ((request, track, Length(n, 0)) for track in (FIRST, SECOND) for n in range(int(upto) + 1))


def _copies(calls: Any) -> Any:
    """Each of these calls, with the copy of the state made in the order of the passes, and made at once."""
    return lambda st: ((*asked, at_once) for asked in calls(st) for at_once in (False, True))


def _gifts(st: CacheState) -> Iterator[tuple[Any, ...]]:
    """Each running request, each node that has no state, and a slot that is open."""
    slot = alone.open_slot(st.states)
    yield from ((request, node, slot) for request in _running(st) for node in alive(st.tree))


def _match_again(st: CacheState) -> Iterator[tuple[Any, ...]]:
    waiting = [o for o in range(int(st.states.limit)) if st.states.phase(o) == mamba_slots_state.WAITING]
    yield from ((request, node) for request in waiting for node in alive(st.tree))


def _renew(st: CacheState) -> Iterator[tuple[Any, ...]]:
    slot, table = alone.open_slot(st.states), st.states.table
    yield from ((r, o - _first_node(st), slot) for r, o in ALONE["donate"](st.states) if table(o, OWN) == ABSENT)


def _sessions(name: str) -> Any:
    """The calls of ``proofs.mamba_slots``, whose second argument is an owner, with the session of that owner."""
    asked = ALONE[name]
    return lambda st: ((request, owner - st.states.limit + 1) for request, owner in asked(st.states))


MOVES = {
    "state_group_begin": _alone("begin_group"),
    "state_group_end": _alone("end_group"),
    "state_match": _copies(lambda st: ((r, o - _first_node(st), s) for r, o, s in ALONE["alloc_for_match"](st.states))),
    "state_match_again": _copies(_match_again),
    "state_admit": _admit,
    "state_write": _write,
    "state_track": _alone("track"),
    "state_second": _alone("alloc_second"),
    "state_give_second": _alone("give_second"),
    "state_turn_lazy": _alone("turn_lazy"),
    "state_release": _alone("release"),
    "state_copy": _copies(_gifts),
    "state_swap": _gifts,
    "state_renew": _renew,
    "state_donate": lambda st: ((r, o - _first_node(st)) for r, o in ALONE["donate"](st.states)),
    "state_evict": lambda st: ((n,) for n in alive(st.tree)),
    "evict_leaf_and_state": lambda st: ((n,) for n in alive(st.tree)),
    "state_save": _sessions("save"),
    "state_take_back": _copies(
        lambda st: ((session, slot) for session in st.rows.sessions.items() for slot in st.states.slots.items())
    ),
    "state_restore": lambda st: ((o - st.states.limit + 1, r) for o, r in ALONE["restore"](st.states)),
    "state_close": lambda st: ((o - st.states.limit + 1,) for (o,) in ALONE["close"](st.states)),
}
EQUIPPED = "admit state_admit"
INSERTED = f"{EQUIPPED} extend state_write finish insert_leaf"  # the tree has a leaf, whose state a request has
GIVEN = f"{INSERTED} state_donate"
ENDED = f"{GIVEN} state_release free_rest"  # the tree has a leaf with a state, and nobody else has one
ROUTES = {
    "state_match refused": f"{ENDED} admit state_admit save state_save",
    "state_admit refused": f"{ENDED} admit",
    "state_second refused": f"{ENDED} admit state_admit",
    "state_copy refused": INSERTED,
    "state_swap refused": INSERTED,
    "state_group_begin": "",
    "state_group_end": "state_group_begin",
    "state_match": ENDED,
    "state_match_again": f"{ENDED} {EQUIPPED} save state_save state_restore",  # it has the state of its session
    "state_admit": "admit",
    "state_write": f"{EQUIPPED} extend",
    "state_track": EQUIPPED,
    "state_second": EQUIPPED,
    "state_give_second": f"{EQUIPPED} state_second",
    "state_turn_lazy": f"{EQUIPPED} state_second",
    "state_release": f"{EQUIPPED} finish",
    "state_copy": INSERTED,
    "state_swap": INSERTED,
    "state_renew": EQUIPPED,
    "state_renew refused": EQUIPPED,
    "state_donate": INSERTED,
    "state_donate granted": f"{INSERTED} continue_prefill",  # where a row runs again
    "state_evict": GIVEN,
    "evict_leaf_and_state": GIVEN,
    "state_save": f"{EQUIPPED} save",
    "state_take_back": f"{EQUIPPED} save state_save",
    "state_restore": f"{EQUIPPED} save state_save",
    "state_close": f"{EQUIPPED} save state_save",
}


def forgets_slot(st: CacheState, node: Number) -> Step[CacheState]:
    """A node loses its state, and its state slot is not given back."""
    step = law.state_evict(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def stays_on_row(st: CacheState, request: Number) -> Step[CacheState]:
    """A request gives its states back, and its row still names it as the owner of states."""
    return altered(law.state_release(st, request), mine=st.mine, carrier=st.carrier)


def donates_while_it_runs(st: CacheState, request: Number, node: Number) -> Step[CacheState]:
    """A request donates its newest state to the tree, and its row goes on running."""
    return unasked(law.state_donate(st, request, node), "the request's row is leaving")


def closes_row_alone(st: CacheState, session: Number, old: Number) -> Step[CacheState]:
    """A session ends while its slot still owns states."""
    return unasked(cache.close(st, session, old), "the session's slot has no states left")


def frees_under_its_row(st: CacheState, request: Number) -> Step[CacheState]:
    """The states of a request are given back while its row runs."""
    return unasked(law.state_release(st, request), "the request has no row, or its row is leaving")


def saves_and_stays(st: CacheState, request: Number, session: Number) -> Step[CacheState]:
    """A turn saves its states in its session's slot, and its row still names it as the owner of states."""
    return altered(law.state_save(st, request, session), mine=st.mine, carrier=st.carrier)


def forgets_state_of_leaf(st: CacheState, node: Number) -> Step[CacheState]:
    """A leaf is evicted with its pages, and its state slot is not given back."""
    step = law.evict_leaf_and_state(st, node)
    return but(step, calls=step.calls[:2], then=but(step.then, states=st.states))


MUTANTS = (
    Mutant("forgets_state_of_leaf", "evict_leaf_and_state", "states_are_quiescent", forgets_state_of_leaf),
    Mutant("reads_what_it_donated", "state_donate", "reads_own_states", donates_while_it_runs),
    Mutant("forgets_slot", "state_evict", "node_has_its_state", forgets_slot),
    Mutant("frees_under_its_row", "state_release", "running_keeps_its_states", frees_under_its_row),
    Mutant("stays_on_row", "state_release", "states_go_with_rows", stays_on_row),
    Mutant("donates_while_it_runs", "state_donate", "running_row_has_running_states", donates_while_it_runs),
    Mutant("saves_and_stays", "state_save", "states_are_saved_once", saves_and_stays),
    Mutant("closes_row_alone", "close", "slot_has_row_and_states", closes_row_alone),
)
