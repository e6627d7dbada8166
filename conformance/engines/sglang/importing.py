"""Import the bookkeeping classes of one SGLang release into this process, with no packages but torch and triton.

SGLang imports dozens of packages that its bookkeeping never calls. ``load`` executes the release's own modules
unchanged and replaces only the packages without which one of these modules cannot be imported: it imports, reads the
name of the missing package off the ModuleNotFoundError, puts a stub in its place and imports again. An import that
the release itself guards with ``try`` stays absent. ``Imported.stubbed`` lists what was replaced. A stub does nothing
while modules are being imported; a call of a stub after that raises EngineError, so that no verdict depends on a
stub.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from conformance.array_tl import launch
from conformance.engines.protocol import EngineError

# Packages that must be real: a release compares versions with them, derives classes from theirs, or calls them.
_NEEDED = frozenset({"packaging", "torch", "triton", "numpy", "msgspec", "regex"})


class _Inert(type):
    """The type of every name in a stub: a call does nothing while modules are imported, and is an error after that.

    A class of the release that derives from a stub behaves as an ordinary class.
    """

    loading = False

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: Any) -> _Inert:
        return super().__new__(mcs, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: Any) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> _Inert:
        if name.startswith("_") or "_is_stub" not in vars(cls):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        return _inert(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_is_stub" not in vars(cls):
            return super().__call__(*args, **kwargs)
        if not _Inert.loading:
            raise EngineError(f"{cls.__qualname__} was called, but it is a stub: it is not installed here")
        used_as_decorator = len(args) == 1 and not kwargs and isinstance(args[0], FunctionType)
        return args[0] if used_as_decorator else cls


def _inert(name: str) -> _Inert:
    body = {"_is_stub": True, "__qualname__": name, "__module__": "stubbed"}
    # A model of the release may have a field of this type: where pydantic is installed, it asks for a schema.
    body["__get_pydantic_core_schema__"] = classmethod(lambda *_: {"type": "any"})
    return _Inert(name, (), body)


class _StubModule(ModuleType):
    """A module in which every public name is a stub."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = _inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stub modules for the missing packages that imports asked for; Python finds them only while a release is
    imported.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.modules: dict[str, ModuleType] = {}

    def admit(self, missing: str | None) -> bool:
        """From now on stub the package of this missing module; False if that package must not be stubbed."""
        package = (missing or "").partition(".")[0]
        own = {"", "sglang", *self.packages, *sys.stdlib_module_names, *_NEEDED}
        if package in own or package in sys.modules:
            return False
        self.packages.add(package)
        return True

    @contextmanager
    def on_offer(self) -> Iterator[None]:
        """Let imports find the stubs, and hide them again afterwards: other code must not take a stub for the
        package.
        """
        sys.meta_path.append(self)
        sys.modules.update(self.modules)
        _Inert.loading = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # each quantization scheme warns that only CUDA supports it
                yield
        finally:
            _Inert.loading = False
            sys.meta_path.remove(self)
            for name in self.modules:
                sys.modules.pop(name, None)

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a stubbed package, or a module below it."""
        known = name.partition(".")[0] in self.packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the stub module of this name."""
        return self.modules.setdefault(spec.name, _StubModule(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """A stub module has no code to execute."""


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
    _stubs: _Stubs

    @property
    def stubbed(self) -> list[str]:
        """Every module that has been stubbed so far."""
        return sorted([*self.replaced, *self._stubs.modules])

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
        with self._stubs.on_offer():
            while True:
                try:
                    return importlib.import_module(full)
                except ModuleNotFoundError as error:
                    if not self._stubs.admit(error.name):
                        raise EngineError(f"sglang {self.label}: {full}: {_line(error)}") from error
                except Exception as error:
                    message = f"sglang {self.label}: {full} cannot be imported: {_line(error)}"
                    raise EngineError(message) from error

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
        stub = getattr(sys.modules[module], name)
        setattr(sys.modules[module], name, lambda: stub() if _Inert.loading else function())

    def _file(self, name: str) -> Path:
        return self.root.joinpath("sglang", "srt", *name.split("."))


_loaded: Imported | None = None


def load(root: Path, label: str, replaced: tuple[str, ...], needed: Mapping[str, Sequence[str]]) -> Imported:
    """Import the release whose ``sglang/`` lies below ``root``; one process can hold one release.

    ``replaced``: modules of SGLang that are replaced by stubs. ``needed``: classes that the release must have, each
    with the modules where it may be. Raises EngineError if another release is loaded, if the release lacks something
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
    imported = Imported(label, root, interpreted, interpreted and _on_arrays(), replaced, _Stubs())
    try:
        _prepare(root, replaced)
        for name, modules in needed.items():
            imported.find_class(name, modules)
    except EngineError:
        _forget()
        raise
    _loaded = imported
    return imported


def _prepare(root: Path, replaced: tuple[str, ...]) -> None:
    """Register ``sglang`` and its stubbed modules in sys.modules, with the paths where Python finds what is below them.

    The __init__ of ``sglang`` is not executed: it is the HTTP front end and patches other libraries.
    """
    sys.modules["sglang"] = ModuleType("sglang")
    sys.modules.update({name: _StubModule(name) for name in replaced})
    for name in ("sglang", *replaced):
        sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")))]


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
