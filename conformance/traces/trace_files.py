"""Traces: the configuration and the operations of one run, as plain data that can be kept, replayed and shrunk.

A kept trace is a file ``traces/NAME.json`` in the folder of the engine on which it was found. Beside the run it has
texts in plain words: the law that breaks, what goes wrong, who can send it, and others (``Kept``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.driver.naming import FEW, UsageError, unknown
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.traces import trace_schema

LISTS = ("new", "worse", "incomparable", "known", "gone")  # the lists of findings of a check's report
MOST_OF_REPORT = 1 << 28  # bytes
TEXTS = ("law", "why", "caller", "harm", "expected", "elsewhere")  # the texts of a kept trace


@dataclass(frozen=True)
class Kept:
    """A kept trace with its name. ``law``: the law that it breaks. ``why``: what goes wrong on the newest release that
    breaks it. ``caller``: who can send it. ``harm``: what that does to users. ``expected``: what should happen instead,
    where the sentence of the law does not say it. ``elsewhere``: what other releases show on the trace, where that is
    something else. Texts that a file lacks are empty.
    """

    name: str
    law: str
    why: str
    caller: str
    trace: Trace
    harm: str = ""
    expected: str = ""
    elsewhere: str = ""

    @property
    def texts(self) -> dict[str, str]:
        """The texts that are not empty, by the names that they have in a file."""
        return {name: text for name in TEXTS if (text := getattr(self, name))}


def _files() -> Iterator[Path]:
    """The kept traces of every engine."""
    for plugin in registry.plugins():
        if plugin.folder is not None:
            yield from plugin.folder.joinpath("traces").glob("*.json")


def names() -> list[str]:
    """The names of the kept traces, sorted."""
    return sorted(path.stem for path in _files())


def load(name_or_path: str) -> Kept:
    """A kept trace by name, or any trace by path. Of a report of ``slotproof check --json`` it is the trace of its only
    finding; ``FILE#2`` is the second finding, counted over its lists in the order of ``LISTS``, and ``FILE#known.2``
    the second of its list ``known``. Raises ``UsageError``, which says what is wrong, and where.
    """
    name, wanted, finding = name_or_path.partition("#")
    path = next((path for path in _files() if path.stem == name), Path(name))
    if wanted and path.stem == name:
        raise UsageError(
            f"{name_or_path}: {name} is a kept trace; #{finding} is for a report of slotproof check --json"
        )
    try:
        if not path.exists():
            if path.suffix == ".json" or len(path.parts) > 1:
                raise UsageError(f"no trace {name_or_path!r}: there is no file {name}")
            raise UsageError(unknown("trace", name, names()))
        if path.is_dir():
            raise UsageError(f"no trace {name_or_path!r}: it is a folder")
        with path.open("rb") as file:
            text = file.read(MOST_OF_REPORT + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"no trace {name_or_path!r}: {getattr(error, 'strerror', None) or error}") from error
    return _read(path, _of_report(path, text, finding if wanted else None) or text[: trace_schema.MOST_BYTES + 1])


def _of_report(path: Path, text: bytes, finding: str | None) -> bytes | None:
    """The trace of a finding of a check's report, as the text of a file; ``None`` if the file is no such report.
    ``finding``: the number that was asked for, ``None`` if none was.
    """
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or not {"schema", "results", *LISTS} <= report.keys():
        if finding is not None:
            raise UsageError(f"{path}#{finding}: the file is no report of slotproof check --json")
        return None
    places = [(f"{name}.{n}", row) for name in LISTS for n, row in enumerate(report[name], start=1)]
    found = {key: row for number, (place, row) in enumerate(places, start=1) for key in (str(number), place)}
    if not places:
        raise UsageError(f"{path} is the report of a check without findings: it has no trace")
    if finding is None and len(places) > 1:
        raise UsageError(f"{path} has {len(places)} findings, say which, such as {path}#1: {_numbered(places)}")
    if finding is not None and finding not in found:
        what = f"{path} has no finding {finding}" if finding else f"{path}#: the number of the finding is missing"
        raise UsageError(f"{what}: there are {_numbered(places)}")
    return json.dumps(found[finding or "1"]["trace"]).encode()


def _numbered(places: list[tuple[str, Any]]) -> str:
    """The first findings of a report with their numbers, such as ``1 (new.1: cache no_leak)``."""
    said = [f"{number} ({_place(*place)})" for number, place in enumerate(places[:FEW], start=1)]
    return ", ".join(said) + (f", … to {len(places)}" if len(places) > FEW else "")


def _place(place: str, row: Any) -> str:
    named = " ".join(str(row[key]) for key in ("stem", "law") if row.get(key))
    return f"{place}: {named}" if named else place


def every() -> list[Kept]:
    """All kept traces, sorted by name. Each file is read once."""
    return [_read(path, path.read_bytes()) for path in sorted(_files(), key=lambda path: path.stem)]


def _read(path: Path, text: bytes) -> Kept:
    """The trace in the text of a file. Raises ``UsageError``, which says where the text is wrong."""
    try:
        data = trace_schema.read(text)
    except UsageError as error:
        raise UsageError(f"{path} is no trace: {error}") from error
    trace = Trace(data["stem"], data["config"], data["steps"])
    return Kept(path.stem, trace=trace, **{name: data.get(name, "") for name in TEXTS})
