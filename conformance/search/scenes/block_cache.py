"""Scenes of vLLM's scheduler: shared blocks, work in flight, transfers that fail in part, and windows with holes."""

from __future__ import annotations

from conformance.search.scenes.scene import Scenes
from spec.block_cache import KEPT, LOADS, BlockCacheState, ahead, has_states
from spec.block_pool_state import NO_HASH, NULL, alike, holds
from spec.finite import Seq, Set
from spec.in_flight import PASS, READS, flying, is_transfer, uses
from spec.lengths import Length, same, shorter, touched
from spec.logic import Truth

scenes = Scenes("block_cache")


def jobs(st: BlockCacheState, row: int, *kinds: int) -> list[int]:
    """The jobs of a row in flight, of these kinds; of every kind where none is named."""
    return [
        j for j in flying(st.flight).items() if st.flight.row(j) == row and (not kinds or st.flight.kind(j) in kinds)
    ]


def passes_use(st: BlockCacheState, block: int) -> Truth:
    """A pass in flight uses the block."""
    return any(st.flight.kind(j) == PASS and uses(st.flight, j, block) for j in flying(st.flight).items())


@scenes.at("admit", "admit_and_load")
def found_at_another_request(was: BlockCacheState, _: BlockCacheState, found: Seq) -> Truth:
    """A request finds a block that another one holds."""
    return any(was.pool.refs(b) > 0 for b in found.items())


@scenes.at("admit", "admit_and_load")
def found_among_free_blocks(was: BlockCacheState, _: BlockCacheState, found: Seq) -> Truth:
    """A request finds a block that nobody holds."""
    return any(was.pool.refs(b) == 0 for b in found.items())


@scenes.at("admit", "admit_and_load")
def found_before_its_pass_is_done(was: BlockCacheState, _: BlockCacheState, found: Seq) -> Truth:
    """A request finds a block that a pass in flight still uses."""
    return any(passes_use(was, b) for b in found.items())


@scenes.at("admit", "admit_and_load")
def places_are_skipped(was: BlockCacheState, _: BlockCacheState, row: int, skipped: int) -> Truth:
    """A request with a window finds its last blocks alone: the places before stay empty."""
    return skipped > 0 and not has_states(was, row)


@scenes.at("admit_and_load")
def loaded_behind_skipped_places(_: BlockCacheState, __: BlockCacheState, skipped: int) -> Truth:
    """A transfer begins into a row whose first places stay empty."""
    return skipped > 0


@scenes.at("allocate", "admit_and_load")
def handed_out_in_flight(was: BlockCacheState, _: BlockCacheState, chosen: Seq) -> Truth:
    """A block is handed out that a pass in flight still uses."""
    return any(passes_use(was, b) for b in chosen.items())


@scenes.at("allocate")
def cached_block_is_handed_out(was: BlockCacheState, _: BlockCacheState, chosen: Seq) -> Truth:
    """A block is handed out that the prefix cache has found until now."""
    return any(was.pool.hash(b) != NO_HASH for b in chosen.items())


@scenes.at("compute")
def drafts_are_rejected(was: BlockCacheState, _: BlockCacheState, row: int, to: Length) -> Truth:
    """Drafts are refused: a row has a whole block behind its computed tokens."""
    return touched(to) < touched(ahead(was, row))


@scenes.at("compute", "loaded")
def twin_blocks(was: BlockCacheState, now: BlockCacheState, named: Set) -> Truth:
    """A block gets a hash that another block has already."""
    others = [b for b in was.pool.blocks.items() if was.pool.hash(b) != NO_HASH]
    return any(alike(now.pool, b, other) for b in named.items() for other in others if b != other)


@scenes.at("slide")
def given_up_under_a_pass(was: BlockCacheState, _: BlockCacheState, gone: Set) -> Truth:
    """A window moves on: a block is given up that a pass in flight still reads."""
    return any(passes_use(was, b) for b in gone.items())


@scenes.at("slide")
def shared_block_leaves_a_window(was: BlockCacheState, _: BlockCacheState, gone: Set) -> Truth:
    """A window moves on past a block that another request holds."""
    return any(was.pool.refs(b) > 1 for b in gone.items())


