"""Forward passes in flight over the whole cache: which state slots and pages a pass writes until its own event.

An engine that overlaps two steps launches a pass before it knows the result of the pass before it. So a request can end
while a pass of it is in flight, and its pages and its state slots are handed out again while that pass still writes
them. Passes run one after the other, in the order of their launch. So a later pass may get what an earlier one still
writes, and the law of contents takes what a pass writes as written at its launch. A transfer from another server is
not ordered behind a pass, see ``spec.cache_transfers``.

A *copy* of a state is not always ordered in this way. One that an engine puts off to the pass of the request that needs
it runs as a part of that pass. One that is made *at once* runs on the stream of the scheduler, beside the passes in
flight: it may come before or after what such a pass writes. So it must leave alone the slots that a pass in flight uses
(``is_undisturbed``), and where it does not, what it has copied counts as lost (``spec.state_isolation.copied``).

A pass in flight has the number of a job of ``spec.in_flight``. The blocks of that module are mamba state slots here.
``full_used(j, p)`` is 1 where the job ``j`` uses the page ``p`` of the full pool, ``swa_used(j, p)`` where it uses a
page of the SWA pool. Nothing is freed later because of a pass.
"""

from __future__ import annotations

from spec import in_flight, session_trim
from spec.cache_state import CacheState, is_filled
from spec.in_flight import NO_JOB, PASS, uses
from spec.lengths import touched
from spec.logic import Map, Number, Requirement, Set, Step, Truth, but, no, requires
from spec.mamba_slots_state import OWN, SECOND
from spec.pool import PADDING, Pool, held
from spec.session_trim_state import RUNNING, allocated, full_pool, swa_pool
from spec.state_isolation import is_in_use


def used_by(st: CacheState, row: Number, track: Number) -> Set:
    """The state slots that a pass of the row uses: the request's own, and that of the track that it writes."""
    request = st.mine(row) - 1
    own, tracked = st.states.row(request, OWN), st.states.row(request, track)
    return st.states.slots.such(lambda s: (st.mine(row) != 0) & ((s == own) | (s == tracked)), lambda: [own, tracked])


def full_of(st: CacheState, job: Number) -> Set:
    """The pages of the full pool that a job in flight uses."""
    return _used(full_pool(st.rows), st.full_used, job)


def swa_of(st: CacheState, job: Number) -> Set:
    """The pages of the SWA pool that a job in flight uses."""
    return _used(swa_pool(st.rows), st.swa_used, job)


def _used(pool: Pool, by: Map, job: Number) -> Set:
    return pool.pages.such(lambda p: by(job, p) == 1, lambda: [p for (j, p), used in by.items() if used and j == job])


def no_pages(st: CacheState, job: Number) -> Truth:
    """The job uses no page."""
    return full_of(st, job).all(lambda _: False) & swa_of(st, job).all(lambda _: False)


def own_from(st: CacheState, pool: Pool, row: Number, first: Number) -> Set:
    """The pages of a pool that the row owns from the page index ``first`` on."""
    end = touched(allocated(st.rows, row))
    return pool.pages.such(
        lambda p: held(pool, p) & (pool.owner(p) == row) & (first <= pool.index(p)),
        lambda: [page for i in range(first, end) if (page := pool.table(row, i)) != PADDING],
    )


def begun(
    st: CacheState, job: Number, kind: int, row: Number, slots: Set, first: Number, swa_first: Number
) -> CacheState:
    """A job begins that uses these state slots, and the row's own pages: those of the full pool from the page index
    ``first`` on, those of the SWA pool from ``swa_first`` on.

    ``kind``: see ``spec.in_flight``.
    """
    in_full, in_swa = own_from(st, full_pool(st.rows), row, first), own_from(st, swa_pool(st.rows), row, swa_first)

    def used(by: Map, pages: Set) -> Map:
        return by.where(lambda j, p: (j == job) & pages.has(p), 1, lambda: [(job, p) for p in pages.items()])

    return but(
        st,
        flight=in_flight.begun(st.flight, job, kind, row, slots),
        full_used=used(st.full_used, in_full),
        swa_used=used(st.swa_used, in_swa),
    )


def over(st: CacheState, job: Number) -> CacheState:
    """A job is done, or has failed: it uses nothing any more."""
    full, swa = full_pool(st.rows).pages, swa_pool(st.rows).pages
    return but(
        st,
        flight=in_flight.ended(st.flight, job),
        full_used=st.full_used.where(lambda j, _: j == job, 0, lambda: [(job, p) for p in full.items()]),
        swa_used=st.swa_used.where(lambda j, _: j == job, 0, lambda: [(job, p) for p in swa.items()]),
    )


def launch(st: CacheState, row: Number, job: Number, track: Number, first: Number) -> Step[CacheState]:
    """A forward pass of a running row is launched, and is in flight until its event.

    It reads and writes the own state slot of the row's request, and at a tracking boundary a slot of its track buffer.
    ``track``: the role of this slot, or that of the own state where none is tracked. It writes the row's own pages from
    the page index ``first`` on, which is that of the first token that it computes.
    """
    return Step(
        promises=(
            session_trim.at_work(st.rows, row),
            in_flight.is_new(st.flight, job),
            is_filled(st, row),
            requires((track >= OWN) & (track <= SECOND), "the track is the role of a state slot of the request"),
            requires(first < touched(allocated(st.rows, row)), "the row has a page for the first token of the pass"),
        ),
        then=begun(st, job, PASS, row, used_by(st, row, track), first, first),
    )


