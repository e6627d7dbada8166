"""Launches an engine's kernels on arrays, and those that arrays do not cover in Triton's interpreter.

``install`` is called once, before the engine's modules are imported. Programs run one after the other, in the order of
Triton's interpreter.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from conformance.driver.protocol import EngineError
from conformance.engines.array_tl.language import Program
from conformance.engines.array_tl.memory import Pointer, argument
from conformance.engines.array_tl.source import on_arrays
from conformance.engines.array_tl.values import NotCovered, dtype_of, value


class KernelDied(Exception):
    """A kernel in Triton's interpreter kills the process, most likely because it touches what is outside a tensor."""


class ArrayKernel:
    """A function that an engine gave to ``triton.jit``.

    ``refused``: why it runs in Triton's interpreter; empty if it runs on arrays, ``None`` before the first launch.
    """

    def __init__(self, function: FunctionType, jit: Callable[[FunctionType], Any]) -> None:
        self.fn, self._jit = function, jit
        code = function.__code__
        self.arg_names = list(code.co_varnames[: code.co_argcount])
        self.refused: str | None = None
        self._constants = {name for name, kind in function.__annotations__.items() if _is_constant(kind)}
        self._run: Callable[..., Any] | None = None
        functools.update_wrapper(self, function)

    @functools.cached_property
    def triton(self) -> Any:
        """Triton's own object for this kernel."""
        return self._jit(self.fn)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by another kernel in Triton's interpreter."""
        return self.triton(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.triton, name)
        self.refused = f"the engine uses its attribute {name}"
        return found

    def on_arrays(self) -> Callable[..., Any] | None:
        """The kernel as a function of values and pointers; ``None`` if it is refused."""
        if self.refused is None:
            try:
                self._run, self.refused = on_arrays(self.fn, _of_another), ""
            except NotCovered as reason:
                self.refused = str(reason)
        return self._run if not self.refused else None

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        """One launch. Raises ``OutOfBounds`` for an access outside a tensor, ``KernelDied`` if the kernel dies in
        Triton's interpreter, and ``EngineError`` for what neither the interpreter nor arrays can judge.
        """
        if not warmup:
            on_arrays = self._ready(args, grid, kwargs)
            (on_arrays or functools.partial(self._in_triton, args, grid, kwargs))()

    def _ready(self, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any]) -> Callable[[], None] | None:
        """The launch on arrays; ``None`` if the kernel or one of its arguments is refused."""
        run = self.on_arrays()
        if run is None:
            return None
        given = self._arguments(args, kwargs)
        try:
            values = {name: self._converted(name, it) for name, it in given.items()}
        except NotCovered as reason:
            self.refused = str(reason)
            return None
        return functools.partial(self._launch, run, values, _size(grid, given))

    def _launch(self, run: Callable[..., Any], values: dict[str, Any], grid: tuple[int, int, int]) -> None:
        Program.grid = grid
        try:
            with np.errstate(all="ignore"):  # integers wrap around
                for x, y, z in itertools.product(*map(range, grid)):
                    Program.place = (x, y, z)
                    run(**values)
        except NotCovered as reason:
            raise EngineError(
                f"the kernel {self.fn.__name__} needs Triton's interpreter ({reason}): set SLOTPROOF_KERNELS=triton"
            ) from reason

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name. Options of the launch, such as num_warps, are left out."""
        names, defaults = self.arg_names, self.fn.__defaults__ or ()
        given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        given.update(zip(names, args, strict=False))
        given.update({name: it for name, it in kwargs.items() if name in names})
        if len(args) > len(names) or len(given) != len(names):
            raise TypeError(f"{self.fn.__name__} takes {len(names)} arguments: {', '.join(names)}")
        return given

    def _converted(self, name: str, given: Any) -> Any:
        """An argument as the kernel sees it: a pointer, a scalar, or a constant."""
        given = given.value if type(given).__name__ == "constexpr" else given
        if hasattr(given, "data_ptr"):
            return Pointer(argument(self.fn.__name__, name, given), np.int64(0))
        if given is None or isinstance(given, str):
            return given
        if isinstance(given, int):
            return given if name in self._constants else _by_value(given)
        return dtype_of(given)

    def _in_triton(self, args: tuple[Any, ...], grid: Any, kwargs: Mapping[str, Any]) -> None:
        """One launch in Triton's interpreter, tried in a forked process first."""
        from conformance.driver.lockstep import killed_by

        def launch() -> None:
            self.triton[grid](*args, **kwargs)

        if death := killed_by(launch):
            raise KernelDied(f"{self.fn.__name__} killed the process: {death.signal}")
        launch()


def _is_constant(kind: Any) -> bool:
    return "constexpr" in (kind if isinstance(kind, str) else getattr(kind, "__name__", ""))


def _by_value(number: int) -> Any:
    """An integer argument: int32 if it fits, else int64, else uint64."""
    found = value(number)
    return found.to(np.dtype(np.int64)) if found.dtype == np.uint32 else found


def _of_another(given: Any) -> Callable[..., Any] | None:
    """The function of a kernel that a kernel calls; ``NotCovered`` if that one is refused."""
    if not isinstance(given, ArrayKernel):
        return None
    found = given.on_arrays()
    if found is None:
        raise NotCovered(f"it calls {given.fn.__name__}: {given.refused}")
    return found


def _size(grid: Any, given: Mapping[str, Any]) -> tuple[int, int, int]:
    """How many programs a launch has, in three dimensions."""
    x, y, z, *more = *(int(n) for n in (grid(given) if callable(grid) else grid)), 1, 1, 1
    if any(n != 1 for n in more):
        raise ValueError("grid must have at most 3 dimensions")
    return x, y, z


def install(package: str) -> None:
    """From now on ``triton.jit`` makes an ``ArrayKernel`` of each function of this package."""
    import triton

    real = triton.jit

    @functools.wraps(real)
    def jit(fn: Any = None, **options: Any) -> Any:
        if fn is None:
            return functools.partial(jit, **options)
        if fn.__module__.partition(".")[0] != package:
            return real(fn, **options)
        return ArrayKernel(fn, functools.partial(real, **options))

    triton.jit = jit
