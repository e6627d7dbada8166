"""``slotproof engines --newest``: whether the newest release of each engine can be driven, stem by stem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from conformance import traces
from conformance.connection import EngineDied, Served, Subject, ToolError
from conformance.engines import registry
from conformance.engines.protocol import EngineError, Json
from conformance.traces import Trace
from proofs.registry import DRIVEN
from slotproof.codes import HOLDS, USAGE
from slotproof.screen import say, write_json

MISSING = "the release has nothing to drive for it"


def run(json: Path | None) -> int:
    """Prints one line for each stem; exit code 0 if all stems of all engines load, else 3.

    An engine takes part if it has a function ``newest()``, which returns the newest release on the package index.
    """
    rows = [row for plugin in registry.released() if hasattr(plugin, "newest") for row in _rows(plugin)]
    write_json(json, {"rows": rows})
    for row in rows:
        loads = "loads" if row["loads"] else f"does not load: {row['why']}"
        say(f"{row['subject']} {row['release']} {row['stem']}: {loads}", wrap=False)
    return HOLDS if all(row["loads"] for row in rows) else USAGE


def _rows(plugin: registry.Plugin) -> Iterator[Json]:
    release: str = getattr(plugin, "newest")()  # noqa: B009
    judged = "judges it" if release in plugin.releases else f"judges {plugin.releases[-1]} and older ones"
    say(f"the newest release of {plugin.name} on the package index is {release}; `slotproof engines` {judged}")
    for stem, why in reasons(Subject(plugin.name, release)).items():
        yield {"subject": plugin.name, "release": release, "stem": stem, "loads": not why, "why": why}


def reasons(subject: Subject) -> dict[str, str]:
    """For each stem why the subject cannot be driven on it, in one line; empty if it can."""
    with Served(subject) as served:
        try:
            stems = served.ready()["stems"]
        except (EngineError, ToolError) as error:
            return dict.fromkeys(DRIVEN, str(error))
        return {stem: _reason(served, stem) if stem in stems else MISSING for stem in DRIVEN}


def _reason(served: Served, stem: str) -> str:
    """Why no engine can be built for the configuration of any kept trace of the stem; empty if one can."""
    why = "no kept trace has a configuration for it"
    configs = [kept.trace.config for kept in traces.every() if kept.trace.stem == stem]
    for config in [config for number, config in enumerate(configs) if config not in configs[:number]]:
        trace = Trace(stem, config)
        try:
            with served.connect() as connection:
                asked = {"do": "outcome", "stem": stem, "trace": trace.as_json()}
                stopped = connection.ask(asked)["stopped"]
        except EngineDied:
            return "the process ended while the engine was built"
        except (EngineError, ToolError) as error:
            return str(error)
        if not stopped:
            return ""
        why = stopped
    return why
