"""The configuration of a run of ``session_trim``."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from conformance.stems.configs import FewRows, Pages, PageSize, RowComponents, ServedTree, Sessions, Tokens, exact


@exact
class SessionTrimConfig(TypedDict):
    """Request rows and sessions.

    ``page_size``, ``window``: tokens. ``size``, ``size_swa``: pages of the full and of the SWA pool. ``rows``: how many
    requests can run. ``sessions``: how many there are, numbered from 1. ``need_sort``: freed pages go to a release
    list. ``tree``: which of the trees that the engine declares; without it the newest. ``components``: a model
    with ``full`` and ``swa`` among them has layers with a sliding window and others, as it has where they are not
    named. With ``full`` or ``swa`` alone there is one pool, and ``size_swa`` means nothing; without ``swa`` the
    ``window`` means nothing, too. ``prefill_aware``: with ``swa`` alone, the layers read the whole prompt, and a window
    of the answer; without it they read a window.
    """

    page_size: PageSize
    size: Pages
    size_swa: Pages
    rows: FewRows
    sessions: Sessions
    window: Tokens
    need_sort: bool
    tree: NotRequired[ServedTree]
    components: NotRequired[RowComponents]
    prefill_aware: NotRequired[bool]


CONFIG = SessionTrimConfig
