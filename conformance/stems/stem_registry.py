"""The stems on which engines are driven, by name: what the room of each offers (``conformance.stems.room``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver import no_verdict
from conformance.driver.lockstep import Ignores, LockStep, nothing
from conformance.driver.protocol import Json
from conformance.stems.found import with_file
from conformance.stems.room import Room

STEMS: dict[str, Room] = {stem: module.ROOM for stem, module in with_file("room").items()}


def start(
    stem: str, make: Callable[[Json], Any], config: Json, strict: bool = True, ignores: Ignores = nothing
) -> LockStep:
    """A fresh run of a stem on a fresh engine. Raises ``Unsupported`` if the engine does not support the
    configuration.
    """
    with no_verdict.watched():
        return LockStep(STEMS[stem].run(make(config), config, strict, ignores), config)
