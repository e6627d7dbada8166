"""The configuration of a run of ``swa_mapping``."""

from __future__ import annotations

from typing_extensions import TypedDict

from conformance.stems.configs import Pages, PageSize, Rows, exact


@exact
class SwaMappingConfig(TypedDict):
    """Two pools. ``size``, ``size_swa``: the pages of the full and of the SWA pool. The rest: see
    ``AllocatorConfig``.
    """

    page_size: PageSize
    size: Pages
    size_swa: Pages
    rows: Rows
    need_sort: bool


CONFIG = SwaMappingConfig
