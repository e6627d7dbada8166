"""Pictures of what a pool of blocks holds, and of what a reader of its KV events believes."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, panel
from spec.kv_events import UNSAID, KvEventsState


def panels(st: KvEventsState, names: Names) -> list[Json]:
    """What the pool holds, and what the reader of the events believes."""
    places = ((b, m) for b in st.blocks.items() for m in st.media.items())
    told = (_cached(st, b, m, names) for b, m in places if st.copies(b, m) or st.said(b, m))
    reader = {"missed events": "yes" if st.missed else "no", "next batch": str(st.next)}
    return [panel("rows", "Cached blocks", told), panel("counts", "The reader", [item("reader", "the reader", reader)])]


def _cached(st: KvEventsState, block: int, medium: int, names: Names) -> Json:
    text = names.text(st.text(block)) if st.text(block) != UNSAID else "a text that no event has said"
    held, said = st.copies(block, medium), st.said(block, medium)
    name = f"block {block} in medium {medium}"
    return item(name, name, {"text": text, "the pool holds": str(held), "the reader has counted": str(said)})
