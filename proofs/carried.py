"""Lawful arguments and mutants for the states in the whole cache; ``proofs.cache`` uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import mamba_slots as alone
from proofs.hints import Mutant, altered, unasked
from proofs.lock_ref import alive
from proofs.session_trim import requests
from spec import cache as law
from spec.logic import Number, Step, but
from spec.rows import RUNNING
from spec.states import ABSENT, OWN
from spec.whole import Whole

ALONE: dict[str, Any] = dict(alone.MOVES)


def _alone(name: str) -> Any:
    asked = ALONE[name]
    return lambda st: asked(st.states)


def _first_node(st: Whole) -> int:
    return int(st.states.first_node)


def _admit(st: Whole) -> Iterator[tuple[Any, ...]]:
    yield from ((row, *move) for row in requests(st.life, RUNNING) for move in ALONE["alloc"](st.states))


def _renew(st: Whole) -> Iterator[tuple[Any, ...]]:
    slot, table = alone.open_slot(st.states), st.states.table
    yield from ((r, o - _first_node(st), slot) for r, o in ALONE["donate"](st.states) if table(o, OWN) == ABSENT)


def _sessions(name: str) -> Any:
    """Moves whose second argument is the owner that a session's slot is."""
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
EQUIPPED = "admit_cold state_admit"
CACHED = "admit_cold extend finish leave"
DEPARTED = f"{CACHED} state_copy depart_cold"  # the tree has a leaf with a state
ROUTES = {
    "state_match refused": f"{DEPARTED} admit_cold state_admit save state_save",
    "state_admit refused": f"{DEPARTED} admit_cold",
    "state_second refused": f"{DEPARTED} admit_cold state_admit",
    "state_copy refused": f"{EQUIPPED} extend finish leave",
    "state_group_begin": "",
    "state_group_end": "state_group_begin",
    "state_match": f"{CACHED} state_copy",
    "state_admit": "admit_cold",
    "state_track": EQUIPPED,
    "state_second": EQUIPPED,
    "state_give_second": f"{EQUIPPED} state_second",
    "state_release": f"{EQUIPPED} finish",
    "state_copy": CACHED,
    "state_swap": f"{EQUIPPED} extend finish leave state_copy",
    "state_renew": EQUIPPED,
    "state_renew refused": EQUIPPED,
    "state_donate": f"{EQUIPPED} extend finish leave",
    "state_evict": f"{CACHED} state_copy",
    "evict_leaf_and_state": f"{CACHED} state_copy",
    "state_save": f"{EQUIPPED} save",
    "state_restore": f"{EQUIPPED} save state_save",
    "state_close": f"{EQUIPPED} save state_save",
}


def forgets_slot(st: Whole, node: Number) -> Step[Whole]:
    """A node loses its state, and nobody gives the slot back."""
    step = law.state_evict(st, node)
    return but(step, calls=step.calls[:1], then=but(st, tree=step.then.tree))


def stays_on_row(st: Whole, request: Number) -> Step[Whole]:
    """A request gives its states back, and the row still says that it carries them."""
    return altered(law.state_release(st, request), mine=st.mine, carrier=st.carrier)


def closes_row_alone(st: Whole, session: Number) -> Step[Whole]:
    """A session ends with its states in its slot."""
    return unasked(law.close_cold(st, session), "the session's slot has no state any more")


MUTANTS = (
    Mutant("forgets_slot", "state_evict", "node_has_its_state", forgets_slot),
    Mutant("stays_on_row", "state_release", "states_go_with_rows", stays_on_row),
    Mutant("closes_row_alone", "close_cold", "slot_has_row_and_states", closes_row_alone),
)
