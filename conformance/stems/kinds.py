"""The kinds of trees and of servers that an engine has, as it declares them (``kinds`` of its plug-in).

The kinds have names in configurations, and so in traces. Here stands what a declaration says; which kinds there are, an
engine says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from conformance.stems.launches import Launches

Parts = tuple[str, ...]  # the components of a tree's nodes, or of what a model has: "full", "swa", "mamba"

# How many numbers are drawn for a tree, of which each names one of the trees that an engine declares. They are as many
# as the most that an engine of ``conformance.engines`` declares.
LOCKED, STATEFUL = 17, 3


class Kinds(NamedTuple):
    """The kinds of trees of an engine, and its servers.

    ``locked``: what ``lock_ref`` drives, each with its components. One that stands there several times is drawn more
    often. ``served``: over which trees a server has requests (``session_trim``, ``cache``), by the parts of its model;
    of those for the same parts the newest stands first. ``stateful``: the kinds of ``mamba_slots``. ``launches``: the
    servers of the room ``server``; ``hosting``: those of the room ``host_server``.
    """

    locked: tuple[tuple[str, Parts], ...] = ()
    served: tuple[tuple[str, Parts], ...] = ()
    stateful: tuple[str, ...] = ()
    launches: Launches = Launches()
    hosting: Launches = Launches()

    def serving(self, parts: Iterable[str], older: bool = False) -> str | None:
        """The newest kind that a server whose model has these parts may have, or the oldest; ``None``: none."""
        kinds = [kind for kind, has in self.served if has == tuple(parts)]
        return kinds[-1 if older else 0] if kinds else None

    def names(self, key: str) -> list[str]:
        """The names of the kinds that one of the first three fields has."""
        found: Iterable[str | tuple[str, Parts]] = getattr(self, key)
        return list(dict.fromkeys(one if isinstance(one, str) else one[0] for one in found))


def together(declared: Iterable[Kinds]) -> Kinds:
    """All that several engines declare. Of their servers it is those of the first engine that has some."""
    every = list(declared)
    launches = next((one.launches for one in every if one.launches.models), Launches())
    hosting = next((one.hosting for one in every if one.hosting.models), Launches())
    found = Kinds(launches=launches, hosting=hosting)
    for one in every:
        locked, served, stateful = found.locked + one.locked, found.served + one.served, found.stateful + one.stateful
        found = Kinds(locked, served, stateful, launches, hosting)
    return found
