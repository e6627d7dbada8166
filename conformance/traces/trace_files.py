"""Traces: the configuration and the operations of one run, as plain data that can be kept, replayed and shrunk.

A kept trace is a file ``traces/NAME.json`` in the folder of the engine on which it was found. Beside the run it has
texts in plain words: the law that breaks, what goes wrong, who can send it, and others (``Kept``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conformance.driver.naming import UsageError, unknown
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
    """A kept trace by name, or any trace by path. Of a report of ``slotproof check --json`` the trace of its first
    finding; ``FILE#known.2`` is the second of its list ``known``. Raises ``UsageError``, which says what is wrong, and
    where.
    """
    name, _, finding = name_or_path.partition("#")
    kept = (path for path in _files() if path.stem == name_or_path)
    path = next(kept, Path(name))
    try:
        if not path.is_file():
            if path.is_dir():
                raise UsageError(f"no trace {name_or_path!r}: it is a folder")
            if path.suffix == ".json" or len(path.parts) > 1:
                raise UsageError(f"no trace {name_or_path!r}: there is no file {name}")
            raise UsageError(unknown("trace", name, names()))
        with path.open("rb") as file:
            text = file.read(MOST_OF_REPORT + 1)
    except OSError as error:
        raise UsageError(f"no trace {name_or_path!r}: {error.strerror}") from error
    return _read(path, _of_report(path, text, finding) or text[: trace_schema.MOST_BYTES + 1])


def _of_report(path: Path, text: bytes, finding: str) -> bytes | None:
    """The trace of a finding of a check's report, as the text of a file; ``None`` if the file is no such report."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or not {"schema", "results", *LISTS} <= report.keys():
        if finding:
            raise UsageError(f"{path}#{finding}: the file is no report of slotproof check --json")
        return None
    found = {f"{name}.{n}": row["trace"] for name in LISTS for n, row in enumerate(report[name], start=1)}
    if not found:
        raise UsageError(f"{path} is the report of a check without findings: it has no trace")
    if finding and finding not in found:
        raise UsageError(f"{path} has no finding {finding}: there are {', '.join(found)}")
    return json.dumps(found[finding or next(iter(found))]).encode()


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
