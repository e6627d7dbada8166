"""What stands in the place of a package that is not installed here, while and after a release is imported.

A stub lets modules be imported, and nothing else. While the code of a module runs, a stub can be named in annotations,
subscripted, called, derived from and used as a decorator: the result is a stub again. Nothing may depend on it:

- A comparison, an arithmetic operation, a test for truth, a length or a look-up with ``hasattr`` is an ``EngineError``
  that names the package, also while modules are imported: the answer would be ours and not the package's.
- After the import, every use of a stub is such an error: reading an attribute, a call, building a class that derives
  from a stub, and calling a function that was decorated with one.

``isinstance(value, stub)`` is false, which is true: no value can have a class of a package that is not installed. What
cannot be seen from here is ``stub is None``, which is false too.
"""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import re
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from conformance.driver import no_verdict
from conformance.driver.protocol import EngineError

# The packages of the engines of this process, each with the packages that must be real for it: a release compares
# versions with them, derives classes from theirs, or calls them.
released: dict[str, frozenset[str]] = {}
# What names of packages that are not installed stand for, instead of a stub: full name and value. The file that knows
# the release fills it, and says of each answer why no verdict depends on it.
answers: dict[str, Any] = {}


def loading() -> bool:
    """The code of a module of the release runs: it is being imported, by us or by a function of the release."""
    return any(frame.f_code.co_name == "<module>" for frame in _frames_of_the_release())


def _frames_of_the_release() -> Iterator[FrameType]:
    """The frames of the release's code that are running, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_of_the_release(frame.f_globals):
            yield frame
        frame = frame.f_back


def _is_of_the_release(names: Mapping[str, Any] | None) -> bool:
    return str((names or {}).get("__name__", "")).partition(".")[0] in released


def _used(name: str, why: str, how: str, is_a: str = "it is a stub") -> EngineError:
    """The error that says that a stub was used, and where in the release. ``why`` there is a stub."""
    frame = next(_frames_of_the_release(), None)
    where = f" (in {frame.f_globals['__name__']}, line {frame.f_lineno})" if frame else ""
    return no_verdict.reason(f"{name} was {how}{where}, but {is_a}: {why}")


def _asks_by_name(frame: FrameType) -> bool:
    """This frame reads an attribute with a call, so with ``hasattr`` or ``getattr``, and not with a dot."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("CALL")


class Uses:
    """What a stub answers to each operation. ``_stub``: its name, and why it is a stub, in one sentence."""

    _stub: tuple[str, str]

    # Python and packages such as pydantic compare and print annotations. For them a stub is equal to itself alone.

    def __eq__(self, other: object) -> bool:
        self._refuse_the_release("compared", sys._getframe(1))
        return self is other

    def __ne__(self, other: object) -> bool:
        self._refuse_the_release("compared", sys._getframe(1))
        return self is not other

    def __str__(self) -> str:
        self._refuse_the_release("used as a text", sys._getframe(1))
        return repr(self)

    def __format__(self, _: str) -> str:
        self._refuse_the_release("used as a text", sys._getframe(1))
        return repr(self)

    def _refuse_the_release(self, how: str, caller: FrameType) -> None:
        if _is_of_the_release(caller.f_globals):
            raise _used(*self._stub, how)

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        return self._attribute(name, sys._getframe(1))

    def _attribute(self, name: str, caller: FrameType) -> Any:
        """What a name of this stub stands for, which the frame ``caller`` asks for: a stub, or an answer."""
        if (full := f"{self._stub[0]}.{name}") in answers:
            return answers[full]
        if name.startswith("_"):
            raise AttributeError(name)
        if not loading() or (_is_of_the_release(caller.f_globals) and _asks_by_name(caller)):
            raise _used(full, self._stub[1], "looked up")
        return Stub(full, self._stub[1])

    @staticmethod
    def _named(*_: Any) -> Any:
        """The type hint of a stub is any type. Called by pydantic for the field of a model."""
        return {"type": "any"}


def _refusing(how: str) -> Callable[..., Any]:
    def refuse(self: Uses, *_: Any) -> Any:
        raise _used(*self._stub, how)

    return refuse


