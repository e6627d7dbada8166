"""The machine that draws runs of the room ``server``."""

from __future__ import annotations

from conformance.stems.launches import Launches
from conformance.stems.server.machine import ServedMachine


class ServerMachine(ServedMachine):
    """Clients of one server."""

    def launches(self) -> Launches:
        """The servers that are drawn."""
        return self.kinds.launches
