"""SGLang PR 27038: the lock around a copy-on-write eviction is given back without its window boundary.

The walk that gives back the SWA part then goes on to the root, and takes away what other handles hold there.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from conformance.subjects.tree_subjects import OurTree
from spec import lock_ref as law
from spec.holders import shifted
from spec.logic import Number, Step, no
from spec.tree import ROOT, Tree, between, over, path, span


def release(st: Tree, handle: Number) -> Step[Tree]:
    """Gives back the SWA part of the whole path."""
    step = law.release(st, handle)
    node, top, then = st.node(handle), st.top(handle), step.then
    beyond = st.nodes.such(
        lambda n: over(st, n, node) & (top != ROOT) & no(between(st, top, n, node)),
        lambda: path(st, node),
    )
    swa_ref, size = shifted(beyond, st.nodes, then.swa_ref, -1, lambda n: span(st, n))
    evictable, protected = then.swa_evictable + size, then.swa_protected - size
    return replace(step, then=replace(then, swa_ref=swa_ref, swa_evictable=evictable, swa_protected=protected))


class Faulty(OurTree):
    """Does not keep the boundary of its own temporary lock."""

    def release_temporary(self, handle: int) -> None:
        """Walks to the root."""
        engine, held = self.engine, self.held[handle]
        if engine.windowed:
            highest = engine.paths.table[held.node, 0]
            engine.held[held.number, 1] = engine.token[highest]
        super().release_temporary(handle)


PR_27038 = Fault(
    name="pr_27038",
    stem="lock_ref",
    sentence="The lock around a copy-on-write eviction is released past its window, up to the root.",
    spec={"release": release},
    make=ours.faulty_tree(tree=Faulty),
)
