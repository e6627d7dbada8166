"""Traces: the configuration and the operations of one run, as plain data that can be kept, replayed and shrunk.

A kept trace is a file ``traces/NAME.json`` in the folder of the engine on which it was found. Beside the run it has
the law that breaks (``law``), what goes wrong in plain words (``why``) and who can send it (``caller``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance.engines import registry
from conformance.engines.protocol import Json
from conformance.naming import UsageError, unknown


@dataclass
class Trace:
    """A configuration and the operations that were done, in order, each as ``{"op": name, argument: value, ...}``."""

    stem: str
    config: Json
    steps: list[Json] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The operations as calls, one a line."""
        return [f"{s['op']}({', '.join(f'{k}={v}' for k, v in s.items() if k != 'op')})" for s in self.steps]

    def as_json(self) -> Json:
        """The trace as it is written to a file."""
        return {"stem": self.stem, "config": self.config, "steps": self.steps}


@dataclass(frozen=True)
class Kept:
    """A kept trace with its name. ``law``: the law that it breaks. ``why``: what goes wrong. ``caller``: who can send
    it.
    """

    name: str
    law: str
    why: str
    caller: str
    trace: Trace


def _files() -> Iterator[Path]:
    """The kept traces of every engine."""
    for plugin in registry.plugins():
        if plugin.folder is not None:
            yield from plugin.folder.joinpath("traces").glob("*.json")


def names() -> list[str]:
    """The names of the kept traces, sorted."""
    return sorted(path.stem for path in _files())


def load(name_or_path: str) -> Kept:
    """A kept trace by name, or any trace by path. Raises ``UsageError``, which says what is wrong, and where."""
    from conformance import trace_schema  # it knows the operations of every run, and runs have traces

    kept = (path for path in _files() if path.stem == name_or_path)
    path = next(kept, Path(name_or_path))
    try:
        if not path.is_file():
            raise UsageError(unknown("trace", name_or_path, names()))
        with path.open("rb") as file:
            text = file.read(trace_schema.MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"no trace {name_or_path!r}: {error.strerror}") from error
    return _read(path, text)


def every() -> list[Kept]:
    """All kept traces, sorted by name. Each file is read once."""
    return [_read(path, path.read_bytes()) for path in sorted(_files(), key=lambda path: path.stem)]


def _read(path: Path, text: bytes) -> Kept:
    """The trace in the text of a file. Raises ``UsageError``, which says where the text is wrong."""
    from conformance import trace_schema

    try:
        data = trace_schema.read(text)
    except UsageError as error:
        raise UsageError(f"{path} is no trace: {error}") from error
    trace = Trace(data["stem"], data["config"], data["steps"])
    return Kept(path.stem, data.get("law", ""), data.get("why", ""), data.get("caller", ""), trace)
