"""Import the bookkeeping classes of one SGLang release into this process, with no packages but torch and triton."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from conformance.driver.protocol import EngineError
from conformance.engines import importing
from conformance.engines.array_tl import launch
from conformance.engines.importing import Imported, Package, line_of
from conformance.engines.sglang.releases.download import BOOKKEEPING

REAL = frozenset({"packaging", "torch", "triton", "numpy", "msgspec", "regex"})
# SGLang gives transformers its classes of configurations of models, and they are stubs: see ``release.STUBBED``.
PACKAGE = Package("sglang", "SGLang", "sglang.srt", BOOKKEEPING, REAL, left_out=frozenset({"transformers"}))


class Kernels(NamedTuple):
    """How the Triton kernels of a release run in this process.

    ``interpreted``: they are interpreted, so they accept CPU tensors. ``checked``: they are interpreted on arrays, with
    every access checked against its tensor, so they cannot kill the process.
    """

    interpreted: bool
    checked: bool


def load(
    root: Path,
    label: str,
    replaced: tuple[str, ...],
    needed: Mapping[str, Sequence[str]],
    answers: Mapping[str, Any] | None = None,
) -> Imported:
    """Import the release whose ``sglang/`` lies below ``root``, as ``conformance.engines.importing.load`` does.

    Raises EngineError also if triton was imported too early to interpret kernels on a machine without CUDA.
    """
    return importing.load(PACKAGE, root, label, replaced, needed, answers, prepare=_prepare)


def _prepare() -> None:
    kernels()


@cache
def kernels() -> Kernels:
    """Decides, once in a process, how Triton kernels run."""
    interpreted = _interpreted()
    return Kernels(interpreted, interpreted and _on_arrays())


def _interpreted() -> bool:
    """Switch Triton's interpreter on where there is no CUDA; return whether it is on.

    Raises EngineError if triton was imported before the interpreter could be switched on.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    wanted = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}
    try:
        standard = importlib.import_module("triton.language.standard")
    except ImportError as error:
        raise EngineError(f"SGLang's allocators need triton: {line_of(error)}") from error
    # Triton decides once, when it defines its own functions; the type of this function shows what it decided.
    on = type(standard.cdiv).__name__ == "InterpretedFunction"
    if on != wanted:
        raise EngineError("triton was imported before TRITON_INTERPRET was set: set it before the start")
    return on


def _on_arrays() -> bool:
    """Take the kernels of the release for ``conformance.engines.array_tl``, unless SLOTPROOF_KERNELS=triton leaves them
    to Triton's interpreter; return whether they were taken.
    """
    wanted = os.environ.get("SLOTPROOF_KERNELS", "array")
    if wanted not in ("array", "triton"):
        raise EngineError(f"SLOTPROOF_KERNELS={wanted}: it is either array or triton")
    if wanted == "array":
        launch.install("sglang")
    return wanted == "array"
