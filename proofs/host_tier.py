"""What the provers need for a tier of host memory: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from proofs.hints import COMMON, Hints
from spec import host_tier as law
from spec.host_tier_state import HostTierState

SIZES = {"keys": 2, "slots": 2, "blocks": 3, "parts": 1, "jobs": 2}


def small() -> tuple[HostTierState, ...]:
    """Two keys, two slots, three device blocks, one part a slot, and two copies at a time."""
    return (law.initial(keys=2, slots=2, blocks=3, parts=1, jobs=2),)


HINTS = Hints(
    stem=law.stem,
    over={"blocks": lambda st: st.device.blocks},
    sizes=SIZES,
    small=small,
    moves={},
    places={"key": "keys", "job": "jobs", "slot": "slots", "block": "blocks"},
    refusable=frozenset({"reserve"}),
    assumptions=COMMON,
)
