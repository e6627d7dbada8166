"""Which operations of a whole cache are known differences, as far as a run can tell before it sends them.

There are two. A row may revive a tombstone only if nobody holds it; an engine that does not look frees pages that
others read (``lock_ref.restore_held``). A session's first turn that waits keeps the copy of a state that its match
made (``cache.waiting_copy``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from conformance.stems.cache.exclusions import CacheExclusion
from conformance.stems.cache.run import CacheRun
from conformance.stems.lock_ref.exclusions import LockRefExclusion
from conformance.stems.lock_ref.projection import common_length
from spec.lock_ref_state import begin


def breaks(run: CacheRun, exclude: Collection[StrEnum], op: str, request: int) -> bool:
    """This operation on a request that runs or waits is a known difference, and ``exclude`` names the difference."""
    if CacheExclusion.WAITING_COPY in exclude and run.stateful and _may_wait(run, op, request):
        return True
    return op != "look" and LockRefExclusion.RESTORE_HELD in exclude and _under_reader(run, request)


def _may_wait(run: CacheRun, op: str, request: int) -> bool:
    """The operation is the match of a session's first turn, and there may be no room to admit it."""
    known = run.calls.requests[request]
    first = known.session and not run.rows.slot(known.session) and request not in run.calls.row_of
    return bool(first) and (op == "look" or not run.calls.room_for(request, 0, len(known.tokens)))


def _under_reader(run: CacheRun, request: int) -> bool:
    """The request would insert pages where another request holds the tree's nodes without their SWA pages."""
    text, row = run.calls.requests[request].text, run.calls.row_of.get(request)
    first = _matched(run, text[:-1]) if row is None else int(run.rows.protected(row))
    tree = run.law.state.tree
    return any(common > max(first, begin(tree, n)) and _bare(run, n) for n, common in _along(run, text))


def _bare(run: CacheRun, node: int) -> bool:
    """Somebody holds the node, and its SWA pages are gone or may be evicted."""
    tree = run.law.state.tree
    return bool(tree.windowed and tree.full_ref(node) > 0 and (tree.swa(node) != 1 or tree.swa_ref(node) == 0))


def _along(run: CacheRun, text: Sequence[int]) -> list[tuple[int, int]]:
    """The nodes with which a text shares a page of their own, each with the number of whole pages that text and key
    share.
    """
    shared = ((n, common_length(key, text) // run.tree.page_size) for key, n in run.tree.at.items())
    return [(n, pages) for n, pages in shared if pages > begin(run.law.state.tree, n)]


def _matched(run: CacheRun, text: Sequence[int]) -> int:
    """How many pages of a text the tree can match: the window before the end is there, and with states the end has a
    state.
    """
    tree, along = run.law.state.tree, _along(run, text)
    live = {i: tree.swa(n) == 1 or not tree.windowed for n, pages in along for i in range(begin(tree, n), pages)}
    states = {pages for n, pages in along if pages == tree.stop(n) and tree.mamba(n) == 1}
    ends = (end for end in range(len(live), 0, -1) if end in states or not run.stateful)
    return next((end for end in ends if all(live[i] for i in range(max(0, end - tree.window), end))), 0)
