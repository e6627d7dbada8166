"""Causes of findings: what in an engine makes kept traces break a law, and what repairs it.

A cause of an engine is a file ``causes/NAME.json`` beside the engine's ``traces``, and a module ``causes/NAME.py``: its
function ``repair()`` replaces one function of the loaded release at run time. Traces are of one cause where this one
repair mends them all.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.driver.naming import UsageError, unknown
from conformance.driver.protocol import Json
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
    """One place in an engine that makes kept traces break a law.

    ``title``: as a maintainer would write it. ``file`` (below the engine's package) and ``function``: where the cause
    is, in the line that has all ``names``. ``server``: the kept trace that shows it on the engine's own scheduler.
    ``then``: the steps that a script sends after those of this trace, so that its harm is seen.
    ``traces``: the other kept traces that it explains. ``what``: what goes wrong. ``repair``: what the repair does.
    ``drawn``: what the schedulers have in common that are drawn to try the repair, by option: choices of servers
    (``conformance.stems.launches``), or what the machine of the stem draws of a configuration.
    ``usual``: the ``config`` and the ``steps`` of a program and of its messages that show the cause at the sizes that
    servers have by default, where the run of ``server`` needs a flag that makes it short.
    ``also_repaired``: other causes that are repaired in these servers, since messages that show this cause show them.
    """

    engine: str
    name: str
    title: str
    file: str
    function: str
    names: Sequence[str]
    server: str
    traces: Sequence[str]
    then: Sequence[Json]
    what: str
    repair: str
    drawn: Mapping[str, Any]
    upstream: Upstream
    also_repaired: Sequence[str] = ()
    usual: Json | None = None

    @property
    def names_of_traces(self) -> list[str]:
        """The names of its traces, first that on the engine's own scheduler."""
        return [self.server, *self.traces]

    @property
    def shown(self) -> Kept:
        """The trace that shows it on the engine's own scheduler."""
        return trace_files.load(self.server)

    @property
    def steps(self) -> list[Json]:
        """The steps of the program that shows it."""
        return [*(self.usual["steps"] if self.usual else self.shown.trace.steps), *self.then]

    @property
    def config(self) -> Json:
        """The server of the program that shows it."""
        found: Json = self.usual["config"] if self.usual else self.shown.trace.config
        return found

    def program(self, release: str) -> str:
        """The program that shows it on the engine's own scheduler."""
        return str(self.room.script(self.server, self.title, release, self.config, self.steps))

    @property
    def room(self) -> Any:
        """The package ``causes`` of the engine: it says how a server is launched, what a client sends to it, and how a
        program shows the cause (``launch``, ``call``, ``script``), which launch flags may matter and how a server is
        launched without one (``flags``, ``without``), and has the words of its pages.
        """
        return room(self.engine)

    @property
    def module(self) -> Any:
        """The module that repairs it."""
        return import_module(f"{self.room.__name__}.{self.name}")

    def apply(self) -> None:
        """Repairs the release that this process has loaded, until the process ends."""
        self.module.repair()

    def place(self, roots: Sequence[Path]) -> tuple[str, int]:
        """The file, and the number of the line in a release whose packages are in these folders. ``UsageError`` unless
        the function has one such line.
        """
        for path in (path for root in roots for path in root.rglob(Path(self.file).name)):
            if path.as_posix().endswith(f"/{self.file}") and len(lines := self._lines(path.read_text("utf-8"))) == 1:
                return self.file, lines[0]
        raise UsageError(f"the cause {self.name}: {self.function} of {self.file} has not one line with {self.names}")

    def is_in(self, roots: Sequence[Path]) -> bool:
        """A release whose packages are in these folders has the line (``place``)."""
        try:
            self.place(roots)
        except UsageError:
            return False
        return True

    def _lines(self, text: str) -> list[int]:
        """The lines of the function that have all names."""
        body: list[ast.stmt] = ast.parse(text).body
        for name in self.function.split("."):
            found = next((s for s in body if getattr(s, "name", None) == name), None)
            if not isinstance(found, (ast.ClassDef, ast.FunctionDef)):
                return []
            body, first, last = found.body, found.lineno, found.end_lineno or found.lineno
        words = [set(re.findall(r"\w+", line)) for line in text.splitlines()]
        return [n for n in range(first, last + 1) if set(self.names) <= words[n - 1]]


def room(engine: str) -> Any:
    """The package ``causes`` of an engine. See ``Cause.room``."""
    return import_module(f"{registry.plugin(engine).__class__.__module__}.{FOLDER}")


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
