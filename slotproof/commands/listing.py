"""``slotproof list``: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import spec
from conformance import stems as rooms
from conformance.driver.extras import MissingExtra, must_have
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.stems.found import servers
from conformance.traces import trace_files
from proofs.registry import STEMS
from slotproof.console.codes import HOLDS
from slotproof.console.screen import choose, say, show, table, write_json


def stems() -> list[Json]:
    """Each stem with its sentence, and each room for whole servers."""
    docs = {name: import_module(f"{spec.__name__}.{name}").__doc__ or "" for name in STEMS}
    docs |= {name: import_module(f"{rooms.__name__}.{name}").__doc__ or "" for name in servers()}
    return [{"name": name, "sentence": " ".join(doc.split("\n\n")[0].split())} for name, doc in docs.items()]


def faults() -> list[Json]:
    """Each known bug that ``slotproof faults`` plants, with its stem and sentence. Raises ``MissingExtra`` where the
    extras are not installed that the bugs are made of.
    """
    must_have("list faults", "prove", *registry.extras_of([registry.own()]))
    from conformance.planted.faults.known_bugs import ALL  # loads torch

    return [{"name": fault.name, "stem": fault.stem, "sentence": fault.sentence} for fault in ALL]


def kept_traces() -> list[Json]:
    """Each kept trace with its stem and the law that breaks."""
    return [{"name": one.name, "stem": one.trace.stem, "law": one.law} for one in trace_files.every()]


def engines() -> list[Json]:
    """Each engine with its releases; one that cannot be imported has an ``error``."""
    return [_engine(name) for name in registry.names()]


def _engine(name: str) -> Json:
    try:
        return {"name": name, "releases": [*registry.plugin(name).releases], "error": None}
    except EngineError as error:
        return {"name": name, "releases": [], "error": str(error)}


def options() -> list[Json]:
    """Each option of each engine with its values; `--option` of `check` and `replay` sets it."""
    return [
        {"engine": found.name, **{**asdict(option), "values": list(option.values)}}
        for found in registry.plugins()
        for option in registry.options_of(found)
    ]


KINDS: dict[str, Callable[[], list[Json]]] = {
    "stems": stems,
    "faults": faults,
    "traces": kept_traces,
    "engines": engines,
    "options": options,
}


def run(kinds: Sequence[str], json: Path | None) -> int:
    """Prints the names of these kinds, or of all kinds, and writes them to ``json``.

    Where no kind is named, one whose extra is not installed is left out, and a line says so.
    """
    found, left_out = {}, []
    for kind in choose(kinds, KINDS, "list of names"):
        try:
            found[kind] = KINDS[kind]()
        except MissingExtra as error:
            if kinds:
                raise
            left_out.append(str(error))
    write_json(json, found)
    for kind, rows in found.items():
        columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
        show(table(kind, columns, [[_shown(row[name]) for name in columns] for row in rows]))
    for why in left_out:
        say(f"left out: {why}")
    return HOLDS


def _shown(value: str | list[str] | None) -> str:
    return ", ".join(value) if isinstance(value, list) else value or "-"
