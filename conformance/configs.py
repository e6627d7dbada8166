"""The configurations of the stems: which keys there are, what they count, and the bounds of a trace file.

A configuration is a plain dict, from which an engine is made and with which a run begins. These types say what it has;
``conformance.trace_schema`` checks the traces of users with them. The bounds lie above what drawn runs use: those have
at most 16 pages of at most 16 tokens, in a whole cache at most 8 pages. They are no larger, so that a replay ends
within 5 s: the time of a step grows with the number of slots, and with the third power of the number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, PlainValidator, with_config
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

# Types of errors: the message says what was expected, or what an object lacks.
EXPECTED, INCOMPLETE = "expected", "incomplete"


def whole(first: int, last: int) -> PlainValidator:
    """Accepts the whole numbers from ``first`` to ``last``. A truth value is no number, and neither is 1.0."""

    def check(value: Any) -> int:
        if type(value) is not int or not first <= value <= last:
            raise PydanticCustomError(EXPECTED, f"a whole number from {first} to {last}")
        return value

    return PlainValidator(check)


Tokens = Annotated[int, whole(1, 4096)]
PageSize = Annotated[int, whole(1, 32)]
Pages = Annotated[int, whole(1, 32)]
FewPages = Annotated[int, whole(1, 16)]
States = Annotated[int, whole(1, 64)]
Rows = Annotated[int, whole(1, 16)]
FewRows = Annotated[int, whole(1, 8)]
Groups = Annotated[int, whole(1, 8)]
Sessions = Annotated[int, whole(0, 8)]
Requests = Annotated[int, whole(1, 8)]
Tree = Literal["unified", "swa_radix", "mamba_radix", "radix"]
LockedTree = Literal["unified", "swa_radix", "mamba_radix", "radix", "pure_swa"]
exact = with_config(extra="forbid", strict=True)


def _one_of(*known: list[str]) -> AfterValidator:
    """Accepts these lists of components."""

    def check(value: list[str]) -> list[str]:
        if value not in known:
            raise PydanticCustomError(EXPECTED, f"one of {', '.join(map(str, known))}")
        return value

    return AfterValidator(check)


FULL, WINDOWED, SLIDING = ["full"], ["full", "swa"], ["swa"]
STATEFUL, ALL = ["full", "mamba"], ["full", "swa", "mamba"]
TreeComponents = Annotated[list[str], _one_of(FULL, WINDOWED, STATEFUL, ALL)]
RowComponents = Annotated[list[str], _one_of(FULL, WINDOWED, SLIDING)]
CacheComponents = Annotated[list[str], _one_of(FULL, WINDOWED, STATEFUL, ALL, SLIDING)]


def is_windowed(config: Mapping[str, Any]) -> bool:
    """The model of a configuration has layers with a sliding window and others, so that there are two pools. A
    configuration that names no components has both.
    """
    return {"full", "swa"} <= set(config.get("components", WINDOWED))


def is_all_sliding(config: Mapping[str, Any]) -> bool:
    """Every layer of the model has a sliding window: there is one pool, and a token that left the window needs no
    page.
    """
    return list(config.get("components", WINDOWED)) == SLIDING


def is_prefill_aware(config: Mapping[str, Any]) -> bool:
    """Every layer of the model reads the whole prompt, and a window of the answer."""
    return is_all_sliding(config) and bool(config.get("prefill_aware"))


def swa_size(config: Mapping[str, Any]) -> int:
    """How many pages the SWA pool of a configuration has; 0 without sliding-window layers."""
    return int(config["size_swa"]) if is_windowed(config) else 0


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


@exact
class LockRefConfig(TypedDict):
    """A tree.

    ``page_size``, ``window``: tokens. ``size``, ``size_swa``: pages of the full and of the SWA pool. ``size_mamba``:
    states. ``components``: what the nodes of the tree have. ``kind``: which of two trees, for an engine that has both.
    """

    page_size: PageSize
    size: Pages
    size_swa: Pages
    size_mamba: States
    window: Tokens
    components: TreeComponents
    kind: LockedTree


@exact
class SessionTrimConfig(TypedDict):
    """Request rows and sessions.

    ``page_size``, ``window``: tokens. ``size``, ``size_swa``: pages of the full and of the SWA pool. ``rows``: how many
    requests can run. ``sessions``: how many there are, numbered from 1. ``need_sort``: freed pages go to a release
    list. ``tree``: which of several trees, for an engine that has them; without it the newest. ``components``: a model
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
    tree: NotRequired[Tree]
    components: NotRequired[RowComponents]
    prefill_aware: NotRequired[bool]


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
    tree: NotRequired[Tree]
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


