"""A scheduler's block tables over one pool of shared blocks: what the KV cache manager of an engine does.

A request is admitted with the blocks that the prefix cache finds for it; it gets blocks for the tokens that it is about
to compute, and for drafts; blocks that left its window are given up; it ends, is aborted, or is preempted and comes
back. There is a row of ``spec.block_pool`` for each request and group of layers.

What is in flight is a *job* of ``spec.in_flight``: a forward pass of a row (``launch``), a transfer into a row
(``load`` where the row runs, ``admit_and_load`` where its request is admitted into the transfer), or a transfer out of
it (``send``). Each has an event of its own: ``loaded`` for a transfer into a row that waits for it, else ``end``. While
a transfer into or out of a row is in flight, the row keeps its blocks, also where its request has ended. A row may give
up blocks while a pass in flight uses them, since the passes of other rows run later; but no transfer into these blocks
begins before the event of the pass.

``whole(r)`` and ``rest(r)`` are the *computed* length of the row: the tokens of the request's own text that forward
passes have computed which were launched. Passes run in the order of their launch. A token that was only drafted
counts from when it is accepted. ``ahead`` is the length up to which the row has its slots. ``first(r)`` is the first
place of the row that is still read. ``phase(r)`` says whether the row is computed (``RUNS``), waits for a transfer into
it (``LOADS``), or is kept for a job in flight alone (``KEPT``).
"""

from __future__ import annotations

from dataclasses import dataclass

from spec import block_pool, block_pool_state, in_flight
from spec.block_pool_state import NULL, BlockPoolState, holds, is_free, names, of_row, prefix_at, runs
from spec.finite import Map as FiniteMap
from spec.in_flight import NO_JOB, PASS, READS, WRITES, InFlightState, is_transfer, others_go_on, uses
from spec.lengths import Length, at_most, formed, same, touched
from spec.logic import (
    Call,
    Map,
    Number,
    Requirement,
    Seq,
    Set,
    Stem,
    Step,
    Truth,
    but,
    call,
    constant_map,
    implies,
    ite,
    no,
    requires,
    total,
    zeroed,
)

IDLE, RUNS, LOADS, KEPT = 0, 1, 2, 3  # phases of a row


@dataclass(frozen=True)
class BlockCacheState:
    """The pool, what is in flight, and for each row its lengths in tokens and its phase.

    In a row ``r`` with ``windowed(r) == 1`` the next token reads the ``window(r)`` whole blocks and ``window_rest(r)``
    tokens before it: one token less than the engine's window. In a row with ``stateful(r) == 1`` it reads a state
    alone, which stands at the last place of the row. A block of a row ``r`` has ``block_size(r)`` tokens, and all
    lengths of the row are in such blocks. All of this depends on the group of layers to which the row belongs.
    """

    pool: BlockPoolState
    flight: InFlightState
    block_size: Map = constant_map(1)
    windowed: Map = constant_map(1)
    window: Map = constant_map(1)
    window_rest: Map = constant_map(1)
    stateful: Map = constant_map(1)
    whole: Map = total(1)
    rest: Map = total(1)
    ahead_whole: Map = total(1)
    ahead_rest: Map = total(1)
    first: Map = total(1)
    phase: Map = total(1)


MAPS = ("whole", "rest", "ahead_whole", "ahead_rest", "first", "phase")


