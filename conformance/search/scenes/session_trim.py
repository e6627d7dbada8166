"""Scenes of rows and streaming sessions: cuts within a page, windows that are gone, drafts, and open free groups."""

from __future__ import annotations

from conformance.search.scenes.scene import Scenes
from spec.lengths import Length, shorter, touched
from spec.logic import Truth
from spec.session_trim_state import SAVED, SessionTrimState, allocated, committed, has_gaps, is_whole, resumable

scenes = Scenes("session_trim")


def waits(st: SessionTrimState) -> Truth:
    """A free group is open."""
    return st.pools.group > 0


def row_of(st: SessionTrimState, session: int) -> int:
    """The row in the slot of a session."""
    return int(st.slot(session)) - 1


@scenes.at("roll_back")
def rolled_back_within_a_page(was: SessionTrimState, _: SessionTrimState, row: int, to: Length) -> Truth:
    """A row gives back whole pages and keeps a part of a page."""
    return to.rest > 0 and touched(to) < touched(allocated(was, row))


@scenes.at("save")
def saved_with_drafts(was: SessionTrimState, _: SessionTrimState, row: int) -> Truth:
    """A turn ends whose row has a page for drafts alone."""
    return touched(committed(was, row)) < touched(allocated(was, row))


@scenes.at("save")
def saved_behind_the_answer(was: SessionTrimState, _: SessionTrimState, row: int, agreed: Length) -> Truth:
    """A turn ends that has computed more than was agreed with the client."""
    return shorter(agreed, committed(was, row))


@scenes.at("save")
def saved_after_its_window_moved(was: SessionTrimState, _: SessionTrimState, row: int) -> Truth:
    """A turn ends whose window has left tokens behind."""
    return was.cursor(row) > was.protected(row)


@scenes.at("restore")
def restored_before_its_window(was: SessionTrimState, _: SessionTrimState, session: int, prefix: Length) -> Truth:
    """A turn goes on at a place whose window is gone: it starts again behind the cached prefix."""
    return not resumable(was, row_of(was, session), prefix)


@scenes.at("restore")
def restored_within_a_page(was: SessionTrimState, _: SessionTrimState, session: int, prefix: Length) -> Truth:
    """A turn goes on within a page, and later pages are given back."""
    return prefix.rest > 0 and touched(prefix) < touched(allocated(was, row_of(was, session)))


@scenes.at("close")
def closed_with_a_cached_prefix(was: SessionTrimState, _: SessionTrimState, session: int) -> Truth:
    """A session ends whose saved row reads a cached prefix, and owns pages behind it."""
    row = row_of(was, session)
    return was.protected(row) > 0 and touched(allocated(was, row)) > was.protected(row)


@scenes.at("close")
def closed_after_its_window_moved(was: SessionTrimState, _: SessionTrimState, session: int) -> Truth:
    """A session ends whose saved row has left tokens behind its window."""
    row = row_of(was, session)
    return was.cursor(row) > was.protected(row)


@scenes.at("slide")
def window_moves_in_a_free_group(was: SessionTrimState, _: SessionTrimState) -> Truth:
    """A window moves on while a free group is open."""
    return waits(was)


@scenes.at("slide")
def window_moves_over_the_prefix(was: SessionTrimState, _: SessionTrimState, row: int, to: int) -> Truth:
    """A window moves on past the cached prefix at once."""
    return was.cursor(row) < was.protected(row) < to


@scenes.at("leave_window")
def gap_beside_other_rows(was: SessionTrimState, _: SessionTrimState, row: int) -> Truth:
    """Where every layer has a window, a row gives back pages while a session keeps another row."""
    return any(was.phase(r) == SAVED for r in range(was.limit) if r != row)


@scenes.at("release")
def released_in_a_free_group(was: SessionTrimState, _: SessionTrimState, row: int) -> Truth:
    """A row gives back its pages while a free group is open and pages of another one wait."""
    waiting = was.pools.now.full.available < was.pools.now.full.pages.size and waits(was)
    return waiting and touched(allocated(was, row)) > was.protected(row)


@scenes.at("release", "close")
def given_back_with_a_gap(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """Where every layer has a window, a row ends that has given back pages before."""
    ended = [r for r in range(was.limit) if was.phase(r) != 0 and now.phase(r) == 0]
    return bool(has_gaps(was)) and any(not is_whole(was, r) for r in ended)


@scenes.at("dedupe")
def duplicates_of_a_moved_window(was: SessionTrimState, _: SessionTrimState, row: int) -> Truth:
    """A row gives back duplicates, of which its window has left some behind."""
    return was.cursor(row) > was.protected(row)
