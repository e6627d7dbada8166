"""Forward passes in flight over the whole cache: which mamba state slots a pass reads and writes until its own event.

An engine that overlaps two steps launches a pass before it knows the result of the pass before it. So a request can end
while a pass of it is in flight, and its pages and its state slots are handed out again while that pass still writes
them. Passes run one after the other, in the order of their launch. So a later pass may get what an earlier one still
writes, and the law of contents takes what a pass writes as written at its launch.

A *copy* of a state is not always ordered in this way. One that an engine puts off to the pass of the request that needs
it runs as a part of that pass. One that is made *at once* runs on the stream of the scheduler, beside the passes in
flight: it may come before or after what such a pass writes. So it must leave alone the slots that a pass in flight uses
(``is_undisturbed``), and where it does not, what it has copied counts as lost (``spec.state_isolation.copied``).

A pass in flight has the number of a job of ``spec.in_flight``. Nothing is freed later because of it.
"""

from __future__ import annotations

from spec import in_flight, session_trim
from spec.cache_state import CacheState
from spec.in_flight import NO_JOB, PASS, others_go_on, uses
from spec.logic import Number, Requirement, Set, Step, Truth, but, no, requires
from spec.mamba_slots_state import OWN, SECOND
from spec.session_trim_state import RUNNING
from spec.state_isolation import is_in_use


def used_by(st: CacheState, row: Number, track: Number) -> Set:
    """The state slots that a pass of the row uses: the request's own, and that of the track that it writes."""
    request = st.mine(row) - 1
    own, tracked = st.states.row(request, OWN), st.states.row(request, track)
    return st.states.slots.such(lambda s: (st.mine(row) != 0) & ((s == own) | (s == tracked)), lambda: [own, tracked])


def launch(st: CacheState, row: Number, job: Number, track: Number) -> Step[CacheState]:
    """A forward pass of a running row is launched, and is in flight until its event.

    It reads and writes the own state slot of the row's request, and at a tracking boundary a slot of its track buffer.
    ``track``: the role of this slot, or that of the own state where none is tracked.
    """
    return Step(
        promises=(
            session_trim.at_work(st.rows, row),
            in_flight.is_new(st.flight, job),
            requires((track >= OWN) & (track <= SECOND), "the track is the role of a state slot of the request"),
        ),
        then=but(st, flight=in_flight.begun(st.flight, job, PASS, row, used_by(st, row, track))),
    )


def end_pass(st: CacheState, job: Number) -> Step[CacheState]:
    """A pass is done, or has failed: it uses no state slot any more. Its request may have ended before."""
    return Step(
        promises=(requires(in_flight.flies(st.flight, job), "the pass is in flight"),),
        then=but(st, flight=in_flight.ended(st.flight, job)),
    )


TRANSITIONS = (launch, end_pass)


def is_undisturbed(st: CacheState, source: Number, slot: Number, at_once: Truth) -> Requirement:
    """A copy that is made at once neither reads nor writes a slot that a pass in flight uses."""
    alone = no(is_in_use(st, source)) & no(is_in_use(st, slot))
    return requires(no(at_once) | alone, "no pass in flight uses a slot of a copy that is made at once")


# The law, and what calls do.


def only_passes_are_in_flight(st: CacheState) -> Truth:
    """What is in flight is a pass, and only a pass in flight uses state slots."""
    passes = st.flight.jobs.all(lambda j: (st.flight.kind(j) == NO_JOB) | (st.flight.kind(j) == PASS))
    return passes & in_flight.only_jobs_in_flight_use_blocks(st.flight)


def pass_is_launched(was: CacheState, now: CacheState, row: Number, job: Number, track: Number) -> Truth:
    """A pass that is launched is one of a running request. It uses exactly the own state slot of its request and the
    slot of the track that it writes. Every other pass goes on (SGLang ``Scheduler.run_batch``).
    """
    request = was.mine(row) - 1
    runs = (row >= 0) & (row < was.rows.limit) & (was.rows.phase(row) == RUNNING)
    known = (track >= OWN) & (track <= SECOND)

    def used(s: Number) -> Truth:
        one = (s == was.states.row(request, OWN)) | (s == was.states.row(request, track))
        return uses(now.flight, job, s) == ((was.mine(row) != 0) & one)

    begins = (was.flight.kind(job) == NO_JOB) & (now.flight.kind(job) == PASS) & (now.flight.row(job) == row)
    return runs & known & begins & was.states.slots.all(used) & others_go_on(was.flight, now.flight, job)


def pass_is_done(was: CacheState, now: CacheState, job: Number) -> Truth:
    """The event of a pass comes once, while the pass is in flight. From then on the pass uses no state slot; every
    other pass goes on.
    """
    once = was.flight.jobs.has(job) & (was.flight.kind(job) != NO_JOB) & (now.flight.kind(job) == NO_JOB)
    nothing = was.states.slots.all(lambda s: no(uses(now.flight, job, s)))
    return once & nothing & others_go_on(was.flight, now.flight, job)


def passes_go_on(was: CacheState, now: CacheState) -> Truth:
    """No other call ends a pass or changes what it uses: a request that ends, is aborted or is retracted does not stop
    its pass, and nor does an eviction or the end of a session.
    """
    return was.flight.jobs.all(lambda j: in_flight.a_job_goes_on(was.flight, now.flight, j))
