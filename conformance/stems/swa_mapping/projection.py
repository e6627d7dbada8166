"""Projects the snapshot of two pools and their mapping onto the law's state of them."""

from __future__ import annotations

from collections.abc import Sequence

import immutables

from conformance.stems.allocator.projection import list_problems, lists_released, project_pool
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from spec.finite import Map, Set
from spec.logic import but
from spec.pair import Pair
from spec.pool import filled, held, waiting


def project_pair(pair: Pair, seen: SwaMappingSnapshot) -> Pair:
    """The law's pair, with both pools as their lists show them and the mapping as it is shown; ``pair`` itself if
    nothing differs.
    """
    full, swa = project_pool(pair.full, seen.full), project_pool(pair.swa, seen.swa)
    to_page, to_offset = _mapping(pair, seen.mapping)
    if full is pair.full and swa is pair.swa and to_page is pair.to_page and to_offset is pair.to_offset:
        return pair
    return but(pair, full=full, swa=swa, to_page=to_page, to_offset=to_offset)


def _mapping(pair: Pair, mapping: list[int]) -> tuple[Map, Map]:
    size = pair.full.page_size
    seen = {(slot // size, slot % size): entry for slot, entry in enumerate(mapping) if entry}
    known = {key: page * size + pair.to_offset(*key) for key, page in pair.to_page.items() if page}
    if seen == known:
        return pair.to_page, pair.to_offset
    pages = immutables.Map({key: entry // size for key, entry in seen.items()})
    return Map(2, 0, pages), Map(2, 0, immutables.Map({key: entry % size for key, entry in seen.items()}))


def pair_problems(pair: Pair, seen: SwaMappingSnapshot) -> list[str]:
    """What the lists of both pools show and the law's state has no field for, in words."""
    return list_problems("full ", pair.full, seen.full) + list_problems("SWA ", pair.swa, seen.swa)


def swa_slot(mapping: Sequence[int], slot: int) -> int:
    """The SWA slot to which the engine maps a full slot; 0 where it has none, as for a slot outside the pool."""
    return mapping[slot] if 0 <= slot < len(mapping) else 0


def is_read(pair: Pair, page: int, offset: int) -> bool:
    """A row uses this full slot, so that its mapping is read."""
    return bool(held(pair.full, page)) and offset < filled(pair.full, page)


def waiting_alone(pair: Pair) -> set[int]:
    """The SWA pages that wait for the end of a free group while no full page that waits maps into them."""
    alone = set(waiting(pair.swa, True).items())
    if alone:
        alone -= {page for (p, _), page in pair.to_page.items() if not held(pair.full, p)}
    return alone


def settled_swa(pair: Pair, seen: SwaMappingSnapshot) -> list[tuple[Set, bool]]:
    """The steps ``settle_swa`` that the snapshot shows, as their arguments.

    SWA pages that wait alone in the law and are on a list of the engine are available. Those that are on no list, and
    whose full slots the engine has unmapped, are unmapped.
    """
    alone = waiting_alone(pair)
    if not alone:
        return []
    size, ready = pair.full.page_size, alone & {*seen.swa.free, *seen.swa.released}
    into = [(page, seen.mapping[p * size + o]) for (p, o), page in pair.to_page.items() if page in alone - ready]
    unmapped = {page for page, _ in into} - {page for page, slot in into if slot}
    return [(Set(done), available) for done, available in ((ready, True), (unmapped, False)) if done]


def waits_in_group(group: int, page: int, seen: SwaMappingSnapshot) -> bool:
    """A full page that an engine gives back alone waits for the end of the free group: one is open, and the page is on
    no list of the pool.
    """
    return group > 0 and page not in {*seen.full.free, *seen.full.released}


def sorted_sides(pair: Pair, seen: SwaMappingSnapshot) -> list[bool]:
    """The pools whose release list the engine has sorted into its free list since the last call: false for the full
    pool, true for the SWA pool.
    """
    sides = ((False, pair.full, seen.full), (True, pair.swa, seen.swa))
    return [of_swa for of_swa, pool, lists in sides if not lists.released and lists_released(pool)]
