"""What the provers need for block tables over a pool of shared blocks: a small world, calls, mutants, hints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proofs.answers import Pick, empty, no_pages
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from spec import block_cache as law
from spec import block_drain, block_pool, in_flight
from spec.block_cache import IDLE, KEPT, LOADS, RUNS, BlockCacheState, ahead, computed, has_states
from spec.block_pool_state import found_for, holds, of_row, some_free
from spec.finite import Seq, Set
from spec.in_flight import NO_JOB, WRITES
from spec.lengths import Length, in_pages, in_tokens, touched
from spec.logic import Number, Step, Truth, but, requires

SIZES = {"blocks": 3, "tables": 2, "places": 3, "stories": 1, "jobs": 2}


def small() -> tuple[BlockCacheState, ...]:
    """Three blocks of two tokens and two rows: with a window of two tokens, with states, and with neither."""

    def cache(window: int | None, states: bool) -> BlockCacheState:
        return law.initial(block_pool.initial(blocks=3, rows=2, indices=3), [2], [window], [states])

    return cache(None, False), cache(1, False), cache(1, True)


def _in(st: BlockCacheState, *phases: int) -> list[int]:
    return [r for r in st.pool.rows.items() if st.phase(r) in phases]


def _jobs(st: BlockCacheState, *kinds: int) -> list[int]:
    return [j for j in st.flight.jobs.items() if st.flight.kind(j) in kinds]


def _begin(st: BlockCacheState) -> Iterator[tuple[int, int]]:
    """A running row, with the first number that no job in flight has."""
    yield from ((row, job) for row in _in(st, RUNS) for job in _jobs(st, NO_JOB)[:1])


def _admit(st: BlockCacheState) -> Iterator[tuple[int, int, int, Seq]]:
    """An idle row, with every prefix that the prefix cache finds, from every place on."""
    for row in _in(st, IDLE)[:1]:
        yield row, 0, 0, Seq([])
        for skipped in st.pool.indices.items():
            found: list[int] = []
            for index in range(skipped, st.pool.indices.high + 1):
                given = block_pool.begin(st.pool, row, 0).then
                hits = [b for b in st.pool.blocks.items() if found_for(given, row, index, b)]
                if not hits:
                    break
                found.append(hits[0])
                yield row, 0, skipped, Seq(found)


def _admit_and_load(st: BlockCacheState) -> Iterator[tuple[int, int, int, int, Seq, Length, Seq]]:
    """An idle row with a prefix that the prefix cache finds, or with skipped places alone, and what comes behind it."""
    places = st.pool.indices.high + 1
    for job in _jobs(st, NO_JOB)[:1]:
        for row, story, skipped, found in (
            *_admit(st),
            *((row, 0, n, Seq([])) for row in _in(st, IDLE)[:1] for n in range(1, places)),
        ):
            count = skipped + found.length
            others = [b for b in st.pool.blocks.items() if st.pool.refs(b) == 0 and not found.has(b)]
            for tokens in range(count * st.block_size(row) + 1, places * st.block_size(row) + 1):
                to = in_pages(tokens, st.block_size(row))
                yield row, story, job, skipped, found, to, Seq(others[: touched(to) - count])


def _longer(st: BlockCacheState, row: int) -> Iterator[Length]:
    size = st.block_size(row)
    tokens, most = in_tokens(ahead(st, row), size), (st.pool.indices.high + 1) * size
    yield from (in_pages(to, size) for to in range(tokens, min(tokens + 4, most) + 1))


def _allocate(st: BlockCacheState) -> Iterator[tuple[int, Length, int, Seq]]:
    for row in _in(st, RUNS):
        for to in _longer(st, row):
            held = st.pool.length(row)
            last = touched(to) - 1
            for skipped in {held, last} if has_states(st, row) and last > held else {held}:
                yield row, to, skipped, some_free(st.pool, max(0, touched(to) - skipped))


def _compute(st: BlockCacheState, phase: int) -> Iterator[tuple[int, Length, Set]]:
    for row in _in(st, phase):
        size = st.block_size(row)
        for tokens in range(in_tokens(computed(st, row), size), in_tokens(ahead(st, row), size) + 1):
            to = in_pages(tokens, size)
            whole = [b for b in of_row(st.pool, row) if st.pool.index(b) < to.pages]
            yield row, to, Set(whole)
            yield row, to, Set([])


def _loaded(st: BlockCacheState) -> Iterator[tuple[int, int, Length, Set]]:
    for row, to, named in _compute(st, LOADS):
        yield from ((row, job, to, named) for job in _jobs(st, WRITES) if st.flight.row(job) == row)


def _end(st: BlockCacheState) -> Iterator[tuple[int]]:
    yield from ((job,) for job in st.flight.jobs.items() if in_flight.flies(st.flight, job))


def _slide(st: BlockCacheState, phase: int) -> Iterator[tuple[int, int, Set]]:
    for row in _in(st, phase):
        for to in st.pool.indices.items():
            yield row, to, Set(b for b in of_row(st.pool, row) if st.pool.index(b) < to)


MOVES = {
    "admit": _admit,
    "admit_and_load": _admit_and_load,
    "allocate": _allocate,
    "compute": lambda st: _compute(st, RUNS),
    "slide": lambda st: _slide(st, RUNS),
    "shift": lambda st: (
        (r, b, to) for r in _in(st, RUNS) for b in of_row(st.pool, r) for to in st.pool.indices.items()
    ),
    "launch": lambda st: ((row, job, st.first(row)) for row, job in _begin(st)),
    "load": _begin,
    "loaded": _loaded,
    "send": _begin,
    "end": _end,
    "keep": lambda st: ((r,) for r in _in(st, RUNS, LOADS)),
    "finish": lambda st: ((r,) for r in _in(st, RUNS, KEPT)),
    "evict": lambda st: ((Set([b]),) for b in st.pool.blocks.items()),
    "reset": lambda _: [(True,), (False,)],
}


# Mutants: what each transition would do without one line of the law.


def admits_too_little(
    st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq
) -> Step[BlockCacheState]:
    """A hit does not hold the window of the next token, and counts as a hit of the whole prefix."""
    wrong = "the blocks found hold the window of the next token"
    return unchosen(law.admit(st, row, story, skipped, found), wrong)


def admits_in_no_phase(
    st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq
) -> Step[BlockCacheState]:
    """A request is admitted, and the manager does not know its row."""
    step = law.admit(st, row, story, skipped, found)
    return altered(step, phase=st.phase)


def admits_one_more(
    st: BlockCacheState, row: Number, story: Number, skipped: Number, found: Seq
) -> Step[BlockCacheState]:
    """A request counts one block more as computed than the prefix cache has found for it."""
    step = law.admit(st, row, story, skipped, found)
    return altered(step, whole=st.whole.put(row, skipped + found.length + 1))


def computes_without_slots(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """Tokens are computed for which the row has no slots."""
    return unasked(law.compute(st, row, to, named), "the row has slots for the tokens that are computed")


def counts_drafts(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """All tokens that the row has slots for count as computed, drafts that are refused among them."""
    there = ahead(st, row)
    return altered(
        law.compute(st, row, to, named),
        whole=st.whole.put(row, there.pages),
        rest=st.rest.put(row, there.rest),
    )


def allocates_too_little(
    st: BlockCacheState, row: Number, to: Length, skipped: Number, chosen: Seq
) -> Step[BlockCacheState]:
    """A row gets no slots for its lookahead, and counts them as its own."""
    step = law.allocate(st, row, to, skipped, chosen)
    return altered(step, ahead_whole=step.then.ahead_whole.put(row, to.pages + 1))


def skips_in_attention(
    st: BlockCacheState, row: Number, to: Length, skipped: Number, chosen: Seq
) -> Step[BlockCacheState]:
    """A row without states skips places that its tokens are written to."""
    wrong = "only a row with states skips places, and not the last one"
    return unchosen(law.allocate(st, row, to, skipped, chosen), wrong)


def slides_by_drafts(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """The window moves on by tokens that are only drafted; they are refused, and the window's blocks are gone."""
    return unasked(law.slide(st, row, to, gone), "the window of the next token keeps its blocks")


