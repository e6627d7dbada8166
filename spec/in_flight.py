"""Work in flight: what a forward pass or a transfer reads and writes until its own event says that it is done.

A *job* is one forward pass of a row, or one transfer of blocks of a row. It has a number from its begin to its end.
Events come in any order, late, and also for a job that has failed.

- A *pass* reads and writes blocks on the one stream of a device. Passes run in the order of their launch. So a block
  that a pass in flight still uses may be freed and handed out to a row that a later pass computes: the later pass
  writes after the earlier one.
- A *transfer* is a copy that nothing orders: it reads or writes its blocks at any moment from its begin to its end,
  before or after any pass and any other transfer (vLLM pull request 45357). A copy that the stream orders is a pass in
  this sense.

So a block that a transfer writes has no other user, be it a pass or a transfer. A block that a transfer reads may be
read by others; whether a pass writes the tokens that it reads is said of tokens and not of blocks, by the stem that
has both.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import Domain, Map, Number, Requirement, Set, Truth, but, constant, implies, no, requires, total, zeroed

NO_JOB, PASS, READS, WRITES = 0, 1, 2, 3  # kinds of jobs: a pass, a transfer that reads, a transfer that writes


@dataclass(frozen=True)
class InFlightState:
    """The jobs in flight. ``kind(j)``: what the job is, ``NO_JOB`` where no job has the number.

    ``row(j)``: the row for which the job was begun. ``uses(j, b)``: 1 where the job reads or writes the block.
    """

    jobs: Domain = constant("pages", shared="jobs")
    blocks: Domain = constant("pages", shared="blocks")
    kind: Map = total(1)
    row: Map = total(1)
    uses: Map = total(2)


MAPS = ("kind", "row", "uses")


def initial(jobs: int, blocks: int) -> InFlightState:
    """Nothing is in flight (finite reading). ``jobs``: the most jobs at a time. ``blocks``: the number of blocks."""
    maps = {name: FiniteMap(2 if name == "uses" else 1) for name in MAPS}
    return InFlightState(Range(1, jobs), Range(1, blocks), **maps)


def start(st: InFlightState) -> InFlightState:
    """Before the first call nothing is in flight."""
    return zeroed(st, MAPS, ())


def flies(st: InFlightState, job: Number) -> Truth:
    """The job is in flight."""
    return st.jobs.has(job) & (st.kind(job) != NO_JOB)


def is_transfer(st: InFlightState, job: Number) -> Truth:
    """The job is a transfer in flight."""
    return st.jobs.has(job) & ((st.kind(job) == READS) | (st.kind(job) == WRITES))


def uses(st: InFlightState, job: Number, block: Number) -> Truth:
    """The job reads or writes the block."""
    return st.uses(job, block) == 1


def flying(st: InFlightState) -> Set:
    """The jobs in flight."""
    return st.jobs.such(lambda j: st.kind(j) != NO_JOB, lambda: [job for job, _ in st.kind.items()])


def writers(st: InFlightState) -> Set:
    """The transfers in flight that write."""
    return st.jobs.such(lambda j: st.kind(j) == WRITES, lambda: [job for job, _ in st.kind.items()])


def blocks_used(st: InFlightState, job: Number) -> Set:
    """The blocks that the job reads or writes."""
    return st.blocks.such(lambda b: uses(st, job, b), lambda: [block for (_, block), _ in st.uses.items()])


def users(st: InFlightState, block: Number) -> Set:
    """The jobs in flight that read or write the block."""
    return st.jobs.such(
        lambda j: (st.kind(j) != NO_JOB) & uses(st, j, block),
        lambda: [job for (job, used), _ in st.uses.items() if used == block],
    )


def nothing_flies(st: InFlightState) -> Truth:
    """No job is in flight."""
    return st.jobs.all(lambda j: st.kind(j) == NO_JOB)


# What a call asks.


def is_new(st: InFlightState, job: Number) -> Requirement:
    """The number is free for a new job."""
    return requires(st.jobs.has(job) & (st.kind(job) == NO_JOB), "no job in flight has the number")


def are_unused(st: InFlightState, blocks: Set) -> Requirement:
    """A transfer may write these blocks: no job in flight reads or writes one of them."""
    alone = flying(st).all(lambda j: blocks.all(lambda b: no(uses(st, j, b))))
    return requires(alone, "no pass in flight and no other transfer uses a block that the transfer writes")


def is_left_alone(st: InFlightState, row: Number) -> Requirement:
    """Each transfer of the row has ended."""
    alone = flying(st).all(lambda j: no(is_transfer(st, j) & (st.row(j) == row)))
    return requires(alone, "each transfer into or out of the row has ended")


# What a call does.


def begun(st: InFlightState, job: Number, kind: int, row: Number, blocks: Set) -> InFlightState:
    """A job begins that uses these blocks."""
    return but(
        st,
        kind=st.kind.put(job, kind),
        row=st.row.put(job, row),
        uses=st.uses.where(lambda j, b: (j == job) & blocks.has(b), 1, lambda: [(job, b) for b in blocks.items()]),
    )


def ended(st: InFlightState, job: Number) -> InFlightState:
    """A job is done, or has failed: it uses no block any more."""
    return but(
        st,
        kind=st.kind.put(job, NO_JOB),
        uses=st.uses.where(lambda j, _: j == job, 0, lambda: [(job, b) for b in blocks_used(st, job).items()]),
    )


# The laws.


def only_jobs_in_flight_use_blocks(st: InFlightState) -> Truth:
    """A job is a pass, a transfer that reads, or a transfer that writes; only a job in flight uses blocks."""

    def known(j: Number) -> Truth:
        kind = st.kind(j)
        nothing = st.blocks.all(lambda b: no(uses(st, j, b)))
        return (kind >= NO_JOB) & (kind <= WRITES) & implies(kind == NO_JOB, nothing)

    return st.jobs.all(known)


def what_a_transfer_writes_is_its_own(st: InFlightState) -> Truth:
    """A block that a transfer in flight writes is read and written by no other transfer and by no pass in flight."""

    return writers(st).all(lambda j: blocks_used(st, j).all(lambda b: users(st, b).all(lambda k: k == j)))


# What calls do.


def a_job_goes_on(was: InFlightState, now: InFlightState, job: Number) -> Truth:
    """The job has the kind, the row and the blocks that it had."""
    blocks = was.blocks.all(lambda b: was.uses(job, b) == now.uses(job, b))
    return (was.kind(job) == now.kind(job)) & (was.row(job) == now.row(job)) & blocks


def others_go_on(was: InFlightState, now: InFlightState, job: Number) -> Truth:
    """Every other job goes on."""
    return was.jobs.all(lambda j: (j == job) | a_job_goes_on(was, now, j))
