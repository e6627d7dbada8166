"""Which operations take the transitions of ``mamba_slots``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import Claim, Where, own_way, taken_by
from conformance.stems.kinds import Kinds
from conformance.stems.mamba_slots.rules import BUFFERS, REQUESTS, SESSIONS

TRACKED = Where("a track buffer of two slots, not lazy", lambda c: bool(c["doubled"]) and not c["lazy"])
LAZY = Where("a lazy track buffer", lambda c: bool(c["lazy"]))
BUFFERED = Where("a track buffer", lambda c: bool(c["buffered"]))
CLAIMS: dict[str, Claim] = {
    "begin_group": taken_by("begin_group"),
    "end_group": taken_by("end_group"),
    "clear": taken_by("clear"),
    "alloc_copy": taken_by("cache"),
    "evict": taken_by("evict"),
    "alloc_for_match": taken_by("match"),
    "alloc": taken_by("admit"),
    "track": taken_by("track", where=TRACKED),
    "alloc_second": taken_by("boundary", where=LAZY),
    "give_second": taken_by("settle", where=LAZY),
    "turn_lazy": own_way("A tree may take the newest state of a lazy buffer alone, and never the one before."),
    "donate_and_replace": taken_by("cache", where=BUFFERED),
    "donate": taken_by("finish"),
    "release": taken_by("finish", "abort", "retract", "withdraw"),
    "save": taken_by("finish"),
    "restore": taken_by("match"),
    "close": taken_by("close"),
}
SIZES: Json = {"size": 9, "requests": REQUESTS, "sessions": SESSIONS}


def probes(kinds: Kinds) -> list[Json]:
    """One configuration for each tree and kind of track buffer."""
    return [
        {**SIZES, "tree": tree, "buffered": buffered, "doubled": doubled, "lazy": lazy}
        for tree, (buffered, doubled, lazy) in product(kinds.stateful, dict.fromkeys(BUFFERS))
    ]
