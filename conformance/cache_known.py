"""What a run of the whole cache looks past in an engine that is known to break it: inserts under a reader.

A row may bring a tombstone to life only if nobody holds it. An engine that does not look frees the pages under those
who read them; which calls come to that can be told beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from conformance.tree_slots import Key
from spec.tree import begin

if TYPE_CHECKING:
    from conformance.cache import CacheRun


def under_reader(run: CacheRun, request: int) -> bool:
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
    """How many pages of a text the tree has, the window before their end intact."""
    tree = run.state.tree
    live = {i: tree.swa(n) == 1 for n, pages in _along(run, text) for i in range(begin(tree, n), pages)}
    ends = (end for end in range(len(live), 0, -1) if all(live[i] for i in range(max(0, end - tree.window), end)))
    return next(ends, 0)
