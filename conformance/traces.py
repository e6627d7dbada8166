"""Traces: a configuration and the operations of one run, as plain data that can be kept, replayed and shrunk.

A kept trace is a JSON file ``traces/NAME.json`` in the folder of the engine on which it was found. It says beside the run
which law breaks (``law``), what goes wrong in plain words (``why``) and who can send it (``caller``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conformance.engines import registry
from conformance.engines.protocol import Json


@dataclass
class Trace:
    """A configuration and the operations that were done: ``{"op": name, argument: value, ...}``, in order."""

    stem: str
    config: Json
    steps: list[Json] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One operation a line, as a call."""
        return [f"{s['op']}({', '.join(f'{k}={v}' for k, v in s.items() if k != 'op')})" for s in self.steps]

    def as_json(self) -> Json:
        """The trace as it is written to a file."""
        return {"stem": self.stem, "config": self.config, "steps": self.steps}


@dataclass(frozen=True)
class Kept:
    """A trace with its name, the law it is about, and what it shows in plain words (``caller``: who can send it)."""

    name: str
    law: str
    why: str
    caller: str
    trace: Trace


def _files() -> Iterator[Path]:
    """The kept traces of every engine."""
    for plugin in map(registry.plugin, registry.names()):
        if plugin.folder is not None:
            yield from plugin.folder.joinpath("traces").glob("*.json")


def names() -> list[str]:
    """The kept traces, by name."""
    return sorted(path.stem for path in _files())


def load(name_or_path: str) -> Kept:
    """A kept trace by name, or any trace by path; ``ValueError`` says what is wrong with it."""
    kept = (path for path in _files() if path.stem == name_or_path)
    path = next(kept, Path(name_or_path))
    if not path.is_file():
        raise ValueError(f"no trace {name_or_path!r}: give a file, or one of {', '.join(names()) or 'none kept'}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        trace = Trace(data["stem"], data["config"], data["steps"])
        return Kept(path.stem, data.get("law", ""), data.get("why", ""), data.get("caller", ""), trace)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no trace: expected JSON with stem, config and steps ({error})") from error
