"""Pictures of a scheduler's block tables."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.driver.diff import SCHEDULED, Names
from conformance.driver.protocol import Json
from conformance.stems.block_pool import picture
from conformance.stems.panels import item, listed, panel
from spec.block_cache import BlockCacheState, ahead
from spec.block_cache import computed as computed_of
from spec.in_flight import PASS, READS, WRITES, flying, uses
from spec.lengths import in_tokens

JOBS = {PASS: "a forward pass", READS: "a transfer that reads", WRITES: "a transfer that writes"}


def panels(st: BlockCacheState, names: Names) -> list[Json]:
    """The pool of the blocks, what the scheduler has of each row, in tokens, and what is in flight."""
    of_pool = picture.panels(st.pool, names, {row: _scheduled(st, row) for row in st.pool.rows.items()})
    jobs = sorted(flying(st.flight).items())
    return [*of_pool, panel("jobs", "In flight", (_job(st, job, names) for job in jobs))] if jobs else of_pool


def _job(st: BlockCacheState, job: int, names: Names) -> Json:
    """A pass or a transfer. The row of a pass may have given up its blocks, and may be another request's by now."""
    kind, used = st.flight.kind(job), [b for b in st.pool.blocks.items() if uses(st.flight, job, b)]
    what = JOBS.get(kind, f"of kind {kind}, which does not exist")
    facts = {"what": what, "begun for": names.row(st.flight.row(job)), "blocks in use": listed(used)}
    return item(f"job {job}", f"job {job}", facts)


def _scheduled(st: BlockCacheState, row: int) -> Json:
    computed, slots = (in_tokens(part, st.block_size(row)) for part in (computed_of(st, row), ahead(st, row)))
    return {
        "phase": SCHEDULED.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist"),
        "computed": f"{computed} tokens",
        "slots for": f"{slots} tokens",
        "read from": f"place {st.first(row)} on",
    }


def of_requests(facts: Mapping[int, Json]) -> Json:
    """The requests of a scheduler. ``facts``: what is known of each, by its number."""
    return panel("owners", "Requests", (item(f"request {n}", f"request {n}", of) for n, of in sorted(facts.items())))
