"""The configuration of a run of ``lock_ref``."""

from __future__ import annotations

from typing_extensions import TypedDict

from conformance.stems.configs import LockedTree, Pages, PageSize, States, Tokens, TreeComponents, exact


@exact
class LockRefConfig(TypedDict):
    """A tree.

    ``page_size``, ``window``: tokens. ``size``, ``size_swa``: pages of the full and of the SWA pool. ``size_mamba``:
    states. ``components``: what the nodes of the tree have. ``kind``: which of the trees that the engine
    declares (``conformance.stems.kinds``).
    """

    page_size: PageSize
    size: Pages
    size_swa: Pages
    size_mamba: States
    window: Tokens
    components: TreeComponents
    kind: LockedTree


CONFIG = LockRefConfig
