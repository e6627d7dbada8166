"""What drawn runs of ``swa_mapping`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class SwaMappingExclusion(StrEnum):
    """What runs of ``swa_mapping`` avoid in addition."""

    TAIL = "swa_mapping.tail"  # a tail that is shorter than its row
    EMPTY_TAIL = "swa_mapping.empty_tail"  # a tail of no tokens
    TAIL_INSIDE_PAGE = "swa_mapping.tail_inside_page"  # a tail that starts inside a page
    SWA_IN_GROUP = "swa_mapping.swa_in_group"  # SWA pages that are given back alone within a free group


EXCLUSIONS = SwaMappingExclusion
