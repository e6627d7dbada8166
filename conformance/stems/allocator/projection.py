"""Projects the snapshot of a pool onto the law's state of the pool."""

from __future__ import annotations

from collections import Counter

from conformance.stems.allocator.protocol import AllocatorSnapshot
from spec.finite import Map
from spec.logic import but
from spec.pool import FREE, HELD, RELEASED, Pool


def project_pool(pool: Pool, seen: AllocatorSnapshot) -> Pool:
    """The law's pool, with each page where the lists show it, and as many available pages as are listed.

    A page that is on no list stays where the law has it. If the law has such a page as free, the result has it as held
    by nobody, which breaks ``no_leak``. A page that is listed twice is counted twice, which breaks
    ``available_counts``.
    """
    place = _places(pool, seen)
    available = len(seen.free) + len(seen.released)
    if place is pool.place and available == pool.available:
        return pool
    return but(pool, place=place, available=available)


def _places(pool: Pool, seen: AllocatorSnapshot) -> Map:
    place: Map = pool.place
    free, released = set(seen.free), set(seen.released)
    for page in pool.pages.items():
        known = pool.place(page)
        if page in free:
            now = FREE
        elif page in released:
            now = RELEASED
        else:
            now = HELD if known in (FREE, RELEASED) else known
        if now != known:
            place = place.put(page, now)
    return place


def list_problems(side: str, pool: Pool, seen: AllocatorSnapshot) -> list[str]:
    """What the lists show and the law's state has no field for, in words. ``side``: "full ", "SWA " or nothing."""
    sizes = (len(seen.free) + len(seen.released), seen.available)
    lawful = (pool.available, pool.available * pool.page_size)
    if sizes == lawful and len({*seen.free, *seen.released}) == pool.available:
        return []
    found = []
    for name, listed in (("free", seen.free), ("release", seen.released)):
        found += [f"{side}page {p} is on the {name} list {n} times" for p, n in Counter(listed).items() if n > 1]
        found += [
            f"the {name} list has {side}page {p}, which is no page of the pool" for p in listed if not pool.pages.has(p)
        ]
    found += [f"{side}page {p} is on both lists" for p in {*seen.free} & {*seen.released}]
    listed_tokens = (len(seen.free) + len(seen.released)) * pool.page_size
    if seen.available != listed_tokens:
        found.append(f"the {side}pool reports {seen.available} available tokens, its lists have {listed_tokens}")
    return sorted(found)


def lists_released(pool: Pool) -> bool:
    """The law has pages on the release list."""
    return bool(pool.need_sort) and bool(pool.pages.any(lambda p: pool.place(p) == RELEASED))
