"""The configuration of a run of ``allocator``."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from conformance.stems.configs import Pages, PageSize, Rows, exact


@exact
class AllocatorConfig(TypedDict):
    """One pool.

    ``page_size``: tokens. ``size``: pages, without the padding page. ``rows``: how many rows the caller has.
    ``need_sort``: freed pages go to a release list. ``size_swa`` is read by no engine; drawn runs have it in common
    with those of ``swa_mapping``.
    """

    page_size: PageSize
    size: Pages
    size_swa: NotRequired[Pages]
    rows: Rows
    need_sort: bool


CONFIG = AllocatorConfig
