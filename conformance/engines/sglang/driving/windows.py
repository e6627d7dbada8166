"""Where the windows of locks end, for a core that does not show it.

The core locks a window when a request takes its lock: up to the first node at which the window is full. A later split
of that node leaves both parts locked, so the lock then ends at the upper part, which begins at the same token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.engines.sglang.releases.nodes import TreeNode


class Windows:
    """The first locked token of each lock. ``window``: its length in tokens."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._first: list[tuple[Any, int]] = []  # a receipt of a lock, and the first token that the lock holds

    def tops(self, receipt: Any, path: Sequence[TreeNode]) -> list[TreeNode]:
        """The node at which a lock ends, alone; none where the locked node has left the tree. ``path``: from the locked
        node up to the child of the root.
        """
        if not path:
            return []
        begins = [sum(len(node.key) for node in path[i + 1 :]) for i in range(len(path))]
        first = next((token for known, token in self._first if known is receipt), None)
        if first is None:
            full = (begin for begin in begins if begins[0] + len(path[0].key) - begin >= self.window)
            first = next(full, 0)
            self._first.append((receipt, first))
        return [next(node for node, begin in zip(path, begins, strict=True) if begin <= first)]

    def forget(self, held: Sequence[Any]) -> None:
        """Only these receipts are held now."""
        self._first = [one for one in self._first if any(one[0] is receipt for receipt in held)]
