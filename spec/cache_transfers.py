"""Transfers from another server into the rows of a decode server: what a prefill server has computed comes by itself.

A request whose prompt is computed elsewhere gets its row first. Then the other server is told where its pages are, and
writes them at any moment until the end of the transfer, beside the forward passes in flight. So a *transfer* is a job
of ``spec.in_flight`` that writes, and uses the row's own pages behind its cached prefix and the own state slot of its
request. No pass in flight may write one of these, also no pass of a request that has ended: it may come later than
the transfer.

``awaits(r)`` says what the row awaits: ``FILLED``, nothing; ``UNFILLED``, a transfer that has not begun, or has failed;
else the number of the transfer that is under way. A row that awaits something computes nothing, and gives nothing to
the tree. While a transfer into it is under way, it also keeps its pages.

The other server sends the whole prompt for the full pool, and for the SWA pool no more than its end: what the window
before the next token reads (SGLang ``DecodePreallocQueue._swa_payload``, ``KVSender.send_kv_chunk``). A row may have
SWA pages before what is sent. ``sent_from(r)`` is the page index from which the SWA pages of the row were sent; 0
where nothing was sent. What the row's own SWA pages before this index hold is not known: the tree gets none of them.
"""

from __future__ import annotations

from spec import in_flight, isolation, session_trim, state_isolation
from spec.cache_flight import (
    begun,
    full_of,
    other_jobs_go_on,
    over,
    own_from,
    swa_of,
    used_by,
    uses_from,
    uses_nothing,
)
from spec.cache_state import FILLED, UNFILLED, CacheState
from spec.cache_theorems import each_token
from spec.in_flight import NO_JOB, PASS, WRITES, flying, uses
from spec.lengths import Length, at_most, covers, same
from spec.logic import Map, Number, Requirement, Set, Step, Truth, but, implies, no, requires
from spec.mamba_slots_state import ABSENT, OWN
from spec.pool import PADDING, Pool, held
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    allocated,
    committed,
    each_request,
    full_pool,
    is_owned,
    is_row,
    protected,
    swa_pool,
)


def nothing_is_under_way(st: CacheState, row: Number) -> Requirement:
    """No transfer into the row is under way. One that has failed is over."""
    return requires(st.awaits(row) <= FILLED, "no transfer into the row is under way")


def are_unused(st: CacheState, row: Number, first: Number) -> Requirement:
    """No job in flight uses what a transfer into the row writes, of the SWA pool from the page index ``first`` on."""
    slots = used_by(st, row, OWN)
    full = own_from(st, full_pool(st.rows), row, st.rows.protected(row))
    swa = own_from(st, swa_pool(st.rows), row, first)

    def alone(j: Number) -> Truth:
        pages = full.all(lambda p: no(st.full_used(j, p) == 1)) & swa.all(lambda p: no(st.swa_used(j, p) == 1))
        return pages & slots.all(lambda s: no(uses(st.flight, j, s)))

    return requires(flying(st.flight).all(alone), "no job in flight uses a page or a state that the transfer writes")


def receive(st: CacheState, row: Number, job: Number, first: Number) -> Step[CacheState]:
    """A transfer into a running row begins: the other server knows where the row's own pages and its state are.

    Of the SWA pool it writes the row's pages from the page index ``first`` on. They hold the window before the next
    token.
    """
    begins = begun(st, job, WRITES, row, used_by(st, row, OWN), st.rows.protected(row), first)
    return Step(
        promises=(
            session_trim.at_work(st.rows, row),
            requires(st.awaits(row) == UNFILLED, "the row awaits a transfer, and none is under way"),
            in_flight.is_new(st.flight, job),
            are_unused(st, row, first),
            requires(
                (first >= 0) & holds_sent_window(st, row, first, committed(st.rows, row)),
                "the window before the next token is sent",
            ),
        ),
        then=but(begins, awaits=st.awaits.put(row, job), sent_from=st.sent_from.put(row, first)),
    )


