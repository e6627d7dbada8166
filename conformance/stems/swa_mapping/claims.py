"""Which operations take the transitions of ``swa_mapping``, and configurations in which an engine may be driven."""

from __future__ import annotations

from conformance.stems.allocator import claims as one_pool
from conformance.stems.claims import Claim, own_way, taken_by

CLAIMS: dict[str, Claim] = {
    **one_pool.CLAIMS,
    "alloc_extend_swa_tail": taken_by("tail"),
    "free_swa": taken_by("evict", "free_swa_segment", "slide"),
    "settle_swa": own_way("An engine may free SWA pages at once, also inside a free group."),
    "free_full": taken_by("free_full"),
    "adopt": taken_by("adopt"),
    "hand_over": taken_by("hand_over"),
    "hand_over_swa": own_way("No operation of this stem takes it: trees do, in `session_trim` and `cache`."),
}
PROBES = one_pool.PROBES
