"""An insert brings a tombstone to life that another request still reads, and frees its pages under that request.

Seen in SGLang 0.5.11 to 0.5.14, both trees, through the whole engine: ``restore_under_lock`` with its callers.
"""

from __future__ import annotations

from typing import Any

from conformance.faults.base import Fault
from conformance.faults.restore_under_lock import Locks
from conformance.subjects import cache_subjects
from impl.cache import SessionCache
from impl.radix import Span
from proofs.hints import unasked
from spec import cache as law
from spec import lock_ref, rows, states, swa_mapping
from spec.lengths import Length
from spec.logic import Number, Step
from spec.whole import Whole


def leave_window(st: Whole, row: Number, node: Number) -> Step[Whole]:
    """Whoever holds the node."""
    return unasked(law.leave_window(st, row, node), "nobody holds the node")


def two_rows() -> tuple[Whole, ...]:
    """Three pages of one slot, two request rows, two nodes, and a window of one token."""
    pools = swa_mapping.initial(page_size=1, size=3, size_swa=3, rows=5, need_sort=False)
    life = rows.initial(pools, limit=2, sessions=1, window=Length(1, 0))
    tree = lock_ref.initial(nodes=2, handles=2, window=1, windowed=True, stateful=False)
    return (law.initial(life, tree, states.initial(1, 2, 1, nodes=3, kind=(False, False, False))),)


# One request leaves two nodes, the next one reads both and holds the window of the second alone; the first node's goes.
LEFT = "admit_cold extend finish leave leave depart_cold"
READ = f"{LEFT} admit evict_swa"


class Faulty(SessionCache):
    """Inserts what it has wherever the tree has a tombstone."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.locks.__class__ = Locks  # which restores whoever holds it; the tree has made its own

    def _revived(self, span: Span, cursor: int) -> list[Span]:
        """Does not see the locks."""
        held = self.locks.full_ref[span.node].clone()
        self.locks.full_ref[span.node] = 0
        plan = super()._revived(span, cursor)
        self.locks.full_ref[span.node] = held
        return plan


INSERT_UNDER_READER = Fault(
    name="insert_under_reader",
    stem="cache",
    sentence="An insert gives a tombstone that another request still reads other pages, and frees the old ones.",
    spec={"leave_window": leave_window},
    make=cache_subjects.faulty_cache(Faulty),
    search={"small": two_rows, "routes": {"leave_window": f"{READ} admit_cold extend finish"}},
)
