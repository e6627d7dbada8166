"""Which operations take the transitions of ``lock_ref``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import WINDOWED, WINDOWED_STATES, Claim, own_way, taken_by
from conformance.stems.kinds import Kinds
from conformance.stems.lock_ref.rules import PAGE_SIZES

CLAIMS: dict[str, Claim] = {
    "acquire": taken_by("acquire", "pin"),
    "release": taken_by("release"),
    "release_swa": taken_by("release_swa", where=WINDOWED),
    "release_state": taken_by("release_swa", where=WINDOWED_STATES, needs=("state_goes_early",)),
    "split": own_way("A tree with a node for each page never splits one."),
    "merge": taken_by("compact"),
    "add_leaf": taken_by("insert"),
    "restore": own_way("An insert over a tombstone may leave it as it is, or give it SWA slots in place."),
    "restore_swa": own_way("An insert over a tombstone may leave it as it is, or give it the row's full slots too."),
    "set_mamba": own_way("An insert may leave a node without a state as it is."),
    "evict_leaf": taken_by("evict"),
    "evict_swa": own_way("A tree may evict leaves alone, and with them their SWA slots."),
    "evict_mamba": own_way("A tree may evict leaves alone, and with them their states."),
}
SIZES = {"size": 12, "size_swa": 12, "size_mamba": 4, "window": 3}


def probes(kinds: Kinds) -> list[Json]:
    """One configuration for each tree and page size."""
    return [
        {**SIZES, "kind": kind, "components": [*components], "page_size": page_size}
        for (kind, components), page_size in product(dict.fromkeys(kinds.locked), PAGE_SIZES)
    ]
