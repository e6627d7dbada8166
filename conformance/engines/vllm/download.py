"""The releases of vLLM: of a wheel of 300 MB only the Python files are kept."""

from __future__ import annotations

from pathlib import Path

from conformance.engines.wheels import Wheels

BOOKKEEPING = Path("v1", "core")


def _is_used(name: str) -> bool:
    """Whether this file of a wheel is unpacked: the Python files of the package."""
    return name.startswith("vllm/") and name.endswith(".py")


WHEELS = Wheels("vllm", "vLLM", BOOKKEEPING, "0.33.0", _is_used)
