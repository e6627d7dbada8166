"""How a scheduler's block tables come to rest: from every lawful state finitely many calls give back every block.

The events of all jobs in flight come, those of transfers into rows that wait with nothing more than the row had
before, as where each of them has failed. A row that has skipped places for what is transferred cannot go on then, nor
can one that has no state: its request ends. Then each row is finished. ``spec.logic.Drain`` says what is proved of
these calls, and ``every_block_comes_back`` that every block is free and counted then.
"""

from __future__ import annotations

from spec import block_cache
from spec.block_cache import IDLE, KEPT, LOADS, RUNS, BlockCacheState, computed, is_idle, may_go_on
from spec.block_pool_state import NULL
from spec.in_flight import WRITES, flies, nothing_flies
from spec.lengths import Length, formed, touched
from spec.logic import Descent, Domain, Drain, Measure, Number, Return, Set, Truth, ite, no


def at_rest(st: BlockCacheState) -> Truth:
    """No row is in use, and no pass and no transfer is in flight."""
    return is_idle(st) & nothing_flies(st.flight)


def of_any_size(st: BlockCacheState) -> Truth:
    """Nothing: a pool of any size comes to rest."""
    return st.pool.blocks.size >= 0


def jobs_of(st: BlockCacheState) -> Domain:
    """The numbers that jobs can have."""
    return st.flight.jobs


def rows_of(st: BlockCacheState) -> Domain:
    """The numbers that rows can have."""
    return st.pool.rows


def no_block(st: BlockCacheState) -> Set:
    """No block: the prefix cache is offered none."""
    return st.pool.blocks.such(lambda b: b == NULL, tuple)


def is_awaited(st: BlockCacheState, j: Number) -> Truth:
    """The job is a transfer into a row that waits for it."""
    return flies(st.flight, j) & (st.flight.kind(j) == WRITES) & (st.phase(st.flight.row(j)) == LOADS)


def waits_in_vain(st: BlockCacheState, r: Number) -> Truth:
    """The row waits for a transfer without which it cannot go on."""
    return (st.phase(r) == LOADS) & no(may_go_on(st, r))


def is_left(st: BlockCacheState, r: Number) -> Truth:
    """The row is in use and nothing is in flight any more."""
    return nothing_flies(st.flight) & ((st.phase(r) == RUNS) | (st.phase(r) == KEPT))


JOBS = Measure(lambda st, j: ite(flies(st.flight, j), 1, 0), jobs_of)
ROWS = Measure(lambda st, r: ite(st.phase(r) == IDLE, 0, ite(st.phase(r) == LOADS, 2, 1)), rows_of)

DESCENTS = (
    Descent(
        "loaded",
        lambda st, j: is_awaited(st, j) & may_go_on(st, st.flight.row(j)),
        block_cache.loaded,
        lambda st, j: (st.flight.row(j), j, computed(st, st.flight.row(j)), no_block(st)),
        JOBS,
        jobs_of,
    ),
    Descent(
        "end",
        lambda st, j: flies(st.flight, j) & no(is_awaited(st, j)),
        block_cache.end,
        lambda _, j: (j,),
        JOBS,
        jobs_of,
    ),
    Descent("keep", waits_in_vain, block_cache.keep, lambda _, r: (r,), ROWS, rows_of),
    Descent("finish", is_left, block_cache.finish, lambda _, r: (r,), ROWS, rows_of),
)


def has_room(st: BlockCacheState, row: Number, story: Number, to: Length) -> Truth:
    """Its tokens need no more blocks than the pool has, and no more places than a row has. The prefix cache may find
    nothing for it. (Of a request that needs rows in several groups of layers this is said for each row alone.)
    """
    need = touched(to)
    fits = formed(to, st.block_size(row)) & (need > 0) & st.pool.indices.has(need - 1) & (need <= st.pool.blocks.size)
    return fits & st.pool.rows.has(row) & st.pool.stories.has(story)


RETURNS = Return((block_cache.admit, block_cache.allocate), has_room)
DRAIN = Drain(at_rest, (JOBS, ROWS), DESCENTS, of_any_size, RETURNS)
