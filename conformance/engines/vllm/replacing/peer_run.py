"""The process that runs a release's own tests: ``python -m conformance.engines.vllm.replacing.peer_run``, with the
arguments of ``conformance.engines.peer_tests.child``.

Tests need more of the release than a check does: its sampling parameters, its inputs and its connectors are imported
here, and fewer of its modules are stubs.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from conformance.engines import importing, peer_tests, standins
from conformance.engines.importing import Imported
from conformance.engines.vllm.release import ANSWERS, NEEDED, PACKAGE, STUBBED
from conformance.engines.vllm.replacing import pool

# Modules that are stubs for a check, and are imported for tests.
REAL = frozenset(
    {
        "vllm.distributed.kv_transfer.kv_connector.factory",
        "vllm.distributed.kv_transfer.kv_connector.v1",
        "vllm.distributed.kv_transfer.kv_connector.v1.base",
        "vllm.lora",
        "vllm.multimodal.inputs",
        "vllm.multimodal.utils",
        "vllm.platforms",
        "vllm.sampling_params",
        "vllm.v1.attention.backend",
    }
)
# Modules that only tests reach, and that are kernels and models.
MORE_STUBS = (
    "vllm._aiter_ops",
    "vllm._custom_ops",
    "vllm.distributed.kv_transfer.kv_connector.v1.hisparse.worker",
    "vllm.model_executor.layers.attention",
    "vllm.model_executor.layers.attention.mla_attention",
)


def _no_config() -> None:
    """No configuration is set, as in a test that sets none."""


def answers() -> dict[str, Any]:
    """What names of stubs stand for: as for a check, but for the modules that are imported here."""
    kept = {name: value for name, value in ANSWERS.items() if name.rpartition(".")[0] not in REAL}
    # A table of names of number types, which the release copies while it is imported.
    return {
        **kept,
        "vllm.config.get_current_vllm_config_or_none": _no_config,
        "safetensors.torch._TYPES": {},
    }


def load(source: Path, label: str, stood_in: bool) -> Imported:
    """Imports the release, with our block pool in the place of its own if that is asked for."""
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    stubbed = (*(name for name in STUBBED if name not in REAL), *MORE_STUBS)
    found = importing.load(PACKAGE, source, label, stubbed, {"BlockPool": NEEDED["BlockPool"]}, answers())
    standins.released["tests"] = frozenset()  # the tests get stubs as the release does
    if stood_in:
        pool.put_in_place(found)
    # The front end of the package is not executed, and helpers of the tests ask it for this name.
    sys.modules[PACKAGE.name].SamplingParams = found.module("sampling_params").SamplingParams  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    sys.exit(peer_tests.child(sys.argv[1:], load))
