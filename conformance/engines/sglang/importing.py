"""Import the bookkeeping classes of one SGLang release into this process, with no packages but torch and triton.

SGLang imports dozens of packages that its bookkeeping never calls. ``load`` executes the release's own modules
unchanged. From then on ``stubs.Imports`` answers the imports of this process: where a module of the release imports a
package that is not installed, it gets a stub; all other imports are Python's. An import that the release itself guards
with ``try`` fails, as it does wherever the package is missing. ``Imported.stubbed`` lists what was replaced.

A stub lets a module be imported, and decides nothing: whatever tests, compares, counts, calls or builds it raises an
``EngineError`` that names the package, and the run has no verdict, also if the release catches the error (``stubs``
has the rules, ``conformance.no_verdict`` the driver's side). Where a release asks a missing package something while it
is imported, ``release.ANSWERS`` has the answer and the reason why no verdict depends on it.

Functions that the release gives to ``torch.compile`` run as they are written: no bookkeeping is among them, and torch's
compiler takes longer to import than the release.

A process holds one release. A package that is installed is used as it is, whatever its version.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from conformance import no_verdict
from conformance.array_tl import launch
from conformance.engines.protocol import EngineError
from conformance.engines.sglang import stubs
from conformance.engines.sglang.stubs import Imports, Stub, StubModule, loading

COMPILERS = ((torch, "compile"), (torch.compiler, "disable"))
_REPLACED = "Slotproof puts a stub in the place of this module of SGLang"


@dataclass(frozen=True)
class Imported:
    """One release in this process.

    ``interpreted``: its Triton kernels are interpreted, so they accept CPU tensors. ``checked``: they are interpreted
    on arrays, with every access checked against its tensor, so they cannot kill the process.
    """

    label: str
    root: Path
    interpreted: bool
    checked: bool
    replaced: tuple[str, ...]  # modules of SGLang itself that are stubs
    _imports: Imports

    @property
    def stubbed(self) -> list[str]:
        """Every module that has been stubbed so far."""
        return sorted([*self.replaced, *self._imports.modules])

    def has(self, name: str) -> bool:
        """The release has a module or package ``sglang.srt.<name>``."""
        file = self._file(name)
        return file.with_suffix(".py").is_file() or file.is_dir()

    def text(self, name: str) -> str:
        """The source of the module ``sglang.srt.<name>``."""
        return self._file(name).with_suffix(".py").read_text()

    def module(self, name: str) -> Any:
        """The module ``sglang.srt.<name>``, for instance ``mem_cache.unified_radix_cache``.

        Raises EngineError if this release has no such module, or if it cannot be imported here.
        """
        full = f"sglang.srt.{name}"
        try:
            with warnings.catch_warnings(), no_verdict.watched():
                warnings.simplefilter("ignore")  # each quantization scheme warns that only CUDA supports it
                return self._imported(full)
        except EngineError as error:
            raise EngineError(f"sglang {self.label}: {full} cannot be imported: {error}") from error

    @staticmethod
    def _imported(full: str) -> Any:
        try:
            return importlib.import_module(full)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(_line(error)) from error

    def find_class(self, name: str, modules: Sequence[str]) -> type[Any]:
        """The class of this name in the first of ``modules`` that has it; EngineError if none has."""
        for module in filter(self.has, modules):
            found = getattr(self.module(module), name, None)
            if isinstance(found, type):
                return found
        places = " or ".join(f"sglang.srt.{module}" for module in modules)
        raise EngineError(f"sglang {self.label}: no class {name} in {places}")

    def answer(self, module: str, name: str, function: Callable[[], Any]) -> None:
        """Put ``function`` in the place of a function of a stubbed module; while modules are imported it is a stub."""
        stub = Stub(f"{module}.{name}", _REPLACED)
        setattr(sys.modules[module], name, lambda: stub() if loading() else function())

    def _file(self, name: str) -> Path:
        return self.root.joinpath("sglang", "srt", *name.split("."))


_loaded: Imported | None = None


def load(
    root: Path,
    label: str,
    replaced: tuple[str, ...],
    needed: Mapping[str, Sequence[str]],
    answers: Mapping[str, Any] | None = None,
) -> Imported:
    """Import the release whose ``sglang/`` lies below ``root``; one process can hold one release.

    ``replaced``: modules of SGLang that are replaced by stubs. ``needed``: classes that the release must have, each
    with the modules where it may be. ``answers``: what names of packages that are not installed stand for, instead of a
    stub. Raises EngineError if another release is loaded, if the release lacks something
    that is needed, or if triton was imported too early to interpret kernels on a machine without CUDA.
    """
    global _loaded  # noqa: PLW0603  (a process has one module `sglang`)
    root = root.resolve()
    if _loaded is not None and _loaded.root == root:
        return _loaded
    if "sglang" in sys.modules:
        other = f"sglang {_loaded.label}" if _loaded else "another sglang"
        raise EngineError(f"sglang {label} needs a process of its own: this one has {other} loaded")
    if not (root / "sglang" / "srt" / "mem_cache").is_dir():
        raise EngineError(f"sglang {label}: no sglang/srt/mem_cache below {root}")
    interpreted = _interpreted()
    compilers = [(place, name, getattr(place, name)) for place, name in COMPILERS]
    imported = Imported(label, root, interpreted, interpreted and _on_arrays(), replaced, Imports())
    try:
        imported._imports.install()
        for place, name, _ in compilers:
            setattr(place, name, _as_written)
        stubs.answers.update(answers or {})
        _prepare(root, replaced)
        for name, modules in needed.items():
            imported.find_class(name, modules)
    except EngineError:
        imported._imports.remove()
        for place, name, compiler in compilers:
            setattr(place, name, compiler)
        _forget()
        raise
    _loaded = imported
    return imported


def _prepare(root: Path, replaced: tuple[str, ...]) -> None:
    """Register ``sglang`` and its stubbed modules in sys.modules, with the paths where Python finds what is below them.

    The __init__ of ``sglang`` is not executed: it is the HTTP front end and patches other libraries.
    """
    sys.modules["sglang"] = ModuleType("sglang")
    sys.modules["sglang"].__path__ = [str(root / "sglang")]
    for name in replaced:
        sys.modules[name] = StubModule(name, _REPLACED, root.joinpath(*name.split(".")))


def _as_written(function: Any = None, *_: Any, **__: Any) -> Any:
    """Stands for ``torch.compile`` and ``torch.compiler.disable``: returns the function, or a decorator that does."""
    return _as_written if function is None else function


def _forget() -> None:
    """Remove every module of a release that failed to load from sys.modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


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
        raise EngineError(f"SGLang's allocators need triton: {_line(error)}") from error
    # Triton decides once, when it defines its own functions; the type of this function shows what it decided.
    on = type(standard.cdiv).__name__ == "InterpretedFunction"
    if on != wanted:
        raise EngineError("triton was imported before TRITON_INTERPRET was set: set it before the start")
    return on


def _on_arrays() -> bool:
    """Take the kernels of the release for ``conformance.array_tl``, unless SLOTPROOF_KERNELS=triton leaves them to
    Triton's interpreter; return whether they were taken.
    """
    wanted = os.environ.get("SLOTPROOF_KERNELS", "array")
    if wanted not in ("array", "triton"):
        raise EngineError(f"SLOTPROOF_KERNELS={wanted}: it is either array or triton")
    if wanted == "array":
        launch.install("sglang")
    return wanted == "array"


def _line(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
