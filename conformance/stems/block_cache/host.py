"""What runs of ``block_cache`` judge of host memory where an engine shows it: whose each slot is, and that it rests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from conformance.stems.block_cache.protocol import HostShown

HOST_RESTS = (
    "With no request, no step in flight and no transfer, each slot of host memory is free, or of a key that is found "
    "and promised to no load."
)


def host_problems(shown: HostShown) -> Iterator[str]:
    """What is wrong with the slots, in words: each is free once, or of one key, and the counts are sums."""
    owners = Counter([*shown.free, *(slot for slot, _ in shown.keys)])
    for slot in range(1, shown.slots + 1):
        if owners[slot] != 1:
            keys, free = sum(of == slot for of, _ in shown.keys), list(shown.free).count(slot)
            yield f"slot {slot} of host memory is free {free} times, and of {keys} keys"
    yield from (f"host memory has no slot {slot}" for slot in sorted(owners) if not 1 <= slot <= shown.slots)
    counts = [count for _, count in shown.keys]
    sums = {
        "free slots": (shown.available, len(shown.free)),
        "keys that are promised to no load": (shown.evictable, counts.count(0)),
        "keys that are written": (shown.writing, sum(count < 0 for count in counts)),
    }
    for what, (said, there) in sums.items():
        if said is not None and said != there:
            yield f"host memory counts {said} {what}, and has {there}"


def does_not_rest(shown: HostShown) -> str:
    """What host memory still keeps for loads and copies that have ended, in words; empty where it rests."""
    kept = sorted(f"slot {slot} ({'written' if count < 0 else 'promised'})" for slot, count in shown.keys if count)
    return f"host memory keeps {', '.join(kept)}" if kept else ""
