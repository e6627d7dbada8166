"""What drawn runs of ``cache`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class CacheExclusion(StrEnum):
    """What runs of ``cache`` avoid in addition."""

    SLIDE_PAST_LEAF = "cache.slide_past_leaf"  # windows that move
    # A turn that decodes past what reached the caller, and a retract before the last token is known, in a cache with
    # states: the session's row is cut then.
    CUT_STATE = "cache.cut_state"
    # The early release of a lock whose request has put a part of its answer into the tree.
    EARLY_RELEASE_OF_ANSWER = "cache.early_release_of_answer"
    # A lazy track buffer that gets its second slot, and no pass that writes the slot before anything else happens.
    UNWRITTEN_TRACK = "cache.unwritten_track"
    COPY_AT_ONCE = "cache.copy_at_once"  # passes that stay in flight while requests leave and come
    WAITING_COPY = "cache.waiting_copy"  # a first turn of a session that matches and may have to wait


EXCLUSIONS = CacheExclusion
