"""Known ways in which a request reads what was not computed for its own tokens, though every count is right."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.engines.ours.states import StateTree
from conformance.engines.protocol import Key
from conformance.faults.fault import Fault
from impl.mamba_in_cache import MambaInCache
from impl.radix import ROOT, RadixTree, Span


class ComparesFirstPage(RadixTree):
    """A match compares only the first page of each node's key, by which the node is found among its siblings."""

    def walk(self, tokens: list[int]) -> list[Span]:
        """Takes the rest of each key for the text's own."""
        spans: list[Span] = []
        node = at = 0
        while (child := self.entries[node].children.get(self._first(tokens[at : at + self.page_size]))) is not None:
            key = self.entries[child].key
            shared = min(len(key), (len(tokens) - at) // self.page_size * self.page_size)
            spans.append(Span(child, at, at + shared, self.live(child)))
            if shared < len(key):
                break
            node, at = child, at + shared
        return spans


class KeepsFirstCopies(ComparesFirstPage):
    """An insert compares only the first page of each node's key: pages of another text count as duplicates.

    The row's own pages are freed, and the request goes on with the pages of the other text.
    """

    def prefix(self, tokens: list[int]) -> list[Span]:
        """A match compares all tokens."""
        spans = super().prefix(tokens)
        own = [span for span in spans if tokens[span.start : span.stop] == self._part(span)]
        return own if own == spans[: len(own)] else []

    def _part(self, span: Span) -> list[int]:
        entry = self.entries[span.node]
        return entry.key[span.start - entry.start : span.stop - entry.start]


class CopiesParent(MambaInCache):
    """A request begins with a copy of the state of the first node on its path, not of the node that it has matched."""

    def begin(self, rows: Sequence[int], nodes: dict[int, int]) -> None:
        """Copies the state of the first node on the path that has one."""
        super().begin(rows, {row: self._first(node) for row, node in nodes.items()})

    def _first(self, node: int) -> int:
        stateful = (n for n in self.tree.path(node) if self.tree.entries[n].state is not None)
        return next(stateful, ROOT)


class KeepsLaterState(MambaInCache):
    """A session's row is cut, and the state that goes on with it is the one after the tokens that were cut off.

    A state cannot be cut. Seen in SGLang, where streaming sessions have mamba states.
    """

    def rewind(self, row: int, at: int, node: int) -> None:
        """Copies no state."""


class ForgetsCopy(MambaInCache):
    """Without a track buffer a node gets a state slot of its own, and the request's state is not copied into it."""

    def share(self, row: int, node: int) -> None:
        """Gives the node a slot, and copies nothing."""
        copy, self._copy = self._copy, None
        super().share(row, node)
        self._copy = copy


class FindsLongest(StateTree):
    """A match finds the longest key that is no longer than the text, whatever its tokens are."""

    def longest(self, text: Key) -> Key | None:
        """Compares only lengths."""
        return max((key for key in self.states if len(key) <= len(text)), key=len, default=None)


# Each fault needs the wrong transition of the law that is named beside it.
CACHE = (
    Fault(
        name="match_of_another_text",
        stem="cache",
        sentence="A match compares only the first page of each node, so that a request reads pages of another text.",
        spec={},  # admit: matches_another_text
        parts={"tree": ComparesFirstPage},
    ),
    Fault(
        name="duplicates_of_another_text",
        stem="cache",
        sentence="An insert frees pages as duplicates of pages of another text, which the request reads from then on.",
        spec={},  # continue_prefill: goes_on_in_another_text
        parts={"tree": KeepsFirstCopies},
    ),
    Fault(
        name="copy_of_another_state",
        stem="cache",
        sentence="A request begins with a copy of the state of another node than the one that it has matched.",
        spec={},  # state_match: the slot gets the state of another node
        parts={"mamba": CopiesParent},
    ),
    Fault(
        name="cut_row_keeps_state",
        stem="cache",
        sentence="A session's row is cut, and its state stays the one after the tokens that were cut off.",
        spec={},  # restore: the row is cut, its state is not one after the tokens that are left
        parts={"mamba": KeepsLaterState},
    ),
    Fault(
        name="node_without_copy",
        stem="cache",
        sentence="A node gets a state slot into which no state was copied.",
        spec={},  # state_copy: the slot keeps what it held
        parts={"mamba": ForgetsCopy},
    ),
)
MAMBA_SLOTS = (
    Fault(
        name="state_of_another_text",
        stem="mamba_slots",
        sentence="A match compares only lengths, so that a request gets a copy of the state of another text.",
        spec={},  # alloc_for_match: the node's key does not begin the request's text
        parts={"tree": FindsLongest},
    ),
)
FAULTS = (*CACHE, *MAMBA_SLOTS)
