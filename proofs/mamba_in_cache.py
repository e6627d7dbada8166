"""Calls to try, routes and mutants for the mamba states in the whole cache; ``proofs.cache`` uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import mamba_slots as alone
from proofs.hints import Mutant, altered, unasked
from proofs.lock_ref import alive
from proofs.session_trim import requests
from spec import cache
from spec import mamba_in_cache as law
from spec.cache_state import CacheState
from spec.logic import Number, Step, but
from spec.mamba_slots_state import ABSENT, OWN
from spec.session_trim_state import RUNNING

ALONE: dict[str, Any] = dict(alone.MOVES)


def _alone(name: str) -> Any:
    asked = ALONE[name]
    return lambda st: asked(st.states)


def _first_node(st: CacheState) -> int:
    return int(st.states.first_node)


def _admit(st: CacheState) -> Iterator[tuple[Any, ...]]:
    yield from ((row, *move) for row in requests(st.rows, RUNNING) for move in ALONE["alloc"](st.states))


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
    "state_match": lambda st: ((r, o - _first_node(st), s) for r, o, s in ALONE["alloc_for_match"](st.states)),
    "state_admit": _admit,
    "state_track": _alone("track"),
    "state_second": _alone("alloc_second"),
    "state_give_second": _alone("give_second"),
    "state_turn_lazy": _alone("turn_lazy"),
    "state_release": _alone("release"),
    "state_copy": lambda st: ((o - _first_node(st), s) for o, s in ALONE["alloc_copy"](st.states)),
    "state_swap": lambda st: ((r, o - _first_node(st)) for r, o in ALONE["donate_and_replace"](st.states)),
    "state_renew": _renew,
    "state_donate": lambda st: ((r, o - _first_node(st)) for r, o in ALONE["donate"](st.states)),
    "state_evict": lambda st: ((n,) for n in alive(st.tree)),
    "evict_leaf_and_state": lambda st: ((n,) for n in alive(st.tree)),
    "state_save": _sessions("save"),
    "state_restore": lambda st: ((o - st.states.limit + 1, r) for o, r in ALONE["restore"](st.states)),
    "state_close": lambda st: ((o - st.states.limit + 1,) for (o,) in ALONE["close"](st.states)),
}
EQUIPPED = "admit state_admit"
CACHED = "admit extend finish insert_leaf"
ENDED = f"{CACHED} state_copy free_rest"  # the tree has a leaf with a state
ROUTES = {
    "state_match refused": f"{ENDED} admit state_admit save state_save",
    "state_admit refused": f"{ENDED} admit",
    "state_second refused": f"{ENDED} admit state_admit",
    "state_copy refused": f"{EQUIPPED} extend finish insert_leaf",
    "state_group_begin": "",
    "state_group_end": "state_group_begin",
    "state_match": f"{CACHED} state_copy",
    "state_admit": "admit",
    "state_track": EQUIPPED,
    "state_second": EQUIPPED,
    "state_give_second": f"{EQUIPPED} state_second",
    "state_turn_lazy": f"{EQUIPPED} state_second",
    "state_release": f"{EQUIPPED} finish",
    "state_copy": CACHED,
    "state_swap": f"{EQUIPPED} extend finish insert_leaf state_copy",
    "state_renew": EQUIPPED,
    "state_renew refused": EQUIPPED,
    "state_donate": f"{EQUIPPED} extend finish insert_leaf",
    "state_donate granted": f"{EQUIPPED} extend finish insert_leaf continue_prefill",  # where a row runs again
    "state_evict": f"{CACHED} state_copy",
    "evict_leaf_and_state": f"{CACHED} state_copy",
    "state_save": f"{EQUIPPED} save",
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
