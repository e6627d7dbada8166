"""The configuration of a run of ``block_cache``."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from conformance.stems.configs import EXPECTED, INCOMPLETE, Pages, PageSize, Requests, Tokens, exact, whole


@exact
class LayersConfig(TypedDict):
    """A group of layers. ``window``: how many tokens a token reads, the last of which is itself; only of ``window``.
    ``checkpoint``: a pass also leaves a state inside its tokens, for the prefix cache; the position is a multiple of so
    many tokens after the first token of the pass. Only of ``mamba``. ``block_size``: the tokens of a block of the
    group, where they are not those of ``BlockCacheConfig``.
    """

    kind: Literal["full", "window", "mamba"]
    block_size: NotRequired[PageSize]
    window: NotRequired[Tokens]
    checkpoint: NotRequired[Annotated[int, whole(1, 64)]]


def _with_window(group: LayersConfig) -> LayersConfig:
    """Layers of the kind ``window`` have a window, and no others; only those with states leave checkpoints."""
    if group["kind"] == "window" and "window" not in group:
        raise PydanticCustomError(INCOMPLETE, "layers with a window need window")
    if group["kind"] != "window" and "window" in group:
        raise PydanticCustomError(EXPECTED, "no window, which only layers of the kind window have")
    if group["kind"] != "mamba" and "checkpoint" in group:
        raise PydanticCustomError(EXPECTED, "no checkpoint, which only layers of the kind mamba leave")
    return group


def _few(layers: list[Any]) -> list[Any]:
    """A scheduler has 1 to 8 groups of layers."""
    if not 1 <= len(layers) <= 8:
        raise PydanticCustomError(EXPECTED, "1 to 8 groups of layers")
    return layers


@exact
class HostConfig(TypedDict):
    """Host memory: so many ``slots`` of so many blocks. ``policy``: which slot is given up first. ``threshold``: how
    often a block is offered before it is copied. ``prompt_only``: only blocks of prompts are copied. ``pool``: host
    memory is a pool of blocks with a prefix cache of its own, and a copy holds its device blocks until it is done;
    blocks are copied once they are computed (``eager``), or before the device may hand them out again (``lazy``).
    ``describes``: KV events say which blocks and tokens a slot has, and not its key alone. ``within_step``: so many
    tokens are loaded within each step, before it computes, so that their requests run in this step; without it a
    request waits until a later step.
    """

    slots: Annotated[int, whole(1, 64)]
    blocks_per_slot: Annotated[int, whole(1, 4)]
    policy: Literal["lru", "arc"]
    threshold: Annotated[int, whole(0, 4)]
    prompt_only: bool
    pool: NotRequired[Literal["eager", "lazy"]]
    describes: NotRequired[bool]
    within_step: NotRequired[Tokens]


@exact
class TuningConfig(TypedDict):
    """Options that most servers do not set.

    ``retention``: layers with a window or with states keep a prefix in the prefix cache at the end of a prompt and
    where texts part, and every ``retention`` tokens where it is not 0; without it at each block. ``watermark``: a
    request is admitted beside others only where so many blocks stay free. ``interval``: of so many steps one computes
    prompts. ``whole_prompts``: a request is admitted only where its whole prompt fits, not its first chunk alone.
    ``match``: the prefix cache finds prefixes of any multiple of so many tokens, not of whole blocks alone.
    ``junctions``: layers with states also keep a state where texts part inside a block. ``whole_hits``: a hit is not
    made shorter for the layers of an EAGLE head. ``short_hashes``: a hash does not cover the token behind its block,
    which such layers have read, so that a hit is made shorter for them. ``adaptive``: a chunk of a prompt is no shorter
    than its share of a step. ``draft_model``: drafts that do not come from an EAGLE head come from a model of their
    own, whose layers are like those of the first group, and not from n-grams.
    """

    retention: NotRequired[Annotated[int, whole(0, 64)]]
    watermark: NotRequired[Annotated[int, whole(0, 16)]]
    interval: NotRequired[Annotated[int, whole(1, 8)]]
    whole_prompts: NotRequired[bool]
    match: NotRequired[Annotated[int, whole(1, 64)]]
    junctions: NotRequired[bool]
    whole_hits: NotRequired[bool]
    short_hashes: NotRequired[bool]
    adaptive: NotRequired[bool]
    draft_model: NotRequired[bool]


Layers = Annotated[list[Annotated[LayersConfig, AfterValidator(_with_window)]], AfterValidator(_few)]


@exact
class BlockCacheConfig(TypedDict):
    """A scheduler and its blocks.

    ``block_size``: tokens of a block, where its group does not say it. ``blocks``: usable blocks, without the null
    block. ``layers``: the groups of layers. ``caching``: there is a prefix cache. ``batch``: the most tokens of a step.
    ``requests``: the most requests that run at once. ``drafts``: draft tokens of a request in a step. ``eagle``: the
    drafts come from layers with KV cache of their own. ``steps_in_flight``: one, two with an asynchronous scheduler, or
    more where the model is also split into stages that compute one after the other. ``threshold``: the most tokens of a
    chunk of a prompt, 0 for any number. ``policy``: which request goes first. ``max_length``: the most tokens of a
    request. ``events``: an engine that can publishes KV events. ``transfers``: KV cache comes from other servers and is
    read by them. ``reoffers``: a transfer of which nothing came is offered again. ``failure``: what becomes of a
    request of whose transfer a part did not come: it computes that part (``recompute``), or ends with an error
    (``fail``). ``both_ways``: other servers also read what was computed for an answer. ``host``: host memory behind the
    blocks, in place of other servers. ``servers``: beside other servers, which come first. ``workers``: how many divide
    each block among them; each ends a transfer at its own moment. Only with ``transfers``; one if left out.
    ``tuning``: options that most servers do not set.
    """

    block_size: PageSize
    blocks: Pages
    layers: Layers
    caching: bool
    batch: Tokens
    requests: Requests
    drafts: Annotated[int, whole(0, 8)]
    eagle: bool
    steps_in_flight: Annotated[int, whole(1, 4)]
    threshold: Annotated[int, whole(0, 64)]
    policy: Literal["fcfs", "priority"]
    max_length: Annotated[int, whole(2, 256)]
    events: bool
    transfers: NotRequired[bool]
    reoffers: NotRequired[bool]
    failure: NotRequired[Literal["recompute", "fail"]]
    both_ways: NotRequired[bool]
    host: NotRequired[HostConfig]
    servers: NotRequired[bool]
    workers: NotRequired[Annotated[int, whole(1, 2)]]
    tuning: NotRequired[TuningConfig]


CONFIG = BlockCacheConfig
