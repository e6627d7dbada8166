"""What calls do to rows: laws of two states of ``spec.session_trim``, which ``spec.cache`` says again of its own calls.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec import pool_effects
from spec.lengths import Length, at_most, same, shortest
from spec.logic import Number, Seq, Truth, implies, ite
from spec.pool import PADDING
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    SAVED,
    SessionTrimState,
    allocated,
    committed,
    cursor,
    each_request,
    full_pool,
    swa_pool,
)


def life_of_a_row(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """An idle row can start to run, and a running row can be saved or leave.

    A saved row and a leaving row can run again, or become idle.
    """

    def goes(r: Number, one: Number, other: Number) -> Truth:
        return (was.phase(r) == one) & (now.phase(r) == other)

    def lawful(r: Number) -> Truth:
        begins = goes(r, IDLE, RUNNING) | goes(r, SAVED, RUNNING) | goes(r, LEAVING, RUNNING)
        stops = goes(r, RUNNING, SAVED) | goes(r, RUNNING, LEAVING)
        ends = goes(r, SAVED, IDLE) | goes(r, LEAVING, IDLE)
        return (was.phase(r) == now.phase(r)) | begins | stops | ends

    return each_request(was, lawful)


def commits_what_it_gets(was: SessionTrimState, now: SessionTrimState, row: Number) -> Truth:
    """Each token that a prefill or a decode commits got its slot in this call: no slot of a draft is overwritten."""
    return same(committed(was, row), allocated(was, row)) & same(committed(now, row), allocated(now, row))


def no_draft_in_the_next_turn(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """A saved row that runs again has slots for exactly the tokens that are committed."""

    def exact(r: Number) -> Truth:
        again = (was.phase(r) == SAVED) & (now.phase(r) == RUNNING)
        return implies(again, same(committed(now, r), allocated(now, r)))

    return each_request(was, exact)


def row_gets_the_chosen_pages(
    was: SessionTrimState, now: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq
) -> Truth:
    """A row that grows gets exactly the full pages and the SWA pages that the implementation hands out."""
    full = pool_effects.takes_chosen(full_pool(was), full_pool(now), row, full_pages)
    return full & pool_effects.takes_chosen(swa_pool(was), swa_pool(now), row, swa_pages)


def slides_behind_the_prefix(was: SessionTrimState, now: SessionTrimState, row: Number, to: Number) -> Truth:
    """The cursor of a row whose window moves on stands at the page index ``to``, behind the cached prefix."""
    return (
        same(cursor(now, row), Length(to, 0)) & (was.protected(row) <= to) & at_most(cursor(was, row), cursor(now, row))
    )


def leaves_the_window_behind(
    was: SessionTrimState, now: SessionTrimState, row: Number, first: Number, to: Number
) -> Truth:
    """Where every layer has a sliding window, a row gives back its pages up to the new cursor ``to``, and no more.

    Pages below ``first`` stay, but for those that left the window before: a tree may take them when the request ends.
    """
    moved = same(cursor(now, row), Length(to, 0)) & at_most(cursor(was, row), cursor(now, row))
    full, still = full_pool(was), full_pool(now)

    def kept(i: Number) -> Truth:
        there = (first <= i) & (i < to)
        return still.table(row, i) == ite(there, PADDING, full.table(row, i))

    return (was.protected(row) <= first) & moved & full.indices.all(kept)


def keeps_what_is_committed(was: SessionTrimState, now: SessionTrimState, row: Number, to: Length) -> Truth:
    """A row that is rolled back has slots for ``to`` tokens, and what was committed below them stays committed."""
    return same(allocated(now, row), to) & same(committed(now, row), shortest(to, committed(was, row)))
