"""What the room of each stem offers, by name, and of each server (``conformance.stems.room``): on stems and as whole
servers engines are driven.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver import no_verdict
from conformance.driver.lockstep import Ignores, LockStep, nothing
from conformance.driver.protocol import Json
from conformance.stems.found import driven, with_file
from conformance.stems.room import Room

ROOMS: dict[str, Room] = {room: module.ROOM for room, module in with_file("room").items()}
STEMS: dict[str, Room] = {stem: ROOMS[stem] for stem in driven()}


def start(
    stem: str, make: Callable[[Json], Any], config: Json, strict: bool = True, ignores: Ignores = nothing
) -> LockStep:
    """A fresh run of a stem on a fresh engine. Raises ``Unsupported`` if the engine does not support the
    configuration.
    """
    with no_verdict.watched():
        return LockStep(ROOMS[stem].run(make(config), config, strict, ignores), config)
