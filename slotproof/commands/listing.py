"""``slotproof list``: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import spec
from conformance import stems as rooms
from conformance.driver.extras import lacking
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.stems.found import servers
from conformance.traces import cause_files, trace_files
from proofs.registry import STEMS
from slotproof.console.codes import HOLDS
from slotproof.console.screen import choose, say, show, table, write_json


def stems() -> list[Json]:
    """Each stem with its sentence, and each room for whole servers."""
    docs = {name: import_module(f"{spec.__name__}.{name}").__doc__ or "" for name in STEMS}
    docs |= {name: import_module(f"{rooms.__name__}.{name}").__doc__ or "" for name in servers()}
    return [{"name": name, "sentence": " ".join(doc.split("\n\n")[0].split())} for name, doc in docs.items()]


def faults() -> list[Json]:
    """Each known bug that ``slotproof faults`` plants, with its stem and sentence."""
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


def operators() -> list[Json]:
    """Each operator of `slotproof mutate`: what it edits, and how. Those of impl are there where the library is that
    makes mutants; it is installed for the development of Slotproof alone, as `slotproof mutate impl` needs it.
    """
    from proofs.mutation.operators import OPERATORS  # loads the spec

    sentences: dict[str, Mapping[str, str]] = {"spec": OPERATORS}
    with suppress(ModuleNotFoundError):
        from conformance.planted.mutants.places import SENTENCES

        sentences["impl"] = SENTENCES
    return [
        {"name": name, "of": of, "sentence": said} for of, known in sentences.items() for name, said in known.items()
    ]


def causes() -> list[Json]:
    """Each cause of findings, with its engine."""
    return [{"name": cause.name, "engine": cause.engine} for cause in cause_files.every()]


KINDS: dict[str, Callable[[], list[Json]]] = {
    "stems": stems,
    "faults": faults,
    "traces": kept_traces,
    "engines": engines,
    "options": options,
    "operators": operators,
    "causes": causes,
}


def run(kinds: Sequence[str], json: Path | None) -> int:
    """Prints the names of these kinds, or of all kinds, and writes them to ``json``.

    Where no kind is named, one whose extra is not installed is left out, and a line says so.
    """
    chosen = choose(kinds, KINDS, "list of names")
    missing = {kind: why for kind in chosen if (why := _lacking(kind))}
    if kinds and missing:
        raise UsageError(next(iter(missing.values())))
    found = {kind: KINDS[kind]() for kind in chosen if kind not in missing}
    write_json(json, found)
    for kind, rows in found.items():
        columns = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
        show(table(kind, columns, [[_shown(row[name]) for name in columns] for row in rows]))
    for why in missing.values():
        say(f"left out: {why}")
    return HOLDS


def _lacking(kind: str) -> str:
    """What ``extras.lacking`` says of a kind of names: the known bugs are made of proofs and of our implementation."""
    return lacking(f"list {kind}", "prove", *registry.extras_of([registry.own()])) if kind == "faults" else ""


def _shown(value: str | list[str] | None) -> str:
    return ", ".join(value) if isinstance(value, list) else value or "-"
