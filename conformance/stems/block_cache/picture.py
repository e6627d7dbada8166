"""Pictures of a scheduler's block tables."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.driver.diff import SCHEDULED, Names
from conformance.driver.protocol import Json
from conformance.stems.block_pool import picture
from conformance.stems.panels import item, panel
from spec.block_cache import BlockCacheState, ahead
from spec.block_cache import computed as computed_of


def panels(st: BlockCacheState, names: Names) -> list[Json]:
    """The pool of the blocks, and what the scheduler has of each row, in tokens."""
    return picture.panels(st.pool, names, {row: _scheduled(st, row) for row in st.pool.rows.items()})


def _scheduled(st: BlockCacheState, row: int) -> Json:
    computed, slots = (part.pages * st.block_size + part.rest for part in (computed_of(st, row), ahead(st, row)))
    return {
        "phase": SCHEDULED.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist"),
        "computed": f"{computed} tokens",
        "slots for": f"{slots} tokens",
        "read from": f"place {st.first(row)} on",
    }


def of_requests(facts: Mapping[int, Json]) -> Json:
    """The requests of a scheduler. ``facts``: what is known of each, by its number."""
    return panel("owners", "Requests", (item(f"request {n}", f"request {n}", of) for n, of in sorted(facts.items())))
