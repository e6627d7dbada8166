"""The kinds of trees that an engine has, as it declares them (``trees`` of its plug-in).

The kinds have names in configurations, and so in traces. Here stands what a declaration says; which kinds there are, an
engine says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Parts = tuple[str, ...]  # the components of a tree's nodes, or of what a model has: "full", "swa", "mamba"

# How many numbers are drawn for a tree, of which each names one of the trees that an engine declares. They are as many
# as the most that an engine of ``conformance.engines`` declares.
LOCKED, STATEFUL = 17, 3


class Trees(NamedTuple):
    """The kinds of trees of an engine.

    ``locked``: what ``lock_ref`` drives, each with its components. One that stands there several times is drawn more
    often. ``served``: over which trees a server has requests (``session_trim``, ``cache``), by the parts of its model;
    of those for the same parts the newest stands first. ``stateful``: the kinds of ``mamba_slots``.
    """

    locked: tuple[tuple[str, Parts], ...] = ()
    served: tuple[tuple[str, Parts], ...] = ()
    stateful: tuple[str, ...] = ()

    def serving(self, parts: Iterable[str], older: bool = False) -> str | None:
        """The newest kind that a server whose model has these parts may have, or the oldest; ``None``: none."""
        kinds = [kind for kind, has in self.served if has == tuple(parts)]
        return kinds[-1 if older else 0] if kinds else None

    def names(self, key: str) -> list[str]:
        """The names of the kinds that one of the three fields has."""
        found: Iterable[str | tuple[str, Parts]] = getattr(self, key)
        return list(dict.fromkeys(one if isinstance(one, str) else one[0] for one in found))


def together(declared: Iterable[Trees]) -> Trees:
    """All that several engines declare."""
    found = Trees()
    for one in declared:
        found = Trees(found.locked + one.locked, found.served + one.served, found.stateful + one.stateful)
    return found
