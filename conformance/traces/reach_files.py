"""How far a finding about one part of an engine reaches, where no trace on the engine's own scheduler shows it.

A trace of a part sends what the part says it takes. Whether the engine's own scheduler ever sends this is another
question. An engine's file ``reach.json`` lists the findings that no client was seen to cause, and says of each why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from conformance.driver.naming import UsageError
from conformance.engines import registry

FILE = "reach.json"
# ``ends the server anyway``: all callers raise on the same call, so that the server ends, and what the finding loses is
# lost with it. ``not shown``: no client was seen to cause it; ``why`` tells what was looked at, and why no caller seems
# to send such arguments. That no chain of calls leads there at all is not told here: ``slotproof reach`` finds it.
ENDS_ANYWAY: Literal["ends the server anyway"] = "ends the server anyway"
How = Literal["ends the server anyway", "not shown"]
FUNCTION = re.compile(r"[\w/]+\.py:\w+(\.\w+)*")


@dataclass(frozen=True)
class Reach:
    """How far one finding reaches. ``finding``: the name of its kept trace. ``why``: what was looked at, with the lines
    of the newest release. ``functions``: those of the engine that it rests on, as ``module/file.py:function`` or
    ``module/file.py:Class.function``, below the engine's package.
    """

    finding: str
    reach: How
    why: str
    functions: Sequence[str]


def of_engine(engine: str) -> dict[str, Reach]:
    """What is told of an engine's findings, by their names; empty where it has no such file. ``UsageError`` says what
    is wrong in the file.
    """
    folder = registry.plugin(engine).folder
    path = None if folder is None else folder / FILE
    return {} if path is None or not path.is_file() else read(path)


def read(path: Path) -> dict[str, Reach]:
    """The findings that a file lists. ``UsageError`` says what is wrong in it."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}") from error
    if not isinstance(told, list):
        raise UsageError(f"{path}: expected a list of findings")
    found: dict[str, Reach] = {}
    for number, entry in enumerate(told, start=1):
        one = _entry(f"{path}, entry {number}", entry)
        if one.finding in found:
            raise UsageError(f"{path}, entry {number}: {one.finding} is listed twice")
        found[one.finding] = one
    return found


def _entry(place: str, entry: Any) -> Reach:
    names = {field.name for field in fields(Reach)}
    if not isinstance(entry, dict) or entry.keys() != names:
        raise UsageError(f"{place}: expected an object with {', '.join(sorted(names))}")
    if entry["reach"] not in get_args(How):
        raise UsageError(f"{place}: reach is {entry['reach']!r}, and must be one of {', '.join(get_args(How))}")
    for name in ("finding", "why"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise UsageError(f"{place}: {name} must be a text")
    named = entry["functions"]
    if not isinstance(named, list) or not named or not all(isinstance(n, str) and FUNCTION.fullmatch(n) for n in named):
        raise UsageError(f"{place}: functions must be a list of texts like module/file.py:function")
    return Reach(**entry)
