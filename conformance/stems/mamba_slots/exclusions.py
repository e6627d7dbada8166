"""What drawn runs of ``mamba_slots`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum

from conformance.stems.exclusions import LookedPast


class MambaSlotsExclusion(StrEnum):
    """What runs of ``mamba_slots`` avoid."""

    MORE_ROWS = "mamba_slots.more_rows"  # more rows than state slots
    LAZY_SESSION = "mamba_slots.lazy_session"  # sessions with lazy buffers (also in ``cache``)
    SAME_AGAIN = "mamba_slots.same_again"  # a request object that comes again
    SHORT_ADMIT = "mamba_slots.short_admit"  # an admission that may find too few slots
    SHORT_CACHE = "mamba_slots.short_cache"  # a checkpoint that may find no slot for the copy of a state
    SLIDE = "mamba_slots.slide"  # a window that moves past what was tracked
    SESSION_ABORT = "mamba_slots.session_abort"  # an abort of a session's turn (also in ``cache``)
    CLOSE = "mamba_slots.close"  # the close of a session with states (in ``cache``: such sessions)
    CLEAR_IN_GROUP = "mamba_slots.clear_in_group"  # a new start while a group is open
    NESTED_GROUP = "mamba_slots.nested_group"  # a group within a group
    STALE_NAMES = "mamba_slots.stale_names"  # the latent finding that a request that is gone still names its slots


EXCLUSIONS = MambaSlotsExclusion
# A known difference that no rule can avoid: a run with the exclusion does not end at the finding on the law.
LOOKED_PAST = {MambaSlotsExclusion.STALE_NAMES: LookedPast("gone_names_nothing", where_latent=True)}
