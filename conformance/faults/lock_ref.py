"""Known bugs of locks in the radix tree."""

from __future__ import annotations

from collections.abc import Iterable

from conformance.faults.fault import Fault
from impl.lock_ref import LockHandle, LockTree
from proofs import lock_ref as wrong


def walk_to_root(locks: LockTree, handle: LockHandle) -> None:
    """SGLang PR 27038: the lock around a copy-on-write eviction is released without its window boundary.

    The walk that releases the SWA part then goes on to the root, and lowers lock counts that belong to other handles.
    """
    if locks.windowed:
        locks.held[handle.number, 1] = locks.token[locks.paths.table[handle.node, 0]]
    locks.release([handle])


class ForgetsCounts(LockTree):
    """A split gives the new parent lock counts of 0, although the handles below it hold it too."""

    def split(self, child: int, at: int) -> int:
        """Splits, and sets the lock counts of the new parent to 0."""
        new = super().split(child, at)
        self.full_ref[new] = 0
        self.swa_ref[new] = 0
        return new


class RevivesHeld(LockTree):
    """A tombstone gets other slots, and its old slots are freed, although a request still reads them.

    Seen in SGLang 0.5.11 to 0.5.14, in both trees: an insert looks only at the SWA lock of the nodes that it overlaps.
    """

    def revivable(self, node: int) -> bool:
        """Does not look whether a handle holds the node."""
        return self.windowed and not bool(self.swa[node])


class KeepsToken(LockTree):
    """An SWA part that a request released early is released a second time with the rest.

    Seen in SGLang 0.5.12 to 0.5.14, where a streaming session releases what one of its requests had locked.
    """

    def release_swa(self, handles: Iterable[LockHandle]) -> None:
        """Releases the SWA parts, but the handles keep their window token."""
        tokens = self.held[:, 1].clone()
        super().release_swa(handles)
        self.held[:, 1] = tokens


class TakesState(LockTree):
    """The early release of the SWA part also releases the mamba state, which the handle then releases again at its
    end.

    Seen in SGLang 0.5.14, in ``dec_swa_lock_only`` of a tree with all three components.
    """

    def release_swa(self, handles: Iterable[LockHandle]) -> None:
        """Releases the SWA parts, and lowers the lock counts of the states too."""
        given = list(handles)
        super().release_swa(given)
        for handle in given:
            self.mamba_ref[handle.node] -= int(handle.state)


FAULTS = (
    Fault(
        name="pr_27038",
        stem="lock_ref",
        sentence="The lock around a copy-on-write eviction is released past its window, up to the root.",
        spec={"release": wrong.walks_to_root},
        parts={"release_own": walk_to_root},
    ),
    Fault(
        name="split_forgets_counts",
        stem="lock_ref",
        sentence="The new parent of a split starts with no locks, though handles below hold it.",
        spec={"split": wrong.splits_without_locks},
        parts={"locks": ForgetsCounts},
    ),
    Fault(
        name="restore_under_lock",
        stem="lock_ref",
        sentence="An insert replaces and frees the slots of a tombstone that a request still reads.",
        spec={"restore": wrong.restores_under_reader},
        parts={"locks": RevivesHeld},
    ),
    Fault(
        name="early_release_twice",
        stem="lock_ref",
        sentence="An SWA part that was given back early is given back again with the rest.",
        spec={"release_swa": wrong.keeps_top},
        parts={"locks": KeepsToken},
    ),
    Fault(
        name="early_release_takes_state",
        stem="lock_ref",
        sentence="The early release of the SWA part gives back the mamba state, which the handle still holds.",
        spec={"release_swa": wrong.takes_state_lock},
        parts={"locks": TakesState},
    ),
)
