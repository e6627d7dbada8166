"""Calls to try, routes and mutants for the passes in flight over the whole cache; ``proofs.cache`` uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proofs import mamba_in_cache as states
from proofs.hints import Mutant, altered, idlers, unasked, unchosen
from proofs.session_trim import requests
from spec import cache, in_flight
from spec import cache_flight as law
from spec import mamba_in_cache as copies
from spec.cache_state import CacheState
from spec.in_flight import NO_JOB, PASS
from spec.lengths import touched
from spec.logic import Number, Step, Truth, but
from spec.mamba_slots_state import ROLES
from spec.session_trim_state import RUNNING, allocated

UNDISTURBED = "no pass in flight uses a slot of a copy that is made at once"


def new_job(st: CacheState) -> list[int]:
    """The first number that no job in flight has."""
    return [j for j in st.flight.jobs.items() if st.flight.kind(j) == NO_JOB][:1]


def _launch(st: CacheState) -> Iterator[tuple[int, int, int, int]]:
    """A running row, with each track, from its last page on and from one behind it."""
    for row in requests(st.rows, RUNNING):
        last = touched(allocated(st.rows, row)) - 1
        yield from (
            (row, job, track, first) for job in new_job(st) for track in ROLES for first in (max(last, 0), last + 1)
        )


def _end_pass(st: CacheState) -> Iterator[tuple[int]]:
    yield from ((job,) for job in st.flight.jobs.items() if in_flight.flies(st.flight, job))


MOVES: dict[str, Any] = {"launch": _launch, "end_pass": _end_pass}
COMPUTED = f"{states.EQUIPPED} extend"  # a request with states has computed its prompt
ROUTES = {"launch": COMPUTED, "end_pass": f"{COMPUTED} launch"}


def copies_under_a_pass(
    st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth
) -> Step[CacheState]:
    """A matched state is copied at once into a slot that a pass in flight, of a request that has ended, still writes
    (SGLang pull request 24954).
    """
    return unchosen(copies.state_match(st, request, node, slot, at_once), UNDISTURBED)


def copies_again_under_a_pass(st: CacheState, request: Number, node: Number, at_once: Truth) -> Step[CacheState]:
    """A request that matches again gets the copy at once, into a slot that a pass in flight still writes."""
    return unchosen(copies.state_match_again(st, request, node, at_once), UNDISTURBED)


def gives_under_a_pass(st: CacheState, request: Number, node: Number, slot: Number, at_once: Truth) -> Step[CacheState]:
    """A node gets a copy at once of the state that a pass of the request in flight still writes."""
    return unchosen(copies.state_copy(st, request, node, slot, at_once), UNDISTURBED)


def takes_back_under_a_pass(st: CacheState, session: Number, source: Number, at_once: Truth) -> Step[CacheState]:
    """A session takes an earlier state back at once, while the pass of its last turn is in flight."""
    return unchosen(copies.state_take_back(st, session, source, at_once), UNDISTURBED)


def launches_behind_its_row(st: CacheState, row: Number, job: Number, track: Number, first: Number) -> Step[CacheState]:
    """A pass is launched for a token for which the row has no page, so that no page counts as used by it."""
    return unasked(law.launch(st, row, job, track, first), "the row has a page for the first token of the pass")


def launches_over_fewer_pages(
    st: CacheState, row: Number, job: Number, track: Number, first: Number
) -> Step[CacheState]:
    """A pass is launched, and its first page counts as one that it does not write."""
    step = law.launch(st, row, job, track, first)
    return but(step, then=law.begun(st, job, PASS, row, law.used_by(st, row, track), first + 1, first + 1))


def ends_and_still_uses(st: CacheState, job: Number) -> Step[CacheState]:
    """A pass is done, and still counts as one that uses its state slots."""
    return altered(law.end_pass(st, job), flight=but(st.flight, kind=st.flight.kind.put(job, NO_JOB)))


def ends_with_its_request(st: CacheState, row: Number) -> Step[CacheState]:
    """A request ends, and what is in flight for it counts as done."""
    return altered(cache.finish(st, row), flight=in_flight.start(st.flight))


# The tree has a state, and a pass of a request that has ended is in flight over the slot that is free.
ENDED_IN_FLIGHT = {
    "routes": {"state_match": f"{states.ENDED} {COMPUTED} launch finish state_release free_rest"},
}
MUTANTS = (
    *idlers(cache.stem, launch="pass_is_launched", end_pass="pass_is_done"),
    Mutant("copies_under_a_pass", "state_match", "request_gets_the_nodes_state", copies_under_a_pass, ENDED_IN_FLIGHT),
    Mutant(
        "copies_again_under_a_pass",
        "state_match_again",
        "request_gets_the_nodes_state",
        copies_again_under_a_pass,
        {"routes": {"state_match_again": f"{states.ENDED} {COMPUTED} launch save state_save state_restore"}},
    ),
    Mutant(
        "gives_under_a_pass",
        "state_copy",
        "node_state_is_at_its_end",
        gives_under_a_pass,
        {"routes": {"state_copy": f"{COMPUTED} state_write launch finish insert_leaf"}},
    ),
    Mutant(
        "takes_back_under_a_pass",
        "state_take_back",
        "session_goes_on_from_an_earlier_state",
        takes_back_under_a_pass,
        {"routes": {"state_take_back": f"{COMPUTED} launch save state_save"}},
    ),
    Mutant("launches_over_fewer_pages", "launch", "uses_own_pages", launches_over_fewer_pages),
    Mutant("launches_behind_its_row", "launch", "pass_is_launched", launches_behind_its_row),
    Mutant("ends_and_still_uses", "end_pass", "only_jobs_in_flight_use_pages", ends_and_still_uses),
    Mutant(
        "ends_with_its_request",
        "finish",
        "work_in_flight_goes_on",
        ends_with_its_request,
        {"routes": {"finish": f"{COMPUTED} launch"}},
    ),
)
