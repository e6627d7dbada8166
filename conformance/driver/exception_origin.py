"""Whose code raised an exception while an engine was driven: the engine's, or the code of Slotproof that drives it.

An exception of the engine is a finding. An exception of Slotproof's own code is no verdict on the engine: an adapter
may have passed a wrong argument, or an object that stands in for a part of the engine may lack what the engine asks
of it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dis import opname
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import spec
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError, OutOfMemory, TurnedAway

ROOT = str(__package__).removesuffix(".driver")
DRIVERS = (ROOT, spec.__name__)  # the packages that drive engines
TRITON = f"{ROOT}.engines.array_tl"  # it runs kernels in Triton's place
LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "triton", "numpy"})
ANSWERS = (OutOfMemory, TurnedAway)  # by these an adapter says what the engine has answered
_WRONG_CALL = re.compile(r"([\w.<>]+)\(\) (?:takes|missing|got) ")  # Python's words for arguments that do not fit


class StandIn(SimpleNamespace):
    """An object with the fields that an engine reads of an object of its own. An engine that reads another field has no
    verdict.
    """


def must_be_the_engines(error: BaseException, call: str) -> None:
    """Raises ``EngineError`` if Slotproof's own code raised the exception: it names the file and the line. ``call``:
    the call to the engine that was being made.
    """
    where = place(error)
    if where is not None:
        what = f"{type(error).__name__}: {first_line(message_of(error))}"
        raise EngineError(
            f"no verdict: {call} failed in Slotproof's own code, at {where}: {what}. If the engine does what the call "
            "asks for, please report this line"
        ) from error


def raised_in_engine(error: BaseException) -> bool:
    """A ``raise`` or an ``assert`` of the engine's own code has raised the exception: so the engine refuses in its own
    words, where Python or a library would raise a ``ValueError`` for what the engine has not foreseen.
    """
    passed = error.__traceback__
    while passed is not None and passed.tb_next is not None:
        passed = passed.tb_next
    if passed is None or place(error) is not None:
        return False
    code = passed.tb_frame.f_code.co_code
    module = str(passed.tb_frame.f_globals.get("__name__", ""))
    return opname[code[passed.tb_lasti]] == "RAISE_VARARGS" and not _below(module, LIBRARIES)


def place(error: BaseException) -> str | None:
    """Where Slotproof's own code raised the exception, as ``conformance/x.py:12``; ``None`` if the engine raised it.

    The innermost frame that is in no library decides. Where this frame is the engine's, the exception is Slotproof's
    still if the engine asked an object of Slotproof for an attribute that it has not, or gave a function of Slotproof
    arguments that it does not take, or raised the exception because of one that Slotproof's code raised.
    """
    if isinstance(error, ANSWERS):
        return None
    frames = list(_frames(error))
    module, where = frames[-1] if frames else ("", "")
    if drives(module):
        return where
    stand_in = _stand_in(error, module)
    if stand_in is not None:
        return f"{where}, which uses Slotproof's {stand_in}"
    reason = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if reason is None else place(reason)


def drives(module: str) -> bool:
    """A module of this name drives engines, and is no engine itself: its failure is Slotproof's own."""
    if not _below(module, DRIVERS) or _is_faulty(module):
        return False
    return not hasattr(getattr(sys.modules.get(module), "PLUGIN", None), "makers")  # as a whole engine in one file


def _is_faulty(module: str) -> bool:
    """The module has engines with known bugs of a stem."""
    return _below(module, (f"{ROOT}.stems",)) and module.endswith(".faults")


def _below(module: str, packages: Iterable[str]) -> bool:
    """The module is one of the packages, or below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """The frames that are in no library, the outermost first: module, and file with line."""
    libraries = (*LIBRARIES, *([TRITON] if _is_of_a_kernel(error) else []))
    passed = error.__traceback__
    while passed is not None:
        module = str(passed.tb_frame.f_globals.get("__name__", ""))
        if not _below(module, libraries):
            yield module, f"{_file(module, passed.tb_frame.f_code.co_filename)}:{passed.tb_lineno}"
        passed = passed.tb_next


def _is_of_a_kernel(error: BaseException) -> bool:
    """What runs kernels in Triton's place raises such exceptions for a wrong kernel; any other is a failure of it."""
    return isinstance(error, ValueError | TypeError | AssertionError) or _below(type(error).__module__, (TRITON,))


def _file(module: str, name: str) -> str:
    """The file of a frame: of a module of Slotproof from the folder of its package on."""
    path = Path(name)
    depth = len(module.split(".")) + (path.stem == "__init__")
    return "/".join(path.parts[-depth:]) if drives(module) else name


def _stand_in(error: BaseException, module: str) -> str | None:
    """The class or the function of Slotproof that the engine's code in ``module`` used in a way for which it is not
    made; ``None`` if the exception says nothing of the kind.
    """
    if isinstance(error, AttributeError) and error.obj is not None:
        kind = error.obj if isinstance(error.obj, type) else type(error.obj)
        return kind.__qualname__ if _is_stand_in(kind) else None
    wrong = _WRONG_CALL.match(message_of(error)) if isinstance(error, TypeError) else None
    return wrong[1] if wrong and _is_function_of_a_driver(wrong[1], module) else None


def _is_stand_in(kind: type) -> bool:
    """A class that stands in for one of the engine, and derives from none of the engine."""
    modules = [each.__module__ for each in kind.__mro__]
    return drives(modules[0]) and all(drives(each) or _below(each, LIBRARIES) for each in modules)


def _is_function_of_a_driver(name: str, module: str) -> bool:
    """A function with this qualified name is in a module that drives engines, and not in the engine's ``module``."""
    path = name.partition(".<locals>")[0].split(".")
    if _at(sys.modules.get(module), path) is not None:
        return False
    drivers = [known for name, known in list(sys.modules.items()) if drives(name)]
    return any(getattr(_at(known, path), "__module__", None) == known.__name__ for known in drivers)


def _at(module: ModuleType | None, path: list[str]) -> Any:
    """The function or class at this path of names in a module; ``None`` if there is none."""
    found = None if module is None else vars(module).get(path[0])
    for name in path[1:]:
        found = getattr(found, name, None)
    return found if isinstance(found, FunctionType | type) else None
