"""Which operations take the transitions of ``tickets``, and configurations in which an engine may be driven."""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.stems.claims import Claim, taken_by

CLAIMS: dict[str, Claim] = {"take": taken_by("take")}
PROBES: tuple[Json, ...] = ({"size": 3},)
