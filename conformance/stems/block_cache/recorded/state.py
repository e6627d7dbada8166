"""The law's state that a recording begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conformance.recording.block_records import RecordedStart
from conformance.stems.block_cache.follow import Follower
from conformance.stems.block_cache.protocol import MAMBA, WINDOW, Known, sizes_of
from conformance.stems.block_cache.recorded.stories import RecordedStories
from conformance.stems.block_pool.protocol import NULL
from spec import block_cache as law
from spec import block_pool
from spec.block_cache import RUNS, BlockCacheState
from spec.block_pool_state import BlockPoolState
from spec.finite import Domain
from spec.lengths import in_pages
from spec.logic import but

MOST_STORIES = 1 << 31
MOST_DRAFTS = 32  # most draft tokens of a request in a step: a table of states has a block for each
STEPS_IN_FLIGHT = 3  # most steps whose requests may have left while their blocks are given back later


def first_state(config: Mapping[str, Any], stories: RecordedStories) -> BlockCacheState:
    """Every block is free and no row is in use. The sizes are those of the recorded scheduler."""
    groups = config["layers"]
    rows = config["requests"] * (1 + STEPS_IN_FLIGHT) * len(groups)
    places = -(-config["max_length"] // min(sizes_of(config))) + 2 + MOST_DRAFTS
    tells: Any = stories  # it is called as the law's map is
    pool = block_pool.initial(config["blocks"], rows, places, len(groups), 0, tells)
    pool = but(pool, stories=Domain(0, MOST_STORIES))
    windows = [group["window"] - 1 if group["kind"] == WINDOW else None for group in groups]
    return law.initial(pool, sizes_of(config), windows, [group["kind"] == MAMBA for group in groups], 1)


def standing_state(
    st: BlockCacheState,
    start: RecordedStart,
    known: Mapping[int, Known],
    follower: Follower,
    stories: RecordedStories,
) -> BlockCacheState:
    """The state that a start shows. ``st``: the first state. ``known``: the requests as they are shown. ``follower``
    gets those that have blocks.

    What is not shown is taken as it must be: what a request has computed is its own text, unless the hash of the block
    says otherwise. The place of a block that is free and found is not known until somebody gets the block.
    """
    named = {block: stories.of_digest(digest) for block, _, digest in start.names}
    st = but(st, pool=_cached(st.pool, start, stories))
    for one in start.requests:
        follower.comes(one.request, 0, (), ())
        if not any(map(any, one.tables)):
            continue
        computed = one.computed - sum(one.drafts)
        rows = follower.stands(one.request, computed, one.drafts)
        for row, table in zip(rows, known[one.request].tables, strict=True):
            st = _with_row(st, row, follower.story(one.request, st.pool.group(row)), table, computed, named)
    return but(st, pool=but(st.pool, available=start.available))


def _cached(pool: BlockPoolState, start: RecordedStart, stories: RecordedStories) -> BlockPoolState:
    """The blocks with their counts, and with the hashes under which the prefix cache finds them."""
    refs, hashes, content, home = pool.refs, pool.hash, pool.content, pool.home
    for block, count in enumerate(start.refs, start=1):
        if count:
            refs = refs.put(block, count)
    for block, group, digest in start.names:
        prefix = stories.of_digest(digest)
        hashes, content, home = hashes.put(block, prefix), content.put(block, prefix), home.put(block, group)
    return but(pool, refs=refs, hash=hashes, content=content, home=home)


def _with_row(
    st: BlockCacheState, row: int, story: int, table: Sequence[int], computed: int, named: Mapping[int, int]
) -> BlockCacheState:
    """The state with one row more, which has computed so many tokens."""
    pool, done = st.pool, in_pages(computed, st.block_size(row))
    tables, index, home, content = pool.table, pool.index, pool.home, pool.content
    for place, block in enumerate(table):
        if block == NULL:
            continue
        tables, index = tables.put((row, place), block), index.put(block, place)
        home = home.put(block, pool.group(row))
        if place < done.pages and block not in named:
            content = content.put(block, pool.tells(story, place))
    pool = but(
        pool,
        table=tables,
        index=index,
        home=home,
        content=content,
        active=pool.active.put(row, 1),
        story=pool.story.put(row, story),
        length=pool.length.put(row, len(table)),
        filled=pool.filled.put(row, done.pages),
    )
    windowed = st.windowed(row) == 1
    first = next((place for place, block in enumerate(table) if block != NULL), 0) if windowed else 0
    return but(
        st,
        pool=pool,
        whole=st.whole.put(row, done.pages),
        rest=st.rest.put(row, done.rest),
        ahead_whole=st.ahead_whole.put(row, len(table)),
        ahead_rest=st.ahead_rest.put(row, 0),
        first=st.first.put(row, first),
        phase=st.phase.put(row, RUNS),
    )


def in_use(st: BlockCacheState) -> BlockCacheState:
    """The state without the rows and places that nobody uses: every law says of them what it says of nothing."""
    pool = st.pool
    rows = max((row for row in pool.rows.items() if pool.active(row)), default=1)
    places = max((pool.length(row) for row in range(1, rows + 1)), default=1)
    return but(st, pool=but(pool, rows=Domain(1, rows), indices=Domain(0, max(places, 1) - 1)))
