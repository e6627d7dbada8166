"""``slotproof replay``: one trace on engines and releases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from conformance import named, traces
from conformance.engines import registry
from conformance.engines.protocol import EngineError, Json
from conformance.lockstep import UNSUPPORTED, VIOLATION
from conformance.options import Given, chosen, known_to
from conformance.ran import in_words
from conformance.replay import row, rows_elsewhere
from conformance.traces import Kept
from slotproof.codes import BROKEN, HOLDS
from slotproof.screen import Rows, broken, choose, progress, say, show, table, write_json


def run(trace: str, engines: Sequence[str], releases: Sequence[str], json: Path | None, options: Given = ()) -> int:
    """Replays the trace everywhere that was asked for; exit code 1 if an engine violates a law. ``options``: options of
    engines; each is given to the engines that have it.
    """
    found = traces.load(trace)
    rows = _rows(trace, _named(engines) if engines else judged(), releases, options)
    write_json(json, {"trace": found.name, "rows": rows})
    for part in shown(found, rows):
        show(part)
    if all(r["verdict"] == UNSUPPORTED for r in rows):
        say("no engine could run this trace to its end, so it says nothing about a law", style="yellow")
    return BROKEN if any(r["verdict"] == VIOLATION for r in rows) else HOLDS


def _named(engines: Sequence[str]) -> list[str]:
    """The engines that the user has named; one that is named by its place, as ``my_engine:make``, needs no entry."""
    choose([name for name in engines if not named.is_place(name)], registry.names(), "engine")
    return list(engines)


def judged() -> list[str]:
    """Our own engine, and every engine that has releases."""
    return list(dict.fromkeys(plugin.name for plugin in (registry.own(), *registry.released())))


def shown(found: Kept, rows: Sequence[Json]) -> list[str | Rows]:
    """The operations of the trace, and a table of what it shows."""
    columns = ("engine", "verdict", "step", "what is broken", "detail", "harm")
    lines = [
        (
            *(r["engine"], r["verdict"], r["step"] or "-", broken(r["law"], r["kind"]), r["detail"]),
            r["harm"]["sentence"] if r["harm"] else "-",
        )
        for r in merged(rows)
    ]
    return [*(f"  {line}" for line in found.trace.lines()), table(found.name, columns, lines)]


def merged(rows: Sequence[Json]) -> list[Json]:
    """The rows with consecutive releases that show one result as one row; ``engine``: its name, these releases, and
    what of it ran, where it says so.
    """
    keys = ("subject", "verdict", "step", "law", "kind", "detail", "harm")
    found = []
    for (*values, ran), group in groupby(rows, lambda row: (*(row[key] for key in keys), in_words(row.get("ran", {})))):
        releases = ", ".join(row["release"] for row in group if row["release"])
        engine = f"{values[0]} {releases}".strip() + (f" ({ran})" if ran else "")
        found.append({"engine": engine, **dict(zip(keys, values, strict=True))})
    return found


def as_json(found: Json) -> Json:
    """A row of ``conformance.replay`` as it is written to files, where the engine's name is called ``subject``."""
    return {"subject": found["engine"], **{key: value for key, value in found.items() if key != "engine"}}


def _rows(trace: str, engines: Sequence[str], releases: Sequence[str], options: Given) -> list[Json]:
    """One row for each engine, or for each of its releases."""
    plugins = [registry.plugin(name) for name in engines]
    chosen(" or ".join(engines), [option for p in plugins for option in registry.options_of(p)], options)
    given = {p.name: known_to(registry.options_of(p), options) for p in plugins}
    unreleased = [p.name for p in plugins if not p.releases]
    if releases and unreleased and len(unreleased) == len(plugins):
        raise EngineError(f"--release {', '.join(releases)}: the engine {unreleased[0]} has no releases")
    wanted = [(p.name, r) for p in plugins for r in (list(releases) or p.releases if p.releases else [None])]
    rows = []
    with progress() as bar:
        task = bar.add_task("replaying", total=len(wanted))
        for engine, release in wanted:
            if release is None:
                loaded = registry.load(engine, stems=(traces.load(trace).trace.stem,), options=given[engine])
                rows.append(as_json(row(traces.load(trace), loaded)))
            else:
                rows += map(as_json, rows_elsewhere([trace], engine, release, options=given[engine]))
            bar.advance(task)
    return rows
