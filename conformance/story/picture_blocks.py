"""Pictures of blocks with many holders, of a scheduler's block tables, and of what a reader of KV events believes."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.diff import SCHEDULED, Names
from conformance.engines.protocol import Json
from conformance.story.items import item, listed, panel
from spec.block_cache import BlockCache, ahead
from spec.block_cache import computed as computed_of
from spec.blocks import NO_HASH, NULL, UNWRITTEN, Blocks, holds, runs
from spec.kv_events import UNSAID, Events


def of_pool(st: Blocks, names: Names, more: dict[int, Json] | None = None) -> list[Json]:
    """The blocks, the rows that hold them, and how many are free. ``more``: other facts of a row."""
    rows = (row for row in st.rows.items() if runs(st, row))
    return [
        panel("pages", "Blocks", (_block(st, block, names) for block in st.blocks.items())),
        panel("rows", "Rows", (_row(st, row, names, (more or {}).get(row, {})) for row in rows)),
        panel("counts", "Counts", [item("counts", "counts", {"available blocks": str(st.available)})]),
    ]


def of_scheduler(st: BlockCache, names: Names) -> list[Json]:
    """The pool of the blocks, and what the scheduler has of each row, in tokens."""
    return of_pool(st.pool, names, {row: _scheduled(st, row) for row in st.pool.rows.items()})


def of_requests(facts: Mapping[int, Json]) -> Json:
    """The requests of a scheduler. ``facts``: what is known of each, by its number."""
    return panel("owners", "Requests", (item(f"request {n}", f"request {n}", of) for n, of in sorted(facts.items())))


def _block(st: Blocks, block: int, names: Names) -> Json:
    holders = [names.row(row) for row in st.rows.items() if runs(st, row) and holds(st, row, block)]
    facts = {"held by": listed(holders) if holders else "nobody", "holders counted": str(st.refs(block))}
    if st.content(block) != UNWRITTEN:
        facts["computed for"] = names.text(st.content(block))
    if st.hash(block) != NO_HASH:
        facts["the prefix cache finds it for"] = f"{names.text(st.hash(block))}, place {st.index(block)}"
    look = "free" if st.refs(block) == 0 else "held" if holders else "lost"
    return item(f"block {block}", f"block {block}", facts, look, wrong=["held by"] if look == "lost" else [])


def _row(st: Blocks, row: int, names: Names, more: Json) -> Json:
    places = [st.table(row, i) for i in range(st.length(row))]
    blocks = listed("null" if block == NULL else block for block in places)
    facts = {"group": str(st.group(row)), "blocks": blocks, "computed whole": f"{st.filled(row)} blocks"}
    return item(f"row {row}", names.row(row), facts | more)


def _scheduled(st: BlockCache, row: int) -> Json:
    computed, slots = (part.pages * st.block_size + part.rest for part in (computed_of(st, row), ahead(st, row)))
    return {
        "phase": SCHEDULED.get(st.phase(row), f"in phase {st.phase(row)}, which does not exist"),
        "computed": f"{computed} tokens",
        "slots for": f"{slots} tokens",
        "read from": f"place {st.first(row)} on",
    }


def of_events(st: Events, names: Names) -> list[Json]:
    """What the pool holds, and what the reader of the events believes."""
    places = ((b, m) for b in st.blocks.items() for m in st.media.items())
    told = (_told(st, b, m, names) for b, m in places if st.copies(b, m) or st.said(b, m))
    reader = {"missed events": "yes" if st.missed else "no", "next batch": str(st.next)}
    return [panel("rows", "Cached blocks", told), panel("counts", "The reader", [item("reader", "the reader", reader)])]


def _told(st: Events, block: int, medium: int, names: Names) -> Json:
    text = names.text(st.text(block)) if st.text(block) != UNSAID else "a text that no event has said"
    held, said = st.copies(block, medium), st.said(block, medium)
    name = f"block {block} in medium {medium}"
    return item(name, name, {"text": text, "the pool holds": str(held), "the reader has counted": str(said)})