_REFUSED = {
    "tested for truth": ("bool",),
    "compared": ("lt", "le", "gt", "ge"),
    "iterated": ("iter", "next", "reversed", "aiter", "anext", "await"),
    "asked for its length": ("len", "length_hint"),
    "asked for an item": ("contains", "delitem"),
    "used as a number": (
        *("int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "neg", "pos", "abs", "invert"),
        *(side + name for side in ("", "r", "i") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod")),
        *(side + name for side in ("", "r", "i") for name in ("pow", "matmul", "and", "xor", "lshift", "rshift")),
        *("divmod", "rdivmod"),
    ),
    "used as bytes": ("bytes", "fspath"),
    "entered": ("enter", "exit", "aenter", "aexit"),
}
for _how, _names in _REFUSED.items():
    for _name in _names:
        setattr(Uses, f"__{_name}__", _refusing(_how))
Uses.__get_pydantic_core_schema__ = Uses._named  # type: ignore[attr-defined]


class Stub(Uses):
    """One name of a stubbed package, or what came of it while modules were imported."""

    def __init__(self, name: str, why: str) -> None:
        self._stub = (name, why)

    def __repr__(self) -> str:
        return f"<stub {self._stub[0]}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not loading():
            raise _used(*self._stub, "called")
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType):
            return _decorated(args[0], *self._stub)
        return Stub(f"{self._stub[0]}()", self._stub[1])

    def __getitem__(self, _key: Any) -> Stub:
        if not loading():
            raise _used(*self._stub, "asked for an item")
        return Stub(f"{self._stub[0]}[]", self._stub[1])

    def __setitem__(self, _key: Any, _value: Any) -> None:
        if not loading():
            raise _used(*self._stub, "given an item")

    def __or__(self, _other: Any) -> Stub:
        return self[_other]  # an annotation such as ``stub.Name | None``

    __ror__ = __or__

    def __instancecheck__(self, _value: Any) -> bool:
        return False

    def __subclasscheck__(self, _kind: type) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """What a class derives from that names this stub among its bases."""
        others = {type(base): None for base in bases if isinstance(base, type)}
        metas = [meta for meta in others if not issubclass(_DerivedMeta, meta)]
        meta = type("_DerivedMeta", (_DerivedMeta, *metas), {}) if metas else _DerivedMeta
        return (meta("Stub", (), {"_from_stub": self._stub}),)


class _DerivedMeta(ABCMeta):
    """The type of every class that derives from a stub. Such a class can be derived from, and nothing else."""

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: Any) -> Any:
        return super().__new__(mcs, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_options: Any) -> None:
        super().__init__(name, bases, body)

    def __call__(cls, *_args: Any, **_kwargs: Any) -> Any:
        name = f"{cls.__module__}.{cls.__qualname__}"
        stub, why = cls._from_stub
        if not loading():
            raise _used(name, why, "built", f"it derives from the stub {stub}")
        return Stub(f"{name}()", why)

    def __getattribute__(cls, name: str) -> Any:
        if not name.startswith("_") and not loading():
            stub, why = type.__getattribute__(cls, "_from_stub")
            where = f"{cls.__module__}.{cls.__qualname__}"
            raise _used(f"{where}.{name}", why, "looked up", f"{cls.__name__} derives from the stub {stub}")
        return super().__getattribute__(name)

    def __getattr__(cls, name: str) -> Any:
        if name == "__get_pydantic_core_schema__":
            return Uses._named
        if name.startswith("_"):
            raise AttributeError(name)
        stub, why = cls._from_stub
        return Stub(f"{stub}.{name}", why)


def _decorated(function: FunctionType, name: str, why: str) -> Any:
    """The function, which cannot be called after the import, since a decorator may change what it does."""

    @functools.wraps(function)
    def undecorated(*args: Any, **kwargs: Any) -> Any:
        if not loading():
            what = f"{function.__module__}.{function.__qualname__}"
            raise _used(what, why, "called", f"it is decorated with the stub {name}")
        return function(*args, **kwargs)

    return undecorated


class StubModule(Uses, ModuleType):
    """A module in which every public name is a stub, but for the modules that lie below it on disk."""

    def __init__(self, name: str, why: str, folder: Path | None = None) -> None:
        super().__init__(name)
        self._stub, self._folder = (name, why), folder
        if folder is not None:
            self.__path__ = [str(folder)]

    def __repr__(self) -> str:
        return f"<stub module {self._stub[0]}>"

    def __getattr__(self, name: str) -> Any:
        below = None if self._folder is None else self._folder / name
        if below is not None and (below.with_suffix(".py").is_file() or (below / "__init__.py").is_file()):
            return import_module(f"{self.__name__}.{name}")
        value = self._attribute(name, sys._getframe(1))
        setattr(self, name, value)  # a name is one stub, however often it is asked for
        return value

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if isinstance(value, Stub) and not name.startswith("_") and not loading():
            raise _used(*value._stub, "looked up")
        return value


