"""Blocks with many holders: the state and the laws of one pool of KV cache blocks, for ``spec.block_pool``.

A *row* is whoever holds blocks in order: the block table of one request in one group of layers, or a transfer of KV
cache that is under way. ``table(row, index)`` is the block at this place of the row, 0 where there is none. Block 0 is
the null block: it stands for a place that nobody reads, such as one that left the sliding window. It is never handed
out and has no holder. Several rows may hold one block: then all of them have it at one index, ``index(block)``, and all
belong to one group of layers, ``home(block)``. ``refs(block)`` is the reference count of the block. A block that
nobody holds is free; it keeps its content until it is handed out again.

A *story* is the whole text that a request will ever have, with all else on which its KV cache depends (adapter, salt),
cut into blocks of one size: groups of layers whose blocks differ in size have stories of their own for one text.
``tells(story, index)`` is the number of the prefix that ends with the block at this index: two stories of one size that
begin alike have the same numbers there. ``content(block)`` is the prefix for which the block was computed, and
``UNWRITTEN`` while it is not computed whole. ``hash(block)`` is the prefix under which the prefix cache finds the
block, and ``NO_HASH`` where it finds the block under none. A block hash of an engine covers the group and all tokens
up to the end of the block; so the prefix, ``index(block)`` and ``home(block)`` together are the hash of an engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.finite import Seq as FiniteSeq
from spec.logic import Domain, Map, Number, Set, Truth, but, constant, constant_map, implies, no, number, total, zeroed

NULL = 0  # the null block
UNWRITTEN = 0  # the content of a block that is not computed whole
NO_HASH = 0  # the hash of a block that the prefix cache does not find


@dataclass(frozen=True)
class BlockPoolState:
    """Who holds which block, and what each block contains. ``available`` counts the free blocks.

    A row in use (``active``) has ``length`` places, of which the first ``filled`` are computed whole.
    """

    blocks: Domain = constant("pages", shared="blocks")
    rows: Domain = constant("pages", shared="tables")
    indices: Domain = constant("naturals", shared="places")
    stories: Domain = constant("naturals", shared="stories")
    tells: Map = constant_map(2)
    group: Map = constant_map(1)
    active: Map = total(1)
    story: Map = total(1)
    length: Map = total(1)
    filled: Map = total(1)
    table: Map = total(2)
    refs: Map = total(1)
    index: Map = total(1)
    home: Map = total(1)
    hash: Map = total(1)
    content: Map = total(1)
    available: Number = number()


MAPS = ("active", "story", "length", "filled", "table", "refs", "index", "home", "hash", "content")


def initial(
    blocks: int, rows: int, indices: int, groups: int = 1, stories: int = 1, tells: FiniteMap | None = None
) -> BlockPoolState:
    """``blocks`` free blocks beside the null block, and ``rows`` rows of at most ``indices`` places (finite reading).

    The row ``r`` belongs to the group ``r % groups``. ``tells``: without it, no two prefixes of a story are told apart
    but by their index, and all stories are alike.
    """
    told = FiniteMap(2, items=None) if tells is None else tells
    if tells is None:
        for story in range(stories):
            for index in range(indices):
                told = told.put((story, index), index + 1)
    of_rows = FiniteMap(1)
    for row in range(1, rows + 1):
        of_rows = of_rows.put(row, row % groups)
    maps = {name: FiniteMap(2 if name == "table" else 1) for name in MAPS}
    domains = {"blocks": Range(1, blocks), "rows": Range(1, rows), "indices": Range(0, indices - 1)}
    return BlockPoolState(**domains, stories=Range(0, stories - 1), tells=told, group=of_rows, **maps, available=blocks)


def start(st: BlockPoolState) -> BlockPoolState:
    """Before the first call: every block is free and has neither content nor hash, and no row is in use."""
    return but(zeroed(st, MAPS, ()), available=st.blocks.size)


def blocks_of(st: BlockPoolState) -> Domain:
    """The numbers that blocks can have."""
    return st.blocks


def rows_of(st: BlockPoolState) -> Domain:
    """The numbers that rows can have."""
    return st.rows


def runs(st: BlockPoolState, row: Number) -> Truth:
    """The row is in use."""
    return st.active(row) == 1


def holds(st: BlockPoolState, row: Number, block: Number) -> Truth:
    """The row holds the block, at the block's index."""
    index = st.index(block)
    return (block != NULL) & st.indices.has(index) & (st.table(row, index) == block)


def is_free(st: BlockPoolState, block: Number) -> Truth:
    """The block can be handed out."""
    return st.blocks.has(block) & (st.refs(block) == 0)


def prefix_at(st: BlockPoolState, row: Number, index: Number) -> Number:
    """The prefix of the row's story that ends with the block at this index."""
    return st.tells(st.story(row), index)


def names(st: BlockPoolState, block: Number, story: Number, group: Number, index: Number) -> Truth:
    """The hash of the block is that of the story's text at this index of this group."""
    named = (st.hash(block) != NO_HASH) & (st.hash(block) == st.tells(story, index))
    return st.blocks.has(block) & named & (st.index(block) == index) & (st.home(block) == group)


def alike(st: BlockPoolState, block: Number, other: Number) -> Truth:
    """Both blocks have one hash, so that the prefix cache finds either for the same texts."""
    named = (st.hash(block) != NO_HASH) & (st.hash(block) == st.hash(other))
    there = (st.index(block) == st.index(other)) & (st.home(block) == st.home(other))
    return st.blocks.has(block) & st.blocks.has(other) & named & there


def found_for(st: BlockPoolState, row: Number, index: Number, block: Number) -> Truth:
    """The prefix cache finds the block for the row at this index: the block's hash is that of the row's own text."""
    return names(st, block, st.story(row), st.group(row), index)


