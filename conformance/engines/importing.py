"""Import the classes of one release of an engine into this process, where few of the packages that it needs are
installed.

Engines import dozens of packages that their bookkeeping never calls. ``load`` executes the release's own modules
unchanged. From then on ``standins.Imports`` answers the imports of this process: where a module of the release imports
a package that is not installed, it gets a stub; all other imports are Python's. An import that the release itself
guards with ``try`` fails, as it does wherever the package is missing. ``Imported.stubbed`` lists what was replaced.

A stub lets a module be imported, and decides nothing: whatever tests, compares, counts, calls or builds it raises an
``EngineError`` that names the package, and the run has no verdict, also if the release catches the error (``standins``
has the rules, ``conformance.driver.no_verdict`` the driver's side). Where a release asks a missing package something
while it is imported, the engine's file ``release.py`` has the answer and the reason why no verdict depends on it.

Functions that the release gives to ``torch.compile`` run as they are written: no bookkeeping is among them, and torch's
compiler takes longer to import than the release.

A process holds one release of an engine. A package that is installed is used as it is, whatever its version; but see
``Package.left_out``.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from conformance.driver import no_verdict
from conformance.driver.protocol import EngineError
from conformance.engines import standins
from conformance.engines.standins import Imports, Stub, StubModule, loading

COMPILERS = ((torch, "compile"), (torch.compiler, "disable"))


@dataclass(frozen=True)
class Package:
    """What of an engine is imported.

    ``name``: its Python package. ``title``: how sentences name it. ``modules``: the package below which the modules are
    that ``Imported`` names. ``bookkeeping``: a folder that each release has below its package. ``real``: packages that
    must be installed, and never are stubs. ``left_out``: packages that are stubs for the engine's modules even where
    they are installed, since they do not work beside modules of the engine that are stubs.
    """

    name: str
    title: str
    modules: str
    bookkeeping: Path
    real: frozenset[str]
    left_out: frozenset[str] = frozenset()

    @property
    def replaced(self) -> str:
        """Why a module of the engine itself is a stub."""
        return f"Slotproof puts a stub in the place of this module of {self.title}"


@dataclass(frozen=True)
class Imported:
    """One release in this process. Its methods name modules without the package ``package.modules``."""

    package: Package
    label: str
    root: Path
    replaced: tuple[str, ...]  # modules of the engine itself that are stubs
    _imports: Imports

    @property
    def stubbed(self) -> list[str]:
        """Every module that has been stubbed so far."""
        return sorted([*self.replaced, *self._imports.modules])

    def has(self, name: str) -> bool:
        """The release has a module or package of this name."""
        file = self._file(name)
        return file.with_suffix(".py").is_file() or file.is_dir()

    def text(self, name: str) -> str:
        """The source of a module."""
        return self._file(name).with_suffix(".py").read_text()

    def module(self, name: str) -> Any:
        """The module of this name, for instance ``mem_cache.unified_radix_cache``.

        Raises EngineError if this release has no such module, or if it cannot be imported here.
        """
        full = f"{self.package.modules}.{name}"
        try:
            with warnings.catch_warnings(), no_verdict.watched():
                warnings.simplefilter("ignore")  # each quantization scheme warns that only CUDA supports it
                return self._imported(full)
        except EngineError as error:
            raise EngineError(f"{self.package.name} {self.label}: {full} cannot be imported: {error}") from error

    @staticmethod
    def _imported(full: str) -> Any:
        try:
            return importlib.import_module(full)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(line_of(error)) from error

    def find_class(self, name: str, modules: Sequence[str]) -> type[Any]:
        """The class of this name in the first of ``modules`` that has it; EngineError if none has."""
        for module in filter(self.has, modules):
            found = getattr(self.module(module), name, None)
            if isinstance(found, type):
                return found
        places = " or ".join(f"{self.package.modules}.{module}" for module in modules)
        raise EngineError(f"{self.package.name} {self.label}: no class {name} in {places}")

    def answer(self, module: str, name: str, function: Callable[[], Any]) -> None:
        """Put ``function`` in the place of a function of a stubbed module; while modules are imported it is a stub."""
        stub = Stub(f"{module}.{name}", self.package.replaced)
        setattr(sys.modules[module], name, lambda: stub() if loading() else function())

    def _file(self, name: str) -> Path:
        return self.root.joinpath(*self.package.modules.split("."), *name.split("."))


_loaded: dict[str, Imported] = {}


def load(
    package: Package,
    root: Path,
    label: str,
    replaced: tuple[str, ...],
    needed: Mapping[str, Sequence[str]],
    answers: Mapping[str, Any] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Imported:
    """Import the release whose package lies below ``root``; one process can hold one release of an engine.

    ``replaced``: modules of the engine that are replaced by stubs. ``needed``: classes that the release must have, each
    with the modules where it may be. ``answers``: what names of packages that are not installed, or of replaced
    modules, stand for, instead of a stub. ``prepare`` is called before anything is imported. Raises EngineError if
    another release is loaded, or if the release lacks something that is needed, and what ``prepare`` raises.
    """
    root, here = root.resolve(), _loaded.get(package.name)
    if here is not None and here.root == root:
        return here
    if package.name in sys.modules:
        other = f"{package.name} {here.label}" if here else f"another {package.name}"
        raise EngineError(f"{package.name} {label} needs a process of its own: this one has {other} loaded")
    place = Path(package.name) / package.bookkeeping
    if not (root / place).is_dir():
        raise EngineError(f"{package.name} {label}: no {place.as_posix()} below {root}")
    prepare()
    compilers = [(place, name, getattr(place, name)) for place, name in COMPILERS]
    imported = Imported(package, label, root, replaced, Imports(package.left_out))
    try:
        standins.released[package.name] = package.real
        imported._imports.install()
        for where, name, _ in compilers:
            setattr(where, name, _as_written)
        standins.answers.update(answers or {})
        _register(package, root, replaced)
        for name, modules in needed.items():
            imported.find_class(name, modules)
    except EngineError:
        imported._imports.remove()
        for where, name, compiler in compilers:
            setattr(where, name, compiler)
        _forget(package)
        raise
    _loaded[package.name] = imported
    return imported


def _register(package: Package, root: Path, replaced: tuple[str, ...]) -> None:
    """Register the package and its stubbed modules in sys.modules, with the paths where Python finds what is below
    them.

    The __init__ of the package is not executed: it is a front end, and patches other libraries.
    """
    sys.modules[package.name] = ModuleType(package.name)
    sys.modules[package.name].__path__ = [str(root / package.name)]
    for name in replaced:
        sys.modules[name] = StubModule(name, package.replaced, root.joinpath(*name.split(".")))


def _as_written(function: Any = None, *_: Any, **__: Any) -> Any:
    """Stands for ``torch.compile`` and ``torch.compiler.disable``: returns the function, or a decorator that does."""
    return _as_written if function is None else function


def _forget(package: Package) -> None:
    """Remove every module of a release that failed to load from sys.modules."""
    standins.released.pop(package.name, None)
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


def line_of(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
