"""Known bugs that show only in a whole cache, with rows and a tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from conformance.stems.fault import Fault
from conformance.stems.lock_ref.faults import RevivesHeld
from impl.lock_ref import LockHandle, LockTree
from impl.mamba_in_cache import MambaInCache
from impl.radix import ROOT, RadixTree, Span
from impl.session_trim import RequestRows
from proofs import cache as wrong
from proofs import isolation as contents
from spec import mamba_in_cache as law


class GivesSwaBack(RequestRows):
    """A tombstone comes to life in place, and the row frees its SWA pages instead of passing them on."""

    def donate_swa(self, row: int, tree_slots: Tensor, upto: int) -> None:
        """Frees all pages of the row up to there."""
        self.dedupe(row, tree_slots, upto)


class KeepsDonated(RequestRows):
    """A request goes on after a checkpoint, and still counts the pages that it gave to the tree as its own."""

    def donate(self, row: int, upto: int) -> Tensor:
        """Gives the pages away, and leaves the length of the tree's part as it was."""
        before = int(self.protected[row])
        slots = super().donate(row, upto)
        self.protected[row] = before
        return slots


class ReleasesAtOnce(RequestRows):
    """A request gives back the SWA part of its lock as soon as it decodes, though it still reads the tree's window."""

    def window_is_own(self, rows: Tensor) -> Tensor:
        """Says so of every row."""
        return torch.ones_like(rows, dtype=torch.bool)


class LocksAbove(LockTree):
    """A request locks the node above the one where its cached prefix ends: less than it reads, where more is lawful."""

    def acquire(self, nodes: Tensor | Sequence[int], *, over_tombstones: bool = False) -> list[LockHandle]:
        """Acquires handles on the nodes above, as far as there are any."""
        asked = [int(node) for node in nodes]
        above = [int(self.parent[node]) for node in asked]
        lower = [node if up == ROOT else up for node, up in zip(asked, above, strict=True)]
        return super().acquire(lower, over_tombstones=over_tombstones)


def first_pages(tree: RadixTree, tokens: list[int], space: Hashable) -> list[Span]:
    """The nodes that a text goes through, where only the first page of each key is compared: by this page a node is
    found among its siblings.
    """
    spans: list[Span] = []
    node = at = 0
    while (child := tree.entries[node].children.get((space, *tokens[at : at + tree.page_size]))) is not None:
        length = len(tree.entries[child].key)
        shared = min(length, (len(tokens) - at) // tree.page_size * tree.page_size)
        spans.append(Span(child, at, at + shared, tree.live(child)))
        if shared < length:
            break
        node, at = child, at + shared
    return spans


class ComparesFirstPage(RadixTree):
    """A match takes a node for its own whose first page is that of its text, whatever follows in the node."""

    def walk(self, tokens: list[int], space: Hashable = None) -> list[Span]:
        """Compares the first page of each node."""
        return first_pages(self, tokens, space)


class KeepsFirstCopies(RadixTree):
    """An insert compares only the first page of each node's key: pages of another text count as duplicates.

    The row's own pages are freed, and the request goes on with the pages of the other text.
    """

    def walk(self, tokens: list[int], space: Hashable = None) -> list[Span]:
        """Compares the first page of each node."""
        return first_pages(self, tokens, space)

    def prefix(self, tokens: list[int], space: Hashable = None) -> list[Span]:
        """A match compares all tokens."""
        spans = super().prefix(tokens, space)
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


FAULTS = (
    Fault(
        name="insert_under_reader",
        stem="cache",
        sentence="An insert gives a tombstone that another request still reads other pages, and frees the old ones.",
        spec={"revive_tombstone": wrong.revives_under_reader},
        parts={"locks": RevivesHeld},
        search={"small": wrong.two_rows, "routes": wrong.UNDER_READER_ROUTES},
    ),
    Fault(
        name="revival_frees_pages",
        stem="cache",
        sentence="A tombstone that a request reads comes to life, and the SWA pages that it should get are freed.",
        spec={"revive_in_place": wrong.revives_without_pages},
        parts={"rows": GivesSwaBack},
    ),
    Fault(
        name="early_release_under_window",
        stem="cache",
        sentence="A request gives back the SWA part of its lock while its window still reaches into the tree.",
        spec={"release_swa": wrong.releases_window},
        parts={"rows": ReleasesAtOnce},
        search={"routes": wrong.UNDER_WINDOW_ROUTES},
    ),
    Fault(
        name="locks_less_than_it_reads",
        stem="cache",
        sentence="A request locks the node above the one where its cached prefix ends.",
        spec={"admit_tail": wrong.reads_past_its_lock},
        parts={"locks": LocksAbove},
        search=wrong.PAST_THE_LOCK,
    ),
    Fault(
        name="donated_pages_stay",
        stem="cache",
        sentence="A request that gave pages to the tree still counts them as its own.",
        spec={"insert_leaf": wrong.keeps_donated},
        parts={"rows": KeepsDonated},
    ),
    # In these every count is right, and what a page or a state holds is wrong.
    Fault(
        name="match_of_another_text",
        stem="cache",
        sentence="A match compares only the first page of each node, so that a request reads pages of another text.",
        spec={"admit": contents.matches_another_text},
        parts={"tree": ComparesFirstPage},
    ),
    Fault(
        name="duplicates_of_another_text",
        stem="cache",
        sentence="An insert frees pages as duplicates of pages of another text, which the request reads from then on.",
        spec={"continue_prefill": contents.goes_on_in_another_text},
        search={"small": wrong.two_texts, "routes": wrong.OTHER_TEXT_ROUTES},
        parts={"tree": KeepsFirstCopies},
    ),
    Fault(
        name="copy_of_another_state",
        stem="cache",
        sentence="A request begins with a copy of the state of another node than the one that it has matched.",
        spec={"state_admit": contents.brings_another_state},
        search={"routes": wrong.OTHER_STATE_ROUTES},
        parts={"mamba": CopiesParent},
    ),
    Fault(
        name="cut_row_keeps_state",
        stem="cache",
        sentence="A session's row is cut, and its state stays the one after the tokens that were cut off.",
        spec={"state_admit": contents.brings_another_state},
        search={"routes": wrong.LATER_STATE_ROUTES},
        parts={"mamba": KeepsLaterState},
    ),
    Fault(
        name="node_without_copy",
        stem="cache",
        sentence="A node gets a state slot into which no state was copied.",
        spec={"state_copy": contents.writes_nothing(law.state_copy)},
        parts={"mamba": ForgetsCopy},
    ),
)
