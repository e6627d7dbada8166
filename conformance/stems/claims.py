"""What an engine claims: the transitions of a law that its runs must reach before it can be said to conform.

An engine claims a transition of the law where one of the operations that take it is among those that the engine has, in
a configuration that the engine accepts. The operations are those of the stem's runs; an engine does not have the
operations that its attribute ``lacks`` names; and it does not accept the configurations for which its maker raises
``Unsupported``.

Some transitions explain what an engine does in a way of its own, such as splitting a node: a lawful engine may never
take them, so no engine claims them. Reports name them where no run has reached them, and no verdict rests on them.

Each stem says in its ``claims.py`` which operations take which transition, and in which configurations;
``slotproof docs`` writes this to ``docs/claims.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.stems.configs import is_all_sliding, is_windowed

Config = Mapping[str, Any]


class Where(NamedTuple):
    """Configurations, in words and as a test. The words follow "in configurations with"; none where it is all."""

    words: str
    holds: Callable[[Config], bool]


EVERYWHERE = Where("", lambda _: True)
WINDOWED = Where("sliding-window layers and others", is_windowed)
SLIDING = Where("sliding-window layers alone", is_all_sliding)
STATES = Where("mamba states", lambda config: "mamba" in config.get("components", ()))
WINDOWED_STATES = Where(
    "sliding-window layers and mamba states", lambda config: is_windowed(config) and STATES.holds(config)
)
SESSIONS = Where("sessions", lambda config: config["sessions"] > 0)
SESSIONS_WITH_STATES = Where(
    "sessions and mamba states", lambda config: config["sessions"] > 0 and STATES.holds(config)
)
CACHING = Where("a prefix cache", lambda config: bool(config["caching"]))


@dataclass(frozen=True)
class Claim:
    """Which operations take a transition of the law, and in which configurations.

    ``by``: any of these operations takes it. ``where``: the configurations in which they can. ``needs``: what else the
    engine must have, as ``lacks`` names it. ``own``: why a lawful engine may never take the transition; empty where
    each engine that has one of the operations claims it.
    """

    by: tuple[str, ...]
    where: Where = EVERYWHERE
    needs: tuple[str, ...] = ()
    own: str = ""

    def binds(self, config: Config, lacks: Collection[str]) -> bool:
        """An engine of this configuration that lacks these operations claims the transition."""
        has = not self.own and any(op not in lacks for op in self.by) and not any(op in lacks for op in self.needs)
        return has and self.where.holds(config)


Claims = Mapping[str, Claim]


def taken_by(*by: str, where: Where = EVERYWHERE, needs: Iterable[str] = ()) -> Claim:
    """A transition that each engine claims which has one of these operations."""
    return Claim(by, where, tuple(needs))


def own_way(reason: str) -> Claim:
    """A transition that a lawful engine may never take. ``reason``: a sentence that says why."""
    return Claim((), own=reason)


def claimed(claims: Claims, config: Config, lacks: Collection[str]) -> set[str]:
    """The transitions that an engine of this configuration claims."""
    return {name for name, claim in claims.items() if claim.binds(config, lacks)}
