"""Which operations take the transitions of ``block_cache``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.block_cache.rules import ATTENTION, KINDS_OF_DRAFTS, MOST_LENGTH, STATES, WINDOWED
from conformance.stems.claims import Claim, Where, own_way, taken_by

WINDOWS = Where("layers with a window", lambda c: any(group["kind"] == "window" for group in c["layers"]))
TRANSFERS = Where("transfers", lambda config: bool(config.get("transfers")))
CLAIMS: dict[str, Claim] = {
    "admit": taken_by("schedule"),
    "allocate": taken_by("schedule"),
    "compute": taken_by("schedule"),
    "slide": taken_by("schedule", "complete", where=WINDOWS),
    "shift": own_way("A scheduler may keep the state of a request at its place in the table."),
    "launch": taken_by("schedule"),
    "admit_and_load": taken_by("schedule", where=TRANSFERS),
    "load": own_way("A scheduler may compute the tokens of a transfer of which nothing came, and not offer it again."),
    "loaded": taken_by("complete", where=TRANSFERS, needs=("arrive",)),
    "send": taken_by("complete", where=TRANSFERS, needs=("sent",)),
    "end": taken_by("complete"),
    "keep": own_way("A scheduler may give the blocks of a request back at once when it ends."),
    "finish": taken_by("complete", "abort"),
    "evict": own_way("A scheduler may forget the hash of a block only when it hands the block out again."),
    "reset": taken_by("reset"),
}
SIZES: Json = {
    **{"block_size": 4, "blocks": 14, "requests": 3, "batch": 16, "max_length": MOST_LENGTH},
    **{"threshold": 0, "policy": "fcfs"},
}
ALONE: tuple[Json, ...] = tuple(
    {
        "layers": layers,
        "drafts": drafts,
        "eagle": eagle,
        "steps_in_flight": steps,
        "caching": caching,
        "events": caching,
    }
    for layers, (drafts, eagle), steps, caching in product(
        ([ATTENTION], [ATTENTION, WINDOWED], [WINDOWED], [ATTENTION, STATES]),
        KINDS_OF_DRAFTS,
        (1, 2),
        (True, False),
    )
)
BESIDE: Json = {"transfers": True, "reoffers": False, "failure": "recompute"}
PROBES: tuple[Json, ...] = (
    *({**SIZES, **kind, "transfers": False} for kind in ALONE),
    *({**SIZES, **kind, **BESIDE} for kind in ALONE if kind["layers"] == [ATTENTION]),
)