def end_pass(st: CacheState, job: Number) -> Step[CacheState]:
    """A pass is done, or has failed: it uses no state slot and no page any more. Its request may have ended before."""
    is_pass = st.flight.jobs.has(job) & (st.flight.kind(job) == PASS)
    return Step(promises=(requires(is_pass, "the job is a pass in flight"),), then=over(st, job))


TRANSITIONS = (launch, end_pass)


def is_undisturbed(st: CacheState, source: Number, slot: Number, at_once: Truth) -> Requirement:
    """A copy that is made at once neither reads nor writes a slot that a pass in flight uses."""
    alone = no(is_in_use(st, source)) & no(is_in_use(st, slot))
    return requires(no(at_once) | alone, "no pass in flight uses a slot of a copy that is made at once")


# The law, and what calls do.


def only_jobs_in_flight_use_pages(st: CacheState) -> Truth:
    """Only a pass or a transfer in flight uses state slots and pages of the two pools."""
    jobs, kind = st.flight.jobs, st.flight.kind
    in_full = jobs.all(lambda j: full_of(st, j).all(lambda _: kind(j) != NO_JOB))
    in_swa = jobs.all(lambda j: swa_of(st, j).all(lambda _: kind(j) != NO_JOB))
    return in_flight.only_jobs_in_flight_use_blocks(st.flight) & in_full & in_swa


def a_job_goes_on(was: CacheState, now: CacheState, job: Number) -> Truth:
    """The job is as it was, for the row for which it was, and uses the state slots and pages that it used."""
    full = full_of(was, job).all(full_of(now, job).has) & full_of(now, job).all(full_of(was, job).has)
    swa = swa_of(was, job).all(swa_of(now, job).has) & swa_of(now, job).all(swa_of(was, job).has)
    return in_flight.a_job_goes_on(was.flight, now.flight, job) & full & swa


def other_jobs_go_on(was: CacheState, now: CacheState, job: Number) -> Truth:
    """Every other pass and every other transfer goes on."""
    return was.flight.jobs.all(lambda j: (j == job) | a_job_goes_on(was, now, j))


def uses_nothing(st: CacheState, job: Number) -> Truth:
    """No job has this number, and nothing is used by it."""
    slots = st.states.slots.all(lambda s: no(uses(st.flight, job, s)))
    return (st.flight.kind(job) == NO_JOB) & slots & no_pages(st, job)


def uses_own_pages(was: CacheState, now: CacheState, row: Number, job: Number, first: Number) -> Truth:
    """A pass uses exactly the pages of both pools that its row owns from the page index ``first`` on."""
    in_full = uses_from(full_pool(was.rows), now.full_used, row, job, first)
    return in_full & uses_from(swa_pool(was.rows), now.swa_used, row, job, first)


def uses_from(pool: Pool, used: Map, row: Number, job: Number, first: Number) -> Truth:
    """A job uses exactly the pages of a pool that the row owns from the page index ``first`` on."""

    def own(p: Number) -> Truth:
        return held(pool, p) & (pool.owner(p) == row) & (first <= pool.index(p))

    return pool.pages.all(lambda p: (used(job, p) == 1) == own(p))


def pass_is_launched(was: CacheState, now: CacheState, row: Number, job: Number, track: Number, first: Number) -> Truth:
    """A pass that is launched is one of a running request. Of the state slots it uses exactly the own one of its
    request and that of the track that it writes. Every other job goes on (SGLang ``Scheduler.run_batch``).
    """
    request = was.mine(row) - 1
    runs = (row >= 0) & (row < was.rows.limit) & (was.rows.phase(row) == RUNNING) & (was.awaits(row) == 0)
    known = (track >= OWN) & (track <= SECOND) & (first < touched(allocated(was.rows, row)))

    def used(s: Number) -> Truth:
        one = (s == was.states.row(request, OWN)) | (s == was.states.row(request, track))
        return uses(now.flight, job, s) == ((was.mine(row) != 0) & one)

    begins = (was.flight.kind(job) == NO_JOB) & (now.flight.kind(job) == PASS) & (now.flight.row(job) == row)
    return runs & known & begins & was.states.slots.all(used) & other_jobs_go_on(was, now, job)


def pass_is_done(was: CacheState, now: CacheState, job: Number) -> Truth:
    """The event of a pass comes once, while the pass is in flight. From then on the pass uses no state slot and no
    page; every other job goes on.
    """
    once = was.flight.jobs.has(job) & (was.flight.kind(job) == PASS)
    return once & uses_nothing(now, job) & other_jobs_go_on(was, now, job)


def work_in_flight_goes_on(was: CacheState, now: CacheState) -> Truth:
    """No other call ends a pass or a transfer, or changes what it uses: a request that ends, is aborted or is retracted
    does not stop its pass, and nor does an eviction or the end of a session.
    """
    return was.flight.jobs.all(lambda j: a_job_goes_on(was, now, j))
