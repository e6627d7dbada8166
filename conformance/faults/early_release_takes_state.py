"""The early release of the SWA part gives back the mamba state too, and the handle gives it back once more at its end.

Seen in SGLang 0.5.14, ``dec_swa_lock_only`` of a tree with all three components.
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
    """One holder of the state less is counted, though the handle holds it still."""
    step = law.release_swa(st, handle)
    node = st.node(handle)
    return replace(
        step, then=replace(step.then, mamba_ref=st.mamba_ref.put(node, st.mamba_ref(node) - st.state(handle)))
    )


class Faulty(LockTree):
    """Gives back the state with the SWA part."""

    def release_swa(self, handles: Iterable[LockHandle]) -> None:
        """One holder of the state less is counted."""
        given = list(handles)
        super().release_swa(given)
        for handle in given:
            self.mamba_ref[handle.node] -= int(handle.state)


EARLY_RELEASE_TAKES_STATE = Fault(
    name="early_release_takes_state",
    stem="lock_ref",
    sentence="The early release of the SWA part gives back the mamba state, which the handle still holds.",
    spec={"release_swa": release_swa},
    make=ours.faulty_tree(Faulty),
)
