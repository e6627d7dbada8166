"""The forward passes of requests, as the shadow memory has them: what a pass reads, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from conformance.contents.shadow import Shadow, Wrong

FULL, SWA = "full", "SWA"


class Pools(NamedTuple):
    """What a pass needs to know of the pools.

    ``mapping``: the SWA slot of each full slot, 0 where there is none; ``None`` in a model without sliding-window
    layers. ``window``: how many tokens before a token its sliding-window layers read.
    """

    mapping: Sequence[int] | None = None
    window: int = 0

    def swa(self, slots: Sequence[int]) -> list[int]:
        """The SWA slots of full slots."""
        known = self.mapping or ()
        return [known[slot] if 0 <= slot < len(known) else 0 for slot in slots]


def forward(
    shadow: Shadow, who: str, prefixes: Sequence[int], slots: Sequence[int], computed: int, upto: int, pools: Pools
) -> Wrong | None:
    """A forward pass computes the tokens of ``who`` from ``computed`` on up to ``upto``.

    ``prefixes``, ``slots``: the number of the prefix, and the full slot, of each token of ``who`` up to ``upto``. The
    pass reads all full slots of the tokens before ``computed``, and of their SWA slots those in the window of the first
    new token. It writes the slots of the new tokens. Returns the first slot that does not hold what the pass needs.
    """
    wrong = reads(shadow, who, prefixes, slots, computed, pools)
    write(shadow, who, prefixes, slots, computed, upto, pools)
    return wrong


def reads(
    shadow: Shadow, who: str, prefixes: Sequence[int], slots: Sequence[int], computed: int, pools: Pools
) -> Wrong | None:
    """The first slot among those that the next pass of ``who`` reads that does not hold what it needs."""
    wrong = shadow.read(FULL, slots[:computed], prefixes[:computed], who)
    if wrong is None and pools.mapping is not None:
        first = max(0, computed - pools.window)
        wrong = shadow.read(SWA, pools.swa(slots[first:computed]), prefixes[first:computed], who, first)
    return wrong


def write(
    shadow: Shadow, who: str, prefixes: Sequence[int], slots: Sequence[int], computed: int, upto: int, pools: Pools
) -> None:
    """The slots of the tokens from ``computed`` to ``upto`` get their prefixes, in both pools."""
    new, texts = slots[computed:upto], prefixes[computed:upto]
    shadow.write(FULL, new, texts, who)
    if pools.mapping is not None:
        shadow.write(SWA, pools.swa(new), texts, who)
