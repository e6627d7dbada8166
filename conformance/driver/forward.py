"""The forward passes of requests, as the shadow memory has them: what a pass reads, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from conformance.driver.shadow import FULL, SWA, Shadow, WrongSlot


class Pools(NamedTuple):
    """What a pass needs to know of the pools.

    ``mapping``: the SWA slot of each full slot, 0 where there is none; ``None`` in a model without sliding-window
    layers, and in one that has no other layers. ``window``: how many tokens before a token its sliding-window layers
    read. ``alone``: all layers are such layers, so that no token before the window is read.
    """

    mapping: Sequence[int] | None = None
    window: int = 0
    alone: bool = False

    def swa(self, slots: Sequence[int]) -> list[int]:
        """The SWA slots of full slots."""
        known = self.mapping or ()
        return [known[slot] if 0 <= slot < len(known) else 0 for slot in slots]


def forward(
    shadow: Shadow, who: str, prefixes: Sequence[int], slots: Sequence[int], computed: int, upto: int, pools: Pools
) -> WrongSlot | None:
    """A forward pass computes the tokens of ``who`` from ``computed`` on up to ``upto``.

    ``prefixes``, ``slots``: the number of the prefix, and the full slot, of each token of ``who`` up to ``upto``. In
    each layer a pass first writes the slots of the new tokens. Then it reads all full slots up to ``upto``, and the SWA
    slots of the new tokens and of the window before them. Where all layers have a window, it reads of the full slots
    those in the window. Returns the first slot that does not hold what the pass
    needs.
    """
    write(shadow, who, prefixes, slots, computed, upto, pools)
    return reads(shadow, who, prefixes, slots, computed, pools, upto)


def reads(
    shadow: Shadow,
    who: str,
    prefixes: Sequence[int],
    slots: Sequence[int],
    computed: int,
    pools: Pools,
    upto: int | None = None,
) -> WrongSlot | None:
    """The first slot that does not hold what it should, among those that the pass of ``who`` after ``computed`` tokens
    reads. ``upto``: as for ``forward``; with ``None`` the slots of the tokens before the pass are looked at alone.
    """
    last = computed if upto is None else upto
    first = max(0, computed - pools.window)
    begin = first if pools.alone else 0
    wrong = shadow.read(FULL, slots[begin:last], prefixes[begin:last], who, begin)
    if wrong is None and pools.mapping is not None:
        wrong = shadow.read(SWA, pools.swa(slots[first:last]), prefixes[first:last], who, first)
    return wrong


def write(
    shadow: Shadow, who: str, prefixes: Sequence[int], slots: Sequence[int], computed: int, upto: int, pools: Pools
) -> None:
    """The slots of the tokens from ``computed`` to ``upto`` get their prefixes, in both pools."""
    new, texts = slots[computed:upto], prefixes[computed:upto]
    shadow.write(FULL, new, texts, who)
    if pools.mapping is not None:
        shadow.write(SWA, pools.swa(new), texts, who)