class Imports:
    """``builtins.__import__`` while a release is in this process: it answers the release's imports of packages that are
    not installed with stubs, and all other imports as Python does.

    ``left_out``: packages that the release is told are not installed, also where they are.

    An import within a ``try`` that catches its failure fails, as it does wherever the package is missing. Stubs are
    never put into ``sys.modules``: other code must not take one for the package, and ``importlib.util.find_spec``
    finds nothing.
    """

    def __init__(self, left_out: frozenset[str] = frozenset()) -> None:
        self.modules: dict[str, StubModule] = {}
        self.left_out = left_out
        self.python: Callable[..., ModuleType] = builtins.__import__

    def install(self) -> None:
        """From now on answers the imports of this process."""
        self.python = builtins.__import__
        setattr(builtins, "__import__", self)  # noqa: B010  (typed as a function)

    def remove(self) -> None:
        """Leaves the imports to Python again."""
        if getattr(builtins, "__import__") is self:  # noqa: B009
            setattr(builtins, "__import__", self.python)  # noqa: B010

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> ModuleType:
        try:
            if level == 0 and name.partition(".")[0] in self.left_out and _is_of_the_release(globals):
                raise _left_out(name)
            return self.python(name, globals, locals, fromlist or (), level)
        except ModuleNotFoundError as error:
            mine = level == 0 and _is_of_the_release(globals) and _is_missing(name, error.name)
            if not mine or _guards():
                raise
        whole = self._stubbed(name)
        return whole if fromlist else self.modules[name.partition(".")[0]]

    def _stubbed(self, name: str) -> StubModule:
        """The stub of a module; it is an attribute of the stub of the package above it."""
        if name not in self.modules:
            above, _, last = name.rpartition(".")
            self.modules[name] = StubModule(name, self._reason(name.partition(".")[0]))
            if above:
                setattr(self._stubbed(above), last, self.modules[name])
        return self.modules[name]

    def _reason(self, package: str) -> str:
        if package in self.left_out:
            return f"Slotproof puts a stub in the place of the package {package}"
        return f"the package {package} is not installed here"


def _left_out(name: str) -> ModuleNotFoundError:
    package = name.partition(".")[0]
    return ModuleNotFoundError(f"No module named {package!r}", name=package)


def _is_missing(name: str, missing: str | None) -> bool:
    """The import of the module ``name`` failed since its package is missing, and this package may be a stub.

    ``missing``: what Python says is missing. If it is a module below an installed package, the release wants another
    version of this package, and a stub would hide that.
    """
    package = name.partition(".")[0]
    never: set[str] = {*sys.stdlib_module_names, *released}.union(*released.values())
    return missing == package and package not in never


# Imports that the release itself guards.

_FAILURES = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
# Without one of these texts no line of a file is guarded: most files need not be parsed.
_MAY_GUARD = re.compile(rf"\bexcept\s*:|\bexcept\b[^:]*\b({'|'.join(sorted(_FAILURES))})\b|\bsuppress\b")
Guarded = dict[tuple[str, int], list[tuple[int, int]]]


def _guards() -> bool:
    """The release catches the failure of the import that runs. While modules are imported, each module on the way may
    do so; after that only the function that imports, since others that catch errors do not mean this one.
    """
    frames = list(_frames_of_the_release())
    return any(map(_is_guarded, frames if loading() else frames[:1]))


def _is_guarded(frame: FrameType) -> bool:
    """The line that the frame runs lies in a ``try`` whose handler goes on if an import fails."""
    code = frame.f_code
    ranges = _guarded(code.co_filename).get((code.co_name, _first_line(code.co_name, code.co_firstlineno)), [])
    return any(first <= frame.f_lineno <= last for first, last in ranges)


def _first_line(name: str, line: int) -> int:
    return 0 if name == "<module>" else line


@functools.cache
def _guarded(file: str) -> Guarded:
    """The guarded lines of a file: for the name and the first line of each function, ranges of lines."""
    found: Guarded = {}
    try:
        text = Path(file).read_text(encoding="utf-8")
        tree = ast.parse(text if _MAY_GUARD.search(text) else "")
    except (OSError, SyntaxError, UnicodeDecodeError):
        return found
    _collect(tree, ("<module>", 0), found)
    return found


def _collect(node: ast.AST, scope: tuple[str, int], found: Guarded) -> None:
    if isinstance(node, ast.Try) and any(map(_goes_on, node.handlers)):
        found.setdefault(scope, []).append((node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno))
    if isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items):
        found.setdefault(scope, []).append((node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = (node.name, min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]))
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            _collect(child, scope, found)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """The handler catches a failed import and does not raise again."""
    return _catches(handler.type) and not any(isinstance(line, ast.Raise) for line in handler.body)


def _catches(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in _FAILURES) for one in kinds)


def _suppresses(call: ast.expr) -> bool:
    named = isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "suppress"
    return named and isinstance(call, ast.Call) and any(map(_catches, call.args))
