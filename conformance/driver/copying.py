"""Copies a whole run: the law's side, the driver, and an engine of ours with its tensors.

``copy.deepcopy`` does not do: it shares functions, also those that have variables of the run, so that the copy would go
on writing into the original. Here whatever is not known to be safe is refused. So is every object of an engine that is
not ours: it may keep a part of its state in variables of its module, which no copy sees.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import immutables

from spec import finite, lengths, logic

if TYPE_CHECKING:
    import torch

Value = TypeVar("Value")
HOME = __name__.rpartition("conformance")[0]  # in a wheel our packages are below ``slotproof``
OWN = tuple(f"{HOME}{package}." for package in ("conformance", "impl", "spec"))
# Values of the law and its texts never change. Its states are copied: they may refer to an object of the run.
NEVER_CHANGE = tuple(module.__name__ for module in (finite, lengths, logic))
CONSTANTS = (int, float, str, bytes, bool, type(None), range, object, immutables.Map)
OF_TORCH = {("torch", "dtype"), ("torch", "device")}


class Uncopyable(Exception):
    """A value that cannot be copied safely; the message names its type."""


def copied(value: Value) -> Value:
    """A copy that shares nothing with ``value`` that can change. Raises ``Uncopyable`` where that cannot be had."""
    try:
        return _Copy().of(value)  # type: ignore[no-any-return]
    except RecursionError:
        raise Uncopyable(f"{type(value).__name__} is nested too deeply") from None


@functools.cache
def _is_shared(kind: type) -> bool:
    """Values of this type never change, so that a copy may have them too."""
    own = kind in CONSTANTS or issubclass(kind, (type, Enum)) or kind.__module__ in NEVER_CHANGE
    return own or (kind.__module__, kind.__qualname__) in OF_TORCH


def _tensors() -> type | None:
    """The type of tensors, if the process has loaded torch: that takes seconds, so that no copy asks for it."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else torch.Tensor


@functools.cache
def _slots(kind: type) -> tuple[str, ...]:
    """The names of the fields that a class keeps outside of its instances' ``__dict__``."""
    named = (owner.__dict__.get("__slots__", ()) for owner in kind.__mro__)
    slots = (name for names in named for name in ((names,) if isinstance(names, str) else names))
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


class _Copy:
    """One copy. What stands in several places is copied once."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.storages: dict[int, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        """The copy of one value."""
        kind: Any = type(value)
        if _is_shared(kind):
            return value
        known = self.made.get(id(value))
        if known is None:
            how = _Copy._tensor if kind is _tensors() else HOW.get(kind)
            known = self.made[id(value)] = how(self, value) if how else self._instance(value)
        return known

    def _instance(self, value: Any) -> Any:
        kind: Any = type(value)
        if not kind.__module__.startswith(OWN) or (kind.__new__ is not object.__new__ and not isinstance(value, tuple)):
            raise Uncopyable(f"{kind.__module__}.{kind.__qualname__}")
        if isinstance(value, tuple):
            return tuple.__new__(kind, map(self.of, value))
        made = self.made[id(value)] = object.__new__(kind)
        for name in _slots(kind):
            if hasattr(value, name):
                object.__setattr__(made, name, self.of(getattr(value, name)))
        if (fields := getattr(value, "__dict__", None)) is not None:
            made.__dict__.update({name: self.of(field) for name, field in fields.items()})
        return made

    def _list(self, value: list[Any]) -> list[Any]:
        made: list[Any] = []
        self.made[id(value)] = made
        made.extend(map(self.of, value))
        return made

    def _dict(self, value: Any) -> Any:
        made = self.made[id(value)] = type(value)()
        if isinstance(value, defaultdict):
            made.default_factory = self.of(value.default_factory)
        for key, item in value.items():
            made[self.of(key)] = self.of(item)
        return made

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(self.of, value))

    def _members(self, value: Any) -> Any:
        return type(value)(map(self.of, value))

    def _deque(self, value: deque[Any]) -> deque[Any]:
        made: deque[Any] = deque(maxlen=value.maxlen)
        self.made[id(value)] = made
        made.extend(map(self.of, value))
        return made

    def _method(self, value: MethodType) -> MethodType:
        return MethodType(value.__func__, self.of(value.__self__))

    def _builtin(self, value: Any) -> Any:
        """A method of a list, for example; a function of a module stays."""
        owner = value.__self__
        of_a_module = owner is None or isinstance(owner, (ModuleType, type))
        return value if of_a_module else getattr(self.of(owner), value.__name__)

    def _function(self, value: FunctionType) -> FunctionType:
        """A function with variables of the run gets variables of the copy."""
        if value.__closure__ is None and not value.__defaults__:
            return value
        closure = tuple(map(self.of, value.__closure__ or ()))
        defaults = self.of(value.__defaults__)
        made = FunctionType(value.__code__, value.__globals__, value.__name__, defaults, closure or None)
        made.__kwdefaults__ = self.of(value.__kwdefaults__)
        return made

    def _cell(self, value: CellType) -> CellType:
        made = self.made[id(value)] = CellType()
        made.cell_contents = self.of(value.cell_contents)
        return made

    def _partial(self, value: functools.partial[Any]) -> functools.partial[Any]:
        return functools.partial(self.of(value.func), *map(self.of, value.args), **self.of(value.keywords))

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        """Two tensors that show one memory do so in the copy too."""
        storage = value.untyped_storage()
        known = self.storages.get(storage._cdata)
        if known is None:
            known = self.storages[storage._cdata] = storage.clone()  # type: ignore[no-untyped-call]
        import torch

        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(known, value.storage_offset(), value.size(), value.stride())


HOW: dict[type, Callable[[_Copy, Any], Any]] = {
    list: _Copy._list,
    **dict.fromkeys((dict, defaultdict, Counter, OrderedDict), _Copy._dict),
    tuple: _Copy._tuple,
    set: _Copy._members,
    frozenset: _Copy._members,
    deque: _Copy._deque,
    MethodType: _Copy._method,
    BuiltinFunctionType: _Copy._builtin,
    FunctionType: _Copy._function,
    CellType: _Copy._cell,
    functools.partial: _Copy._partial,
}
