"""How what a row has computed goes to the radix tree, in whole pages: a plan, and then its execution.

What the tree has already is not stored twice: the row frees its own copies. Tombstones that nobody reads get the row's
slots, which are live. Tombstones that somebody reads keep their full slots and get the row's SWA slots. What is new
becomes leaves, which own the row's pages.
"""

from __future__ import annotations

from impl.radix import ROOT, RadixTree, Span
from impl.session_trim import RequestRows


class TreeInsert:
    """Plans and executes inserts of ``rows`` into ``tree``."""

    def __init__(self, rows: RequestRows, tree: RadixTree) -> None:
        self.rows, self.tree = rows, tree

    def plan(self, row: int, text: list[int], upto: int) -> list[Span]:
        """What the tree has of the row's text after an insert, up to ``upto`` tokens (whole pages), from the root on.

        A span with a tombstone's node that is ``live`` is to be revived; spans with node ``ROOT`` are new leaves. New
        tokens that have all left the row's window are left out: a match cannot end in a tombstone.
        """
        cursor = int(self.rows.cursor[row]) if self.tree.windowed else 0  # a tree without SWA parts has no tombstones
        protected = int(self.rows.protected[row])
        spans = self.tree.walk(text[:upto])
        plan = [part for span in spans for part in self._revived(span, cursor, protected)]
        end = spans[-1].stop if spans else 0
        if max(end, cursor) >= upto:
            return plan
        tombstone = [Span(ROOT, end, cursor, False)] if end < cursor else []
        return [*plan, *tombstone, Span(ROOT, max(end, cursor), upto, True)]

    def _revived(self, span: Span, cursor: int, protected: int) -> list[Span]:
        """A tombstone gets slots of the row from the row's cursor on, where the row has slots of its own."""
        if span.live or span.stop <= max(cursor, protected):
            return [span]
        first = max(span.start, cursor)
        dead = [span._replace(stop=first)] if span.start < first else []
        return [*dead, span._replace(start=first, live=True)]

    def insert(self, row: int, text: list[int], plan: list[Span]) -> int:
        """Execute a plan, span by span; returns the node in which it ends, 0 for an empty plan."""
        node, protected = ROOT, int(self.rows.protected[row])
        for span in plan:
            node = span.node if span.stop <= protected else self._insert_span(row, text, span, node)
        self.tree.touch(node)
        return node

    def _insert_span(self, row: int, text: list[int], span: Span, above: int) -> int:
        if span.node == ROOT:
            under = self.tree.upto(above, span.start)
            slots = self.rows.donate(row, span.stop)
            return self.tree.add(under, text[span.start : span.stop], slots, live=span.live)
        if span.live == self.tree.live(span.node):
            self.rows.dedupe(row, self.tree.slots([span]), span.stop)
            return span.node
        node = self.tree.upto(span.node, span.stop)
        if self.tree.entries[node].start < span.start:
            self.tree.cut(node, span.start)
        if self.tree.locks.revivable(node):
            old = self.tree.revive(node, self.rows.donate(row, span.stop))
            self.rows.allocator.free(old, row_lens=[old.numel()], swa_lens=[0])
        else:
            self.rows.donate_swa(row, self.tree.entries[node].slots, span.stop)
            self.tree.revive_in_place(node)
        return node
