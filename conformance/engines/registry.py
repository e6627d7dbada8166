"""Finds and loads the engines: those in the folder ``engines/``, and those that other packages register.

A module or package of this folder that has a ``PLUGIN`` is an engine, and its file name is the engine's name. Another
package registers an engine under the entry point group ``slotproof.engines`` (``name = "package.module:PLUGIN"``).
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from conformance.engines.protocol import EngineError, Json
from conformance.naming import unknown

GROUP = "slotproof.engines"
SHARED = ("adapters", "protocol", "registry")  # the modules of this folder that are no engines
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Loaded:
    """An engine that is ready to be driven.

    ``makers``: for each stem that it implements, a function from a configuration to a fresh engine
    (``conformance.engines.protocol``). ``own``: it is our own implementation, so that a latent finding is a failure
    too.
    """

    name: str
    release: str | None
    makers: Mapping[str, Callable[[Json], Any]]
    own: bool = False

    @property
    def label(self) -> str:
        """Name and release."""
        return f"{self.name} {self.release or ''}".strip()


class Plugin(Protocol):
    """An engine as it is registered.

    ``releases``: those that ``slotproof engines`` judges, oldest first. ``folder``: where its kept traces
    (``traces/NAME.json``) and its known differences (``known/RELEASE.json``) are; ``None`` if it has none.
    """

    name: str
    releases: tuple[str, ...]
    folder: Path | None
    own: bool

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """Loads a release, or the source in a folder, with its tensors on ``device``. Raises ``EngineError`` with one
        line that says why it could not.
        """


@dataclass(frozen=True)
class SimplePlugin:
    """An engine without releases and without a source folder: it consists of its makers, and runs on the CPU.

    ``folder``: see ``Plugin``.
    """

    name: str
    makers: Mapping[str, Callable[[Json], Any]]
    own: bool = False
    folder: Path | None = None
    releases: tuple[str, ...] = field(default=(), init=False)

    def load(self, release: str | None, source: Path | None, device: str) -> Loaded:
        """Its makers. Raises ``EngineError`` for a release, a source folder or another device than ``cpu``."""
        if release or source:
            raise EngineError(f"--release and --source: the engine {self.name} has neither releases nor sources")
        if device != "cpu":
            raise EngineError(f"--device {device}: the engine {self.name} runs on cpu alone")
        return Loaded(self.name, None, self.makers, self.own)


@cache
def _built_in() -> tuple[str, ...]:
    """The modules of this folder that have a ``PLUGIN``."""
    modules = [m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name not in SHARED]
    return tuple(name for name in modules if hasattr(import_module(f"{__package__}.{name}"), "PLUGIN"))


def names() -> list[str]:
    """The names of all engines, our own implementation first. A registered engine cannot take the name of one in this
    folder.
    """
    first = own().name
    registered = (point.name for point in entry_points(group=GROUP))
    return [first, *sorted({*_built_in(), *registered} - {first})]


def plugin(name: str) -> Plugin:
    """The engine of this name. Raises ``EngineError`` if there is none or if it cannot be imported."""
    if name in _built_in():
        return _plugin_of(import_module(f"{__package__}.{name}").PLUGIN, f"engines/{name}")
    for point in entry_points(group=GROUP):
        if point.name == name:
            where = f"the entry point {GROUP} {name}"
            try:
                found = point.load()
            except Exception as error:
                raise EngineError(f"{where} cannot be imported: {error}") from error
            return _plugin_of(found, where)
    raise EngineError(unknown("engine", name, names()))


def plugins() -> Iterator[Plugin]:
    """The engines that can be imported. One that cannot is an error only where it is asked for by name."""
    for name in names():
        with contextlib.suppress(EngineError):
            yield plugin(name)


def _plugin_of(found: Any, where: str) -> Plugin:
    if not all(hasattr(found, attribute) for attribute in ("name", "releases", "folder", "own", "load")):
        raise EngineError(f"{where} is no engine: expected an object like {__name__}.Plugin")
    known: Plugin = found
    return known


def load(name: str, release: str | None = None, source: Path | None = None, device: str = "cpu") -> Loaded:
    """Loads an engine. Raises ``EngineError``, which says in one line what is wrong with the name, release, folder or
    device.
    """
    import torch

    found = plugin(name)
    if device not in DEVICES:
        raise EngineError(f"no device {device!r}: there are {' and '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError("device cuda: this machine has no CUDA device")
    return found.load(release, source, device)


def own() -> Plugin:
    """Our own implementation: it is in this folder."""
    return next(found for found in map(plugin, _built_in()) if found.own)


def released() -> list[Plugin]:
    """The engines that have releases to judge."""
    return [found for found in plugins() if found.releases]
