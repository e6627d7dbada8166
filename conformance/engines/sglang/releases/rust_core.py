"""The Rust core of a release's unified tree: whether it can run here, and when the release takes its Python core.

The Rust core is a shared object in the release's wheel. A checkout has it only if it was built there: nothing of a
wheel is borrowed for a checkout, and Slotproof builds nothing.

``conformance.engines.sglang.releases.cores_page`` writes ``docs/cores.md``, which has what each release answers.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError
from conformance.engines.importing import Imported
from conformance.engines.sglang.releases.cores import PYTHON, REGISTRY, RUST, RUST_PACKAGE, SWITCH

CRATE = "sglang-radix-tree"  # the folder of its source below rust/ of a checkout
_LOADER = f"{RUST_PACKAGE}.extension"
_TORCH_RANGE = "rust_extensions.torch_build"
_BUILD = "SGLANG_RUST_BUILD_MODE"


def prepare(imported: Imported) -> tuple[str, ...]:
    """Decides which core the release may take by default, and returns what to tell the user about it.

    Where the Rust core is not built, the Python core is taken by default, since the release would try to build it.
    Raises ``EngineError`` if its shared object is damaged.
    """
    if not imported.has(RUST_PACKAGE):
        return ()
    os.environ.setdefault(_BUILD, "never")
    torch_version = f"torch {torch.__version__} ran"
    reason = _missing(imported)
    if reason:
        os.environ.setdefault(SWITCH, PYTHON)
        return (f"Rust core not judged: {reason}; {torch_version}",)
    try:
        imported.module(_LOADER)
    except EngineError as error:
        file = _shared_objects(imported)[0]
        raise EngineError(f"the Rust core {file} is damaged, fetch or build it again: {error}") from error
    return (f"the Rust core is here, and {torch_version}",)


def unbuilt(imported: Imported) -> tuple[Path, ...]:
    """The folder of the Rust core's source in a checkout, where the core is not built, or is older than the source."""
    crate = imported.root.resolve().parent / "rust" / CRATE
    if not imported.has(RUST_PACKAGE) or not crate.is_dir():
        return ()
    sources = [file for file in crate.rglob("*") if file.is_file() and "target" not in file.relative_to(crate).parts]
    edited = max((file.stat().st_mtime for file in sources), default=0.0)
    built = min((file.stat().st_mtime for file in _shared_objects(imported)), default=0.0)
    return (crate,) if _missing(imported) or built < edited else ()


def _missing(imported: Imported) -> str:
    """Why the Rust core cannot run here; empty if it can."""
    files = _shared_objects(imported)
    if not files:
        return f"it is not built (no shared object in sglang/srt/{RUST_PACKAGE.replace('.', '/')})"
    if not any(f".{file.name.partition('.')[2]}" in EXTENSION_SUFFIXES for file in files):
        return f"{files[0].name} is built for another Python or system"
    limits = imported.module(_TORCH_RANGE)
    lowest, highest = limits._MIN_SUPPORTED_TORCH, limits._MAX_SUPPORTED_TORCH
    here = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if lowest <= here <= highest:
        return ""
    return f"it runs with torch {_dotted(lowest)} to {_dotted(highest)}"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _shared_objects(imported: Imported) -> list[Path]:
    return sorted(imported.root.joinpath("sglang", "srt", *RUST_PACKAGE.split(".")).glob("*.so"))


# When the release takes its Python core.


def _params(**more: Any) -> StandIn:
    usual = {"enable_session_radix_cache": False, "tree_components": None, "component_registry_override": None}
    return StandIn(**{**usual, "token_to_kv_pool_allocator": None, **more})


@contextmanager
def _torch(version: str) -> Iterator[None]:
    with mock.patch.object(torch, "__version__", version):
        yield


@contextmanager
def _nothing_built() -> Iterator[None]:
    with mock.patch.object(importlib.util, "find_spec", return_value=None):
        yield


_AS_IT_IS = mock.patch.dict(os.environ, {})
SITUATIONS: Mapping[str, tuple[Any, Any]] = {
    "a tree of full, SWA and mamba parts": (_params(), _AS_IT_IS),
    "the cache knows sessions (`enable_session_radix_cache`)": (_params(enable_session_radix_cache=True), _AS_IT_IS),
    "another component than full, SWA and mamba": (_params(tree_components=("other",)), _AS_IT_IS),
    "a component of one's own class": (_params(component_registry_override={"full": object}), _AS_IT_IS),
    "tensors on another device than cpu and cuda": (
        _params(token_to_kv_pool_allocator=StandIn(device="meta")),
        _AS_IT_IS,
    ),
    "another system than Linux": (_params(), mock.patch.object(sys, "platform", "darwin")),
    "torch 2.10": (_params(), _torch("2.10.0")),
    "torch 2.14": (_params(), _torch("2.14.0")),
    "torch 2.15": (_params(), _torch("2.15.0")),
    "the core is not built, and there are no sources": (_params(), _nothing_built()),
}


def routes(imported: Imported) -> dict[str, str]:
    """For each situation the core that the release builds when Rust is asked for, by its own function; and which core
    it takes by default. Releases without such a function build what is asked for, or fail. Empty without a Rust core.
    """
    if not imported.has(RUST_PACKAGE):
        return {}
    resolve = getattr(imported.module(REGISTRY), "resolve_tree_core_backend", lambda name, _: name)
    default = getattr(imported.module("environ").envs, SWITCH)
    with mock.patch.dict(os.environ):
        os.environ.pop(SWITCH, None)
        found = {"default": str(default.get())}
    for situation, (params, world) in SITUATIONS.items():
        with world:
            found[situation] = str(resolve(RUST, params))
    return found
