"""What runs of ``block_cache`` judge of host memory beside whose each slot is: that it rests."""

from __future__ import annotations

from conformance.stems.host_tier.protocol import HostTierSnapshot

HOST_RESTS = (
    "With no request, no step in flight and no transfer, each slot of host memory is free, or of a key that is found "
    "and promised to no load, and no copy counts as under way."
)


def does_not_rest(shown: HostTierSnapshot) -> str:
    """What host memory still keeps for loads and copies that have ended, in words; empty where it rests."""
    kept = [(shown.slots[key], "written" if count < 0 else "promised") for key, count in shown.refs.items() if count]
    if kept:
        return f"host memory keeps {', '.join(f'slot {slot} ({why})' for slot, why in sorted(kept))}"
    return "copies count as under way, so that the server never sleeps" if shown.busy else ""