@scenes.at("slide")
def given_up_beside_a_transfer_out(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A window moves on, or earlier states are given up, while a transfer reads blocks of the row."""
    return jobs(was, row, READS)


@scenes.at("launch")
def three_passes_of_a_row(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A pass of a row is launched while two are in flight."""
    return len(jobs(was, row, PASS)) >= 2


@scenes.at("launch")
def pass_beside_a_transfer_out(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A pass of a row is launched while a transfer reads blocks of the row."""
    return jobs(was, row, READS)


@scenes.at("loaded")
def transfer_brings_a_part(was: BlockCacheState, _: BlockCacheState, row: int, to: Length) -> Truth:
    """A transfer brings less than was asked for, and more than nothing."""
    had = Length(was.whole(row), was.rest(row))
    return bool(shorter(to, ahead(was, row))) and not same(to, had)


@scenes.at("loaded")
def transfer_brings_nothing(was: BlockCacheState, _: BlockCacheState, row: int, to: Length) -> Truth:
    """A transfer fails: the row has what it had."""
    return same(to, Length(was.whole(row), was.rest(row)))


@scenes.at("loaded")
def transfer_with_states(was: BlockCacheState, _: BlockCacheState, row: int, to: Length) -> Truth:
    """A transfer brings tokens into a row with states."""
    return bool(has_states(was, row)) and touched(to) > was.whole(row)


@scenes.at("finish")
def ended_under_its_pass(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A request ends, or is preempted, while a pass of it is in flight."""
    return jobs(was, row, PASS)


@scenes.at("finish")
def ended_beside_a_sharer(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A request ends that shares a block with another one."""
    return any(was.pool.refs(b) > 1 for b in was.pool.blocks.items() if holds(was.pool, row, b))


@scenes.at("keep")
def kept_while_it_loads(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A request is aborted while a transfer into its row is under way."""
    return was.phase(row) == LOADS


@scenes.at("keep")
def kept_for_a_transfer_and_a_pass(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A request ends while a transfer reads its blocks and a pass of it is in flight."""
    return bool(jobs(was, row, READS)) and bool(jobs(was, row, PASS))


@scenes.at("end")
def last_user_of_a_kept_row(was: BlockCacheState, _: BlockCacheState, job: int) -> Truth:
    """The last job ends for which a row is kept, and another row runs."""
    row = was.flight.row(job)
    return (
        was.phase(row) == KEPT
        and len(jobs(was, row)) == 1
        and any(was.phase(r) not in (0, KEPT) for r in was.pool.rows.items())
    )


@scenes.at("reset")
def reset_beside_passes(was: BlockCacheState, _: BlockCacheState) -> Truth:
    """The prefix cache is reset, or refuses it, while a pass is in flight."""
    return any(was.flight.kind(j) == PASS for j in flying(was.flight).items())


@scenes.at("reset")
def reset_is_refused_for_a_transfer(was: BlockCacheState, _: BlockCacheState, done: bool) -> Truth:
    """A reset of the prefix cache is refused while a transfer uses blocks."""
    return not done and any(is_transfer(was.flight, j) for j in flying(was.flight).items())


@scenes.at("reset")
def reset_of_a_filled_cache(was: BlockCacheState, _: BlockCacheState, done: bool) -> Truth:
    """The prefix cache is reset, and has found a block until now."""
    return done and any(was.pool.hash(b) != NO_HASH for b in was.pool.blocks.items())


@scenes.at("evict")
def evicted_block_is_held(was: BlockCacheState, _: BlockCacheState, gone: Set) -> Truth:
    """The prefix cache forgets a block that a request holds."""
    return any(was.pool.refs(b) > 0 for b in gone.items())


@scenes.at("allocate")
def hole_in_a_row_that_grows(was: BlockCacheState, _: BlockCacheState, row: int) -> Truth:
    """A row grows that has left blocks behind its window, or skipped places for its states."""
    return any(was.pool.table(row, i) == NULL for i in range(was.pool.length(row)))
