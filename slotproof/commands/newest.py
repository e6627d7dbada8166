"""``slotproof engines --newest``: whether the newest release of each engine can be driven, stem by stem."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.search.connection import EngineDied, Served, Subject, ToolError
from conformance.stems.found import rooms
from conformance.stems.machine import Sink
from conformance.traces import trace_files
from slotproof.commands import issue_text
from slotproof.commands.appeared import is_newer
from slotproof.console.codes import HOLDS, USAGE
from slotproof.console.output import write_text
from slotproof.console.screen import say, write_json

MISSING = "nothing to drive for it was found in this release, and the engine has had it"
DRAWN = 20  # drawn runs of a stem whose configurations are tried


def run(json: Path | None, issues: Path | None = None) -> int:
    """Prints one line for each stem that an engine has; exit code 0 if all stems of all engines load, else 3.

    An engine takes part if it has a function ``newest()``, which returns the newest release on the package index.
    ``issues``: a folder for the text of an issue for each release that has appeared; it has what a check prints, too.
    """
    rows, news = [], list[Json]()
    for plugin in registry.released():
        if hasattr(plugin, "newest"):
            found = [*_rows(plugin)]
            rows += found
            appears = found[0]["release"] if found else ""
            if issues is not None and appears and is_newer(plugin, appears):
                text = issue_text.of_release(plugin, appears, found, issue_text.checked(plugin.name, appears))
                write_text(issues / f"{plugin.name}-{appears}.md", text)
                news.append({"engine": plugin.name, "release": appears})
    write_json(json, {"rows": rows, "appeared": news})
    for row in rows:
        loads = "loads" if row["loads"] else f"does not load: {row['why']}"
        say(f"{row['subject']} {row['release']} {row['stem']}: {loads}", wrap=False)
    return HOLDS if all(row["loads"] for row in rows) else USAGE


def _rows(plugin: registry.Plugin) -> Iterator[Json]:
    release: str = getattr(plugin, "newest")()  # noqa: B009
    judged = "judges it" if release in plugin.releases else f"judges {plugin.releases[-1]} and older ones"
    say(f"the newest release of {plugin.name} on the package index is {release}; `slotproof engines` {judged}")
    for stem, why in reasons(Subject(plugin.name, release), getattr(plugin, "stems", rooms())).items():
        yield {"subject": plugin.name, "release": release, "stem": stem, "loads": not why, "why": why}


def reasons(subject: Subject, stems: Collection[str]) -> dict[str, str]:
    """Why the subject cannot be driven, in one line for each stem; empty if it can. ``stems``: those that the engine
    has in some release. One that is in this release and not among them is told, too.
    """
    with Served(subject) as served:
        try:
            there = served.ready()["stems"]
        except (EngineError, ToolError) as error:
            return dict.fromkeys(_in_order(stems), str(error))
        return {stem: _reason(served, stem) if stem in there else MISSING for stem in _in_order({*stems, *there})}


def _in_order(stems: Collection[str]) -> list[str]:
    return [stem for stem in rooms() if stem in stems]


def _reason(served: Served, stem: str) -> str:
    """Why no engine can be built for any configuration of the stem that is tried; empty if one can."""
    why, tried = "it has no configuration to try", list[Json]()
    for config in chain(_kept(stem), _drawn(stem)):
        if config in tried:
            continue
        tried.append(config)
        try:
            with served.connect() as connection:
                asked = {"do": "outcome", "stem": stem, "trace": Trace(stem, config).as_json()}
                stopped = connection.ask(asked)["stopped"]
        except EngineDied:
            return "the process ended while the engine was built"
        except (EngineError, ToolError) as error:
            return str(error)
        if not stopped:
            return ""
        why = stopped
    return why


def _kept(stem: str) -> Iterator[Json]:
    """The configurations of the kept traces of the stem."""
    return (kept.trace.config for kept in trace_files.every() if kept.trace.stem == stem)


def _drawn(stem: str) -> Iterator[Json]:
    """The configurations that the first drawn runs of the stem begin with; drawn when they are needed."""
    configs: list[Json] = []

    def keeps(config: Json) -> Any:
        configs.append(config)
        raise Unsupported("its configuration is wanted, and no engine")

    draw(stem, keeps, Sink(), Search(DRAWN))
    yield from configs
