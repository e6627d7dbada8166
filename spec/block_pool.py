"""A pool of blocks that many requests share: block tables, reference counts, and the prefix cache that finds blocks.

``spec.block_pool_state`` has the state and the laws. A prompt that the prefix cache knows is a ``join`` of blocks that
it finds; what a window does not reach is a ``skip``; new tokens get blocks by ``take``, and ``fill`` when they are
computed.
"""

from __future__ import annotations

from spec import block_effects, block_pool_state
from spec.block_pool_state import (
    NO_HASH,
    NULL,
    UNWRITTEN,
    BlockPoolState,
    alike,
    blocks_of,
    found_for,
    given_up,
    held_by,
    holds,
    initial,
    is_free,
    of_row,
    prefix_at,
    runs,
    start,
)
from spec.logic import Number, Requirement, Seq, Set, Stem, Step, Truth, but, no, requires

stem = Stem("block_pool", state=BlockPoolState, start=start)


def is_used(st: BlockPoolState, row: Number) -> Requirement:
    """The row is one of the pool, and in use."""
    return requires(st.rows.has(row) & runs(st, row), "the row is in use")


def grows_to(st: BlockPoolState, row: Number, to: Number) -> Requirement:
    """The row has room for ``to`` places, and has no more of them now."""
    room = (to == st.length(row)) | st.indices.has(to - 1)
    return requires((st.length(row) <= to) & room, "the row gets no shorter and has room for the new places")


# The transitions.


@stem.transition
def begin(st: BlockPoolState, row: Number, story: Number) -> Step[BlockPoolState]:
    """A request with a text gets an empty row of blocks in one group of layers; a transfer gets one, too."""
    return Step(
        promises=(
            requires(st.rows.has(row) & no(runs(st, row)), "the row is not in use"),
            requires(st.stories.has(story), "the request's text has a number"),
        ),
        then=but(st, active=st.active.put(row, 1), story=st.story.put(row, story)),
    )


