"""The configuration of a run of ``mamba_slots``."""

from __future__ import annotations

from typing_extensions import TypedDict

from conformance.stems.configs import Requests, Sessions, StatefulTree, States, exact


@exact
class MambaSlotsConfig(TypedDict):
    """State slots.

    ``size``: state slots. ``requests``, ``sessions``: how many there are. ``tree``: which of the trees that the engine
    declares (``conformance.stems.kinds``). ``buffered``: a request has a track buffer. ``doubled``: of two slots.
    ``lazy``: the second slot exists only around a tracking boundary.
    """

    size: States
    requests: Requests
    sessions: Sessions
    tree: StatefulTree
    buffered: bool
    doubled: bool
    lazy: bool


CONFIG = MambaSlotsConfig
