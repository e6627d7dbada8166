"""Rows and session slots as a picture in words: a line a row in use, with its lengths; and what changed."""

from __future__ import annotations

from conformance.row_seen import lengths_of
from spec.rows import IDLE, LEAVING, RUNNING, SAVED, Rows

PHASES = {RUNNING: "running", SAVED: "in its session's slot", LEAVING: "leaving"}


def row_lines(st: Rows) -> list[str]:
    """The rows that are in use; lengths count tokens, ``protected`` ones are the tree's."""
    return [_line(st, row) for row in range(st.limit) if st.phase(row) != IDLE] or ["no row is in use"]


def _line(st: Rows, row: int) -> str:
    lengths = ", ".join(f"{name} {n}" for name, n in lengths_of(st, row)._asdict().items())
    return f"row {row}{_turn(st, row)}, {PHASES[st.phase(row)]}: {lengths}"


def _turn(st: Rows, row: int) -> str:
    return f" of session {st.session(row)}" if st.session(row) else ""


def row_changes(old: Rows, new: Rows) -> list[str]:
    """What can be seen to differ in the lengths of rows."""
    found = []
    for row in range(new.limit):
        was, now = lengths_of(old, row), lengths_of(new, row)
        moved = [f"{name} {a} → {b}" for name, a, b in zip(now._fields, was, now, strict=True) if a != b]
        found += [f"row {row}: {', '.join(moved)}"] if moved else []
    return found
