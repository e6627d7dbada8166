"""An insert that meets a tombstone gives it its own slots and frees the old ones, though a request still reads them.

Seen in SGLang 0.5.11 to 0.5.14, both trees: the overlap of an insert looks at the SWA lock alone.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.subjects import ours
from conformance.subjects.tree_subjects import OurTree
from impl.lock_ref import LockTree
from proofs.lock_ref import restores_under_reader


class Locks(LockTree):
    """Restores a tombstone whoever holds it."""

    def restore(self, node: int) -> None:
        """Does not see the locks."""
        held = self.full_ref[node].clone()
        self.full_ref[node] = 0
        super().restore(node)
        self.full_ref[node] = held


class Faulty(OurTree):
    """Takes every tombstone for one that it may restore."""

    def restorable(self, node: int) -> bool:
        """Its SWA part is gone."""
        return self.engine.windowed and not bool(self.engine.swa[node])


RESTORE_UNDER_LOCK = Fault(
    name="restore_under_lock",
    stem="lock_ref",
    sentence="An insert replaces and frees the slots of a tombstone that a request still reads.",
    spec={"restore": restores_under_reader},
    make=ours.faulty_tree(Locks, Faulty),
)
