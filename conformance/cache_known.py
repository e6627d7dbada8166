"""Which calls an engine is known to break, where a run of the whole cache can tell beforehand and leaves them out.

A row may bring a tombstone to life only if nobody holds it; an engine that does not look frees the pages under those
who read them (``restore_held``). The states of an aborted turn leak (``session_abort``), and a session's first turn
that waits keeps the copy of a state that its match has made (``waiting_copy``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance.tree_slots import Key
from spec.tree import begin

if TYPE_CHECKING:
    from conformance.cache import CacheRun


def breaks(run: CacheRun, op: str, request: int) -> bool:
    """The engine is known to break this operation on a request that runs or waits."""
    if "waiting_copy" in run.avoid and run.stateful and _may_wait(run, op, request):
        return True
    return op != "look" and "restore_held" in run.avoid and _under_reader(run, request)


def _may_wait(run: CacheRun, op: str, request: int) -> bool:
    """A session's first turn matches, and there may be no room for it."""
    asked = run.asked[request]
    first = asked.session and not run.life.slot(asked.session) and request not in run.row_of
    return bool(first) and (op == "look" or not run.room_for(request, 0, len(asked.tokens)))


def _under_reader(run: CacheRun, request: int) -> bool:
    """What the request has not from the tree, somebody else holds there without its window."""
    asked = run.asked[request]
    text = asked.tokens + asked.sampled
    row = run.row_of.get(request)
    first = _matched(run, text[:-1]) if row is None else int(run.life.protected(row))
    return any(common > max(first, begin(run.state.tree, n)) and _bare(run, n) for n, common in _along(run, text))


def _bare(run: CacheRun, node: int) -> bool:
    """Somebody holds the node, and its window is gone or may go."""
    tree = run.state.tree
    return bool(tree.full_ref(node) > 0 and (tree.swa(node) != 1 or tree.swa_ref(node) == 0))


def _along(run: CacheRun, text: Sequence[int]) -> list[tuple[int, int]]:
    """The nodes of which a text has a page at least, and how many pages of the text lie before its parting."""
    shared = ((n, _common(key, text) // run.page_size) for key, n in run.tree.at.items())
    return [(n, pages) for n, pages in shared if pages > begin(run.state.tree, n)]


def _common(key: Key, text: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(key, text, strict=False)) if a != b), min(len(key), len(text)))


def _matched(run: CacheRun, text: Sequence[int]) -> int:
    """How many pages of a text the tree has, the window before their end intact; with states, up to a state."""
    tree, along = run.state.tree, _along(run, text)
    live = {i: tree.swa(n) == 1 for n, pages in along for i in range(begin(tree, n), pages)}
    states = {pages for n, pages in along if pages == tree.stop(n) and tree.mamba(n) == 1}
    ends = (end for end in range(len(live), 0, -1) if end in states or not run.stateful)
    return next((end for end in ends if all(live[i] for i in range(max(0, end - tree.window), end))), 0)
