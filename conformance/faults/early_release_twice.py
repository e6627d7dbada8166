"""The SWA part that a request gave back early is given back again with the rest.

Seen in SGLang 0.5.12 to 0.5.14, where a streaming session releases what a request of it had locked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.lock_ref import LockHandle, LockTree
from spec import lock_ref as law
from spec.logic import Number, Step
from spec.tree import Tree


def release_swa(st: Tree, handle: Number) -> Step[Tree]:
    """The handle still names the part that it gave back."""
    step = law.release_swa(st, handle)
    return replace(step, then=replace(step.then, top=st.top))


class Faulty(LockTree):
    """Keeps the window token of a handle whose SWA part is gone."""

    def release_swa(self, handles: Iterable[LockHandle]) -> None:
        """The token stays."""
        tokens = self.held[:, 1].clone()
        super().release_swa(handles)
        self.held[:, 1] = tokens


EARLY_RELEASE_TWICE = Fault(
    name="early_release_twice",
    stem="lock_ref",
    sentence="An SWA part that was given back early is given back again with the rest.",
    spec={"release_swa": release_swa},
    make=ours.faulty_tree(Faulty),
)
