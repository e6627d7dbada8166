"""Import the bookkeeping classes of one SGLang release into this process, with torch and triton alone.

A release imports dozens of packages that its bookkeeping never calls. `load` runs the release's own modules
as they are and stands in only for the third-party packages without which one of them would not import: it
tries, reads the name off the ModuleNotFoundError, puts an inert stub there and tries again. So an import that
the release itself guards stays absent, and what remains is listed in `SGLang.stubbed`. A stub is inert only
while modules are being imported; whoever calls one afterwards gets a SubjectError, so that no verdict can
rest on a stub. Nothing of `sglang.srt.mem_cache` or `sglang.srt.utils` is ever stubbed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from conformance.subjects.errors import SubjectError

# What of SGLang itself is stubbed, all of it outside the bookkeeping: the command line, which imports half the
# engine; processors of logits, which pickle themselves; and the registry of every model's configuration (its
# __init__ only: what lies below `configs` is the release's own).
_STUBBED = ("sglang.srt.configs", "sglang.srt.sampling.custom_logit_processor", "sglang.srt.server_args")
# Packages that must be real: a release compares versions with them while it is imported.
_NEEDED = frozenset({"packaging", "torch", "triton", "numpy"})
# Where a class lives, newest layout first.
_SWA_ALLOCATOR = ("mem_cache.allocator.swa", "mem_cache.swa_memory_pool")
_ALLOCATOR = ("mem_cache.allocator",)
_SWA_POOL = ("mem_cache.swa_memory_pool",)


class _Inert(type):
    """The type of every name in a stub: does nothing while modules load, refuses to be used after that.

    A class of the release that derives from a stub is an ordinary class.
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
            raise SubjectError(f"{cls.__qualname__} was called, but it is a stub: it is not installed here")
        used_as_decorator = len(args) == 1 and not kwargs and isinstance(args[0], FunctionType)
        return args[0] if used_as_decorator else cls


def _inert(name: str) -> _Inert:
    body = {"_is_stub": True, "__qualname__": name, "__module__": "stubbed"}
    # A model of the release may have a field of this type: where pydantic is installed, it asks for a schema.
    body["__get_pydantic_core_schema__"] = classmethod(lambda *_: {"type": "any"})
    return _Inert(name, (), body)


