"""Known bugs of locks in the radix tree."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from conformance.stems.fault import Fault
from impl.lock_ref import LockHandle, LockTree
from impl.paths import SWA
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

    def release_swa(self, handles: Iterable[LockHandle], *, with_state: bool = False) -> None:
        """Releases the SWA parts, but the handles keep their window token."""
        tokens = self.held[:, 1].clone()
        super().release_swa(handles, with_state=with_state)
        self.held[:, 1] = tokens


class TakesState(LockTree):
    """The early release of the SWA part also releases the mamba state, which the handle then releases again at its
    end.

    Seen in SGLang 0.5.14, in ``dec_swa_lock_only`` of a tree with all three components.
    """

    def release_swa(self, handles: Iterable[LockHandle], *, with_state: bool = False) -> None:
        """Releases the SWA parts, and lowers the lock counts of the states too."""
        given = list(handles)
        super().release_swa(given, with_state=with_state)
        for handle in given:
            self.mamba_ref[handle.node] -= int(handle.state)


class ForgetsSkips(LockTree):
    """A release does not know which tombstones its handle has skipped: it takes a lock of another handle.

    SGLang 0.5.11 to 0.5.14 remember no skipped nodes; 0.5.15 to 0.5.19 forget them in the early release.
    """

    def release(self, handles: Iterable[LockHandle]) -> None:
        """Releases as if the handles had been taken just now."""
        given = list(handles)
        for handle in given:
            if isinstance(handle, LockHandle) and handle.tree is self:
                self.held[handle.number, 3] = self.revivals
        super().release(given)


class ForgetsSkippedHalf(LockTree):
    """A skipped node is split into two, and the handle knows only that it skipped the lower one.

    In SGLang 0.5.15 to 0.5.19 the receipt of a lock names the skipped nodes by their ids, and the new parent of a split
    has an id of its own.
    """

    def split(self, child: int, at: int) -> int:
        """Splits, and the SWA part of the new parent counts as older than every handle."""
        new = super().split(child, at)
        self.born[new] = 0
        return new


class RevivesAsEvictable(LockTree):
    """A counted tombstone that comes to life counts as evictable, though handles hold it."""

    def restore_swa(self, node: int) -> None:
        """Revives, and does not raise the protected size."""
        super().restore_swa(node)
        self.counts.protected[SWA] -= self._span(node) * int(self.swa_ref[node] > 0)


class MergesHalfHeld(LockTree):
    """Two nodes are merged although a handle holds the SWA part of only one of them."""

    def held_alike(self, above: int, node: int) -> bool:
        """Does not look."""
        del above, node
        return True


class LosesWindowEnd(LockTree):
    """A merge loses the mark at which a window ends, so a release goes wrong.

    SGLang's ``_compact_single_child_chain`` writes the lower node's mark over the mark of the upper node.
    """

    def merge(self, node: int) -> int:
        """Merges, and marks the node with a new token."""
        above = super().merge(node)
        self.token[node] = self._next_token()
        return above


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
    Fault(
        name="release_forgets_skips",
        stem="lock_ref",
        sentence="A lock skipped a tombstone, which came to life; the release takes the lock of another handle there.",
        spec={"release": wrong.releases_skipped},
        parts={"locks": ForgetsSkips},
        search={"routes": wrong.SKIPPED_ROUTES},
    ),
    Fault(
        name="split_forgets_skips",
        stem="lock_ref",
        sentence="A skipped tombstone is split, and the release gives back a lock on its upper half.",
        spec={"split": wrong.splits_without_skips},
        parts={"locks": ForgetsSkippedHalf},
        search={"routes": wrong.SKIPPED_ROUTES},
    ),
    Fault(
        name="revived_is_evictable",
        stem="lock_ref",
        sentence="A counted tombstone comes to life as evictable, though handles hold it.",
        spec={"restore_swa": wrong.revives_as_evictable},
        parts={"locks": partial(RevivesAsEvictable, counting=True)},
    ),
    Fault(
        name="merge_half_held",
        stem="lock_ref",
        sentence="Two nodes become one, and a handle holds the SWA part of only one of them.",
        spec={"merge": wrong.merges_half_held},
        parts={"locks": MergesHalfHeld},
        search={"routes": wrong.SKIPPED_ROUTES},
    ),
    Fault(
        name="merge_loses_window_end",
        stem="lock_ref",
        sentence="Two nodes become one, and the mark at which the window of a handle ends is lost.",
        spec={"merge": wrong.loses_window_end},
        parts={"locks": LosesWindowEnd},
    ),
)
