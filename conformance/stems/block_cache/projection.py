"""Projects the snapshot of a scheduler and its pool onto the law's state of ``block_cache``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from conformance.stems.block_cache.follow import BlockStories, FollowedRequest
from conformance.stems.block_cache.protocol import BlockCacheSnapshot, Known
from conformance.stems.block_pool.projection import block_problems, project_blocks
from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name
from conformance.stems.host_tier.projection import host_problems
from spec.block_cache import BlockCacheState
from spec.block_pool_state import NULL, BlockPoolState
from spec.finite import Domain, Map
from spec.logic import but


def whole(seen: BlockPoolSnapshot, sizes: Sequence[int]) -> BlockPoolSnapshot:
    """The snapshot without the hashes of blocks that are computed only in part: no law speaks of them. ``sizes``: by
    group, the tokens of a block.
    """
    is_whole = _whole(sizes)
    if all(map(is_whole, seen.found)) and all(map(is_whole, _names(seen))):
        return seen
    named = {block: kept for block, names in seen.named.items() if (kept := tuple(filter(is_whole, names)))}
    return replace(seen, named=named, found={name: blocks for name, blocks in seen.found.items() if is_whole(name)})


def parts(seen: BlockPoolSnapshot, sizes: Sequence[int]) -> Iterator[tuple[Name, tuple[int, ...]]]:
    """The hashes of blocks that are computed only in part, each with the blocks that the prefix cache finds for it."""
    is_whole = _whole(sizes)
    return ((name, blocks) for name, blocks in seen.found.items() if name is not None and not is_whole(name))


def _names(seen: BlockPoolSnapshot) -> Iterator[Name | None]:
    for names in seen.named.values():
        yield from names


class _whole:
    """Whether a hash is one of whole blocks of its group. The text of a name begins with the mark."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def __call__(self, name: Name | None) -> bool:
        return name is None or (len(name.text) - 1) % self._sizes[name.group] == 0


def project(
    st: BlockCacheState,
    seen: BlockCacheSnapshot,
    pool: BlockPoolSnapshot,
    here: Mapping[int, FollowedRequest],
    stories: BlockStories,
) -> BlockCacheState:
    """The law's state with the tables, counts and hashes that the snapshot shows; ``st`` itself if nothing differs."""
    now = _tables(st.pool, seen, here)
    now = project_blocks(now, pool, stories.number)
    return st if now is st.pool else but(st, pool=now)


def _tables(st: BlockPoolState, seen: BlockCacheSnapshot, here: Mapping[int, FollowedRequest]) -> BlockPoolState:
    """The tables of requests as the scheduler shows them."""
    table = st.table
    for request, one in here.items():
        shown = seen.requests[request].tables if request in seen.requests else ()
        for group, row in enumerate(one.rows):
            blocks = shown[group] if group < len(shown) else ()
            table = with_row(table, row, blocks, range(max(len(blocks), st.length(row))))
    return st if table is st.table else but(st, table=table)


def with_row(table: Map, row: int, blocks: Sequence[int], places: Iterable[int]) -> Map:
    """The law's tables with the blocks that a row is shown to have at these places; ``table`` if nothing differs."""
    for place in places:
        block = blocks[place] if place < len(blocks) else NULL
        if table(row, place) != block:
            table = table.put((row, place), block)
    return table


def problems(
    st: BlockCacheState,
    seen: BlockCacheSnapshot,
    pool: BlockPoolSnapshot,
    here: Mapping[int, FollowedRequest],
    slots: Domain,
) -> list[str]:
    """What the snapshot shows and the law's state has no field for, in words. ``slots``: those of host memory."""
    host = [] if seen.host is None else [f"host memory: {said}" for said in host_problems(slots, seen.host)]
    return [*block_problems(st.pool, pool), *of_requests(seen.requests, here), *host]


def of_requests(known: Mapping[int, Known], here: Mapping[int, FollowedRequest]) -> Iterable[str]:
    """What is wrong with what the scheduler knows of these requests, in words. ``known``: as the scheduler shows it."""
    for request, one in here.items():
        shown = known.get(request)
        if shown is None:
            yield f"request {request} has not ended, and the scheduler does not have it"
            continue
        if not one.rows and not one.gives_up and any(any(blocks) for blocks in shown.tables):
            yield f"request {request} has blocks, and nobody gave it any"
        counted = one.computed + sum(one.drafts)
        waits_with_blocks = bool(one.rows) and not one.drafts and shown.status != "running"
        if not waits_with_blocks and shown.computed != counted:
            yield f"request {request} counts {shown.computed} tokens as computed, and its passes compute {counted}"
        both = min(len(shown.text), len(one.tokens))
        if tuple(one.tokens[:both]) != tuple(shown.text[:both]):
            yield f"request {request} has another text than its caller gave it and its passes have sampled"
