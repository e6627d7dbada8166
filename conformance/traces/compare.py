"""Compares what a trace shows on a subject with what it shows on a base: which broken laws does the change bring?"""

from __future__ import annotations

from enum import StrEnum

from conformance.driver.lockstep import VIOLATION
from conformance.traces.outcome import Break, Outcome


class Status(StrEnum):
    """What a broken law of the subject is, compared with the base."""

    NEW = "new"  # the base makes every call of the trace and breaks no law, or breaks only laws as grave as this one
    WORSE = "worse"  # the base breaks a law on the trace too, less gravely or later
    INCOMPARABLE = "incomparable"  # the base does not get to this operation, so nobody knows
    KNOWN = "known"  # the base breaks this law in this way, at this operation or before


RANK = {status: rank for rank, status in enumerate(Status)}


def compare(found: Break, base: Outcome) -> Status:
    """What ``found``, a law that a trace breaks on the subject, is beside the outcome of this trace on the base.

    If the base breaks this law too, the severities and then the steps are compared. If the base breaks other laws, the
    trace is new only if these are as grave and end no run: a violation beside latent findings of the base is worse.
    """
    same = base.like(found)
    if same is not None:
        graver = found.severity == VIOLATION and same.severity != VIOLATION
        return Status.WORSE if graver or found.step < same.step else Status.KNOWN
    ended = next((b for b in base.breaks if b.severity == VIOLATION), None)
    if ended is not None:
        earlier = found.severity == VIOLATION and found.step < ended.step
        return Status.WORSE if earlier else Status.INCOMPARABLE
    if base.stopped_at is not None and base.stopped_at <= found.step:
        return Status.INCOMPARABLE
    return Status.WORSE if base.breaks and found.severity == VIOLATION else Status.NEW


def in_words(status: Status, found: Break, base: Outcome) -> str:
    """What the base shows on the trace, in one sentence."""
    same = base.like(found)
    ended = same or base.first
    if status is Status.KNOWN and same is not None:
        return f"the base breaks {same.law} at step {same.step} too"
    if base.stopped_at is not None and base.stopped_at <= found.step:
        return f"the base cannot make the call of step {base.stopped_at}: {base.stopped}"
    if ended is not None:
        return f"the base breaks {ended.law} at step {ended.step} ({ended.severity}): {ended.detail}"
    return "the base breaks no law on this trace"
