"""Two pools and their mapping as a subject shows them, beside what the law says of them."""

from __future__ import annotations

from collections.abc import Sequence

import immutables

from conformance.pools import list_differences, live_slots, observed_pool
from conformance.subjects.adapter import Lists
from spec.finite import Map
from spec.logic import but
from spec.pair import Pair


def observed_pair(pair: Pair, full: Lists, swa: Lists, mapping: Sequence[int]) -> Pair:
    """Both pools as their lists show them, and the mapping tensor."""
    size = pair.full.page_size
    entries = [(divmod(slot, size), entry) for slot, entry in enumerate(mapping) if entry]
    return but(
        pair,
        full=observed_pool(pair.full, full.free, full.released),
        swa=observed_pool(pair.swa, swa.free, swa.released),
        to_page=Map(2, 0, immutables.Map({key: entry // size for key, entry in entries})),
        to_offset=Map(2, 0, immutables.Map({key: entry % size for key, entry in entries})),
    )


def pair_differences(pair: Pair, seen: Pair, full: Lists, swa: Lists) -> list[str]:
    """Lists, available sizes, and the mapping of every slot that a row uses."""
    found = []
    for name, pool, lists in (("full", pair.full, full), ("SWA", pair.swa, swa)):
        found += list_differences(name, pool, lists.free, lists.released)
        want = pool.available * pool.page_size
        if lists.available != want:
            found.append(f"{name.lower()}_available_size is {lists.available}, not {want}")
    return found + _mapping_differences(pair, seen)


def _mapping_differences(pair: Pair, seen: Pair) -> list[str]:
    found, size = [], pair.full.page_size
    for p, o in live_slots(pair.full):
        want = pair.to_page(p, o) * size + pair.to_offset(p, o)
        have = seen.to_page(p, o) * size + seen.to_offset(p, o)
        if want != have:
            found.append(f"full slot {p * size + o} maps to SWA slot {have}, the law has {want or 'nothing'}")
    return found


def stale_entries(pair: Pair, seen: Pair) -> str:
    """The mapping of the slots that nobody may read."""
    live, size = set(live_slots(pair.full)), pair.full.page_size
    entries = [(p, o, s) for (p, o), s in seen.to_page.items() if s and (p, o) not in live]
    return "; ".join(f"full slot {p * size + o} still maps to SWA page {s}" for p, o, s in sorted(entries))
