"""Causes of findings: what in an engine makes kept traces break a law, and what repairs it.

A cause of an engine is a file ``causes/NAME.json`` beside the engine's ``traces``, and a module ``causes/NAME.py``: its
function ``repair()`` replaces one function of the loaded release at run time. Traces are of one cause where this one
repair mends them all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from conformance.driver.naming import UsageError, unknown
from conformance.engines import registry
from conformance.traces import trace_files
from conformance.traces.trace_files import Kept

FOLDER = "causes"


@dataclass(frozen=True)
class Upstream:
    """What was found in the engine's own issues and pull requests. ``searched``: the date, as YYYY-MM-DD. ``queries``:
    what was searched for. ``found``: reports of this cause. ``related``: what else a reader should know of.
    """

    searched: str
    queries: Sequence[str]
    found: Sequence[str]
    related: Sequence[str] = ()


@dataclass(frozen=True)
class Cause:
    """A cause.

    ``title``: as a maintainer would write it. ``file`` (below the engine's package), ``function``, and ``line``, a part
    of one line of the file: where the cause is. ``server``: the kept trace that shows it on the engine's own scheduler.
    ``traces``: the other kept traces that it explains. ``what``: what goes wrong. ``repair``: what the repair does.
    ``drawn``: the choices of the servers that are drawn to try the repair, by option (``conformance.stems.launches``).
    """

    engine: str
    name: str
    title: str
    file: str
    function: str
    line: str
    server: str
    traces: Sequence[str]
    what: str
    repair: str
    drawn: Mapping[str, str]
    upstream: Upstream

    @property
    def shown(self) -> Kept:
        """The trace that shows it on the engine's own scheduler."""
        return trace_files.load(self.server)

    @property
    def module(self) -> str:
        """The module that repairs it."""
        return f"{registry.plugin(self.engine).__class__.__module__}.{FOLDER}.{self.name}"

    def apply(self) -> None:
        """Repairs the release that this process has loaded, until the process ends."""
        import_module(self.module).repair()

    def place(self, roots: Sequence[Path]) -> tuple[str, int]:
        """The file, and the number of the line in a release whose packages are in these folders. ``UsageError`` unless
        the file has this line once.
        """
        paths = [path for root in roots for path in root.rglob(Path(self.file).name) if str(path).endswith(self.file)]
        for path in paths:
            lines = [n for n, text in enumerate(path.read_text("utf-8").splitlines(), start=1) if self.line in text]
            if len(lines) == 1:
                return self.file, lines[0]
        raise UsageError(f"the cause {self.name}: no file {self.file} has the line {self.line!r} once")


def every() -> list[Cause]:
    """The causes of all engines, sorted by engine and name."""
    return [
        _read(plugin.name, path)
        for plugin in registry.plugins()
        if plugin.folder is not None
        for path in sorted(plugin.folder.joinpath(FOLDER).glob("*.json"))
    ]


def load(name: str) -> Cause:
    """The cause of this name. ``UsageError`` where there is none."""
    known = {cause.name: cause for cause in every()}
    if name not in known:
        raise UsageError(unknown("cause", name, list(known)))
    return known[name]


def _read(engine: str, path: Path) -> Cause:
    told = json.loads(path.read_text("utf-8"))
    return Cause(engine, path.stem, **{**told, "upstream": Upstream(**told["upstream"])})