def some_free(st: BlockPoolState, need: int) -> FiniteSeq:
    """The first ``need`` free blocks; no block if there are fewer (finite reading)."""
    blocks = [b for b in st.blocks.items() if is_free(st, b)]
    return FiniteSeq(blocks[:need] if len(blocks) >= need else [])


def of_row(st: BlockPoolState, row: int, since: int = 0) -> list[int]:
    """The blocks that the row holds from the place ``since`` on, in order (finite reading)."""
    return [b for i in range(since, st.length(row)) if (b := st.table(row, i)) != NULL]


def held_by(st: BlockPoolState, row: Number) -> Set:
    """The blocks that the row holds."""
    return st.blocks.such(lambda b: holds(st, row, b), lambda: of_row(st, row))


def given_up(st: BlockPoolState, gone: Set) -> BlockPoolState:
    """The blocks ``gone`` have one holder less each; what nobody holds any more is free."""
    last = st.blocks.such(lambda b: gone.has(b) & (st.refs(b) == 1), gone.items)
    refs = st.refs.where(gone.has, lambda b: st.refs(b) - 1, gone.items)
    return but(st, refs=refs, available=st.available + last.size)


# The laws.


def stands_at_its_place(st: BlockPoolState) -> Truth:
    """A row holds only blocks of the pool; each stands at one index of one group of layers, in all rows that hold it.

    Only a row in use holds blocks, and none beyond its length.
    """

    def placed(r: Number, i: Number) -> Truth:
        block = st.table(r, i)
        there = (st.index(block) == i) & (st.home(block) == st.group(r))
        return implies(block != NULL, st.blocks.has(block) & there & runs(st, r) & (i < st.length(r)))

    return st.rows.all(lambda r: st.indices.all(lambda i: placed(r, i)))


def rows_are_formed(st: BlockPoolState) -> Truth:
    """A row in use has a text, and no more filled places than places; a row that is not in use has no place."""
    return st.rows.all(
        lambda r: (
            (st.filled(r) >= 0)
            & (st.filled(r) <= st.length(r))
            & implies(runs(st, r), st.stories.has(st.story(r)))
            & implies(no(runs(st, r)), st.length(r) == 0)
        )
    )


def count_is_holders(st: BlockPoolState, b: Number) -> Truth:
    """The reference count of a block is the number of rows that hold it."""
    return st.refs(b) == st.rows.count(lambda r: holds(st, r, b))


def held_is_counted(st: BlockPoolState, b: Number) -> Truth:
    """A block that a row holds is not free: no block is handed out while somebody holds it."""
    return (st.refs(b) >= 0) & st.rows.all(lambda r: implies(holds(st, r, b), st.refs(b) > 0))


def counted_is_held(st: BlockPoolState, b: Number) -> Truth:
    """A block that is not free is held by a row: no block is lost."""
    return implies(st.refs(b) > 0, st.rows.any(lambda r: holds(st, r, b)))


def available_counts(st: BlockPoolState) -> Truth:
    """The number of free blocks is the number of blocks that nobody holds."""
    return st.available == st.blocks.count(lambda b: st.refs(b) == 0)


def hash_names_content(st: BlockPoolState) -> Truth:
    """A block that the prefix cache finds was computed for the text that its hash names."""
    return st.blocks.all(lambda b: implies(st.hash(b) != NO_HASH, st.content(b) == st.hash(b)))


def filled_holds_own_text(st: BlockPoolState) -> Truth:
    """At each place that is computed whole, the block that a row holds was computed for the row's own text.

    So what a request reads is its own: a hit gives it no block of another text, and nobody overwrites its blocks.
    """

    def own(r: Number, i: Number) -> Truth:
        there = (i < st.filled(r)) & (st.table(r, i) != NULL)
        return implies(there, st.content(st.table(r, i)) == prefix_at(st, r, i))

    return st.rows.all(lambda r: st.indices.all(lambda i: own(r, i)))


def written_is_own(st: BlockPoolState) -> Truth:
    """A block that a row still writes has no other holder, and the prefix cache does not find it."""

    def alone(r: Number, block: Number) -> Truth:
        return st.rows.all(lambda other: (other == r) | no(holds(st, other, block)))

    def own(r: Number, i: Number) -> Truth:
        block = st.table(r, i)
        there = (st.filled(r) <= i) & (block != NULL)
        return implies(there, (st.hash(block) == NO_HASH) & alone(r, block))

    return st.rows.all(lambda r: st.indices.all(lambda i: own(r, i)))


# What follows from the laws.


def shared_is_not_written(st: BlockPoolState) -> Truth:
    """A block that two rows hold is computed whole in both: nobody writes what another row reads."""

    def whole(r: Number, other: Number, b: Number) -> Truth:
        both = (r != other) & holds(st, r, b) & holds(st, other, b)
        return implies(both, (st.index(b) < st.filled(r)) & (st.index(b) < st.filled(other)))

    return st.rows.all(lambda r: st.rows.all(lambda other: st.blocks.all(lambda b: whole(r, other, b))))


def nobody_is_in(st: BlockPoolState) -> Truth:
    """No row is in use."""
    return st.rows.all(lambda r: no(runs(st, r)))


def unheld_is_free(st: BlockPoolState, b: Number) -> Truth:
    """Where no row is in use, a block is free."""
    return implies(nobody_is_in(st), st.refs(b) == 0)


def all_is_given_back(st: BlockPoolState) -> Truth:
    """Where no row is in use, every block is free: nothing is lost when all requests and transfers have ended."""
    return implies(nobody_is_in(st), st.available == st.blocks.size)
