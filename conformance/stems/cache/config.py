"""The configuration of a run of ``cache``."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from conformance.stems.configs import (
    INCOMPLETE,
    CacheComponents,
    FewPages,
    FewRows,
    PageSize,
    ServedTree,
    Sessions,
    States,
    Tokens,
    exact,
)


@exact
class CacheConfig(TypedDict):
    """A whole cache.

    ``components``: whether the model has sliding-window layers (see ``SessionTrimConfig``), and whether requests and
    nodes have mamba states. ``size_mamba`` (states), ``buffered``, ``doubled`` and ``lazy`` (see ``MambaSlotsConfig``)
    are needed only with states. The rest: see ``SessionTrimConfig``.
    """

    page_size: PageSize
    size: FewPages
    size_swa: FewPages
    rows: FewRows
    sessions: Sessions
    window: Tokens
    need_sort: bool
    tree: NotRequired[ServedTree]
    components: CacheComponents
    prefill_aware: NotRequired[bool]
    size_mamba: NotRequired[States]
    buffered: NotRequired[bool]
    doubled: NotRequired[bool]
    lazy: NotRequired[bool]


OF_STATES = ("size_mamba", "buffered", "doubled", "lazy")


def _with_states(config: CacheConfig) -> CacheConfig:
    """A cache with states says which."""
    missing = [key for key in OF_STATES if key not in config]
    if "mamba" in config["components"] and missing:
        raise PydanticCustomError(INCOMPLETE, f"a cache with mamba states needs {', '.join(missing)}")
    return config


CONFIG: Any = Annotated[CacheConfig, AfterValidator(_with_states)]
