"""The configuration of a run of ``tickets``."""

from __future__ import annotations

from typing_extensions import TypedDict

from conformance.stems.configs import Pages, exact


@exact
class TicketsConfig(TypedDict):
    """``size``: how many tickets there are."""

    size: Pages


CONFIG = TicketsConfig
