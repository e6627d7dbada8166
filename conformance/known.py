"""Known differences of an engine's releases, and what drawn runs avoid because of them.

The file ``known/RELEASE.json`` in an engine's folder lists the kept traces that show a difference on this release.
Each entry may have an ``exclude``: an exclusion, by which drawn runs avoid this difference and can find others. An
exclusion is a member of an enumeration below; the comment beside it says what is avoided. Runs avoid it to find
other bugs; the verdict stays a violation, and its trace must still show it on each listed release.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from conformance import traces
from conformance.lockstep import ENOUGH, Finding, Ignores


class AllocatorExclusion(StrEnum):
    """What runs of ``allocator`` and ``swa_mapping`` avoid."""

    NESTED_GROUP = "allocator.nested_group"  # a free group within a free group
    STRAY_END = "allocator.stray_end"  # the end of a free group where none is open
    OVERWRITE = "allocator.overwrite"  # a caller that overwrites the table rows whose slots it has freed
    RESTORE = "allocator.restore"  # backups, and restoring them
    SHORT_DECODE = "allocator.short_decode"  # a decode for which there is no room
    SHORT_EXTEND = "allocator.short_extend"  # a prefill for which there is no room
    OVERRUN = "allocator.overrun"  # slots beyond what was committed when a row ends or is cut


class SwaMappingExclusion(StrEnum):
    """What runs of ``swa_mapping`` avoid in addition."""

    TAIL = "swa_mapping.tail"  # a tail that is shorter than its row
    EMPTY_TAIL = "swa_mapping.empty_tail"  # a tail of no tokens
    TAIL_INSIDE_PAGE = "swa_mapping.tail_inside_page"  # a tail that starts inside a page
    SWA_IN_GROUP = "swa_mapping.swa_in_group"  # SWA pages that are given back alone within a free group


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


class SessionTrimExclusion(StrEnum):
    """What runs of ``session_trim`` and ``cache`` avoid."""

    NO_NEW_TOKEN = "session_trim.no_new_token"  # a turn that adds no token to its session's text
    WITHIN_TREE = "session_trim.within_tree"  # a session's turn whose whole input the tree has
    CUT_INTO_WINDOW = "session_trim.cut_into_window"  # a cut below what the SWA cursor allows
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


class CacheExclusion(StrEnum):
    """What runs of ``cache`` avoid in addition."""

    SLIDE_PAST_LEAF = "cache.slide_past_leaf"  # windows that move
    # A turn that decodes past what reached the caller, and a retract before the last token is known, in a cache with
    # states: the session's row is cut then.
    CUT_STATE = "cache.cut_state"
    # The early release of a lock whose request has put a part of its answer into the tree.
    EARLY_RELEASE_OF_ANSWER = "cache.early_release_of_answer"
    WAITING_COPY = "cache.waiting_copy"  # a first turn of a session that matches and may have to wait


class BlockPoolExclusion(StrEnum):
    """What runs of ``block_pool`` avoid."""

    NULL_HASH = "block_pool.null_hash"  # that places with the null block are offered to the prefix cache


class BlockCacheExclusion(StrEnum):
    """What runs of ``block_cache`` avoid."""

    PRIORITY = "block_cache.priority"  # requests with priorities, where there is a prefix cache
    TWO_STEPS = "block_cache.two_steps"  # two steps in flight
    DRAFTS_IN_FLIGHT = "block_cache.drafts_in_flight"  # drafts where two steps are in flight
    ABORTED_LOADS = "block_cache.aborted_loads"  # requests that are aborted while a transfer writes into their blocks
    TRANSFERS_IN_FLIGHT = "block_cache.transfers_in_flight"  # transfers where two steps are in flight
    RESET_IN_FLIGHT = "block_cache.reset_in_flight"  # resets during a step, with transfers
    STALLED_LOADS = "block_cache.stalled_loads"  # transfers that are offered again, not if failed requests end
    EVENTS_OF_WINDOWS = "block_cache.events_of_windows"  # KV events with drafts in a model with windows
    CROWDED_LOADS = "block_cache.crowded_loads"  # transfers where the blocks are not enough for all requests together
    STATES_WITH_DRAFTS = "block_cache.states_with_drafts"  # drafts in a model with states


ENUMERATIONS: tuple[type[StrEnum], ...] = (
    *(AllocatorExclusion, SwaMappingExclusion, LockRefExclusion),
    *(SessionTrimExclusion, MambaSlotsExclusion, CacheExclusion, BlockPoolExclusion, BlockCacheExclusion),
)
EXCLUSIONS: dict[str, StrEnum] = {member.value: member for known in ENUMERATIONS for member in known}


# Known differences that no rule can avoid: a run with the exclusion ignores the finding on the law. The differences in
# LOOKED_PAST_LATENT are ignored only where the finding is latent.
LOOKED_PAST_LATENT: dict[str, StrEnum] = {
    ENOUGH: SessionTrimExclusion.SHORT,
    "free_maps_to_nothing": SessionTrimExclusion.STALE,
    "gone_names_nothing": MambaSlotsExclusion.STALE_NAMES,
}
LOOKED_PAST: dict[str, StrEnum] = {"mapping_is_live": SessionTrimExclusion.INHERITED}


def looks_past(exclude: Collection[StrEnum]) -> Ignores:
    """A function that says whether a finding is known and must not end a run with these exclusions."""

    def ignores(finding: Finding) -> bool:
        known = {**LOOKED_PAST, **LOOKED_PAST_LATENT} if finding.latent else LOOKED_PAST
        return known.get(finding.law) in exclude

    return ignores


def exclusions(names: Iterable[str]) -> frozenset[StrEnum]:
    """The exclusions with these names. Raises ``ValueError`` for a name that no enumeration has."""
    asked = frozenset(names)
    unknown = sorted(asked - EXCLUSIONS.keys())
    if unknown:
        raise ValueError(f"no exclusion {', '.join(unknown)}: there are {', '.join(EXCLUSIONS)}")
    return frozenset(EXCLUSIONS[name] for name in asked)


@dataclass(frozen=True)
class Known:
    """A difference that a release is known to have: the kept trace ``trace`` gives ``verdict`` on ``law``.

    ``exclude``: the exclusion by which drawn runs avoid it, empty where they never send such a trace.
    """

    trace: str
    law: str
    verdict: str
    exclude: str

    @property
    def stem(self) -> str:
        """The stem of the trace."""
        return traces.load(self.trace).trace.stem


def of_release(folder: Path | None, release: str | None) -> list[Known]:
    """The known differences of an engine's release; empty where the release has no list. ``folder``: the engine's
    folder.
    """
    path = None if folder is None or release is None else folder / "known" / f"{release}.json"
    if path is None or not path.is_file():
        return []
    found = [Known(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    exclusions(k.exclude for k in found if k.exclude)
    return found
