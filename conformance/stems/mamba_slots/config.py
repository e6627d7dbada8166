"""The configuration of a run of ``mamba_slots``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from conformance.stems.configs import Requests, Sessions, States, exact


@exact
class MambaSlotsConfig(TypedDict):
    """State slots.

    ``size``: state slots. ``requests``, ``sessions``: how many there are. ``tree``: which tree, for an engine that has
    several. ``buffered``: a request has a track buffer. ``doubled``: of two slots. ``lazy``: the second slot exists
    only around a tracking boundary.
    """

    size: States
    requests: Requests
    sessions: Sessions
    tree: Literal["mamba_radix", "unified", "unified_swa"]
    buffered: bool
    doubled: bool
    lazy: bool


CONFIG = MambaSlotsConfig
