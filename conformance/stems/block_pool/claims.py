"""Which operations take the transitions of ``block_pool``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.block_pool.rules import INDICES, ROWS
from conformance.stems.claims import CACHING, Claim, own_way, taken_by

CLAIMS: dict[str, Claim] = {
    "begin": taken_by("admit"),
    "skip": taken_by("admit", "grow"),
    "join": taken_by("admit", where=CACHING),
    "take": taken_by("admit", "grow"),
    "fill": taken_by("compute"),
    "cache": taken_by("compute", where=CACHING),
    "displace": own_way("A prefix cache may find several blocks for one hash."),
    "leave": taken_by("slide"),
    "cut": taken_by("cut"),
    "move": taken_by("move"),
    "release": taken_by("release"),
    "lend": taken_by("lend"),
    "evict": taken_by("evict", where=CACHING),
    "reset": taken_by("reset"),
}
PROBES: tuple[Json, ...] = tuple(
    {"blocks": 8, "groups": groups, "caching": caching, "rows": ROWS, "indices": INDICES}
    for groups, caching in product((1, 2), (True, False))
)
