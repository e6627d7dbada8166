"""Known bugs of mamba state slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch

from conformance.stems.fault import Fault
from impl.mamba_slots import Holder, MambaSlotAllocator, MambaStates
from proofs import mamba_slots as wrong

SHORT = 5  # tokens: a tree with the fault ``donated_to_nobody`` keeps no state of a shorter key


class SavesAndNames(MambaStates):
    """SGLang PR 26941, first place: a saved turn's request still names the track buffer that its session's slot has
    now.

    When the request is admitted again, it gets no new buffer, so that request and session use one buffer.
    """

    def save(self, req: Holder, session: Holder) -> None:
        """Saves the turn, and leaves the track buffer on the request."""
        buffer, following = req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx
        super().save(req, session)
        req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx = buffer, following


class FreesAndNames(MambaStates):
    """SGLang PR 26941, second place: a request whose slots were freed still names its track buffer.

    When the request is admitted again, it gets no new buffer and runs on slots that are free.
    """

    def release(self, reqs: Iterable[Holder]) -> None:
        """Frees the slots, and leaves the track buffers on the requests."""
        given = list(reqs)
        buffers = [(req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx) for req in given]
        super().release(given)
        for req, (buffer, following) in zip(given, buffers, strict=True):
            req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx = buffer, following


def give_row_back_alone(states: MambaStates, request: Any) -> None:
    """SGLang PR 26941, third place: the first turn of a streaming session is aborted, and its slots leak.

    The session slot that is made for the abort is released without the request's state and track buffer: three state
    slots are lost.
    """
    if not request.session or request.resumed:
        states.release([request])
        return
    states.free(request)
    request.mamba_pool_idx = request.mamba_ping_pong_track_buffer = request.mamba_next_track_idx = None


class FreesTheAbsent(MambaStates):
    """A session that closes frees both slots of its lazy track buffer, although one is absent. The absent slot is then
    handed out.

    Seen in SGLang 0.5.13 and 0.5.14, where an absent slot is written as -1.
    """

    def release(self, reqs: Iterable[Holder]) -> None:
        """Frees slot 0 in the place of an absent slot."""
        given = list(reqs)
        absent = sum((req.mamba_ping_pong_track_buffer or []).count(None) for req in given)
        super().release(given)
        if absent:
            self.mamba_allocator.put(torch.zeros(1, dtype=torch.int64))


class ForgetsOuterSlotGroup(MambaSlotAllocator):
    """A group of state slots that begins inside another one replaces it, and the outer group's slots leak.

    Seen in SGLang 0.5.13 and 0.5.14.
    """

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Forgets the slots of the open group, and begins a new one."""
        self.group_slots = self.group_slots[:0]
        super().alloc_group_begin(num_reqs)


def donate_short_to_nobody(states: MambaStates, request: Holder, key: tuple[int, ...], tree: Any) -> None:
    """A request believes that the tree took its newest state, and the tree did not take it: the slot leaks.

    Seen in SGLang 0.5.11 to 0.5.14, where the tree makes no leaf for tokens that have left the window.
    """
    if key:
        donated = states.donate(request)
        if len(key) >= SHORT:
            tree.keep(key, donated)
    states.release([request])


def donate_from_before_the_boundary(states: MambaStates, request: Holder, key: tuple[int, ...], tree: Any) -> None:
    """A request that ends donates the other track of its lazy buffer, as if it were always at a boundary: where this
    track is absent, the tree gets a state without a slot.
    """
    buffer = request.mamba_ping_pong_track_buffer
    if key and states.lazy and buffer is not None:
        other = 1 - (request.mamba_next_track_idx or 0)
        donated, buffer[other] = buffer[other], None
        tree.keep(key, torch.zeros((), dtype=torch.int64) if donated is None else donated)
    elif key:
        tree.keep(key, states.donate(request))
    states.release([request])


def find_by_length(states: Collection[tuple[int, ...]], text: tuple[int, ...]) -> tuple[int, ...] | None:
    """A match finds the longest key that is no longer than the text, whatever its tokens are."""
    return max((key for key in states if len(key) <= len(text)), key=len, default=None)


# The shadow memory finds this fault. The law of this stem has no texts, and does not refute it.
SEEN_BY_THE_SHADOW = (
    Fault(
        name="state_of_another_text",
        stem="mamba_slots",
        sentence="A match compares only lengths, so that a request gets a copy of the state of another text.",
        spec={},
        parts={"find": find_by_length},
    ),
)

FAULTS = (
    Fault(
        name="pr_26941_save",
        stem="mamba_slots",
        sentence="A turn is saved, and its request goes on naming the track buffer that is the session's.",
        spec={"save": wrong.keeps_the_names_of_a_saved_turn},
        parts={"states": SavesAndNames},
    ),
    Fault(
        name="pr_26941_free",
        stem="mamba_slots",
        sentence="A request gives its slots back, and goes on naming the track buffer.",
        spec={"release": wrong.keeps_the_names},
        parts={"states": FreesAndNames},
    ),
    Fault(
        name="pr_26941_abort",
        stem="mamba_slots",
        sentence="The first turn of a session is aborted, and its state and track buffer are lost.",
        spec={"release": wrong.forgets_what_it_had},
        parts={"abort": give_row_back_alone},
    ),
    Fault(
        name="absent_track_is_freed",
        stem="mamba_slots",
        sentence="A lazy track buffer is freed with the slot that is absent, as if it were one.",
        spec={"close": wrong.frees_the_absent},
        parts={"states": FreesTheAbsent},
    ),
    Fault(
        name="nested_state_group",
        stem="mamba_slots",
        sentence="A group within a group takes its place, and the slots that were set aside are lost.",
        spec={"begin_group": wrong.forgets_outer_group},
        parts={"allocator": ForgetsOuterSlotGroup},
    ),
    Fault(
        name="turned_to_no_slot",
        stem="mamba_slots",
        sentence="A request that ends gives the other track of its lazy buffer to the tree, also where it is absent.",
        spec={"turn_lazy": wrong.turns_to_no_slot},
        parts={"end": donate_from_before_the_boundary},
    ),
    Fault(
        name="donated_to_nobody",
        stem="mamba_slots",
        sentence="A request believes that the tree took its newest state, and the tree did not.",
        spec={"donate": wrong.donates_to_nobody},
        parts={"end": donate_short_to_nobody},
    ),
)