def initial(
    pool: BlockPoolState, sizes: list[int], windows: list[int | None], stateful: list[bool], jobs: int = 2
) -> BlockCacheState:
    """No row is in use (finite reading). ``sizes``: for each group the tokens of a block. ``windows``: for each group
    how many tokens before it a token reads, one less than the engine's window; ``None`` for all. ``stateful``: the
    groups whose layers have states. ``jobs``: the most passes and transfers in flight.
    """
    names = ("block_size", "windowed", "window", "window_rest", "stateful")
    maps: dict[str, FiniteMap] = {name: FiniteMap(1) for name in names}
    for row in pool.rows.items():
        group = pool.group(row)
        size, window, states = sizes[group], windows[group], stateful[group]
        maps["block_size"] = maps["block_size"].put(row, size)
        if window is not None:
            maps["windowed"] = maps["windowed"].put(row, 1)
            maps["window"] = maps["window"].put(row, window // size)
            maps["window_rest"] = maps["window_rest"].put(row, window % size)
        maps["stateful"] = maps["stateful"].put(row, int(states))
    flight = in_flight.initial(jobs, pool.blocks.size)
    return BlockCacheState(pool, flight, **maps, **{name: FiniteMap(1) for name in MAPS})


def start(st: BlockCacheState) -> BlockCacheState:
    """Before the first call: every block is free, no row is in use, and nothing is in flight."""
    return but(zeroed(st, MAPS, ()), pool=block_pool_state.start(st.pool), flight=in_flight.start(st.flight))


def blocks_have_tokens(st: BlockCacheState) -> Truth:
    """A block of each row has room for a token."""
    return st.pool.rows.all(lambda r: st.block_size(r) >= 1)


stem = Stem("block_cache", state=BlockCacheState, start=start, sizes=blocks_have_tokens)
stem.part("pool", block_pool.stem)


def computed(st: BlockCacheState, row: Number) -> Length:
    """How many tokens of its own text the row has computed."""
    return Length(st.whole(row), st.rest(row))


def ahead(st: BlockCacheState, row: Number) -> Length:
    """How many tokens the row has slots for."""
    return Length(st.ahead_whole(row), st.ahead_rest(row))


def has_states(st: BlockCacheState, row: Number) -> Truth:
    """The row belongs to a group of layers that have states."""
    return st.stateful(row) == 1


def whole_window(st: BlockCacheState, row: Number, first: Number, to: Length) -> Truth:
    """With the first place ``first`` the row still has all that the token after ``to`` reads."""
    window = at_most(Length(first + st.window(row), st.window_rest(row)), to)
    return (first == 0) | ((st.windowed(row) == 1) & window) | has_states(st, row)


def has_its_state(st: BlockCacheState, row: Number, to: Length) -> Truth:
    """A row with states has the block of the state after its first ``to`` tokens; before the first token it needs
    none. Any other row needs none.
    """
    there = st.pool.indices.any(lambda i: (i == touched(to) - 1) & (st.pool.table(row, i) != NULL))
    return no(has_states(st, row)) | (touched(to) == 0) | there


def may_go_on(st: BlockCacheState, row: Number) -> Truth:
    """With the tokens that it has computed, the row has the window and the state that its next token needs."""
    to = computed(st, row)
    return whole_window(st, row, st.first(row), to) & has_its_state(st, row, to)


def in_phase(st: BlockCacheState, row: Number, phase: Number, sentence: str) -> Requirement:
    """The row is in this phase."""
    return requires(st.pool.rows.has(row) & (st.phase(row) == phase), sentence)


def is_running(st: BlockCacheState, row: Number) -> Requirement:
    """The row is computed."""
    return in_phase(st, row, RUNS, "the row is running")


def _with_row(
    st: BlockCacheState, row: Number, count: Number, slots: Length, first: Number, phase: Number
) -> BlockCacheState:
    """The row has ``count`` whole places computed, these slots, this first place, and is in this phase."""
    return but(
        st,
        whole=st.whole.put(row, count),
        rest=st.rest.put(row, 0),
        ahead_whole=st.ahead_whole.put(row, slots.pages),
        ahead_rest=st.ahead_rest.put(row, slots.rest),
        first=st.first.put(row, first),
        phase=st.phase.put(row, phase),
    )


def is_user(st: BlockCacheState, job: Number, block: Number) -> Truth:
    """The job is a transfer in flight, and reads or writes the block."""
    return is_transfer(st.flight, job) & uses(st.flight, job, block)


# The transitions.


def _admitted(st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq) -> tuple[Call, ...]:
    """The calls of the pool by which a row gets a text and the blocks that the prefix cache finds for it."""
    begun = call("pool", block_pool.begin, st.pool, row, story)
    skips = call("pool", block_pool.skip, begun.then, row, skipped)
    fills = call("pool", block_pool.fill, skips.then, row, skipped)
    joins = call("pool", block_pool.join, fills.then, row, found)
    return begun, skips, fills, joins


def _may_be_admitted(st: BlockCacheState, row: Number, story: Number) -> tuple[Requirement, ...]:
    return (
        in_phase(st, row, IDLE, "the row is not in use"),
        requires(st.pool.stories.has(story), "the request's text has a number"),
    )


def _is_found(st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq) -> tuple[Requirement, ...]:
    count = skipped + found.length
    return (
        requires((skipped == 0) | st.pool.indices.has(skipped - 1), "the row has room for the skipped places"),
        requires((count == 0) | st.pool.indices.has(count - 1), "the row has room for the blocks found"),
        requires(found.distinct(), "the blocks found are all different"),
        requires(
            found.all(lambda b: names(st.pool, b, story, st.pool.group(row), skipped + found.index(b))),
            "each block found has the hash of the request's own text at its place",
        ),
    )


@stem.transition
def admit(st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq) -> Step[BlockCacheState]:
    """A request that is new, or was preempted, gets a row with the blocks that the prefix cache finds for it.

    The engine chooses how much of the prompt it takes from the prefix cache. ``skipped`` places before stay empty:
    nobody reads them, since they lie before the window or have states.
    """
    count = skipped + found.length
    begun, skips, fills, joins = _admitted(st, row, story, skipped, found)
    return Step(
        promises=_may_be_admitted(st, row, story),
        choice=(
            *_is_found(st, row, story, skipped, found),
            requires(
                whole_window(st, row, skipped, Length(count, 0)), "the blocks found hold the window of the next token"
            ),
            requires((found.length > 0) | (skipped == 0), "nothing is skipped where nothing is found"),
        ),
        then=but(_with_row(st, row, count, Length(count, 0), skipped, RUNS), pool=joins.then),
        calls=(begun, skips, fills, joins),
    )


@stem.transition
def admit_and_load(
    st: BlockCacheState,
    row: Number,
    story: Number,
    job: Number,
    skipped: Number,
    found: Seq,
    to: Length,
    chosen: Seq,
) -> Step[BlockCacheState]:
    """A request that is new, or was preempted, gets a row, and a transfer into the row begins at once.

    The row has slots for ``to`` tokens. The transfer writes those behind what the prefix cache has found. ``skipped``
    places before stay empty: they lie before the window of the token that comes after the transfer, or have states.
    The scheduler decides what it takes from the prefix cache, and into which blocks the transfer writes.
    """
    count = skipped + found.length
    begun, skips, fills, joins = _admitted(st, row, story, skipped, found)
    takes = call("pool", block_pool.take, joins.then, row, touched(to) - count, chosen)
    pool, fresh = takes.then, st.pool.blocks.such(lambda b: found.has(b) & (st.pool.refs(b) == 0), found.items)
    written = pool.blocks.such(
        lambda b: holds(pool, row, b) & (count <= pool.index(b)), lambda: of_row(pool, row, count)
    )
    return Step(
        promises=(
            *_may_be_admitted(st, row, story),
            in_flight.is_new(st.flight, job),
            requires(formed(to, st.block_size(row)), "the new length is well formed"),
            requires((touched(to) == 0) | st.pool.indices.has(touched(to) - 1), "the row has room for the new length"),
            *_is_found(st, row, story, skipped, found),
            requires(
                whole_window(st, row, skipped, to), "the row has the window of the token that comes after the transfer"
            ),
            requires(count < touched(to), "the transfer writes at least one block"),
            requires(
                touched(to) - count <= st.pool.available - fresh.size,
                "no more blocks are handed out than are free, without those found",
            ),
            requires(chosen.length == touched(to) - count, "as many blocks are handed out as the call needs"),
            requires(chosen.distinct(), "the blocks handed out are all different"),
            requires(
                chosen.all(lambda b: is_free(st.pool, b) & no(found.has(b))),
                "the blocks handed out were free, and none is found",
            ),
            in_flight.are_unused(st.flight, st.pool.blocks.such(chosen.has, chosen.items)),
        ),
        then=but(
            _with_row(st, row, count, to, skipped, LOADS),
            pool=pool,
            flight=in_flight.begun(st.flight, job, WRITES, row, written),
        ),
        calls=(begun, skips, fills, joins, takes),
    )


@stem.transition
def allocate(st: BlockCacheState, row: Number, to: Length, skipped: Number, chosen: Seq) -> Step[BlockCacheState]:
    """A running row gets slots for ``to`` tokens: those that it is about to compute, with drafts and lookahead.

    Only a row with states may skip places, up to ``skipped``: it keeps one state and not one a block. A call without
    enough free blocks changes nothing.
    """
    need = touched(to) - skipped
    skips = call("pool", block_pool.skip, st.pool, row, skipped)
    takes = call("pool", block_pool.take, skips.then, row, need, chosen)
    return Step(
        promises=(
            is_running(st, row),
            requires(formed(to, st.block_size(row)), "the new length is well formed"),
            requires(at_most(ahead(st, row), to), "the new length is no shorter than the old one"),
            requires((touched(to) == 0) | st.pool.indices.has(touched(to) - 1), "the row has room for the new length"),
        ),
        choice=(
            requires(
                (skipped == st.pool.length(row))
                | (has_states(st, row) & (st.pool.length(row) < skipped) & (skipped < touched(to))),
                "only a row with states skips places, and not the last one",
            ),
            requires(need <= st.pool.available, "no more blocks are handed out than are free"),
            requires(chosen.length == need, "as many blocks are handed out as the call needs"),
            requires(chosen.distinct(), "the blocks handed out are all different"),
            requires(chosen.all(lambda b: is_free(st.pool, b)), "the blocks handed out were free"),
        ),
        fits=least(st, row, to) <= st.pool.available,
        then=but(
            st,
            pool=takes.then,
            ahead_whole=st.ahead_whole.put(row, to.pages),
            ahead_rest=st.ahead_rest.put(row, to.rest),
        ),
        calls=(skips, takes),
    )


def least(st: BlockCacheState, row: Number, to: Length) -> Number:
    """The fewest blocks with which a row can grow to a length: one for a row with states, else one for each place."""
    need = touched(to) - st.pool.length(row)
    return ite(has_states(st, row) & (need > 0), 1, need)


@stem.transition
def compute(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A forward pass is launched, or drafts are accepted: the tokens of the row up to ``to`` are computed.

    Blocks that are computed whole may get their hash at once. Drafts that are refused are no part of ``to``.
    """
    return _computed(st, row, to, named, is_running(st, row))


def _computed(st: BlockCacheState, row: Number, to: Length, named: Set, asked: Requirement) -> Step[BlockCacheState]:
    fills = call("pool", block_pool.fill, st.pool, row, to.pages)
    hashes = call("pool", block_pool.cache, fills.then, row, named)
    return Step(
        promises=(
            asked,
            requires(formed(to, st.block_size(row)), "the new length is well formed"),
            requires(at_most(computed(st, row), to), "computed tokens stay computed"),
            requires(at_most(to, ahead(st, row)), "the row has slots for the tokens that are computed"),
        ),
        choice=(
            requires(
                named.all(lambda b: holds(st.pool, row, b) & (st.pool.index(b) < to.pages)),
                "a block that gets a hash is held by the row and computed whole",
            ),
        ),
        then=but(
            st,
            pool=hashes.then,
            whole=st.whole.put(row, to.pages),
            rest=st.rest.put(row, to.rest),
            phase=st.phase.put(row, RUNS),
        ),
        calls=(fills, hashes),
    )


@stem.transition
def slide(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """The window of a running row moves on to its place ``to``: the row gives up blocks before.

    A row with states gives up states that it does not go on from, but never that of its last place. A pass in flight
    may still read what is given up. A transfer may not.
    """
    leaves = call("pool", block_pool.leave, st.pool, row, gone)
    last = st.pool.length(row) - 1
    return Step(
        promises=(
            is_running(st, row),
            requires(st.first(row) <= to, "the window never moves back"),
            requires(whole_window(st, row, to, computed(st, row)), "the window of the next token keeps its blocks"),
            requires(gone.all(lambda b: st.pool.blocks.has(b) & holds(st.pool, row, b)), "the row holds the blocks"),
            requires(
                gone.all(lambda b: ite(has_states(st, row), st.pool.index(b) != last, st.pool.index(b) < to)),
                "only blocks before the window, or earlier states, are given up",
            ),
            requires(
                in_flight.flying(st.flight).all(
                    lambda j: gone.all(lambda b: no((st.flight.row(j) == row) & is_user(st, j, b)))
                ),
                "no transfer of the row reads a block that it gives up",
            ),
        ),
        then=but(st, pool=leaves.then, first=st.first.put(row, to)),
        calls=(leaves,),
    )


@stem.transition
def shift(st: BlockCacheState, row: Number, block: Number, to: Number) -> Step[BlockCacheState]:
    """A running row with states puts a block that it still writes at a later place of its own."""
    moves = call("pool", block_pool.move, st.pool, row, block, to)
    return Step(
        promises=(
            is_running(st, row),
            requires(has_states(st, row), "the row has states"),
            requires(
                st.pool.index(block) != st.pool.length(row) - 1, "the block does not stand at the row's last place"
            ),
            requires(
                st.pool.rows.has(row)
                & st.pool.blocks.has(block)
                & holds(st.pool, row, block)
                & (st.whole(row) <= st.pool.index(block)),
                "the row holds the block and still writes it",
            ),
            requires(
                (st.whole(row) <= to) & (to < st.pool.length(row)), "the new place is one that the row still writes"
            ),
            requires(
                st.pool.rows.has(row) & st.pool.indices.has(to) & (st.pool.table(row, to) == NULL),
                "the row holds no block at the new place",
            ),
        ),
        then=but(st, pool=moves.then),
        calls=(moves,),
    )


def _writes(st: BlockCacheState, row: Number, since: Number) -> Truth:
    """The row has a place from ``since`` on, unless it has none at all."""
    return (since == 0) | (since < st.pool.length(row))


@stem.transition
def launch(st: BlockCacheState, row: Number, job: Number, since: Number) -> Step[BlockCacheState]:
    """A forward pass of a running row is launched: it reads and writes the row's blocks from the place ``since`` on,
    where the window of its first token begins. Drafts of passes in flight count as accepted for this.

    The pass is in flight until its step is done. What the row gives up meanwhile, it still uses.
    """
    used = st.pool.blocks.such(
        lambda b: holds(st.pool, row, b) & (since <= st.pool.index(b)), lambda: of_row(st.pool, row, since)
    )
    return Step(
        promises=(
            is_running(st, row),
            in_flight.is_new(st.flight, job),
            requires(st.first(row) <= since, "the row still has what the pass reads"),
            requires(
                whole_window(st, row, since, ahead(st, row)),
                "the pass reads the whole window of a token for which the row has a slot",
            ),
            requires(_writes(st, row, since), "the pass writes to a place of the row"),
        ),
        then=but(st, flight=in_flight.begun(st.flight, job, PASS, row, used)),
    )


@stem.transition
def load(st: BlockCacheState, row: Number, job: Number) -> Step[BlockCacheState]:
    """A transfer into the slots of a running row begins: nothing is computed in the row until it is done.

    It writes the blocks of the row that are not computed whole, at any moment until its end: nothing orders it behind a
    pass that was launched before. So no pass in flight may use these blocks.
    """
    written = st.pool.blocks.such(
        lambda b: holds(st.pool, row, b) & (st.whole(row) <= st.pool.index(b)),
        lambda: of_row(st.pool, row, st.whole(row)),
    )
    return Step(
        promises=(is_running(st, row), in_flight.is_new(st.flight, job), in_flight.are_unused(st.flight, written)),
        then=but(
            st,
            flight=in_flight.begun(st.flight, job, WRITES, row, written),
            phase=st.phase.put(row, LOADS),
        ),
    )


@stem.transition
def loaded(st: BlockCacheState, row: Number, job: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A transfer into a row that waits for it is done: the tokens up to ``to`` are there, as if the row had computed
    them. Where the transfer has failed or a part did not come, these are fewer than were asked for.
    """
    step = _computed(st, row, to, named, in_phase(st, row, LOADS, "a transfer into the row is under way"))
    own = st.flight.jobs.has(job) & (st.flight.kind(job) == WRITES) & (st.flight.row(job) == row)
    return but(
        step,
        promises=(
            *step.promises,
            requires(own, "the job is the transfer into the row"),
            requires(whole_window(st, row, st.first(row), to), "the row has the window of the next token"),
            requires(has_its_state(st, row, to), "a row with states has the state with which it goes on"),
        ),
        then=but(step.then, flight=in_flight.ended(st.flight, job)),
    )


@stem.transition
def send(st: BlockCacheState, row: Number, job: Number) -> Step[BlockCacheState]:
    """A transfer out of a running row begins: another server or another memory reads its blocks until the end event.

    The row may run on, or end and be kept.
    """
    read = st.pool.blocks.such(lambda b: holds(st.pool, row, b), lambda: of_row(st.pool, row))
    return Step(
        promises=(is_running(st, row), in_flight.is_new(st.flight, job)),
        then=but(st, flight=in_flight.begun(st.flight, job, READS, row, read)),
    )


@stem.transition
def end(st: BlockCacheState, job: Number) -> Step[BlockCacheState]:
    """A pass or a transfer is done, or has failed: it uses no block any more. Jobs end in any order.

    A transfer into a row that waits for it ends by ``loaded``.
    """
    awaited = (st.flight.kind(job) == WRITES) & (st.phase(st.flight.row(job)) == LOADS)
    return Step(
        promises=(
            requires(in_flight.flies(st.flight, job), "the job is in flight"),
            requires(no(awaited), "no row waits for the job"),
        ),
        then=but(st, flight=in_flight.ended(st.flight, job)),
    )


@stem.transition
def keep(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request ends, and a transfer or a forward pass still uses its row: the row keeps its blocks until then."""
    return Step(
        promises=(
            requires(
                st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == LOADS)),
                "the row is running, or a transfer into it is under way",
            ),
        ),
        then=but(st, phase=st.phase.put(row, KEPT)),
    )


@stem.transition
def finish(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request ends, is aborted or preempted, or what its row was kept for is done: the row gives up every block.

    Each transfer into or out of the row has ended before. A pass may still be in flight: whoever gets the blocks is
    computed by a later pass. Blocks with a hash keep their content while they are free, so that the request, if it
    comes back, finds them again.
    """
    ends = call("pool", block_pool.release, st.pool, row)
    return Step(
        promises=(
            requires(
                st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == KEPT)),
                "the row is running or kept; no transfer into it is under way",
            ),
            in_flight.is_left_alone(st.flight, row),
        ),
        then=but(_with_row(st, row, 0, Length(0, 0), 0, IDLE), pool=ends.then),
        calls=(ends,),
    )


@stem.transition
def evict(st: BlockCacheState, gone: Set) -> Step[BlockCacheState]:
    """The prefix cache does not find these blocks any more; who holds one of them keeps it."""
    evicts = call("pool", block_pool.evict, st.pool, gone)
    return Step(promises=evicts.step.promises, then=but(st, pool=evicts.then), calls=(evicts,))


@stem.transition
def reset(st: BlockCacheState, done: Truth) -> Step[BlockCacheState]:
    """The prefix cache forgets every block, as after new weights; while a block is held this is refused (not done)."""
    resets = call("pool", block_pool.reset, st.pool, done)
    return Step(choice=resets.step.choice, then=but(st, pool=resets.then), calls=(resets,))


# The laws.


@stem.invariant(about=("pool",))
def phases_are_known(st: BlockCacheState) -> Truth:
    """A row is in use from its admission until it ends, and is in one phase: it runs, loads or is kept."""

    def known(r: Number) -> Truth:
        phase = st.phase(r)
        return (phase >= IDLE) & (phase <= KEPT) & ((phase != IDLE) == runs(st.pool, r))

    return st.pool.rows.all(known)


@stem.invariant(about=("pool",))
def computed_within_slots(st: BlockCacheState) -> Truth:
    """A row never counts more tokens as computed than it has slots for, and has exactly the places that these need."""

    def within(r: Number) -> Truth:
        size = st.block_size(r)
        shaped = formed(computed(st, r), size) & formed(ahead(st, r), size)
        return shaped & at_most(computed(st, r), ahead(st, r)) & (st.pool.length(r) == touched(ahead(st, r)))

    return st.pool.rows.all(within)


@stem.invariant(about=("pool",))
def filled_is_computed(st: BlockCacheState) -> Truth:
    """The places of a row that count as computed whole are those whose tokens are all computed."""
    return st.pool.rows.all(lambda r: st.pool.filled(r) == st.whole(r))


@stem.invariant(about=("pool",))
def new_token_has_a_slot(st: BlockCacheState) -> Truth:
    """Each place that a row reads or writes holds a block: no token in its window is read from the null block, and
    none is written to it. A row with states holds a block at its last place.
    """

    def there(r: Number, i: Number) -> Truth:
        end = st.pool.length(r)
        needed = ite(has_states(st, r), i == end - 1, st.first(r) <= i) & (i < end)
        return implies(needed, st.pool.table(r, i) != NULL)

    return st.pool.rows.all(lambda r: st.pool.indices.all(lambda i: there(r, i)))


@stem.invariant(about=("pool",))
def window_is_whole(st: BlockCacheState) -> Truth:
    """What the next token of a row reads lies behind the row's first place; without a window it reads everything.

    The next token of a row that waits for a transfer is the one that comes after the transfer.
    """

    def whole(r: Number) -> Truth:
        now, later = whole_window(st, r, st.first(r), computed(st, r)), whole_window(st, r, st.first(r), ahead(st, r))
        return (st.first(r) >= 0) & ite(st.phase(r) == RUNS, now, later)

    return st.pool.rows.all(whole)


@stem.invariant()
def only_jobs_in_flight_use_blocks(st: BlockCacheState) -> Truth:
    """A job is a pass, a transfer that reads, or a transfer that writes; only a job in flight uses blocks."""
    return in_flight.only_jobs_in_flight_use_blocks(st.flight)


@stem.invariant(about=("pool",))
def what_a_transfer_writes_is_its_own(st: BlockCacheState) -> Truth:
    """A block that a transfer in flight writes is read and written by no other transfer and by no pass in flight, not
    even by one whose row has given up the block (vLLM pull request 45357).
    """
    return in_flight.what_a_transfer_writes_is_its_own(st.flight)


@stem.each(lambda st: st.pool.blocks, about=("pool",))
def a_transfer_holds_its_blocks(st: BlockCacheState, b: Number) -> Truth:
    """The row of a transfer in flight holds each block that the transfer reads or writes."""

    def held(j: Number) -> Truth:
        row = st.flight.row(j)
        return implies(is_user(st, j, b), st.pool.rows.has(row) & holds(st.pool, row, b))

    return in_flight.flying(st.flight).all(held)


@stem.invariant()
def a_load_has_a_row(st: BlockCacheState) -> Truth:
    """A transfer in flight writes only into a row that waits for it, or is kept since its request has ended. A row has
    at most one such transfer.
    """

    jobs = in_flight.flying(st.flight)

    def waits(j: Number) -> Truth:
        row = st.flight.row(j)
        phase = (st.phase(row) == LOADS) | (st.phase(row) == KEPT)
        alone = jobs.all(lambda k: (j == k) | no((st.flight.kind(k) == WRITES) & (st.flight.row(k) == row)))
        return implies(st.flight.kind(j) == WRITES, st.pool.rows.has(row) & phase & alone)

    return jobs.all(waits)


@stem.each(lambda st: st.pool.blocks, about=("pool",))
def a_load_writes_what_is_not_computed(st: BlockCacheState, b: Number) -> Truth:
    """A transfer in flight writes only blocks of its row that are not computed whole."""

    def ahead_of(j: Number) -> Truth:
        writes = (st.flight.kind(j) == WRITES) & uses(st.flight, j, b)
        return implies(writes, st.whole(st.flight.row(j)) <= st.pool.index(b))

    return in_flight.flying(st.flight).all(ahead_of)


@stem.invariant()
def who_waits_is_awaited(st: BlockCacheState) -> Truth:
    """A row that waits for a transfer has one in flight: no row waits for an event that never comes."""

    def comes(r: Number) -> Truth:
        return st.flight.jobs.any(lambda j: (st.flight.kind(j) == WRITES) & (st.flight.row(j) == r))

    return st.pool.rows.all(lambda r: implies(st.phase(r) == LOADS, comes(r)))


@stem.theorem(about=("pool",), each=lambda st: st.pool.blocks)
def what_a_transfer_uses_is_not_free(st: BlockCacheState, b: Number) -> Truth:
    """A block that a transfer in flight reads or writes is not free: it is handed out to nobody before the end event of
    the transfer, whatever has become of the request (vLLM ``Scheduler._update_from_kv_xfer_finished``).
    """
    return in_flight.flying(st.flight).all(lambda j: implies(is_user(st, j, b), st.pool.refs(b) > 0))


def is_idle(st: BlockCacheState) -> Truth:
    """No row is in use."""
    return st.pool.rows.all(lambda r: st.phase(r) == IDLE)


@stem.theorem(about=("pool",), each=lambda st: st.pool.blocks)
def idle_holds_nothing(st: BlockCacheState, b: Number) -> Truth:
    """Where no row is in use, a block is free."""
    return implies(is_idle(st), st.pool.refs(b) == 0)


@stem.theorem(about=("pool",))
def every_block_comes_back(st: BlockCacheState) -> Truth:
    """Where no row is in use, every block is free: no block is lost when all requests and transfers have ended."""
    return implies(is_idle(st), st.pool.available == st.pool.blocks.size)


# What calls do.


@stem.change(besides=("finish",))
def a_row_stays(was: BlockCacheState, now: BlockCacheState) -> Truth:
    """A row that is in use stays in use until it is finished: nobody takes its blocks while a transfer uses them."""
    return was.pool.rows.all(lambda r: implies(was.phase(r) != IDLE, now.phase(r) != IDLE))


@stem.change(besides=("loaded", "keep"))
def a_transfer_ends_first(was: BlockCacheState, now: BlockCacheState) -> Truth:
    """A row into which a transfer is under way keeps its blocks and waits. Only the end of the transfer lets it run
    again, and only a request that ends leaves it to the transfer alone (vLLM
    ``Scheduler._update_from_kv_xfer_finished``).
    """
    return was.pool.rows.all(
        lambda r: implies(was.phase(r) == LOADS, (now.phase(r) == LOADS) & blocks_stay(was, now, r))
    )


@stem.change(besides=("finish",))
def what_is_kept_is_not_touched(was: BlockCacheState, now: BlockCacheState) -> Truth:
    """A row that is kept for a transfer or a forward pass keeps all its blocks until that has ended (vLLM
    ``Scheduler._free_request``).
    """
    return was.pool.rows.all(lambda r: implies(was.phase(r) == KEPT, (now.phase(r) == KEPT) & blocks_stay(was, now, r)))


def blocks_stay(was: BlockCacheState, now: BlockCacheState, row: Number) -> Truth:
    """The row has the blocks that it had, each at its place."""
    return was.pool.indices.all(lambda i: was.pool.table(row, i) == now.pool.table(row, i))


@stem.change(only=("admit",))
def row_is_admitted(was: BlockCacheState, now: BlockCacheState, row: Number, skipped: Number, found: Seq) -> Truth:
    """A row that is admitted has computed exactly what the prefix cache found for it, and runs."""
    count = (now.whole(row) == skipped + found.length) & (now.rest(row) == 0)
    return count & (now.phase(row) == RUNS) & others_stay(was, now, row)


@stem.change(only=("admit_and_load",))
def row_is_admitted_and_waits(
    was: BlockCacheState, now: BlockCacheState, row: Number, job: Number, skipped: Number, found: Seq, to: Length
) -> Truth:
    """A row that is admitted into a transfer has computed exactly what the prefix cache found for it, has slots for
    what was asked for, and waits. The transfer writes exactly the other blocks of the row (vLLM
    ``Scheduler.schedule``, ``KVCacheManager.allocate_slots`` with ``delay_cache_blocks``).
    """
    count = skipped + found.length
    lengths = (now.whole(row) == count) & (now.rest(row) == 0) & same(ahead(now, row), to)

    def written(b: Number) -> Truth:
        return uses(now.flight, job, b) == (holds(now.pool, row, b) & (count <= now.pool.index(b)))

    begins = job_begins(was, now, job, WRITES, row) & now.pool.blocks.all(written)
    return lengths & (now.first(row) == skipped) & (now.phase(row) == LOADS) & begins & others_stay(was, now, row)


@stem.change(only=("allocate",))
def row_gets_its_slots(was: BlockCacheState, now: BlockCacheState, row: Number, to: Length) -> Truth:
    """A row that gets slots has them up to the length that was asked for."""
    return (now.ahead_whole(row) == to.pages) & (now.ahead_rest(row) == to.rest) & others_stay(was, now, row)


@stem.change(only=("compute", "loaded"))
def tokens_are_computed(was: BlockCacheState, now: BlockCacheState, row: Number, to: Length, named: Set) -> Truth:
    """A row has computed exactly the tokens up to the length that the call names, and runs.

    Exactly the blocks that the engine offers get a hash, that of the row's text at their place.
    """

    def hashed(b: Number) -> Truth:
        old = was.pool.hash(b)
        return now.pool.hash(b) == ite(named.has(b), prefix_at(was.pool, row, was.pool.index(b)), old)

    length = (now.whole(row) == to.pages) & (now.rest(row) == to.rest)
    return length & (now.phase(row) == RUNS) & was.pool.blocks.all(hashed) & others_stay(was, now, row)


@stem.change(only=("loaded",))
def row_goes_on_from_a_state(was: BlockCacheState, now: BlockCacheState, row: Number, to: Length) -> Truth:
    """A row with states that goes on after a transfer has a block for the state after its last computed token, whether
    the transfer has brought all of it or failed (vLLM ``Scheduler._update_waiting_for_remote_kv``).
    """
    none = (to.pages == 0) & (to.rest == 0)
    there = now.pool.indices.any(lambda i: (i == touched(to) - 1) & (now.pool.table(row, i) != NULL))
    return implies(has_states(was, row), none | there)


@stem.change(only=("slide",))
def window_moves(was: BlockCacheState, now: BlockCacheState, row: Number, to: Number, gone: Set) -> Truth:
    """A window that moves on begins at its new place, and the row has given up exactly the blocks that are named."""

    def left(i: Number) -> Truth:
        block = was.pool.table(row, i)
        return now.pool.table(row, i) == ite((block != NULL) & gone.has(block), NULL, block)

    return (now.first(row) == to) & was.pool.indices.all(left) & others_stay(was, now, row)


@stem.change(only=("shift",))
def state_is_shifted(was: BlockCacheState, now: BlockCacheState, row: Number, block: Number, to: Number) -> Truth:
    """A block that is shifted stands at its new place."""
    return (now.pool.table(row, to) == block) & others_stay(was, now, row)


@stem.change(only=("load",))
def row_waits(was: BlockCacheState, now: BlockCacheState, row: Number, job: Number) -> Truth:
    """A row into which a transfer begins waits for its end. The transfer writes exactly the blocks of the row that are
    not computed whole.
    """
    begins = job_begins(was, now, job, WRITES, row)

    def written(b: Number) -> Truth:
        return uses(now.flight, job, b) == (holds(was.pool, row, b) & (was.whole(row) <= was.pool.index(b)))

    return (now.phase(row) == LOADS) & begins & was.pool.blocks.all(written) & others_stay(was, now, row)


@stem.change(only=("launch",))
def pass_is_launched(was: BlockCacheState, now: BlockCacheState, row: Number, job: Number, since: Number) -> Truth:
    """A pass that is launched uses exactly the blocks of its row from the first place on that it reads: nothing that
    the row has left behind, and not less than the window of the last token for which the row has a slot; in a row
    that has places, the last of them at least.
    """

    def used(b: Number) -> Truth:
        return uses(now.flight, job, b) == (holds(was.pool, row, b) & (since <= was.pool.index(b)))

    window = at_most(Length(since + was.window(row), was.window_rest(row)), ahead(was, row))
    enough = (since == 0) | has_states(was, row) | ((was.windowed(row) == 1) & window)
    reads = (was.first(row) <= since) & enough & ((since == 0) | (since < was.pool.length(row)))
    return reads & job_begins(was, now, job, PASS, row) & was.pool.blocks.all(used)


@stem.change(only=("send",))
def blocks_are_sent(was: BlockCacheState, now: BlockCacheState, row: Number, job: Number) -> Truth:
    """A transfer out of a row reads exactly the blocks that the row holds (vLLM ``Scheduler._connector_finished``)."""
    read = was.pool.blocks.all(lambda b: uses(now.flight, job, b) == holds(was.pool, row, b))
    return job_begins(was, now, job, READS, row) & read


def job_begins(was: BlockCacheState, now: BlockCacheState, job: Number, kind: int, row: Number) -> Truth:
    """A job of this kind begins for the row, and every other job goes on."""
    begins = (now.flight.kind(job) == kind) & (now.flight.row(job) == row)
    return begins & others_go_on(was.flight, now.flight, job)


@stem.change(only=("loaded", "end"))
def job_is_done(was: BlockCacheState, now: BlockCacheState, job: Number) -> Truth:
    """The end event of a job comes once, while the job is in flight. Then the job is no longer in flight and uses no
    block; every other job goes on.
    """
    once = was.flight.jobs.has(job) & (was.flight.kind(job) != NO_JOB) & (now.flight.kind(job) == NO_JOB)
    nothing = was.pool.blocks.all(lambda b: no(uses(now.flight, job, b)))
    return once & nothing & others_go_on(was.flight, now.flight, job)


@stem.change(besides=("launch", "load", "admit_and_load", "send", "loaded", "end"))
def work_in_flight_goes_on(was: BlockCacheState, now: BlockCacheState) -> Truth:
    """No other call ends what is in flight or changes what it uses: a request that ends, is aborted or is preempted
    does not stop a pass or a transfer.
    """
    return was.flight.jobs.all(lambda j: in_flight.a_job_goes_on(was.flight, now.flight, j))


@stem.change(only=("reset",))
def a_transfer_refuses_a_reset(was: BlockCacheState, now: BlockCacheState, done: Truth) -> Truth:
    """While a transfer in flight uses a block, the prefix cache is not reset (vLLM ``Scheduler.reset_prefix_cache``).

    Before the call and after it the transfer is in flight.
    """

    def used(j: Number) -> Truth:
        nothing = was.pool.blocks.all(lambda b: no(uses(was.flight, j, b)))
        return (is_transfer(was.flight, j) | is_transfer(now.flight, j)) & no(nothing)

    return implies(done, was.flight.jobs.all(lambda j: no(used(j))))


@stem.change(only=("keep",))
def row_is_kept(was: BlockCacheState, now: BlockCacheState, row: Number) -> Truth:
    """A row that is kept for a transfer alone keeps its blocks."""
    table = was.pool.indices.all(lambda i: was.pool.table(row, i) == now.pool.table(row, i))
    return (now.phase(row) == KEPT) & table & others_stay(was, now, row)


@stem.change(only=("finish",))
def row_is_finished(was: BlockCacheState, now: BlockCacheState, row: Number) -> Truth:
    """A row that is finished is not in use and has computed nothing; every other row is as it was."""
    return (now.phase(row) == IDLE) & (now.whole(row) == 0) & others_stay(was, now, row)


@stem.change(only=("evict",))
def hashes_are_dropped(was: BlockCacheState, now: BlockCacheState, gone: Set) -> Truth:
    """Exactly the blocks that are evicted from the prefix cache lose their hash, and no row changes."""
    return was.pool.blocks.all(lambda b: now.pool.hash(b) == ite(gone.has(b), 0, was.pool.hash(b)))


@stem.change(only=("reset",))
def prefix_cache_is_empty(was: BlockCacheState, now: BlockCacheState, done: Truth) -> Truth:
    """After a reset that is done, the prefix cache finds no block; one that is refused changes nothing."""
    return was.pool.blocks.all(lambda b: now.pool.hash(b) == ite(done, 0, was.pool.hash(b)))


def others_stay(was: BlockCacheState, now: BlockCacheState, row: Number) -> Truth:
    """Every other row has the lengths and the phase that it had."""

    def alike(r: Number) -> Truth:
        lengths = same(computed(was, r), computed(now, r)) & same(ahead(was, r), ahead(now, r))
        return lengths & (was.first(r) == now.first(r)) & (was.phase(r) == now.phase(r))

    return was.pool.rows.all(lambda r: (r == row) | alike(r))
