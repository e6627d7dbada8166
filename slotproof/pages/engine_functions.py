"""From a function of an engine to the transitions of the law: a table on the page of each stem.

``slotproof engines`` drives the newest release of each engine and keeps what its functions did in
``docs/functions.json``: by release, by stem and by operation (``conformance.search.functions``). The transitions that a
stem's claims name beside an operation are listed too, where no run took them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from conformance.driver.operations import declared
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.functions import elsewhere
from conformance.stems.room import Room
from conformance.stems.stem_registry import STEMS
from slotproof.console.output import write_text

FILE = "functions.json"  # in the folder of the documents
SENTENCE = re.compile(r"(?<=\.)\s")  # where a sentence ends


class OperationEntry(NamedTuple):
    """An operation of a stem's runs: what it does, the functions of each release that it calls, in the order of the
    releases, and the transitions that it takes.
    """

    name: str
    sentence: str
    functions: list[list[str]]
    transitions: list[str]


class FunctionTable(NamedTuple):
    """The operations of a stem's runs. ``releases``: the columns, such as ``sglang 0.5.23``."""

    releases: list[str]
    entries: list[OperationEntry]


def keep(docs: Path, stems: Collection[str] = (), releases: Collection[str] = ()) -> None:
    """Drives the newest release of each engine, and writes what its functions did. ``stems``, ``releases``: these
    alone, where some are named; what is known of others stays.
    """
    kept, found = _kept(docs / FILE), {}
    for plugin in registry.released():
        release = plugin.releases[-1]
        name, driven = f"{plugin.name} {release}", not releases or release in releases
        before = kept.get(name, {}) if stems or not driven else {}
        found[name] = {**before, **(elsewhere(plugin.name, release, stems) if driven else {})}
    write_text(docs / FILE, json.dumps(found, indent=1) + "\n")


def _kept(path: Path) -> Json:
    found: Json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def table(docs: Path, stem: str) -> FunctionTable:
    """The table of a stem. It has no entries where no engine has the stem."""
    kept = {release: by_stem[stem] for release, by_stem in _kept(docs / FILE).items() if stem in by_stem}
    if stem not in STEMS or not kept:
        return FunctionTable([], [])
    entries = [_entry(STEMS[stem], name, said, [*kept.values()]) for name, said in _operations(STEMS[stem]).items()]
    return FunctionTable([*kept], [entry for entry in entries if entry.transitions])


def _operations(room: Room) -> dict[str, str]:
    """The operations of a room's runs, each with the first sentence of its docstring."""
    owners = dict.fromkeys(owner for caller in room.callers for owner in caller.__mro__)
    return {name: SENTENCE.split(inspect.getdoc(made) or "")[0] for name, made in declared(*owners).items()}


def _entry(room: Room, name: str, sentence: str, kept: list[Json]) -> OperationEntry:
    taken = {transition for by_operation in kept for transition in by_operation.get(name, {}).get("transitions", ())}
    listed = [of for of, claim in room.claims.items() if of in taken or name in claim.by]
    return OperationEntry(name, sentence, [one.get(name, {}).get("functions", []) for one in kept], listed)