def slides_too_much(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """A row gives up blocks of its window."""
    return unasked(law.slide(st, row, to, gone), "only blocks before the window, or earlier states, are given up")


def slides_off_unheld(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """A row whose window moves on frees blocks that it does not hold: it freed them before, or they are another's."""
    step = unasked(law.slide(st, row, to, gone), "the row holds the blocks")
    return but(step, calls=())


def frees_while_loading(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request is aborted while a transfer writes into its row, and its blocks are given back at once."""
    finish = law.finish(st, row)
    return but(law.keep(st, row), then=finish.then, calls=finish.calls)


def finishes_under_a_transfer(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A row that was kept for a transfer gives up its blocks before the transfer has ended."""
    return unasked(law.finish(st, row), "each transfer into or out of the row has ended")


def slides_under_a_transfer(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """A running row gives up blocks that a transfer still reads."""
    return unasked(law.slide(st, row, to, gone), "no transfer of the row reads a block that it gives up")


def loads_under_a_pass(st: BlockCacheState, row: Number, job: Number) -> Step[BlockCacheState]:
    """A transfer begins in a block that a pass in flight still writes: the row of the pass has given the block up."""
    wrong = "no pass in flight and no other transfer uses a block that the transfer writes"
    return unasked(law.load(st, row, job), wrong)


def loads_over_what_is_computed(st: BlockCacheState, row: Number, job: Number) -> Step[BlockCacheState]:
    """A transfer writes also the blocks that the prefix cache has found for the row, which others read."""
    step = law.load(st, row, job)
    blocks = st.pool.blocks.such(lambda b: holds(st.pool, row, b), lambda: of_row(st.pool, row))
    return altered(step, flight=in_flight.begun(st.flight, job, WRITES, row, blocks))


def admits_into_too_little(
    st: BlockCacheState,
    row: Number,
    story: Number,
    job: Number,
    skipped: Number,
    found: Seq,
    to: Length,
    chosen: Seq,
) -> Step[BlockCacheState]:
    """A transfer brings less than the window of the token that comes after it, and what lies before is skipped."""
    wrong = "the row has the window of the token that comes after the transfer"
    return unasked(law.admit_and_load(st, row, story, job, skipped, found, to, chosen), wrong)


def admits_over_what_is_found(
    st: BlockCacheState,
    row: Number,
    story: Number,
    job: Number,
    skipped: Number,
    found: Seq,
    to: Length,
    chosen: Seq,
) -> Step[BlockCacheState]:
    """A transfer writes from the beginning of the row on, also into blocks that the prefix cache has found for it."""
    step = law.admit_and_load(st, row, story, job, skipped, found, to, chosen)
    pool = step.then.pool
    blocks = pool.blocks.such(lambda b: holds(pool, row, b), lambda: of_row(pool, row))
    return altered(step, flight=in_flight.begun(st.flight, job, WRITES, row, blocks))


def admits_without_waiting(
    st: BlockCacheState,
    row: Number,
    story: Number,
    job: Number,
    skipped: Number,
    found: Seq,
    to: Length,
    chosen: Seq,
) -> Step[BlockCacheState]:
    """A request that is admitted into a transfer runs at once."""
    step = law.admit_and_load(st, row, story, job, skipped, found, to, chosen)
    return altered(step, phase=st.phase.put(row, RUNS))


def goes_on_with_less(st: BlockCacheState, row: Number, job: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A transfer has failed, and its row runs on without the window that it should have brought."""
    return unasked(law.loaded(st, row, job, to, named), "the row has the window of the next token")


def goes_on_without_a_state(
    st: BlockCacheState, row: Number, job: Number, to: Length, named: Set
) -> Step[BlockCacheState]:
    """A transfer has failed, and a row with states runs on behind the places that it has skipped, without a state."""
    return unasked(law.loaded(st, row, job, to, named), "a row with states has the state with which it goes on")


def launches_too_late(st: BlockCacheState, row: Number, job: Number, since: Number) -> Step[BlockCacheState]:
    """A pass is launched that uses no block of its row: a transfer may get its blocks while it writes them."""
    return unasked(law.launch(st, row, job, since), "the pass writes to a place of the row")


def ends_what_is_awaited(st: BlockCacheState, job: Number) -> Step[BlockCacheState]:
    """A transfer has failed, and the row that waits for it is not told: it waits for ever."""
    return unasked(law.end(st, job), "no row waits for the job")


def ends_and_still_uses(st: BlockCacheState, job: Number) -> Step[BlockCacheState]:
    """A job that is done still counts as a user of its blocks."""
    return altered(law.end(st, job), flight=but(st.flight, kind=st.flight.kind.put(job, NO_JOB)))


def keeps_without_the_transfer(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request is aborted, and what is in flight for it is forgotten: nobody waits for the end events."""
    return altered(law.keep(st, row), flight=in_flight.start(st.flight))


def resets_under_a_transfer(st: BlockCacheState, done: Truth) -> Step[BlockCacheState]:
    """The prefix cache is reset while a transfer still reads or writes blocks."""
    return but(unchosen(law.reset(st, done), "the prefix cache is reset exactly where every block is free"), calls=())


def computes_unfilled(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """Tokens count as computed, and the places of their blocks do not."""
    return but(altered(law.compute(st, row, to, named), pool=st.pool), calls=())


def finishes_in_phase(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A row ends, and the manager still counts it as running."""
    return altered(law.finish(st, row), phase=st.phase)


def finishes_without_freeing(st: BlockCacheState, row: Number) -> Step[BlockCacheState]:
    """A request that ends is forgotten, and its blocks stay held."""
    return altered(law.keep(st, row), phase=st.phase.put(row, IDLE))


def shifts_its_last_state(st: BlockCacheState, row: Number, block: Number, to: Number) -> Step[BlockCacheState]:
    """A row with states moves the block of its last place to an earlier place: its next token has no state."""
    return unasked(law.shift(st, row, block, to), "the block does not stand at the row's last place")


# Calls that break a promise: they show what a mutant does that no longer asks for it.


def one_further(st: BlockCacheState) -> Iterator[tuple[int, Length, Set]]:
    """Calls to try: a pass that computes one token more than the row has slots for."""
    for row in _in(st, RUNS):
        size = st.block_size(row)
        yield row, in_pages(in_tokens(ahead(st, row), size) + 1, size), Set([])


def _skips(st: BlockCacheState) -> Iterator[tuple[int, Length, int, Seq]]:
    for row in _in(st, RUNS):
        yield from ((row, to, 1, some_free(st.pool, touched(to) - 1)) for to in _longer(st, row) if touched(to) > 1)


def _unheld(st: BlockCacheState) -> Iterator[tuple[int, int, Set]]:
    yield from ((row, st.first(row), Set([b])) for row in _in(st, RUNS) for b in st.pool.blocks.items())


def _behind(st: BlockCacheState) -> Iterator[tuple[int, int, int]]:
    yield from ((row, job, st.pool.length(row)) for row, job in _begin(st))


BEHIND = {"moves": {**MOVES, "launch": _behind}, "routes": {"launch": "admit allocate"}, "small": lambda: small()[2:]}
UNHELD = {"moves": {**MOVES, "slide": _unheld}, "routes": {"slide": "admit allocate"}}
GOES_ON = {"moves": {**MOVES, "compute": one_further}, "routes": {"compute": "admit allocate"}}
WHILE_IT_LOADS = {"routes": {"finish": "admit allocate load keep"}}
INTO_A_WINDOW = {"routes": {"loaded": "admit_and_load"}}
INTO_A_STATE = {**INTO_A_WINDOW, "small": lambda: small()[2:]}
KEPT_FOR_A_PASS = {
    "moves": {**MOVES, "slide": lambda st: _slide(st, KEPT)},
    "routes": {"slide": "admit allocate compute launch keep"},
}
SKIPS = {"moves": {**MOVES, "allocate": _skips}, "routes": {"allocate": "admit"}}


def asked_of(step: Step[BlockCacheState], sentence: str, phase: Truth) -> Step[BlockCacheState]:
    """The step that asks for this truth about the row's phase in the place of the promise with the sentence."""
    left = unasked(step, sentence)
    return but(left, promises=(*left.promises, requires(phase, "the row is in a phase of a request that is there")))


def computes_under_a_transfer(st: BlockCacheState, row: Number, to: Length, named: Set) -> Step[BlockCacheState]:
    """A forward pass computes a row into which a transfer still writes: all that is in flight counts as done."""
    phase = st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == LOADS))
    step = asked_of(law.compute(st, row, to, named), "the row is running", phase)
    return altered(step, flight=in_flight.start(st.flight))


def slides_what_is_kept(st: BlockCacheState, row: Number, to: Number, gone: Set) -> Step[BlockCacheState]:
    """A row that is kept for a forward pass gives up blocks that the pass still reads."""
    phase = st.pool.rows.has(row) & ((st.phase(row) == RUNS) | (st.phase(row) == KEPT))
    return asked_of(law.slide(st, row, to, gone), "the row is running", phase)


MUTANTS = (
    Mutant("computes_under_a_transfer", "compute", "a_transfer_ends_first", computes_under_a_transfer),
    Mutant("slides_what_is_kept", "slide", "what_is_kept_is_not_touched", slides_what_is_kept, KEPT_FOR_A_PASS),
    *idlers(
        law.stem,
        admit="row_is_admitted",
        admit_and_load="row_is_admitted_and_waits",
        allocate="row_gets_its_slots",
        compute="tokens_are_computed",
        slide="window_moves",
        shift="state_is_shifted",
        launch="pass_is_launched",
        load="row_waits",
        loaded="tokens_are_computed",
        send="blocks_are_sent",
        end="job_is_done",
        keep="row_is_kept",
        finish="row_is_finished",
        evict="hashes_are_dropped",
        reset="prefix_cache_is_empty",
    ),
    Mutant("loads_under_a_pass", "load", "what_a_transfer_writes_is_its_own", loads_under_a_pass),
    Mutant("loads_over_what_is_computed", "load", "a_load_writes_what_is_not_computed", loads_over_what_is_computed),
    Mutant("slides_under_a_transfer", "slide", "a_transfer_holds_its_blocks", slides_under_a_transfer),
    Mutant("finishes_under_a_transfer", "finish", "a_transfer_holds_its_blocks", finishes_under_a_transfer),
    Mutant("hands_out_under_a_transfer", "finish", "what_a_transfer_uses_is_not_free", finishes_under_a_transfer),
    Mutant("finishes_what_is_written", "finish", "a_load_has_a_row", finishes_under_a_transfer, WHILE_IT_LOADS),
    Mutant("admits_into_too_little", "admit_and_load", "window_is_whole", admits_into_too_little),
    Mutant(
        "admits_over_what_is_found",
        "admit_and_load",
        "a_load_writes_what_is_not_computed",
        admits_over_what_is_found,
    ),
    Mutant("admits_without_waiting", "admit_and_load", "a_load_has_a_row", admits_without_waiting),
    Mutant("goes_on_with_less", "loaded", "window_is_whole", goes_on_with_less, INTO_A_WINDOW),
    Mutant("goes_on_without_a_state", "loaded", "row_goes_on_from_a_state", goes_on_without_a_state, INTO_A_STATE),
    Mutant("launches_too_late", "launch", "pass_is_launched", launches_too_late, BEHIND),
    Mutant("ends_what_is_awaited", "end", "who_waits_is_awaited", ends_what_is_awaited),
    Mutant("ends_and_still_uses", "end", "only_jobs_in_flight_use_blocks", ends_and_still_uses),
    Mutant("keeps_without_the_transfer", "keep", "work_in_flight_goes_on", keeps_without_the_transfer),
    Mutant("resets_under_a_transfer", "reset", "a_transfer_refuses_a_reset", resets_under_a_transfer),
    Mutant("admits_too_little", "admit", "window_is_whole", admits_too_little),
    Mutant("admits_in_no_phase", "admit", "phases_are_known", admits_in_no_phase),
    Mutant("admits_one_more", "admit", "computed_within_slots", admits_one_more),
    Mutant("computes_without_slots", "compute", "computed_within_slots", computes_without_slots, GOES_ON),
    Mutant("computes_unfilled", "compute", "filled_is_computed", computes_unfilled),
    Mutant("counts_drafts", "compute", "filled_is_computed", counts_drafts),
    Mutant("allocates_too_little", "allocate", "computed_within_slots", allocates_too_little),
    Mutant("skips_in_attention", "allocate", "new_token_has_a_slot", skips_in_attention, SKIPS),
    Mutant("slides_by_drafts", "slide", "window_is_whole", slides_by_drafts),
    Mutant("slides_too_much", "slide", "new_token_has_a_slot", slides_too_much),
    Mutant("slides_off_unheld", "slide", "count_is_holders", slides_off_unheld, UNHELD),
    Mutant("frees_while_loading", "keep", "a_row_stays", frees_while_loading),
    Mutant("finishes_in_phase", "finish", "phases_are_known", finishes_in_phase),
    Mutant("finishes_without_giving_up", "finish", "idle_holds_nothing", finishes_without_freeing),
    Mutant("finishes_without_freeing", "finish", "every_block_comes_back", finishes_without_freeing),
    Mutant("shifts_its_last_state", "shift", "new_token_has_a_slot", shifts_its_last_state),
)


def _new_blocks(pick: Pick, st: BlockCacheState, given: Mapping[str, Any]) -> dict[str, Any]:
    need = law.least(st, given["row"], given["to"])
    return {"skipped": touched(given["to"]) - need, "chosen": pick.members(st.pool.blocks, need)}


def _none_found(_: Pick, st: BlockCacheState, __: Mapping[str, Any]) -> dict[str, Any]:
    return {"skipped": 0, "found": no_pages(st.pool.blocks)}


def _none_named(_: Pick, st: BlockCacheState, __: Mapping[str, Any]) -> dict[str, Any]:
    return {"named": empty(st.pool.blocks)}


def _resets(_: Pick, st: BlockCacheState, __: Mapping[str, Any]) -> dict[str, Any]:
    done: Truth = block_pool.nobody_holds(st.pool)
    return {"done": done}


HINTS = Hints(
    stem=law.stem,
    over={name: lambda st: st.pool.blocks for name in ("found", "chosen", "named", "gone")},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={"row": "tables", "block": "blocks", "job": "jobs"},
    refusable=frozenset({"allocate"}),
    routes={"slide": "admit allocate", "shift": "admit allocate allocate"},
    answers={
        "admit": _none_found,
        "allocate": _new_blocks,
        **dict.fromkeys(("compute", "loaded"), _none_named),
        "reset": _resets,
    },
    relevant_laws={
        "idle_holds_nothing": "phases_are_known counted_is_held held_is_counted stands_at_its_place",
        "every_block_comes_back": "available_counts idle_holds_nothing",
        "a_transfer_refuses_a_reset": "what_a_transfer_uses_is_not_free",
        "return_allocate_is_granted": "every_block_comes_back",
        **dict.fromkeys(("promises_of_cache", "promises_of_skip"), "phases_are_known rows_are_formed"),
    },
    drain=block_drain.DRAIN,
    mutants=MUTANTS,
    assumptions=COMMON,
)
