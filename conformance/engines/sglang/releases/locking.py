"""Takes and gives back locks on a tree as the callers of a release do: requests, streaming sessions, and the scheduler
around one call.

What a caller keeps of a lock differs between releases, and with it what can go wrong when the lock is given back:

- a whole lock (``TreeLock``): the tree itself notes in it that the SWA part was given back early;
- a whole receipt: the caller notes beside it that the SWA part was given back early, a session does so too;
- the mark where the window ends and the nodes that were skipped: a session keeps no note of an early release;
- the mark alone: where the tree can skip nodes, no request and no session locks a node over which it would skip any.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Protocol

# Who gives a lock back. request: a request that ends; session: a streaming session that ends; temporary: a lock around
# an admission, which has all that ``inc_lock_ref`` returned.
CALLERS = ("request", "session", "temporary")
WINDOW = "SWA"  # the name of the component whose lock ends with the window
# The fields of a lock's result that callers keep: the mark where the window ends, and the nodes that were skipped.
MARK, SKIPS = "swa_uuid_for_lock", "skip_lock_node_ids"


class Locks(Protocol):
    """Locks on one tree. ``unlocks_window``: the SWA part of a lock can be given back before the lock.
    ``state_goes_early``: the lock of the node's state is given back with it, and not again. ``pins``: a lock may be
    taken over tombstones. ``pinned_by_requests``: requests or sessions keep what they need to give such a lock back;
    where neither does, only a lock around one call is taken over tombstones. ``counts_missing``: such a lock raises
    the lock count of a tombstone; others skip the tombstone.
    """

    unlocks_window: bool
    state_goes_early: bool
    pins: bool
    pinned_by_requests: bool
    counts_missing: bool

    def acquire(self, node: Any) -> Any:
        """``inc_lock_ref`` of a node; the lock."""

    def fills_window(self, lock: Any) -> bool:
        """The SWA part of the lock ends within the tree, so that a caller may give it back early."""

    def release(self, lock: Any, caller: str) -> None:
        """``dec_lock_ref`` with what this caller has kept of the lock."""

    def release_window(self, lock: Any) -> None:
        """``dec_swa_lock_only``: gives the SWA part of a lock back."""


class WholeLocks:
    """A release whose callers keep the lock object of the tree."""

    unlocks_window = state_goes_early = pins = pinned_by_requests = counts_missing = True

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def acquire(self, node: Any) -> Any:
        """See ``Locks``."""
        return self._tree.lock(node)

    def fills_window(self, lock: Any) -> bool:
        """See ``Locks``."""
        return mark_of(lock.receipt) is not None

    def release(self, lock: Any, caller: str) -> None:
        """See ``Locks``. Every caller keeps the lock object."""
        del caller
        self._tree.unlock(lock)

    def release_window(self, lock: Any) -> None:
        """See ``Locks``."""
        self._tree.release_swa(lock)


@dataclass
class _Receipt:
    node: Any
    result: Any  # of inc_lock_ref
    early: bool = False  # its SWA part has been given back


class Receipts:
    """A release whose callers keep fields of the result of ``inc_lock_ref``. ``params``: the class DecLockRefParams.
    ``slot``: the class of a session's slot, which has the fields that a session keeps; ``None``: there are no sessions.
    ``of_request``: the fields that a request keeps.
    """

    def __init__(self, tree: Any, params: type[Any], slot: type[Any] | None, of_request: Collection[str]) -> None:
        self._tree, self._params = tree, params
        known = {field.name for field in fields(params)}
        kept = {field.name for field in fields(slot)} if slot else set()
        # The receipt of a release that requires it says what was acquired, and its releases are paired with that.
        self._whole = self.state_goes_early = self.counts_missing = "node_id" in known
        given = [name for name in (MARK, SKIPS) if name in known]
        self._kept = {
            "temporary": given,
            "request": [name for name in given if name in of_request],
            "session": [name for name in given if name in kept],
        }
        self.pins = (self._whole or SKIPS in known) and hasattr(tree, "tree_components")
        self.pinned_by_requests = self._whole or SKIPS in {*self._kept["request"], *self._kept["session"]}
        self._session_notes = "swa_prefix_lock_released" in kept
        self._unlock = getattr(tree, "dec_swa_lock_only", None)
        self.unlocks_window = self._unlock is not None

    def acquire(self, node: Any) -> Any:
        """See ``Locks``."""
        return _Receipt(node, self._tree.inc_lock_ref(node))

    def fills_window(self, lock: Any) -> bool:
        """See ``Locks``."""
        return mark_of(lock.result) is not None

    def release(self, lock: Any, caller: str) -> None:
        """See ``Locks``."""
        notes = caller == "request" or (caller == "session" and self._session_notes)
        early = {"skip_swa": True} if lock.early and notes else {}
        self._tree.dec_lock_ref(lock.node, self._of(lock, caller), **early)

    def _of(self, lock: _Receipt, caller: str) -> Any:
        """The parameters of ``dec_lock_ref``: all that the lock's result says, or what this caller keeps of it."""
        if hasattr(lock.result, "to_dec_params") and (caller == "temporary" or self._whole):
            return lock.result.to_dec_params()
        return self._params(**{name: getattr(lock.result, name) for name in self._kept[caller]})

    def release_window(self, lock: Any) -> None:
        """See ``Locks``. A request does this."""
        assert self._unlock is not None
        takes = inspect.signature(self._unlock).parameters
        if "params" in takes:
            self._unlock(lock.node, self._of(lock, "request"))
        elif SKIPS in takes and SKIPS in self._kept["request"]:
            self._unlock(lock.node, mark_of(lock.result), **{SKIPS: getattr(lock.result, SKIPS)})
        else:
            self._unlock(lock.node, mark_of(lock.result))
        lock.early = True


def mark_of(result: Any) -> Any:
    """The mark of the node where the window of a lock ends; ``None``: the lock reaches up to the root."""
    if hasattr(result, "component_lock_uuids"):
        return next((mark for part, mark in result.component_lock_uuids.items() if part.name == WINDOW), None)
    return result.swa_uuid_for_lock
