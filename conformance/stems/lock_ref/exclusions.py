"""What drawn runs of ``lock_ref`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class LockRefExclusion(StrEnum):
    """What runs of ``lock_ref`` avoid."""

    RESTORE_HELD = "lock_ref.restore_held"  # an insert over a tombstone that somebody holds (also in ``cache``)
    # Also in ``cache``: a session releases what lost its SWA part early; the early release of a handle's SWA part; the
    # early release in a tree with states.
    SESSION_AFTER_EARLY = "lock_ref.session_after_early"
    EARLY_RELEASE = "lock_ref.early_release"
    EARLY_RELEASE_STATE = "lock_ref.early_release_state"
    COPY_ON_WRITE = "lock_ref.copy_on_write"  # matches that want a copy of a state (in ``mamba_slots``: without a slot)
    CURSOR_PAST_KEY = "lock_ref.cursor_past_key"  # an SWA cursor at or beyond the end of the key


EXCLUSIONS = LockRefExclusion
