"""Why a promise, a choice or a fit stays in the spec though no law needs it, by its sentence.

Each of them was looked at: no law that would need it is missing. It says what an engine can rely on, or what a call
means, and the runs of ``slotproof check`` ask it of every call.
"""

from __future__ import annotations

from collections.abc import Mapping

from proofs.minimal import FITS, AskedRequirement

FOLLOWS = (
    "it follows from the laws and the other requirements; it stays, since it says by itself what the caller must see to"
)
_OUTSIDE = (
    "an engine's tables end there: the call would write outside of them, and the law says nothing of such a place"
)
_MEANING = "it says which call this is: without it the call would be another transition, which has its own law"
_SLOTS = (
    "the law counts pages, and engines are told slots: a page of which only some slots are named would be given back "
    "whole, and no law of a state sees what the call named"
)
_AGAIN = "the law would change nothing, and an engine would count down twice"
_TURN = "it ties the saved row to the input of the next turn, of which no state says anything"
_ROLLED = "what is rolled back changes no row, but an engine allocates first, as for a row that grows"
_BACK = "all of them are given back, so that no law of a state sees their number"
_FITS = "how many pages or slots there are is what an engine compares: without it a call could be refused that fits"

REASONS: Mapping[str, str] = {
    "the row number is a row of the pool": _OUTSIDE,
    "the row has room for the new length": _OUTSIDE,
    "the row has room for the length": _OUTSIDE,
    "the row has no partial page": _MEANING,
    "the new length is well formed": _ROLLED,
    "the new length is at least the row's length": _ROLLED,
    "the row owns the partial page that the new tokens fill": _ROLLED,
    "the partial page that the new tokens fill has its SWA page": _ROLLED,
    "as many pages are handed out as the call needs": _BACK,
    "as many full pages are handed out as the call needs": _BACK,
    "as many SWA pages are handed out as the call needs": _BACK,
    "every freed slot is a slot of a freed page": _SLOTS,
    "every used slot of a freed page is freed": _SLOTS,
    "every mapped slot of a page that loses its SWA page is named": _SLOTS,
    "every freed page is held by a row": "a full page that nobody holds maps into no held SWA page, so that nothing "
    "would be given back; an engine would read slots that it no longer owns",
    "only whole pages are handed over": "the receiver's length is counted in whole pages",
    "the first index is at least 0 and at most the last": _OUTSIDE,
    "no full page that waits maps into one of them": "it says when an engine may end the wait early: while no page "
    "that waits could bring the mapping back",
    "the handle still holds its SWA part": _AGAIN,
    "the handle still holds a mamba state": _AGAIN,
    "exactly the needed slots are set aside, or none if fewer are free": "no state says how many slots a batch wants",
    "the node has a state": "there is nothing to copy from a node without a state; the law counts slots, not what they "
    "hold",
    "no group is open": _MEANING,
    "the request is running": _MEANING,
    "the row is running": _MEANING,
    "the track buffer is lazy": "a buffer that has both slots from the start turns at each tracking boundary "
    "(`track`), and at no other time",
    "the blocks are blocks of the pool": _OUTSIDE,
    "the request is there": _AGAIN,
    "the committed length is the allocated length": _TURN,
    "the input is at least as long as the text so far": _TURN,
    "the input has a token that is not computed yet": _TURN,
    "the row's request is running": _MEANING,
    "the given handle is the row's lock handle, 0 where it has none": "any lock may give back its state early, but the "
    "caller knows only the lock of its own row",
}


def reason(asked: AskedRequirement) -> str | None:
    """Why a requirement that no law needs stays; ``None`` where nobody has said why."""
    return _FITS if asked.kind == FITS else REASONS.get(asked.sentence)
