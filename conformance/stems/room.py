"""What the room of a stem offers to those who drive engines: ``ROOM`` in the file ``room.py`` of its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from conformance.driver.protocol import Json
from conformance.stems.claims import Claims
from conformance.stems.kinds import Kinds
from conformance.stems.machine import StemMachine


class Room(NamedTuple):
    """How engines are driven on a stem, and what they must offer.

    ``machine`` draws the runs, ``run`` makes a run on an engine, ``callers`` are the classes whose marked methods are
    the operations of a run. ``claims``: which operations take which transition of the law. ``probes``: one
    configuration of each kind in which an engine with these trees may be driven. ``config``: the type of a
    configuration. ``onward`` drives a run on after a law was broken (``conformance.driver.onward``).

    ``protocol``: what an engine implements. ``reads``: the call that reads an engine. ``never_lacking``: calls that no
    engine can lack. ``abilities``: what ``lacks`` may name beside calls. ``ends``: the laws that break by the end of
    the engine itself, after which nothing can be driven on: this is the harm. ``loop``: the operations that an engine's
    own loop does for all requests; an exception there is the end of the engine, too. ``runs``: how many are drawn where
    nobody says how many. ``weight``: the share of the stem in the time of a check.
    """

    machine: type[StemMachine]
    run: Callable[..., Any]
    callers: tuple[type, ...]
    claims: Claims
    probes: Callable[[Kinds], Sequence[Json]]
    config: Any
    onward: Callable[[Any], Any]
    protocol: type
    reads: str = "snapshot"
    never_lacking: frozenset[str] = frozenset()
    abilities: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    loop: frozenset[str] = frozenset()
    runs: int = 200
    weight: int = 1
