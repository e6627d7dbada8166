"""The core of a release's unified tree: the part that has the nodes and the locks. It is written in Python or in Rust.

A release decides by itself which core it builds (DEFAULT), and falls back to Python where its Rust core cannot run. A
core that is asked for by name must be the one that is built: which one it is, is read off the tree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from conformance.driver.protocol import EngineError

if TYPE_CHECKING:
    from conformance.engines.importing import Imported

DEFAULT, PYTHON, RUST = "default", "python", "rust"
BOTH = "both"  # a tree with each of the two cores, side by side
SWITCH = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"  # the release's own switch between its cores
REGISTRY, RUST_PACKAGE = "mem_cache.unified_cache.tree_core_registry", "mem_cache.rust_tree_core"


def of(tree: Any) -> str:
    """The core that a unified tree has: RUST if its class comes from the release's package of the Rust core."""
    core = type(getattr(tree, "tree_core", None))
    return RUST if f".{RUST_PACKAGE}." in f"{core.__module__}." else PYTHON


def shown(tree: Any) -> dict[str, str]:
    """The core of a unified tree; nothing for a tree of another kind, which has no cores."""
    return {"core": of(tree)} if hasattr(tree, "tree_components") else {}


def known(imported: Imported) -> tuple[str, ...]:
    """The cores between which the release can choose; the default alone where there is no Rust core."""
    return (RUST, PYTHON) if imported.has(RUST_PACKAGE) else (DEFAULT,)


def build(imported: Imported, make: Callable[[Any], Any], params: Any, core: str) -> Any:
    """A unified tree with the core of this name, made from the release's parameters. Raises EngineError if the release
    has no such core, cannot build it, or builds the other one; the message has the release's own reason.
    """
    if core == DEFAULT:
        return make(params)
    where = f"sglang {imported.label}"
    if core == RUST and not imported.has(RUST_PACKAGE):
        raise EngineError(f"{where} has no Rust core of its tree")
    tree = _made(make, params, core, where)
    if of(tree) != core:
        reason = getattr(imported.module(REGISTRY), "_rust_fallback_reason", lambda _: None)(params)
        raise EngineError(
            f"{where}: core {core} was asked for and core {of(tree)} was built: {reason or 'no reason given'}"
        )
    return tree


def _made(make: Callable[[Any], Any], params: Any, core: str, where: str) -> Any:
    if hasattr(params, "tree_core_backend"):
        params.tree_core_backend = core
    try:
        with _switched(core):
            return make(params)
    except (ImportError, RuntimeError, OSError, ValueError) as error:
        raise EngineError(f"{where}: core {core} cannot be built: {error}") from error


@contextmanager
def _switched(core: str) -> Iterator[None]:
    """The release's switch names this core; releases read the environment when they build a tree."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = core
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before
