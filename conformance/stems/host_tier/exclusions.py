"""What drawn runs of ``host_tier`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class HostTierExclusion(StrEnum):
    """What runs of ``host_tier`` avoid."""

    TOUCH_WHILE_WRITTEN = "host_tier.touch_while_written"  # that a key is touched while its copy is not published
    OFFER_OF_KNOWN = "host_tier.offer_of_known"  # that a key is offered which is on the host already
    ARC = "host_tier.arc"  # the policy "arc"


EXCLUSIONS = HostTierExclusion
