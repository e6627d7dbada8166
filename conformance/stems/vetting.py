"""Checks that an engine's class is what its Protocol asks for, so that a mistake in the class is told as a mistake in
the class, and not as a broken law.

The engines of this repository are checked by tests. ``vetted`` is for engines from elsewhere.
"""

from __future__ import annotations

import inspect
import sysconfig
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from conformance.driver.exception_origin import place
from conformance.driver.naming import close
from conformance.driver.protocol import EngineError, Json, Unsupported, lacking
from conformance.stems.found import room_of
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot

ROWS = ("session_trim", "cache")  # one class may serve both
LIBRARY = sysconfig.get_path("stdlib")  # the folder of Python's own library
SHOWN = 80  # characters of a wrong answer that a message shows


def reads(stem: str) -> str:
    """The name of the call that reads an engine of this stem."""
    found: str = room_of(stem).reads
    return found


@cache
def calls(stem: str) -> dict[str, Callable[..., Any]]:
    """The calls of the stem's Protocol by name. Of two calls that read the engine, the one that is sent."""
    found = inspect.getmembers(room_of(stem).protocol, inspect.isfunction)
    unread = {"snapshot"} - {reads(stem)}
    return {name: call for name, call in found if not name.startswith("_") and name not in unread}


def vetted(stem: str, make: Callable[[Json], Any], where: str) -> Callable[[Json], Any]:
    """A maker that builds the engines of ``make`` and checks them. ``where``: how a message calls the maker.

    The first engine that it builds is checked whole, the answers of each engine as they come. What is wrong raises an
    ``EngineError`` that names the class, the method and what was expected.
    """
    known: list[type] = []

    def made(config: Json) -> Any:
        try:
            engine = make(dict(config))
        except (Unsupported, EngineError):
            raise
        except Exception as error:
            raise EngineError(f"{where}: the maker raised {told(error)} for the configuration {config}") from error
        if type(engine) not in known:
            must_fit(stem, engine, where)
        checked = Vetted(stem, engine)
        if type(engine) not in known:
            _must_read(stem, checked, config)
            known.append(type(engine))
        return checked

    return made


def told_where_it_fails(make: Callable[[Json], Any], where: str) -> Callable[[Json], Any]:
    """The maker of an engine that this repository drives. Where the engine's own code raises an exception while it is
    built, that is an ``EngineError`` with its file and line; an exception of Slotproof's own code passes as it is.
    ``where``: the engine and the stem.
    """

    def made(config: Json) -> Any:
        try:
            return make(config)
        except (Unsupported, EngineError):
            raise
        except Exception as error:
            if place(error) is not None:
                raise
            what = told(error)
            message = f"{where}: the engine cannot be built: {what}, for the configuration {config}"
            raise EngineError(message, unbuilt=what) from error

    return made


class Vetted:
    """An engine whose answers are checked against the annotations of its stem's Protocol."""

    def __init__(self, stem: str, engine: Any) -> None:
        self._engine = engine
        for name, call in calls(stem).items():
            answer = get_type_hints(call)["return"]
            if answer is not type(None) and hasattr(engine, name):
                setattr(self, name, _checked(getattr(engine, name), answer, f"{_name(engine)}.{name}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _checked(send: Callable[..., Any], answer: Any, what: str) -> Callable[..., Any]:
    from pydantic import ValidationError

    shape, snapshot = _shape(answer), is_dataclass(answer)

    def sends(*arguments: Any, **named: Any) -> Any:
        found = send(*arguments, **named)
        try:
            seen = shape.validate_python(found, strict=True, from_attributes=True)
        except ValidationError as error:
            text = repr(found)
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
            raise EngineError(f"{what} answered {shown}, expected {_words(answer)}{_place(error)}") from None
        return found if snapshot else seen

    return sends


def _place(error: Any) -> str:
    """Where in an answer the first wrong value is, and of which type it is; empty if the whole answer is wrong."""
    first = error.errors(include_url=False)[0]
    path = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in first["loc"]).lstrip(".")
    return f": {path} is of type {type(first['input']).__name__}" if path else ""


@cache
def _shape(hint: Any) -> Any:
    """Checks a value against an annotation of the Protocols."""
    from pydantic import TypeAdapter

    return TypeAdapter(_mirror(hint))


@cache
def _mirror(hint: Any) -> Any:
    """The annotation with a model in the place of each dataclass, since pydantic does not look into an instance of a
    dataclass.
    """
    from pydantic import ConfigDict, create_model

    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        shown: Any = {field.name: (_mirror(hints[field.name]), ...) for field in fields(hint)}
        return create_model(hint.__name__, __config__=ConfigDict(from_attributes=True, strict=True), **shown)
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, map(_mirror, get_args(hint)))
    if get_origin(hint) is not None:
        return get_origin(hint)[tuple(map(_mirror, get_args(hint)))]
    return hint


