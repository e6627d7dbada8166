"""What drawn runs of the room ``host_server`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class HostServerExclusion(StrEnum):
    """What runs of ``host_server`` avoid."""

    UNFENCED_COPY = "host_server.unfenced_copy"  # steps that overlap: ``Launches.avoided``


EXCLUSIONS = HostServerExclusion
