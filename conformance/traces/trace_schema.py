"""Checks that a file is a trace, before anything is replayed: traces are data, and may come from anywhere.

Nothing about operations is written here. Which operations a stem has, their arguments and the types of the arguments
are read off the operations (``conformance.driver.operations``); the keys of a configuration stand in
``conformance.stems.configs``.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, get_args, get_origin, get_type_hints

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from conformance.driver.naming import UsageError
from conformance.driver.operations import KEY, MAY_BE_EMPTY, TOKENS, declared
from conformance.driver.protocol import Json
from conformance.engines.registry import known_kinds
from conformance.stems.configs import EXPECTED, INCOMPLETE, exact, whole
from conformance.stems.stem_registry import ROOMS

MOST_BYTES = 1 << 20  # of a file
MOST_STEPS = 2000  # a kept trace has few; a drawn run of a server that was not shrunk to the end has some hundred
MOST_DEPTH = 4  # a trace has objects and lists in each other: the file, its steps, a step, a list of numbers
MOST_NUMBER = 4096  # of tokens and pages, and of rows, requests and sessions
MOST_NUMBERS = 64  # in a list of rows or requests
MOST_IN_KEY = 1024  # token ids of a key
MOST_TOKEN = 1_000_000_000  # a token id
MOST_DIGITS = 100  # of a number, before its value is looked at
Number = Annotated[int, whole(0, MOST_NUMBER)]
TokenId = Annotated[int, whole(1, MOST_TOKEN)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MOST_IN_KEY)]
AnyTokenIds = Annotated[list[TokenId], Field(max_length=MOST_IN_KEY)]
Text = Annotated[str, StringConstraints(max_length=2000)]


@exact
class TraceFile(TypedDict):
    """A trace as a file. ``config`` and ``steps`` are checked for the stem. The texts ``law``, ``why``, ``caller``,
    ``harm``, ``expected``, ``elsewhere``: see ``conformance.traces.trace_files.Kept``.
    """

    stem: str
    config: dict[str, Any]
    steps: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_STEPS)]
    law: NotRequired[Text]
    why: NotRequired[Text]
    caller: NotRequired[Text]
    harm: NotRequired[Text]
    expected: NotRequired[Text]
    elsewhere: NotRequired[Text]


def read(data: bytes) -> Json:
    """The trace in the bytes of a file, with the keys of ``TraceFile``. Raises ``UsageError`` if it is none."""
    if len(data) > MOST_BYTES:
        raise UsageError(f"a trace has at most {MOST_BYTES:,} bytes")
    found: Json = _parsed(data)
    check(found)
    return found


def check(trace: Any) -> None:
    """Raises ``UsageError`` unless the value is a trace: an object with the keys of ``TraceFile`` and lawful contents.

    The message begins with the place, such as ``steps[3].more``; steps count from 0 there, as in any JSON path.
    """
    _check_shape(trace, ())
    _must_fit(_adapter(TraceFile), trace, ())
    stem: str = trace["stem"]
    if stem not in ROOMS:
        raise _wrong(("stem",), _no("stem", stem, ROOMS))
    _must_fit(_config(stem), trace["config"], ("config",))
    operations = _steps(stem)
    for number, step in enumerate(trace["steps"]):
        here, op = ("steps", number), step.get("op")
        if "op" not in step:
            raise _wrong((*here, "op"), "is missing")
        if not isinstance(op, str) or op not in operations:
            raise _wrong((*here, "op"), _no("operation", op, operations))
        _must_fit(operations[op], {name: value for name, value in step.items() if name != "op"}, here)


# JSON.


class _Twice(dict[str, Any]):
    """An object in which a key stands twice. ``key``: the first such key."""

    key: str


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice, names = _Twice(found), [name for name, _ in pairs]
    twice.key = next(name for n, name in enumerate(names) if name in names[:n])
    return twice


def _parsed(data: bytes) -> Any:
    """The value that a file of JSON has."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_number, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise UsageError(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"line {error.lineno}, column {error.colno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise UsageError(f"nested more than {MOST_DEPTH} deep") from None


def _no_number(name: str) -> Any:
    raise UsageError(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise UsageError(f"a number of {len(digits)} digits: at most {MOST_DIGITS} are read")
    return int(digits)


def _check_shape(value: Any, path: tuple[str | int, ...]) -> None:
    """Raises ``UsageError`` for a key that stands twice, and for what is nested too deeply."""
    if isinstance(value, _Twice):
        raise _wrong(path, f"the key {_shown(value.key)} stands twice")
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for key, item in inside:
        if len(path) == MOST_DEPTH:
            raise _wrong(path, f"nested more than {MOST_DEPTH} deep")
        _check_shape(item, (*path, key))


# What is expected.


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _config(stem: str) -> TypeAdapter[Any]:
    return TypeAdapter(ROOMS[stem].config)


@cache
def _steps(stem: str) -> dict[str, TypeAdapter[Any]]:
    """For each operation of a stem what its arguments must be."""
    return {name: arguments_of(method) for name, method in declared(*ROOMS[stem].callers).items()}


def arguments_of(operation: Callable[..., Any]) -> TypeAdapter[Any]:
    """What the arguments of an operation must be, as its parameters say: their names, types and defaults."""
    hints = get_type_hints(operation, include_extras=True)
    parameters = [p for p in inspect.signature(operation).parameters.values() if p.name != "self"]
    kinds = {p.name: _accepted(hints[p.name]) for p in parameters}
    fields = {p.name: kinds[p.name] if p.default is p.empty else NotRequired[kinds[p.name]] for p in parameters}
    typed: Any = TypedDict
    return TypeAdapter(exact(typed("Arguments", fields)))


def _accepted(hint: Any) -> Any:
    """The type of an argument with its bounds. Raises ``TypeError`` for an annotation that has none here."""
    marks = getattr(hint, "__metadata__", ())
    if KEY in marks:
        return AnyTokenIds if MAY_BE_EMPTY in marks else TokenIds
    if hint is int or TOKENS in marks:
        return Number
    if hint is bool or get_origin(hint) is Literal:
        return hint
    if hint == list[int]:
        return Annotated[list[Number], Field(max_length=MOST_NUMBERS)]
    parts = get_args(hint)
    if len(parts) == 2 and parts[1] is type(None):
        return _accepted(parts[0]) | None
    raise TypeError(f"an argument of the type {hint} has no bounds: conformance/traces/trace_schema.py must say which")


# What is wrong, in words.


def _must_fit(expected: TypeAdapter[Any], value: Any, path: tuple[str | int, ...]) -> None:
    try:
        expected.validate_python(value, context=known_kinds())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = (*path, *first["loc"])
        raise _wrong(place, _in_words(dict(first), _names(expected))) from None


def _names(expected: TypeAdapter[Any]) -> list[str]:
    """The keys that an object may have."""
    return list(expected.json_schema(mode="serialization").get("properties", {}))


def _in_words(error: Json, known: Sequence[str]) -> str:
    """One error of pydantic in plain words."""
    kind, said = error["type"], error.get("ctx", {})
    if kind == INCOMPLETE:
        return str(error["msg"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _no("key", error["loc"][-1], known)
    expected = {
        EXPECTED: error["msg"],
        "bool_type": "true or false",
        "string_type": "a text",
        "string_too_long": f"a text of at most {said.get('max_length')} characters",
        "dict_type": "an object",
        "list_type": "a list",
        "too_long": f"at most {said.get('max_length')} entries",
        "too_short": "a list with an entry",
        "literal_error": str(said.get("expected")),
    }.get(kind, error["msg"])
    return f"expected {expected}, found {_shown(error['input'])}"


def _no(what: str, name: Any, known: Iterable[str]) -> str:
    """There is no such name, with the nearest one that there is."""
    names = list(known)
    near = get_close_matches(name[:100], names, n=1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"
    return f"no {what} {_shown(name)}: {hint}"


def _shown(value: Any) -> str:
    """A value of JSON, cut short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _wrong(path: Sequence[str | int], what: str) -> UsageError:
    names = (f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in path)
    place = "".join(names).removeprefix(".")
    return UsageError(f"{place}: {what}" if place else what)


def _name(key: str) -> str:
    """A key in a path; quoted if it is no plain word."""
    return key if key.isidentifier() and key.isascii() and len(key) <= 40 else _shown(key)
