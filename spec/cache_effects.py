"""What calls do to the whole cache: laws of two states of ``spec.cache``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec import row_effects, state_effects
from spec.cache_state import CacheState
from spec.logic import Number, Seq, Truth
from spec.session_trim_state import RUNNING


def row_gets_the_chosen_pages(was: CacheState, now: CacheState, row: Number, full_pages: Seq, swa_pages: Seq) -> Truth:
    """A row that grows gets exactly the full pages and the SWA pages that the engine hands out."""
    return row_effects.row_gets_the_chosen_pages(was.rows, now.rows, row, full_pages, swa_pages)


def runs_with_its_lock(was: CacheState, now: CacheState, row: Number, handle: Number) -> Truth:
    """The row, which did not run, runs, and the lock handle that it takes is its one handle; 0: it has none."""
    return (was.rows.phase(row) != RUNNING) & (now.rows.phase(row) == RUNNING) & (now.handle(row) == handle)


def is_equipped_with(
    was: CacheState, now: CacheState, row: Number, request: Number, own: Number, first: Number, second: Number
) -> Truth:
    """The request that runs on the row has the state slots that it is handed, in the roles that it lacked."""
    equipped = state_effects.is_equipped_with(was.states, now.states, request, own, first, second)
    return (was.rows.phase(row) == RUNNING) & (was.mine(row) == 0) & (now.mine(row) == request + 1) & equipped
