"""Pictures of the rows of requests with their pages, and of streaming sessions."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.pools.picture import of_rows
from spec.session_trim_state import SessionTrimState


def panels(st: SessionTrimState, names: Names) -> list[Json]:
    """The pages of the pools, the rows of requests with their lengths, and the sessions."""
    return of_rows(st, names, {})
