"""Which operations an engine is known to break, where a run of the whole cache can tell beforehand and leaves them out.

A row may revive a tombstone only if nobody holds it; an engine that does not look frees the pages under those who read
them (``lock_ref.restore_held``). A session's first turn that waits keeps the copy of a state that its match has made
(``cache.waiting_copy``).
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.cache.run import CacheRun
from conformance.engines.protocol import Key
from conformance.known import CacheExclusion, LockRefExclusion
from spec.tree import begin


def breaks(run: CacheRun, op: str, request: int) -> bool:
    """The engine is known to break this operation on a request that runs or waits."""
    if CacheExclusion.WAITING_COPY in run.exclude and run.stateful and _may_wait(run, op, request):
        return True
    return op != "look" and LockRefExclusion.RESTORE_HELD in run.exclude and _under_reader(run, request)


def _may_wait(run: CacheRun, op: str, request: int) -> bool:
    """A session's first turn matches, and there may be no room for it."""
    known = run.calls.requests[request]
    first = known.session and not run.rows.slot(known.session) and request not in run.calls.row_of
    return bool(first) and (op == "look" or not run.calls.room_for(request, 0, len(known.tokens)))


def _under_reader(run: CacheRun, request: int) -> bool:
    """What the request has not from the tree, somebody else holds there without its window."""
    text, row = run.calls.requests[request].text, run.calls.row_of.get(request)
    first = _matched(run, text[:-1]) if row is None else int(run.rows.protected(row))
    tree = run.law.state.tree
    return any(common > max(first, begin(tree, n)) and _bare(run, n) for n, common in _along(run, text))


def _bare(run: CacheRun, node: int) -> bool:
    """Somebody holds the node, and its window is gone or may go."""
    tree = run.law.state.tree
    return bool(tree.full_ref(node) > 0 and (tree.swa(node) != 1 or tree.swa_ref(node) == 0))


def _along(run: CacheRun, text: Sequence[int]) -> list[tuple[int, int]]:
    """The nodes of which a text has a page at least, and how many pages of the text lie before it parts from the node."""
    shared = ((n, _common(key, text) // run.tree.page_size) for key, n in run.tree.at.items())
    return [(n, pages) for n, pages in shared if pages > begin(run.law.state.tree, n)]


def _common(key: Key, text: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(key, text, strict=False)) if a != b), min(len(key), len(text)))


def _matched(run: CacheRun, text: Sequence[int]) -> int:
    """How many pages of a text the tree has, the window before their end intact; with states, up to a state."""
    tree, along = run.law.state.tree, _along(run, text)
    live = {i: tree.swa(n) == 1 for n, pages in along for i in range(begin(tree, n), pages)}
    states = {pages for n, pages in along if pages == tree.stop(n) and tree.mamba(n) == 1}
    ends = (end for end in range(len(live), 0, -1) if end in states or not run.stateful)
    return next((end for end in ends if all(live[i] for i in range(max(0, end - tree.window), end))), 0)