@stem.transition
def skip(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """A row grows to ``to`` places with null blocks, which nobody reads: a cached prefix before the window."""
    return Step(
        promises=(is_used(st, row), grows_to(st, row, to)),
        then=but(st, length=st.length.put(row, to)),
    )


def is_whole(st: BlockPoolState, row: Number) -> Requirement:
    """Each place of the row is computed whole."""
    return requires(st.filled(row) == st.length(row), "every place of the row is computed whole")


@stem.transition
def join(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """A row goes on with blocks that the prefix cache found: each has one holder more, and leaves the free blocks.

    The engine chooses which of several blocks with one hash it takes.
    """
    first = st.length(row)
    fresh = st.blocks.such(lambda b: found.has(b) & (st.refs(b) == 0), found.items)
    return Step(
        promises=(is_used(st, row), is_whole(st, row)),
        choice=(
            grows_to(st, row, first + found.length),
            requires(found.distinct(), "the blocks found are all different"),
            requires(
                found.all(lambda b: found_for(st, row, first + found.index(b), b)),
                "each block found has the hash of the row's own text at its place",
            ),
        ),
        then=but(
            st,
            length=st.length.put(row, first + found.length),
            filled=st.filled.put(row, first + found.length),
            table=st.table.where(
                lambda r, i: (r == row) & (first <= i) & (i < first + found.length),
                lambda _, i: found.at(i - first),
                lambda: [(row, first + k) for k in range(found.length)],
            ),
            refs=st.refs.where(found.has, lambda b: st.refs(b) + 1, found.items),
            available=st.available - fresh.size,
        ),
    )


@stem.transition
def take(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A row gets ``count`` new blocks, which it alone holds.

    The prefix cache does not find them any more under their old text. A call without enough free blocks changes
    nothing.
    """
    first = st.length(row)
    return Step(
        promises=(is_used(st, row), grows_to(st, row, first + count)),
        choice=(
            requires(chosen.length == count, "as many blocks are handed out as the call needs"),
            requires(chosen.distinct(), "the blocks handed out are all different"),
            requires(chosen.all(lambda b: is_free(st, b)), "the blocks handed out were free"),
        ),
        fits=count <= st.available,
        then=but(
            st,
            length=st.length.put(row, first + chosen.length),
            table=st.table.where(
                lambda r, i: (r == row) & (first <= i) & (i < first + chosen.length),
                lambda _, i: chosen.at(i - first),
                lambda: [(row, first + k) for k in range(chosen.length)],
            ),
            refs=st.refs.where(chosen.has, 1, chosen.items),
            index=st.index.where(chosen.has, lambda b: first + chosen.index(b), chosen.items),
            home=st.home.where(chosen.has, st.group(row), chosen.items),
            hash=st.hash.where(chosen.has, NO_HASH, chosen.items),
            content=st.content.where(chosen.has, UNWRITTEN, chosen.items),
            available=st.available - chosen.length,
        ),
    )


@stem.transition
def fill(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """The places of a row up to ``to`` are computed whole: their blocks contain the row's own text from now on."""

    def written(b: Number) -> Truth:
        return holds(st, row, b) & (st.filled(row) <= st.index(b)) & (st.index(b) < to)

    return Step(
        promises=(
            is_used(st, row),
            requires((st.filled(row) <= to) & (to <= st.length(row)), "the row has the places that are computed"),
        ),
        then=but(
            st,
            filled=st.filled.put(row, to),
            content=st.content.where(
                written, lambda b: prefix_at(st, row, st.index(b)), lambda: of_row(st, row, st.filled(row))
            ),
        ),
    )


@stem.transition
def cache(st: BlockPoolState, row: Number, named: Set) -> Step[BlockPoolState]:
    """Blocks of a row that are computed whole get the hash of the row's text: the prefix cache finds them from now on.

    The engine chooses which blocks it offers for reuse.
    """
    return Step(
        promises=(is_used(st, row),),
        choice=(
            requires(
                named.all(lambda b: holds(st, row, b) & (st.index(b) < st.filled(row))),
                "a block that gets a hash is held by the row and computed whole",
            ),
        ),
        then=but(st, hash=st.hash.where(named.has, lambda b: prefix_at(st, row, st.index(b)), named.items)),
    )


@stem.transition
def displace(st: BlockPoolState, gone: Set) -> Step[BlockPoolState]:
    """A prefix cache that has one block for each hash does not find the other blocks with this hash any more.

    The engine chooses whether it has one block or several for a hash. Who holds a block that is not found keeps it.
    """
    return Step(
        choice=(
            requires(
                gone.all(lambda b: st.blocks.any(lambda other: no(gone.has(other)) & alike(st, b, other))),
                "another block with its hash is found for each block that is not found any more",
            ),
        ),
        then=but(st, hash=st.hash.where(gone.has, NO_HASH, gone.items)),
    )


@stem.transition
def leave(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A row gives up blocks that nobody reads for it any more: the null block stands at their places from now on."""
    return Step(
        promises=(
            is_used(st, row),
            requires(gone.all(lambda b: st.blocks.has(b) & holds(st, row, b)), "the row holds the blocks"),
        ),
        then=but(
            given_up(st, gone),
            table=st.table.where(
                lambda r, i: (r == row) & (st.table(r, i) != NULL) & gone.has(st.table(r, i)),
                NULL,
                lambda: [(row, st.index(b)) for b in gone.items()],
            ),
        ),
    )


@stem.transition
def cut(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """A row gives up the places from ``to`` on, none of which is computed whole: those of refused drafts."""
    gone = st.blocks.such(lambda b: holds(st, row, b) & (to <= st.index(b)), lambda: of_row(st, row))
    return Step(
        promises=(
            is_used(st, row),
            requires((st.filled(row) <= to) & (to <= st.length(row)), "no place that is computed whole is given up"),
        ),
        then=but(
            given_up(st, gone),
            length=st.length.put(row, to),
            table=st.table.where(
                lambda r, i: (r == row) & (to <= i), NULL, lambda: [(row, i) for i in range(to, st.length(row))]
            ),
        ),
    )


@stem.transition
def move(st: BlockPoolState, row: Number, block: Number, to: Number) -> Step[BlockPoolState]:
    """A row puts a block that it still writes at another of its places, where it holds none.

    The null block stands at the old place from now on.
    """
    old = st.index(block)
    return Step(
        promises=(
            is_used(st, row),
            requires(
                st.rows.has(row) & st.blocks.has(block) & holds(st, row, block) & (st.filled(row) <= old),
                "the row holds the block and still writes it",
            ),
            requires((st.filled(row) <= to) & (to < st.length(row)), "the new place is one that the row still writes"),
            requires(
                st.rows.has(row) & st.indices.has(to) & (st.table(row, to) == NULL),
                "the row holds no block at the new place",
            ),
        ),
        then=but(
            st,
            table=st.table.put((row, old), NULL).put((row, to), block),
            index=st.index.put(block, to),
            content=st.content.put(block, UNWRITTEN),
        ),
    )


@stem.transition
def release(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """A request ends, is aborted or is preempted: its row gives up every block, and is not in use any more."""
    return Step(
        promises=(is_used(st, row),),
        then=but(
            given_up(st, held_by(st, row)),
            active=st.active.put(row, 0),
            length=st.length.put(row, 0),
            filled=st.filled.put(row, 0),
            table=st.table.where(lambda r, _: r == row, NULL, lambda: [(row, i) for i in range(st.length(row))]),
        ),
    )


@stem.transition
def lend(st: BlockPoolState, row: Number, other: Number, lent: Set) -> Step[BlockPoolState]:
    """Another row holds computed blocks of a row too, as a transfer that reads them does until it is done."""
    whole = st.filled(row)
    return Step(
        promises=(
            is_used(st, row),
            requires(
                st.rows.has(other) & runs(st, other) & (other != row), "the row that gets the blocks is another, in use"
            ),
            requires(st.length(other) == 0, "the row that gets the blocks is empty"),
            requires(st.group(other) == st.group(row), "both rows belong to one group of layers"),
            requires(st.story(other) == st.story(row), "both rows have one text"),
            requires(
                lent.all(lambda b: st.blocks.has(b) & holds(st, row, b) & (st.index(b) < whole)),
                "the row holds the blocks, and they are computed whole",
            ),
        ),
        then=but(
            st,
            length=st.length.put(other, whole),
            filled=st.filled.put(other, whole),
            table=st.table.where(
                lambda r, i: (r == other) & (i < whole) & lent.has(st.table(row, i)),
                lambda _, i: st.table(row, i),
                lambda: [(other, st.index(b)) for b in lent.items()],
            ),
            refs=st.refs.where(lent.has, lambda b: st.refs(b) + 1, lent.items),
        ),
    )


@stem.transition
def evict(st: BlockPoolState, gone: Set) -> Step[BlockPoolState]:
    """The prefix cache does not find these blocks any more; who holds one of them keeps it."""
    return Step(
        promises=(requires(gone.all(st.blocks.has), "the blocks are blocks of the pool"),),
        then=but(st, hash=st.hash.where(gone.has, NO_HASH, gone.items)),
    )


@stem.transition
def reset(st: BlockPoolState, done: Truth) -> Step[BlockPoolState]:
    """The prefix cache forgets every block, as after new weights; while a block is held this is refused (not done)."""
    return Step(
        choice=(requires(done == nobody_holds(st), "the prefix cache is reset exactly where every block is free"),),
        then=but(
            st,
            hash=st.hash.where(lambda _: done, NO_HASH, st.blocks.items),
            content=st.content.where(lambda _: done, UNWRITTEN, st.blocks.items),
        ),
    )


def nobody_holds(st: BlockPoolState) -> Truth:
    """Every block is free."""
    return st.blocks.all(lambda b: st.refs(b) == 0)


# The laws.

stem.invariant()(block_pool_state.stands_at_its_place)
stem.invariant()(block_pool_state.rows_are_formed)
stem.each(blocks_of, counts=True)(block_pool_state.count_is_holders)
for _follows in (block_pool_state.held_is_counted, block_pool_state.counted_is_held):
    stem.each(blocks_of, uses=("count_is_holders",))(_follows)
stem.invariant()(block_pool_state.available_counts)
stem.invariant()(block_pool_state.hash_names_content)
stem.invariant()(block_pool_state.filled_holds_own_text)
stem.invariant()(block_pool_state.written_is_own)
stem.theorem(about=())(block_pool_state.shared_is_not_written)
stem.theorem(about=(), each=blocks_of)(block_pool_state.unheld_is_free)
stem.theorem(about=())(block_pool_state.all_is_given_back)

# What calls do.

stem.change(besides=("take", "cache", "displace", "evict", "reset"))(block_effects.hashes_stay)
stem.change(besides=("take", "fill", "move", "reset"))(block_effects.contents_stay)
stem.change(only=("begin",))(block_effects.row_begins)
stem.change(only=("skip",))(block_effects.row_is_skipped)
stem.change(only=("join",))(block_effects.row_gets_what_was_found)
stem.change(only=("take",))(block_effects.row_gets_new_blocks)
stem.change(only=("fill",))(block_effects.row_is_filled)
stem.change(only=("cache",))(block_effects.blocks_are_found)
stem.change(only=("displace",))(block_effects.equal_blocks_are_found)
stem.change(only=("leave",))(block_effects.row_gives_up)
stem.change(only=("cut",))(block_effects.row_is_cut)
stem.change(only=("move",))(block_effects.block_is_moved)
stem.change(only=("release",))(block_effects.row_ends)
stem.change(only=("lend",))(block_effects.blocks_are_lent)
stem.change(only=("evict",))(block_effects.blocks_are_not_found)
stem.change(only=("reset",))(block_effects.nothing_is_found)
stem.change(besides=("begin", "release"))(block_effects.rows_stay)

__all__ = ["BlockPoolState", "initial", "stem"]
