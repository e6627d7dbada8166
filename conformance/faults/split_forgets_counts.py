"""A split gives the new parent no locks: the handles below it still hold it, and it counts nobody."""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.lock_ref import LockTree
from spec import lock_ref as law
from spec.logic import Number, Step
from spec.tree import Tree


def split(st: Tree, child: Number, new: Number, at: Number) -> Step[Tree]:
    """The new parent starts without locks."""
    step = law.split(st, child, new, at)
    full_ref, swa_ref = step.then.full_ref.put(new, 0), step.then.swa_ref.put(new, 0)
    return replace(step, then=replace(step.then, full_ref=full_ref, swa_ref=swa_ref))


class Faulty(LockTree):
    """Copies the values of a node that is split, and not its locks."""

    def split(self, child: int, at: int) -> int:
        """The new parent starts without locks."""
        new = super().split(child, at)
        self.full_ref[new] = 0
        self.swa_ref[new] = 0
        return new


SPLIT_FORGETS_COUNTS = Fault(
    name="split_forgets_counts",
    stem="lock_ref",
    sentence="The new parent of a split starts with no locks, though handles below hold it.",
    spec={"split": split},
    make=ours.faulty_tree(Faulty),
)