@exact
class BlockPoolConfig(TypedDict):
    """A pool of blocks.

    ``blocks``: usable blocks, without the null block. ``rows``: how many rows the caller has, numbered from 1.
    ``indices``: the most blocks of a row. ``groups``: groups of layers; row ``r`` belongs to group ``r % groups``.
    ``caching``: there is a prefix cache.
    """

    blocks: Pages
    rows: Rows
    indices: FewPages
    groups: Groups
    caching: bool


@exact
class LayersConfig(TypedDict):
    """A group of layers. ``window``: how many tokens a token reads, the last of which is itself; only of ``window``."""

    kind: Literal["full", "window", "mamba"]
    window: NotRequired[Tokens]


def _with_window(group: LayersConfig) -> LayersConfig:
    """Layers of the kind ``window`` have a window, and no others."""
    if group["kind"] == "window" and "window" not in group:
        raise PydanticCustomError(INCOMPLETE, "layers with a window need window")
    if group["kind"] != "window" and "window" in group:
        raise PydanticCustomError(EXPECTED, "no window, which only layers of the kind window have")
    return group


def _few(layers: list[Any]) -> list[Any]:
    """A scheduler has 1 to 8 groups of layers."""
    if not 1 <= len(layers) <= 8:
        raise PydanticCustomError(EXPECTED, "1 to 8 groups of layers")
    return layers


Layers = Annotated[list[Annotated[LayersConfig, AfterValidator(_with_window)]], AfterValidator(_few)]


@exact
class BlockCacheConfig(TypedDict):
    """A scheduler and its blocks.

    ``block_size``: tokens. ``blocks``: usable blocks, without the null block. ``layers``: the groups of layers.
    ``caching``: there is a prefix cache. ``batch``: the most tokens of a step. ``requests``: the most requests that run
    at once. ``drafts``: draft tokens of a request in a step. ``eagle``: the drafts come from layers with KV cache of
    their own. ``steps_in_flight``: one, or two with an asynchronous scheduler. ``threshold``: the most tokens of a
    chunk of a prompt, 0 for any number. ``policy``: which request goes first. ``max_length``: the most tokens of a
    request. ``events``: an engine that can publishes KV events. ``transfers``: KV cache comes from other servers and is
    read by them. ``reoffers``: a transfer of which nothing came is offered again. ``failure``: what becomes of a
    request of whose transfer a part did not come: it computes that part (``recompute``), or ends with an error
    (``fail``).
    """

    block_size: PageSize
    blocks: Pages
    layers: Layers
    caching: bool
    batch: Tokens
    requests: Requests
    drafts: Annotated[int, whole(0, 8)]
    eagle: bool
    steps_in_flight: Annotated[int, whole(1, 2)]
    threshold: Annotated[int, whole(0, 64)]
    policy: Literal["fcfs", "priority"]
    max_length: Annotated[int, whole(2, 256)]
    events: bool
    transfers: NotRequired[bool]
    reoffers: NotRequired[bool]
    failure: NotRequired[Literal["recompute", "fail"]]


CONFIGS: dict[str, Any] = {
    "allocator": AllocatorConfig,
    "swa_mapping": SwaMappingConfig,
    "lock_ref": LockRefConfig,
    "session_trim": SessionTrimConfig,
    "mamba_slots": MambaSlotsConfig,
    "cache": Annotated[CacheConfig, AfterValidator(_with_states)],
    "block_pool": BlockPoolConfig,
    "block_cache": BlockCacheConfig,
}
