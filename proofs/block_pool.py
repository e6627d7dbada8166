"""What the provers need for blocks with many holders: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from proofs.answers import Pick, empty, no_pages
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from spec import block_pool as law
from spec.block_pool_state import (
    NO_HASH,
    UNWRITTEN,
    BlockPoolState,
    alike,
    found_for,
    held_by,
    holds,
    of_row,
    runs,
    some_free,
)
from spec.finite import Map, Seq, Set
from spec.logic import Number, Step, Truth, but, requires

SIZES = {"blocks": 3, "tables": 2, "places": 3, "stories": 2}


def small() -> tuple[BlockPoolState, ...]:
    """Three blocks, two rows of one group with at most three places, and one text."""
    return (law.initial(blocks=3, rows=2, indices=3),)


def used(st: BlockPoolState) -> list[int]:
    """The rows in use."""
    return [r for r in st.rows.items() if runs(st, r)]


def _longer(st: BlockPoolState, row: int) -> range:
    """The lengths that are one or two places longer."""
    return range(st.length(row) + 1, min(st.length(row) + 2, st.indices.high + 1) + 1)


def _join(st: BlockPoolState) -> Iterator[tuple[int, Seq]]:
    """The blocks that the prefix cache finds for a row, one or two."""
    for row in used(st):
        found: list[int] = []
        for index in range(st.length(row), st.indices.high + 1):
            hits = [b for b in st.blocks.items() if found_for(st, row, index, b)]
            if not hits:
                break
            found.append(hits[0])
            yield row, Seq(found)


def _take(st: BlockPoolState) -> Iterator[tuple[int, int, Seq]]:
    for row in used(st):
        for to in _longer(st, row):
            count = to - st.length(row)
            yield row, count, some_free(st, count)


def _places(st: BlockPoolState) -> Iterator[tuple[int, int]]:
    """Rows, and the numbers of places from those computed whole to all."""
    yield from ((r, to) for r in used(st) for to in range(st.filled(r), st.length(r) + 1))


def _held(st: BlockPoolState) -> Iterator[tuple[int, Set]]:
    """Rows, and each of their blocks by itself, and all of them."""
    for row in used(st):
        blocks = of_row(st, row)
        yield from ((row, Set(some)) for some in (*([b] for b in blocks), *([blocks] if len(blocks) > 1 else [])))


def _twins(st: BlockPoolState) -> Iterator[tuple[Set]]:
    """Each block by itself whose hash another block has too."""
    blocks = st.blocks.items()
    yield from ((Set([b]),) for b in blocks if any(alike(st, b, other) and other != b for other in blocks))


def _lend(st: BlockPoolState) -> Iterator[tuple[int, int, Set]]:
    for row in used(st):
        whole = [b for b in of_row(st, row) if st.index(b) < st.filled(row)]
        yield from ((row, other, Set(whole)) for other in used(st) if other != row)


MOVES = {
    "begin": lambda st: ((r, s) for r in st.rows.items() for s in st.stories.items()),
    "skip": lambda st: ((r, to) for r in used(st) for to in _longer(st, r)),
    "join": _join,
    "take": _take,
    "fill": _places,
    "cache": _held,
    "displace": _twins,
    "leave": _held,
    "cut": _places,
    "move": lambda st: ((r, b, to) for r in used(st) for b in of_row(st, r) for to in st.indices.items()),
    "release": lambda st: ((r,) for r in used(st)),
    "lend": _lend,
    "evict": lambda st: ((Set([b]),) for b in st.blocks.items()),
    "reset": lambda _: [(True,), (False,)],
}


# Mutants: what each transition would do without one line of the law.


def joins_another_text(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """The prefix cache finds a block under a hash that means another text."""
    wrong = "each block found has the hash of the row's own text at its place"
    return unchosen(law.join(st, row, found), wrong)


def joins_uncounted(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """A hit does not count the row as a holder: the block is freed while the row reads it."""
    return altered(law.join(st, row, found), refs=st.refs, available=st.available)


def joins_held_blocks_alone(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """A hit of a free block leaves the block among the free ones."""
    return altered(law.join(st, row, found), available=st.available)


def joins_unfinished(st: BlockPoolState, row: Number, found: Seq) -> Step[BlockPoolState]:
    """A row that still writes its last block goes on with blocks from the prefix cache."""
    return unasked(law.join(st, row, found), "every place of the row is computed whole")


def takes_held(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A block is handed out that somebody holds."""
    return unchosen(law.take(st, row, count, chosen), "the blocks handed out were free")