def holds_sent_window(st: CacheState, row: Number, first: Number, to: Length) -> Truth:
    """Of the row's own SWA pages those from the page index ``first`` on hold the window before ``to`` tokens."""
    rows = st.rows
    return (first <= rows.protected(row)) | at_most(Length(first + rows.window, rows.window_rest), to)


def own_transfer(st: CacheState, row: Number, job: Number) -> Requirement:
    """The job is the transfer that the row awaits."""
    own = st.flight.jobs.has(job) & (st.flight.kind(job) == WRITES) & (st.flight.row(job) == row)
    return requires(own, "the job is the transfer into the row")


def arrive(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer into a row is done: the other server writes no more, and the row's committed tokens and its state are
    there. The row runs on as if it had computed them.
    """
    ended = but(over(st, job), awaits=st.awaits.put(row, FILLED))
    return Step(
        promises=(own_transfer(st, row, job),), then=state_isolation.computed(isolation.arrived(ended, row), row)
    )


def fall_short(st: CacheState, row: Number, job: Number) -> Step[CacheState]:
    """A transfer into a row has failed, or was taken back, and the other server writes no more. The row awaits another
    transfer, or its end.
    """
    failed = but(over(st, job), awaits=st.awaits.put(row, UNFILLED), sent_from=st.sent_from.put(row, 0))
    return Step(promises=(own_transfer(st, row, job),), then=failed)


TRANSITIONS = (receive, arrive, fall_short)


# The laws.


def transfers(st: CacheState) -> Set:
    """The transfers in flight."""
    return st.flight.jobs.such(
        lambda j: st.flight.kind(j) == WRITES, lambda: [j for j, kind in st.flight.kind.items() if kind == WRITES]
    )


def transfers_fill_rows(st: CacheState) -> Truth:
    """What is in flight is a pass, or a transfer into a row that runs and awaits this transfer. An idle or saved row
    awaits nothing.
    """

    def known(j: Number) -> Truth:
        r = st.flight.row(j)
        fills = is_row(st.rows, r) & (st.rows.phase(r) == RUNNING) & (st.awaits(r) == j)
        kind = (st.flight.kind(j) == NO_JOB) | (st.flight.kind(j) == PASS) | (st.flight.kind(j) == WRITES)
        return kind & implies(st.flight.kind(j) == WRITES, fills)

    def awaited(r: Number) -> Truth:
        j = st.awaits(r)
        comes = st.flight.jobs.has(j) & (st.flight.kind(j) == WRITES) & (st.flight.row(j) == r)
        used = (st.rows.phase(r) == RUNNING) | (st.rows.phase(r) == LEAVING)
        return (j == FILLED) | ((j == UNFILLED) & used) | comes

    return st.flight.jobs.all(known) & each_request(st.rows, awaited)


def a_transfer_holds_its_pages(st: CacheState) -> Truth:
    """Each page of the full pool that a transfer in flight writes belongs to the row that awaits the transfer."""
    full = full_pool(st.rows)

    def holds(j: Number) -> Truth:
        return full_of(st, j).all(lambda p: held(full, p) & (full.owner(p) == st.flight.row(j)))

    return transfers(st).all(holds)


def a_transfer_holds_its_window(st: CacheState) -> Truth:
    """Each page of the SWA pool that a transfer in flight writes belongs to the row that awaits the transfer."""
    swa = swa_pool(st.rows)

    def holds(j: Number) -> Truth:
        return swa_of(st, j).all(lambda p: held(swa, p) & (swa.owner(p) == st.flight.row(j)))

    return transfers(st).all(holds)


def a_transfer_holds_its_state(st: CacheState) -> Truth:
    """The state slot that a transfer in flight writes is the own one of the request on the row that awaits it."""

    def holds(j: Number) -> Truth:
        mine = st.mine(st.flight.row(j))
        own = st.states.row(mine - 1, OWN)
        return st.states.slots.all(lambda s: implies(uses(st.flight, j, s), (mine != 0) & (s == own)))

    return transfers(st).all(holds)


def the_window_was_sent(st: CacheState) -> Truth:
    """What was sent to a row holds the window before the row's next token, behind its cached prefix. To an idle row
    nothing was sent.
    """

    def sent(r: Number) -> Truth:
        window = holds_sent_window(st, r, st.sent_from(r), committed(st.rows, r))
        return (st.sent_from(r) >= 0) & window & implies(st.rows.phase(r) == IDLE, st.sent_from(r) == 0)

    return each_request(st.rows, sent)


def what_a_transfer_writes_is_its_own(st: CacheState) -> Truth:
    """What a transfer in flight writes, no other transfer and no pass in flight uses."""

    def alone(j: Number, k: Number) -> Truth:
        full = full_of(st, j).all(lambda p: no(st.full_used(k, p) == 1))
        swa = swa_of(st, j).all(lambda p: no(st.swa_used(k, p) == 1))
        slots = st.states.slots.all(lambda s: no(uses(st.flight, j, s) & uses(st.flight, k, s)))
        return (j == k) | (full & swa & slots)

    return transfers(st).all(lambda j: flying(st.flight).all(lambda k: alone(j, k)))


# What calls do.


def who_awaits_computes_nothing(was: CacheState, now: CacheState) -> Truth:
    """A row that awaits a transfer computes nothing. While the transfer is under way the row runs, and keeps its pages,
    its cached prefix and its window.
    """

    def stays(r: Number) -> Truth:
        long = same(committed(now.rows, r), committed(was.rows, r))
        slots = same(allocated(now.rows, r), allocated(was.rows, r))
        place = (now.rows.protected(r) == was.rows.protected(r)) & (now.rows.cursor(r) == was.rows.cursor(r))
        runs = (was.rows.phase(r) == RUNNING) & (now.rows.phase(r) == RUNNING)
        shorter = at_most(committed(now.rows, r), committed(was.rows, r))
        idle = implies((was.awaits(r) == UNFILLED) & runs, shorter)
        return idle & implies(was.awaits(r) > FILLED, runs & long & slots & place)

    return each_request(was.rows, stays)


def rows_have_what_was_sent(was: CacheState, now: CacheState) -> Truth:
    """A row has what was sent to it until it goes back to its cached prefix, or is idle again. Then nothing counts as
    sent.
    """

    def stays(r: Number) -> Truth:
        empty = (now.sent_from(r) == 0) & same(committed(now.rows, r), protected(now.rows, r))
        return (now.sent_from(r) == was.sent_from(r)) | empty

    return each_request(was.rows, stays)


def rows_await_what_they_awaited(was: CacheState, now: CacheState) -> Truth:
    """A row awaits what it awaited until the event of its transfer comes, or the row is idle again."""
    return each_request(was.rows, lambda r: implies(now.rows.phase(r) != IDLE, now.awaits(r) == was.awaits(r)))


def others_await_what_they_awaited(was: CacheState, now: CacheState, row: Number) -> Truth:
    """Every other row awaits what it awaited, and has what was sent to it."""

    def stays(r: Number) -> Truth:
        return (now.awaits(r) == was.awaits(r)) & (now.sent_from(r) == was.sent_from(r))

    return each_request(was.rows, lambda r: (r == row) | stays(r))


def transfer_begins(was: CacheState, now: CacheState, row: Number, job: Number) -> Truth:
    """A transfer begins into a row that runs and awaits one. Of the state slots it writes exactly the own one of the
    row's request (SGLang ``DecodePreallocQueue``).
    """
    runs = is_row(was.rows, row) & (was.rows.phase(row) == RUNNING) & (was.awaits(row) == UNFILLED)
    begins = (was.flight.kind(job) == NO_JOB) & (now.flight.kind(job) == WRITES) & (now.flight.row(job) == row)
    own = was.states.row(was.mine(row) - 1, OWN)
    slots = was.states.slots.all(lambda s: uses(now.flight, job, s) == ((was.mine(row) != 0) & (s == own)))
    rest = other_jobs_go_on(was, now, job) & others_await_what_they_awaited(was, now, row)
    return runs & begins & slots & (now.awaits(row) == job) & rest


def transfer_uses_own_pages(was: CacheState, now: CacheState, row: Number, job: Number, first: Number) -> Truth:
    """A transfer writes exactly the pages of the full pool that its row owns behind the cached prefix, and the pages of
    the SWA pool that its row owns from the page index ``first`` on. These hold the window before the next token.
    """
    in_full = uses_from(full_pool(was.rows), now.full_used, row, job, was.rows.protected(row))
    in_swa = uses_from(swa_pool(was.rows), now.swa_used, row, job, first)
    behind = at_most(Length(first + was.rows.window, was.rows.window_rest), committed(was.rows, row))
    window = (first <= was.rows.protected(row)) | behind
    return in_full & in_swa & window & (now.sent_from(row) == first)


def transfer_is_over(was: CacheState, now: CacheState, row: Number, job: Number) -> Truth:
    """The event of a transfer comes once, while the row awaits it. From then on the transfer uses nothing; every other
    job goes on, and every other row awaits what it awaited.
    """
    once = was.flight.jobs.has(job) & (was.flight.kind(job) == WRITES) & (was.flight.row(job) == row)
    rest = other_jobs_go_on(was, now, job) & others_await_what_they_awaited(was, now, row)
    return once & uses_nothing(now, job) & rest


def row_is_filled(was: CacheState, now: CacheState, row: Number) -> Truth:
    """After a transfer each committed token that the row owns is there, of the row's own text, and so is the state of
    its request. Of the SWA pool those are there that were sent. The row awaits nothing (SGLang
    ``DecodeTransferQueue``).
    """
    full, swa = full_pool(was.rows), swa_pool(was.rows)

    def there(i: Number, o: Number) -> Truth:
        own = is_owned(was.rows, row, i)
        in_window = (swa.table(row, i) != PADDING) & (was.sent_from(row) <= i)
        text = isolation.prefix_at(was, row, i, o)
        in_full = implies(own, now.contents.full(full.table(row, i), o) == text)
        in_swa = implies(in_window, now.contents.swa(swa.table(row, i), o) == text)
        return implies(covers(committed(was.rows, row), i, o), in_full & in_swa)

    slot = was.states.table(was.mine(row) - 1, OWN)
    state = implies(
        (was.mine(row) != 0) & (slot != ABSENT),
        state_isolation.is_after(now, slot, row, committed(was.rows, row)),
    )
    return (now.awaits(row) == FILLED) & each_token(was, there) & state


def only_the_row_is_written(was: CacheState, now: CacheState, row: Number) -> Truth:
    """A transfer writes the committed tokens of the pages that its row owns, of the SWA pool of those that are sent.
    Every other slot of both pools holds what it held.
    """
    to, before, after = committed(was.rows, row), was.contents, now.contents

    def rest(pool: Pool, old: Map, new: Map, first: Number) -> Truth:
        def own(p: Number, o: Number) -> Truth:
            mine = held(pool, p) & (pool.owner(p) == row) & (first <= pool.index(p))
            return mine & covers(to, pool.index(p), o)

        return pool.pages.all(lambda p: pool.offsets.all(lambda o: own(p, o) | (new(p, o) == old(p, o))))

    full, swa = full_pool(was.rows), swa_pool(was.rows)
    return rest(full, before.full, after.full, 0) & rest(swa, before.swa, after.swa, was.sent_from(row))


def row_awaits_a_transfer(_: CacheState, now: CacheState, row: Number) -> Truth:
    """The row has nothing yet of what another server computes. It computes nothing until a transfer into it is done."""
    return (now.awaits(row) == UNFILLED) & (now.sent_from(row) <= now.rows.protected(row))


def nothing_was_computed(was: CacheState, _: CacheState, row: Number) -> Truth:
    """Only a row that has its cached prefix alone gets slots for what another server computes."""
    return (was.awaits(row) == FILLED) & same(allocated(was.rows, row), protected(was.rows, row))


def tree_gets_what_has_come(was: CacheState, _: CacheState, row: Number) -> Truth:
    """A row that awaits a transfer gives nothing to the tree and nothing to its session: nobody else may read pages
    whose tokens have not come.
    """
    return was.awaits(row) == FILLED
