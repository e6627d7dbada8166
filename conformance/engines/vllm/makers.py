"""The engines of one release of vLLM, by stem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines.vllm.host_tier import VLLMHostTier
from conformance.engines.vllm.pool import VLLMBlockPool
from conformance.engines.vllm.release import VLLMRelease
from conformance.engines.vllm.scheduler import VLLMScheduler


def makers(release: VLLMRelease) -> Mapping[str, Callable[[Json], Any]]:
    """For each stem a function from a configuration to a fresh engine."""
    return {
        "block_pool": partial(VLLMBlockPool, release),
        "block_cache": partial(VLLMScheduler, release),
        "host_tier": partial(VLLMHostTier, release),
    }
