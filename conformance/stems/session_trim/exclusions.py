"""What drawn runs of ``session_trim`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum

from conformance.driver.lockstep import ENOUGH
from conformance.stems.exclusions import LookedPast


class SessionTrimExclusion(StrEnum):
    """What runs of ``session_trim`` and ``cache`` avoid."""

    NO_NEW_TOKEN = "session_trim.no_new_token"  # a turn that adds no token to its session's text
    DRAFT_TAIL = "session_trim.draft_tail"  # draft slots that are left when a turn leaves its row
    RETRACT = "session_trim.retract"  # a retract of a session's turn
    RETRACT_TWICE = "session_trim.retract_twice"  # a second retract of one turn
    RETRACT_ABORT = "session_trim.retract_abort"  # an abort of a turn that was retracted before
    ONE_TOKEN = "session_trim.one_token"  # a retract of a turn whose input is one token then
    OVERSHOOT = "session_trim.overshoot"  # decoding past what reached the caller
    OVERLAP = "session_trim.overlap"  # a retract before the last token is known
    ABORT = "session_trim.abort"  # an abort while a request runs
    CANCEL = "session_trim.cancel"  # an abort of a session's turn that waits
    CLOSE_WAITING = "session_trim.close_waiting"  # a close while a turn waits
    CLOSE_RUNNING = "session_trim.close_running"  # a close while a turn runs
    GROUP = "session_trim.group"  # free groups
    OVERLAPPING_TURN = "session_trim.overlapping_turn"  # a second request of a session
    UNSUPPORTED_TURN = "session_trim.unsupported_turn"  # a request that streaming sessions do not serve
    # Models whose layers all have a sliding window and do not read the whole prompt.
    GAP_IN_TREE = "session_trim.gap_in_tree"
    # Retracts of a request whose layers all have a sliding window, before anything has left the window.
    RETRACT_BEFORE_WINDOW = "session_trim.retract_before_window"
    SLIDE_OF_PART_PAGES = "session_trim.slide_of_part_pages"  # windows that move, where a window is no whole pages
    TAIL_WITHOUT_ROOM = "session_trim.tail_without_room"  # a computed prompt for which not both pools have room
    TAIL_OF_PART_PAGES = "session_trim.tail_of_part_pages"  # a computed prompt where a window is no whole pages
    TAIL_BEHIND_PREFIX = "session_trim.tail_behind_prefix"  # a computed prompt of which the tree may have a part
    SHORT = "session_trim.short"  # the finding that a call was refused though it fits
    STALE = "session_trim.stale"  # the latent finding that a free slot keeps its mapping
    INHERITED = "session_trim.inherited"  # what comes of such a mapping when the page is handed out again


EXCLUSIONS = SessionTrimExclusion
# Known differences that no rule can avoid: a run with the exclusion does not end at the finding on the law.
LOOKED_PAST = {
    SessionTrimExclusion.SHORT: LookedPast(ENOUGH, where_latent=True),
    SessionTrimExclusion.STALE: LookedPast("free_maps_to_nothing", where_latent=True),
    SessionTrimExclusion.INHERITED: LookedPast("mapping_is_live"),
}
