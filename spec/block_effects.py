"""What the calls of ``spec.block_pool`` do: laws of the state before a call and the state after it."""

from __future__ import annotations

from collections.abc import Callable

from spec.block_pool_state import NO_HASH, NULL, UNWRITTEN, BlockPoolState, alike, holds, prefix_at, runs
from spec.logic import Number, Seq, Set, Truth, implies, ite, no


def _others(was: BlockPoolState, row: Number, law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for each row but this one."""
    return was.rows.all(lambda r: (r == row) | law(r))


def others_keep_their_blocks(was: BlockPoolState, now: BlockPoolState, row: Number) -> Truth:
    """Every other row has the blocks that it had, and no row but this one gets longer or shorter."""

    def kept(r: Number) -> Truth:
        table = was.indices.all(lambda i: was.table(r, i) == now.table(r, i))
        return table & (was.length(r) == now.length(r)) & (was.filled(r) == now.filled(r))

    return _others(was, row, kept)


def grows(was: BlockPoolState, now: BlockPoolState, row: Number, by: Seq) -> Truth:
    """The row has the blocks of ``by`` behind what it had, and no other row changes."""
    first = was.length(row)

    def there(i: Number) -> Truth:
        new = (first <= i) & (i < first + by.length)
        return now.table(row, i) == ite(new, by.at(i - first), was.table(row, i))

    longer = now.length(row) == first + by.length
    return longer & was.indices.all(there) & others_keep_their_blocks(was, now, row)


def hashes_stay(was: BlockPoolState, now: BlockPoolState) -> Truth:
    """A block keeps its hash until it is handed out again, evicted, or the whole prefix cache is reset."""
    return was.blocks.all(lambda b: was.hash(b) == now.hash(b))


def contents_stay(was: BlockPoolState, now: BlockPoolState) -> Truth:
    """A block keeps what was computed in it until it is handed out again, or written by the row that alone holds it."""
    return was.blocks.all(lambda b: was.content(b) == now.content(b))


def rows_stay(was: BlockPoolState, now: BlockPoolState) -> Truth:
    """A row is in use from its beginning until it is released, with one text."""
    return was.rows.all(lambda r: (runs(was, r) == runs(now, r)) & (was.story(r) == now.story(r)))


def row_begins(was: BlockPoolState, now: BlockPoolState, row: Number, story: Number) -> Truth:
    """A row that begins is in use, has its text and no block; no other row changes."""
    others = _others(was, row, lambda r: (runs(was, r) == runs(now, r)) & (was.story(r) == now.story(r)))
    begun = runs(now, row) & (now.story(row) == story) & (now.length(row) == 0)
    return begun & others & others_keep_their_blocks(was, now, row)


def row_is_skipped(was: BlockPoolState, now: BlockPoolState, row: Number, to: Number) -> Truth:
    """A row that is skipped to a place has null blocks up to there, behind what it had; no other row changes."""
    table = was.indices.all(lambda i: was.table(row, i) == now.table(row, i))
    kept = now.filled(row) == was.filled(row)
    return (now.length(row) == to) & kept & table & others_keep_their_blocks(was, now, row)


def row_gets_what_was_found(was: BlockPoolState, now: BlockPoolState, row: Number, found: Seq) -> Truth:
    """A row gets exactly the blocks that were found for it, computed whole; no other row changes."""
    return grows(was, now, row, found) & (now.filled(row) == now.length(row))


def row_gets_new_blocks(was: BlockPoolState, now: BlockPoolState, row: Number, chosen: Seq) -> Truth:
    """A row gets exactly the blocks that are handed out, none of them computed; these alone lose hash and content."""

    def lost(b: Number) -> Truth:
        new = chosen.has(b)
        hashed = now.hash(b) == ite(new, NO_HASH, was.hash(b))
        return hashed & (now.content(b) == ite(new, UNWRITTEN, was.content(b)))

    computed = now.filled(row) == was.filled(row)
    return grows(was, now, row, chosen) & computed & was.blocks.all(lost)


def row_is_filled(was: BlockPoolState, now: BlockPoolState, row: Number, to: Number) -> Truth:
    """A row has ``to`` places that are computed whole; only blocks of these places are written, with the row's text."""

    def written(b: Number) -> Truth:
        new = holds(was, row, b) & (was.filled(row) <= was.index(b)) & (was.index(b) < to)
        return now.content(b) == ite(new, prefix_at(was, row, was.index(b)), was.content(b))

    return (now.filled(row) == to) & (now.length(row) == was.length(row)) & was.blocks.all(written)


def blocks_are_found(was: BlockPoolState, now: BlockPoolState, row: Number, named: Set) -> Truth:
    """Exactly the blocks that the engine offers get a hash, that of the row's text at their place."""

    def hashed(b: Number) -> Truth:
        return now.hash(b) == ite(named.has(b), prefix_at(was, row, was.index(b)), was.hash(b))

    return was.blocks.all(hashed)


def equal_blocks_are_found(was: BlockPoolState, now: BlockPoolState, gone: Set) -> Truth:
    """Exactly the blocks that are displaced lose their hash, and each text for which one was found still finds a block.

    The block that is found then was computed for this text, at this place and in this group of layers.
    """

    def forgotten(b: Number) -> Truth:
        return now.hash(b) == ite(gone.has(b), NO_HASH, was.hash(b))

    def found(b: Number) -> Truth:
        return was.blocks.any(lambda other: alike(was, b, other) & (now.hash(other) == was.hash(b)))

    return was.blocks.all(forgotten) & was.blocks.all(lambda b: implies(was.hash(b) != NO_HASH, found(b)))


def gives_up(was: BlockPoolState, now: BlockPoolState, row: Number, gone: Callable[[Number], Truth]) -> Truth:
    """The row has the null block where it held a block that is ``gone``, and else what it had."""

    def there(i: Number) -> Truth:
        block = was.table(row, i)
        return now.table(row, i) == ite((block != NULL) & gone(block), NULL, block)

    return was.indices.all(there)


def row_gives_up(was: BlockPoolState, now: BlockPoolState, row: Number, gone: Set) -> Truth:
    """A row gives up exactly the blocks that are named, and keeps its length; no other row changes."""
    kept = (was.length(row) == now.length(row)) & (was.filled(row) == now.filled(row))
    return gives_up(was, now, row, gone.has) & kept & others_keep_their_blocks(was, now, row)


def row_is_cut(was: BlockPoolState, now: BlockPoolState, row: Number, to: Number) -> Truth:
    """A row that is cut has ``to`` places, no more than before, and has given up exactly the blocks behind them.

    No other row changes.
    """
    cut = gives_up(was, now, row, lambda b: to <= was.index(b))
    shorter = (now.length(row) == to) & (to <= was.length(row))
    kept = now.filled(row) == was.filled(row)
    return shorter & kept & cut & others_keep_their_blocks(was, now, row)


def block_is_moved(was: BlockPoolState, now: BlockPoolState, row: Number, block: Number, to: Number) -> Truth:
    """A block that is moved stands at its new place and at no other; the row keeps all other blocks and its length."""

    def there(i: Number) -> Truth:
        return now.table(row, i) == ite(i == to, block, ite(i == was.index(block), NULL, was.table(row, i)))

    lengths = (now.length(row) == was.length(row)) & (now.filled(row) == was.filled(row))
    return was.indices.all(there) & lengths & others_keep_their_blocks(was, now, row)


def row_ends(was: BlockPoolState, now: BlockPoolState, row: Number) -> Truth:
    """A row that is released is not in use and holds no block; every other row is as it was."""
    others = _others(was, row, lambda r: runs(was, r) == runs(now, r))
    return no(runs(now, row)) & (now.length(row) == 0) & others & others_keep_their_blocks(was, now, row)


def blocks_are_lent(was: BlockPoolState, now: BlockPoolState, row: Number, other: Number, lent: Set) -> Truth:
    """The other row holds exactly the blocks that are lent, at their places; no row but this one changes."""

    def there(b: Number) -> Truth:
        return implies(lent.has(b), now.table(other, was.index(b)) == b)

    def nothing_else(i: Number) -> Truth:
        block = now.table(other, i)
        return (block == NULL) | lent.has(block)

    lengths = (now.length(other) == was.filled(row)) & (now.filled(other) == was.filled(row))
    table = was.blocks.all(there) & was.indices.all(nothing_else)
    return lengths & table & others_keep_their_blocks(was, now, other)


def blocks_are_not_found(was: BlockPoolState, now: BlockPoolState, gone: Set) -> Truth:
    """Exactly the blocks that are evicted from the prefix cache lose their hash."""
    return was.blocks.all(lambda b: now.hash(b) == ite(gone.has(b), NO_HASH, was.hash(b)))


def nothing_is_found(was: BlockPoolState, now: BlockPoolState, done: Truth) -> Truth:
    """After a reset that is done, the prefix cache finds no block and none counts as computed.

    A reset that is refused changes nothing.
    """

    def forgotten(b: Number) -> Truth:
        hashed = now.hash(b) == ite(done, NO_HASH, was.hash(b))
        return hashed & (now.content(b) == ite(done, UNWRITTEN, was.content(b)))

    return was.blocks.all(forgotten)
