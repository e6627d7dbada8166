"""The configuration of a run of ``host_tier``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from conformance.stems.configs import EXPECTED, FewPages, FewRows, exact, whole

POLICIES = ("lru", "arc")


def _policy(value: str) -> str:
    if value not in POLICIES:
        raise PydanticCustomError(EXPECTED, f"one of {', '.join(POLICIES)}")
    return value


@exact
class HostTierConfig(TypedDict):
    """A tier of host memory.

    ``slots``: slots of the host, each with room for one key. ``keys``: how many keys there are, numbered from 1.
    ``parts``: device blocks that go into a slot. ``requests``: how many requests the caller has, numbered from 1.
    ``policy``: in which order keys are evicted, least recently used or by an adaptive replacement cache. ``threshold``:
    how often a key must be seen before it is stored. ``events``: the tier publishes KV events.
    """

    slots: FewPages
    keys: FewPages
    parts: Annotated[int, whole(1, 4)]
    requests: FewRows
    policy: Annotated[str, AfterValidator(_policy)]
    threshold: Annotated[int, whole(1, 4)]
    events: bool


CONFIG = HostTierConfig