def _words(hint: Any) -> str:
    return getattr(hint, "__name__", "") if isinstance(hint, type) and not get_args(hint) else str(hint)


def _name(engine: Any) -> str:
    return type(engine).__name__


# The class.


def must_fit(stem: str, engine: Any, where: str) -> None:
    """Raises ``EngineError`` if the engine lacks something that the stem's Protocol asks for."""
    name, protocol = _name(engine), f"{room_of(stem).protocol.__name__} (stem {stem})"
    if engine is None or isinstance(engine, type):
        raise EngineError(f"{where}: the maker returned {engine!r}, expected an object like {protocol}")
    lacks = _lacks(stem, engine, name)
    if not isinstance(getattr(engine, "fragile", None), bool):
        expected = "True if a call without enough memory may kill the process, else False"
        raise EngineError(f"{where}: {name} has no attribute `fragile`: expected {expected}")
    lacks |= lacking(engine)
    missing = [call for call in calls(stem) if call not in lacks and not callable(getattr(engine, call, None))]
    if missing:
        names = ", ".join(missing)
        raise EngineError(f"{where}: {name} is no {protocol}: it has no {names}, and `lacks` does not name them")
    for call, asked in calls(stem).items():
        if call not in lacks:
            _must_take(getattr(engine, call), asked, f"{where}: {name}.{call}")


def _lacks(stem: str, engine: Any, name: str) -> set[str]:
    lacks: Any = getattr(engine, "lacks", None)
    if isinstance(lacks, str) or not hasattr(lacks, "__iter__") or not all(isinstance(each, str) for each in lacks):
        what = "no attribute `lacks`" if lacks is None else f"`lacks` = {lacks!r}"
        expected = 'a tuple of the calls that it does not have, such as ("bad",), or ()'
        raise EngineError(f"{name} has {what}: expected {expected}")
    named = set(lacks)
    rows = calls("cache") if stem in ROWS else ()  # one class may serve both stems of rows
    possible = {*calls(stem), *rows, *room_of(stem).abilities}
    for unknown in sorted(named - possible):
        near = close(unknown, possible)
        hint = f"did you mean {near}?" if near else f"its calls are {', '.join(sorted(possible))}"
        raise EngineError(f"{name}.lacks names {unknown!r}, which is no call of the stem {stem}: {hint}")
    for needed in sorted(named & {reads(stem), *room_of(stem).never_lacking}):
        raise EngineError(f"{name}.lacks names {needed!r}, which no engine of the stem {stem} can lack")
    return named


def _must_take(call: Callable[..., Any], asked: Callable[..., Any], what: str) -> None:
    wanted = list(inspect.signature(asked).parameters)[1:]
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return  # a function in C may not tell
    try:
        signature.bind(*wanted)
    except TypeError as error:
        raise EngineError(f"{what}{signature} does not take ({', '.join(wanted)}): {error}") from None


def _must_read(stem: str, engine: Vetted, config: Json) -> None:
    """Reads the new engine once. Raises ``EngineError`` if it cannot be read."""
    what = f"{type(engine._engine).__name__}.{reads(stem)}"
    try:
        seen = getattr(engine, reads(stem))()
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"{what} raised {told(error)} on a new engine") from error
    if isinstance(seen, SwaMappingSnapshot):
        slots = (config["size"] + 1) * config["page_size"]
        if len(seen.mapping) != slots:
            expected = f"{slots}, one for each full slot, those of the padding page 0 included"
            raise EngineError(f"{what} has a mapping with {len(seen.mapping)} entries, expected {expected}")


def told(error: BaseException) -> str:
    """An exception in one line, with the file and the line where it was raised: in the engine's code, where a function
    of Python's own library raised it.
    """
    passed, where = error.__traceback__, ""
    while passed is not None:
        file = passed.tb_frame.f_code.co_filename
        if not file.startswith("<") and not (where and _of_python(file)):  # "<": code without a file
            where = f" ({file}:{passed.tb_lineno})"
        passed = passed.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def _of_python(file: str) -> bool:
    """The file is of Python's own library."""
    return Path(file).is_relative_to(LIBRARY) and "site-packages" not in Path(file).parts
