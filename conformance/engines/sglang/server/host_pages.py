"""Which pages of a server are whole on its host: those of which no copy to the host is still to be made or heard of.

A release takes slots of the host for a node and begins to copy later. It says in KV events that the host has the pages
when it has heard that the copy has ended, and so does this count. Before, a reader that believed it would send a
request to a server that has nothing to load.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from conformance.driver.protocol import Key


@dataclass
class _HostCopy:
    """A copy to the host that is asked for. ``slots``: those that are not written yet. ``told``: the server has heard
    of the end.
    """

    ack: int
    slots: set[int]
    pages: frozenset[Key]
    taken: frozenset[int]
    told: bool = False

    @property
    def ended(self) -> bool:
        return self.told and not self.slots


class HostPages:
    """The copies of one server to its host that have not ended."""

    def __init__(self) -> None:
        self._copies: list[_HostCopy] = []

    def asked(self, ack: int, slots: Iterable[int], pages: Iterable[Key]) -> None:
        """A copy of these pages into these slots is asked for. ``ack``: by which the server names its end."""
        self._copies.append(_HostCopy(ack, set(slots), frozenset(pages), frozenset(slots)))

    def written(self, slots: Iterable[int]) -> None:
        """These slots are written."""
        for copy in self._copies:
            copy.slots -= set(slots)
        self._forget()

    def heard(self, ack: int) -> None:
        """The server has heard of the end of a copy: the first of this name."""
        found = next((copy for copy in self._copies if copy.ack == ack and not copy.told), None)
        if found is not None:
            found.told = True
        self._forget()

    def freed(self, slots: Iterable[int]) -> None:
        """These slots are given back, and what was to be copied there is not there."""
        gone = set(slots)
        self._copies = [copy for copy in self._copies if not copy.taken & gone]

    def cleared(self) -> None:
        """All slots are given back."""
        self._copies.clear()

    def whole(self, pages: Collection[Key]) -> list[Key]:
        """Those of the pages with slots on the host that are copied there."""
        missing: frozenset[Key] = frozenset().union(*(copy.pages for copy in self._copies))
        return [page for page in pages if page not in missing]

    def _forget(self) -> None:
        self._copies = [copy for copy in self._copies if not copy.ended]