class _StubModule(ModuleType):
    """A module in which every public name is inert."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = _inert(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stub modules for the third-party packages that turned out to be needed, on offer while loading."""

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.modules: dict[str, ModuleType] = {}

    def admit(self, missing: str | None) -> bool:
        """Stub the package of this missing module from now on; False if it may not be stubbed."""
        package = (missing or "").partition(".")[0]
        own = {"", "sglang", *self.packages, *sys.stdlib_module_names, *_NEEDED}
        if package in own or package in sys.modules:
            return False
        self.packages.add(package)
        return True

    @contextmanager
    def on_offer(self) -> Iterator[None]:
        """Let imports find the stubs. Afterwards they are gone again: nobody else may take one for real."""
        sys.meta_path.append(self)
        sys.modules.update(self.modules)
        _Inert.loading = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "only CUDA supports …", once for each quantization scheme
                yield
        finally:
            _Inert.loading = False
            sys.meta_path.remove(self)
            for name in self.modules:
                sys.modules.pop(name, None)

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Answer for a stubbed package and whatever lies below it."""
        known = name.partition(".")[0] in self.packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return an empty stub."""
        return self.modules.setdefault(spec.name, _StubModule(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@dataclass(frozen=True)
class SGLang:
    """One release, loaded into this process: its own classes, ready to be driven."""

    label: str
    root: Path
    interpreted: bool  # its Triton kernels run under the interpreter, so CPU tensors will do
    _stubs: _Stubs

    @property
    def stubbed(self) -> list[str]:
        """Every module that was stubbed so far."""
        return sorted([*_STUBBED, *self._stubs.modules])

    def module(self, name: str) -> ModuleType:
        """Import `sglang.srt.<name>`, for instance `mem_cache.unified_radix_cache`.

        Raises SubjectError if this release has no such module or it cannot be imported here.
        """
        full = f"sglang.srt.{name}"
        with self._stubs.on_offer():
            while True:
                try:
                    return importlib.import_module(full)
                except ModuleNotFoundError as error:
                    if not self._stubs.admit(error.name):
                        raise SubjectError(f"sglang {self.label}: {full}: {_line(error)}") from error
                except Exception as error:
                    message = f"sglang {self.label}: {full} cannot be imported: {_line(error)}"
                    raise SubjectError(message) from error

    def find_class(self, name: str, modules: Sequence[str]) -> type[Any]:
        """Return the class of this name from the first of `modules` that has it; SubjectError if none has."""
        for module in modules:
            file = self.root.joinpath("sglang", "srt", *module.split("."))
            if not (file.with_suffix(".py").is_file() or file.is_dir()):
                continue
            found = getattr(self.module(module), name, None)
            if isinstance(found, type):
                return found
        places = " or ".join(f"sglang.srt.{module}" for module in modules)
        raise SubjectError(f"sglang {self.label}: no class {name} in {places}")

    def allocator(self, size: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """Return a TokenToKVPoolAllocator for page size 1, a PagedTokenToKVPoolAllocator for any other."""
        self._check_device(device)
        if page_size == 1:
            token = self.find_class("TokenToKVPoolAllocator", _ALLOCATOR)
            return token(size, torch.bfloat16, device, None, need_sort)
        paged = self.find_class("PagedTokenToKVPoolAllocator", _ALLOCATOR)
        return paged(size, page_size, torch.bfloat16, device, None, need_sort)

    def swa_allocator(self, size: int, size_swa: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """Return a SWATokenToKVPoolAllocator over a SWAKVPool that has no buffers."""
        self._check_device(device)
        swa = self.find_class("SWATokenToKVPoolAllocator", _SWA_ALLOCATOR)
        return swa(size, size_swa, page_size, torch.bfloat16, device, self._swa_pool(), need_sort)

    def _swa_pool(self) -> Any:
        """Return the release's own SWAKVPool without its buffers: bookkeeping reads only the mapping."""
        pool: Any = object.__new__(self.find_class("SWAKVPool", _SWA_POOL))
        pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
        return pool

    def _check_device(self, device: str) -> None:
        """Raise SubjectError if the kernels of this process cannot read tensors of `device`."""
        if torch.device(device).type == "cpu" and not self.interpreted:
            raise SubjectError("CPU tensors need TRITON_INTERPRET=1 in the environment before the start")


_loaded: SGLang | None = None


def load(root: Path, label: str) -> SGLang:
    """Import the release whose `sglang/` lies below `root`; a process can hold one release.

    Raises SubjectError if another one is loaded, if something the bookkeeping needs is missing, or if triton
    came first and so cannot interpret its kernels on a machine without CUDA.
    """
    global _loaded  # noqa: PLW0603  (a fact about the process: `sglang` has one place in sys.modules)
    root = root.resolve()
    if _loaded is not None and _loaded.root == root:
        return _loaded
    if "sglang" in sys.modules:
        other = f"sglang {_loaded.label}" if _loaded else "another sglang"
        raise SubjectError(f"sglang {label} needs a process of its own: this one has {other} loaded")
    if not (root / "sglang" / "srt" / "mem_cache").is_dir():
        raise SubjectError(f"sglang {label}: no sglang/srt/mem_cache below {root}")
    engine = SGLang(label, root, _interpreted(), _Stubs())
    try:
        _prepare(root)
        engine.find_class("PagedTokenToKVPoolAllocator", _ALLOCATOR)
        engine.find_class("SWATokenToKVPoolAllocator", _SWA_ALLOCATOR)
    except SubjectError:
        _forget()
        raise
    _loaded = engine
    return engine


def _prepare(root: Path) -> None:
    """Put `sglang` and the stubbed parts of it where imports will find them.

    The __init__ of `sglang` is not run: it is the HTTP front end and patches other libraries.
    """
    sys.modules["sglang"] = ModuleType("sglang")
    sys.modules.update({name: _StubModule(name) for name in _STUBBED})
    for name in ("sglang", *_STUBBED):
        sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")))]


def _forget() -> None:
    """Take every module of a release that failed to load out of this process."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]


def _interpreted() -> bool:
    """Switch the Triton interpreter on where there is no CUDA; say whether it is on.

    Raises SubjectError if triton was imported before it could be switched on.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    wanted = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "yes", "on", "y"}
    try:
        standard = importlib.import_module("triton.language.standard")
    except ImportError as error:
        raise SubjectError(f"SGLang's allocators need triton: {_line(error)}") from error
    # triton decides once, when it defines its own functions: this one shows what it decided.
    on = type(standard.cdiv).__name__ == "InterpretedFunction"
    if on != wanted:
        raise SubjectError("triton was imported before TRITON_INTERPRET was set: set it before the start")
    return on


def _line(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