def takes_with_hash(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A block is handed out, and the prefix cache still finds it under its old text."""
    return altered(law.take(st, row, count, chosen), hash=st.hash)


def takes_unplaced(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A block is handed out for one place and stands at another."""
    return altered(law.take(st, row, count, chosen), index=st.index)


def takes_more(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A row with new blocks is longer than the blocks that it got."""
    step = law.take(st, row, count, chosen)
    return altered(step, length=step.then.length.put(row, st.length(row) + count + 1))


def takes_computed(st: BlockPoolState, row: Number, count: Number, chosen: Seq) -> Step[BlockPoolState]:
    """A row counts its new blocks as computed, though nobody has written them."""
    step = law.take(st, row, count, chosen)
    return altered(step, filled=step.then.length)


def fills_too_far(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """More places count as computed than the row has."""
    return unasked(law.fill(st, row, to), "the row has the places that are computed")


def fills_unwritten(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """Places count as computed, and nobody has written their blocks, such as after a transfer that failed."""
    return altered(law.fill(st, row, to), content=st.content)


def caches_too_early(st: BlockPoolState, row: Number, named: Set) -> Step[BlockPoolState]:
    """A block gets a hash before it is computed whole: another request reads what is not there yet."""
    step = unchosen(law.cache(st, row, named), "a block that gets a hash is held by the row and computed whole")
    return but(step, choice=(requires(named.all(lambda b: holds(st, row, b)), "the row holds the blocks"),))


def displaces_the_last(st: BlockPoolState, gone: Set) -> Step[BlockPoolState]:
    """A block is not found any more, though no other block has its hash: the next equal prompt is computed again."""
    wrong = "another block with its hash is found for each block that is not found any more"
    return unchosen(law.displace(st, gone), wrong)


def leaves_uncounted(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A row gives up a block, and its reference count stays: the block is never free again."""
    return altered(law.leave(st, row, gone), refs=st.refs, available=st.available)


def leaves_twice(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A row gives up a block that left its window, and keeps it in its table: the block is freed again at the end."""
    return altered(law.leave(st, row, gone), table=st.table)


def leaves_unheld(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A row frees blocks that it does not hold: it freed them before, or they are another row's."""
    return unasked(law.leave(st, row, gone), "the row holds the blocks")


def cuts_uncounted(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """The blocks of refused drafts are given up, and do not count as free."""
    return altered(law.cut(st, row, to), available=st.available)


def cuts_computed(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """A row gives up places that are computed, and still counts them as computed."""
    return unasked(law.cut(st, row, to), "no place that is computed whole is given up")


def moves_shared(st: BlockPoolState, row: Number, block: Number, to: Number) -> Step[BlockPoolState]:
    """A row moves a block that is computed and that others may hold at its old place."""
    return unasked(law.move(st, row, block, to), "the row holds the block and still writes it")


def moves_onto(st: BlockPoolState, row: Number, block: Number, to: Number) -> Step[BlockPoolState]:
    """A row moves a block to a place where it holds another one, which is lost."""
    return unasked(law.move(st, row, block, to), "the row holds no block at the new place")


def releases_used(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """A row that ended still has places."""
    return altered(law.release(st, row), length=st.length)


def releases_kept(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """The blocks of a row that ended stay counted as held."""
    return altered(law.release(st, row), refs=st.refs, available=st.available)


def releases_all(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """A request that ends frees its blocks for everybody, though others still hold them."""
    step = law.release(st, row)
    return altered(step, refs=st.refs.where(held_by(st, row).has, 0, lambda: of_row(st, row)))


def lends_unwritten(st: BlockPoolState, row: Number, other: Number, lent: Set) -> Step[BlockPoolState]:
    """A transfer counts as a holder of blocks that their row still writes, and does not get them."""
    step = law.lend(st, row, other, lent)
    return unasked(step, "the row holds the blocks, and they are computed whole")


def lends_to_another_text(st: BlockPoolState, row: Number, other: Number, lent: Set) -> Step[BlockPoolState]:
    """A row gets blocks of a row with another text."""
    return unasked(law.lend(st, row, other, lent), "both rows have one text")


def evicts_when_released(st: BlockPoolState, row: Number) -> Step[BlockPoolState]:
    """The blocks of a row that ended lose their hashes, so that the next equal prompt is computed again."""
    gone = held_by(st, row)
    return altered(law.release(st, row), hash=st.hash.where(gone.has, NO_HASH, lambda: of_row(st, row)))


def wipes_when_left(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A block that a row gives up is wiped, though the prefix cache still finds it or others hold it."""
    return altered(law.leave(st, row, gone), content=st.content.where(gone.has, UNWRITTEN, gone.items))


def begins_again(st: BlockPoolState, row: Number, story: Number) -> Step[BlockPoolState]:
    """A row in use gets another text."""
    return unasked(law.begin(st, row, story), "the row is not in use")


def renames(st: BlockPoolState, row: Number, to: Number) -> Step[BlockPoolState]:
    """A row changes its text while it is filled."""
    return altered(law.fill(st, row, to), story=st.story.put(row, st.story(row) + 1))


def counts_one_too_few(st: BlockPoolState, row: Number, gone: Set) -> Step[BlockPoolState]:
    """A block that a row gives up has one holder less than it has, once it is free."""
    step = law.leave(st, row, gone)
    return altered(step, refs=step.then.refs.where(gone.has, -1, gone.items))


def resets_in_use(st: BlockPoolState, done: Truth) -> Step[BlockPoolState]:
    """The prefix cache is reset and its blocks are wiped while requests hold blocks."""
    return unchosen(law.reset(st, done), "the prefix cache is reset exactly where every block is free")


def begins_without_text(st: BlockPoolState, row: Number, story: Number) -> Step[BlockPoolState]:
    """A request begins without a text."""
    return unasked(law.begin(st, row, story), "the request's text has a number")


# Calls that keep no promise but that of a row in use: they show what a mutant does that no longer asks for one.

CACHED = "begin take fill cache"  # the calls after which the prefix cache finds a block


def two_stories() -> tuple[BlockPoolState, ...]:
    """Three blocks, two rows, and two texts that differ from their first block on."""
    numbers = [((story, index), 3 * story + index + 1) for story in (0, 1) for index in range(3)]
    tells = Map(2)
    for key, value in numbers:
        tells = tells.put(key, value)
    return (law.initial(blocks=3, rows=2, indices=3, stories=2, tells=tells),)


def tried(transition: str, calls: Callable[[BlockPoolState], Iterator[tuple[Any, ...]]], **more: Any) -> dict[str, Any]:
    """Where a mutant is searched for: these calls of its transition, and all else as for the right one."""
    return {"moves": {**MOVES, transition: calls}, **more}


def _any_block(st: BlockPoolState) -> Iterator[tuple[int, Seq]]:
    yield from ((row, Seq([b])) for row in used(st) for b in st.blocks.items())


ANY_FILL = tried("fill", lambda st: ((r, to + 1) for r, to in _places(st)))
ANY_TAKE = tried("take", lambda st: ((row, 1, chosen) for row, chosen in _any_block(st)))
ANY_LEAVE = tried("leave", lambda st: ((row, Set([b])) for row in used(st) for b in st.blocks.items()))
ANY_JOIN = tried("join", _any_block, small=two_stories, routes={"join": f"{CACHED} begin"})
ANY_LEND = tried(
    "lend",
    lambda st: ((a, b, Set(of_row(st, a))) for a in used(st) for b in used(st) if a != b),
    small=two_stories,
    routes={"lend": "begin take fill begin"},
)
ANY_CUT = tried("cut", lambda st: ((r, to) for r in used(st) for to in range(st.length(r))))
ANY_DISPLACE = tried("displace", lambda st: ((Set([b]),) for b in st.blocks.items()), routes={"displace": CACHED})
NO_STORY = tried("begin", lambda st: ((r, st.stories.high + 1) for r in st.rows.items()))
LENT = {"routes": {"move": "begin take fill skip begin lend"}}  # a block that two rows hold

MUTANTS = (
    *idlers(
        law.stem,
        begin="row_begins",
        skip="row_is_skipped",
        join="row_gets_what_was_found",
        take="row_gets_new_blocks",
        fill="row_is_filled",
        cache="blocks_are_found",
        displace="equal_blocks_are_found",
        leave="row_gives_up",
        cut="row_is_cut",
        move="block_is_moved",
        release="row_ends",
        lend="blocks_are_lent",
        evict="blocks_are_not_found",
        reset="nothing_is_found",
    ),
    Mutant("takes_unplaced", "take", "stands_at_its_place", takes_unplaced),
    Mutant("moves_shared", "move", "stands_at_its_place", moves_shared, LENT),
    Mutant("moves_onto", "move", "count_is_holders", moves_onto),
    Mutant("releases_used", "release", "rows_are_formed", releases_used),
    Mutant("fills_too_far", "fill", "rows_are_formed", fills_too_far, ANY_FILL),
    Mutant("begins_without_text", "begin", "rows_are_formed", begins_without_text, NO_STORY),
    Mutant("joins_uncounted", "join", "count_is_holders", joins_uncounted),
    Mutant("displaces_the_last", "displace", "equal_blocks_are_found", displaces_the_last, ANY_DISPLACE),
    Mutant("leaves_twice", "leave", "count_is_holders", leaves_twice),
    Mutant("leaves_unheld", "leave", "count_is_holders", leaves_unheld, ANY_LEAVE),
    Mutant("takes_held", "take", "count_is_holders", takes_held, ANY_TAKE),
    Mutant("releases_all", "release", "held_is_counted", releases_all),
    Mutant("counts_one_too_few", "leave", "held_is_counted", counts_one_too_few),
    Mutant("leaves_uncounted", "leave", "counted_is_held", leaves_uncounted),
    Mutant("joins_held_blocks_alone", "join", "available_counts", joins_held_blocks_alone),
    Mutant("cuts_uncounted", "cut", "available_counts", cuts_uncounted),
    Mutant("takes_with_hash", "take", "hash_names_content", takes_with_hash),
    Mutant("caches_too_early", "cache", "hash_names_content", caches_too_early),
    Mutant("resets_in_use", "reset", "filled_holds_own_text", resets_in_use),
    Mutant("joins_another_text", "join", "filled_holds_own_text", joins_another_text, ANY_JOIN),
    Mutant("takes_computed", "take", "filled_holds_own_text", takes_computed),
    Mutant("fills_unwritten", "fill", "filled_holds_own_text", fills_unwritten),
    Mutant("lends_to_another_text", "lend", "filled_holds_own_text", lends_to_another_text, ANY_LEND),
    Mutant("wipes_when_left", "leave", "contents_stay", wipes_when_left),
    Mutant("lends_unwritten", "lend", "count_is_holders", lends_unwritten, ANY_LEND),
    Mutant("caches_what_is_written", "cache", "written_is_own", caches_too_early),
    Mutant("begins_again", "begin", "filled_holds_own_text", begins_again),
    Mutant("joins_unfinished", "join", "filled_holds_own_text", joins_unfinished),
    Mutant("cuts_computed", "cut", "rows_are_formed", cuts_computed, ANY_CUT),
    Mutant("evicts_when_released", "release", "hashes_stay", evicts_when_released),
    Mutant("renames", "fill", "rows_stay", renames),
    Mutant("takes_held_and_shares", "take", "shared_is_not_written", takes_held, ANY_TAKE),
    Mutant("releases_the_row_alone", "release", "unheld_is_free", releases_kept),
    Mutant("releases_kept", "release", "all_is_given_back", releases_kept),
)


def _new_blocks(pick: Pick, st: BlockPoolState, given: Mapping[str, Any]) -> dict[str, Any]:
    return {"chosen": pick.members(st.blocks, given["count"])}


ANSWERS = {
    "join": lambda _, st, __: {"found": no_pages(st.blocks)},
    "take": _new_blocks,
    "cache": lambda _, st, __: {"named": empty(st.blocks)},
    "displace": lambda _, st, __: {"gone": empty(st.blocks)},
    "reset": lambda _, st, __: {"done": law.nobody_holds(st)},
}

HINTS = Hints(
    stem=law.stem,
    over={name: lambda st: st.blocks for name in ("found", "chosen", "named", "gone", "lent")},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    places={"row": "tables", "other": "tables", "block": "blocks"},
    refusable=frozenset({"take"}),
    routes={"displace": f"{CACHED} {CACHED}"},
    relevant_laws={
        "unheld_is_free": "counted_is_held held_is_counted stands_at_its_place",
        "all_is_given_back": "available_counts unheld_is_free",
        "reset filled_holds_own_text": "held_is_counted stands_at_its_place",
        **dict.fromkeys(
            (
                *("join available_counts", "join count_is_holders", "join filled_holds_own_text"),
                *("take count_is_holders", "take written_is_own", "take filled_holds_own_text"),
                *("take stands_at_its_place", "lend written_is_own"),
            ),
            "held_is_counted rows_are_formed stands_at_its_place written_is_own",
        ),
    },
    answers=ANSWERS,
    mutants=MUTANTS,
    assumptions=COMMON,
)
