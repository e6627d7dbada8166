"""``slotproof replay``: one trace on engines and releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.naming import UsageError
from conformance.driver.options import Given, chosen, known_to
from conformance.driver.protocol import EngineError, Json
from conformance.engines import named, registry
from conformance.engines.registry import Plugin
from conformance.search.connection import Subject
from conformance.search.ran import in_words
from conformance.search.replay import row, rows_elsewhere
from conformance.search.replay_apart import row_apart
from conformance.traces import trace_files
from conformance.traces.trace_files import Kept
from slotproof.checks import remarks
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import STYLES, broken, choose, progress, say, write_json

VERDICTS = (VIOLATION, LATENT, CONFORMS, UNSUPPORTED)  # the gravest first


CALL_LIMIT = 60.0  # seconds


@dataclass(frozen=True)
class ReplayOptions:
    """What was asked for on the command line.

    ``engines``: by name or by place; none for our own and every engine that has releases. ``options``: options of
    engines; each is given to the engines that have it. ``source``: a folder with the source code of the one engine that
    is named. ``call_limit``: seconds after which a call to an engine that is named by its place hangs.
    """

    trace: str
    engines: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    json: Path | None = None
    options: Given = ()
    source: Path | None = None
    call_limit: float = CALL_LIMIT


def run(asked: ReplayOptions) -> int:
    """Replays the trace everywhere that was asked for; exit code 1 if an engine violates a law."""
    found = trace_files.load(asked.trace)
    if asked.source is not None and len(asked.engines) != 1:
        raise UsageError(f"--source {asked.source}: name the engine whose source code it is")
    engines, left_out = (_named(asked.engines), []) if asked.engines else _installed(judged())
    rows = _rows(found, replace(asked, engines=tuple(engines)))
    json = asked.json
    write_json(json, {"trace": found.name, "rows": rows})
    for part in shown(found, rows):
        verdict = part.partition(" in step ")[0].partition(":")[0]
        say(part, style=STYLES.get(verdict, ""))
    if all(r["verdict"] == UNSUPPORTED for r in rows):
        say("no engine could run this trace to its end, so it says nothing about a law", style="yellow")
    for why in left_out:
        say(f"left out: {why}")
    return BROKEN if any(r["verdict"] == VIOLATION for r in rows) else HOLDS


def _named(engines: Sequence[str]) -> list[str]:
    """The engines that the user has named; one that is named by its place, as ``my_engine:make``, needs no entry."""
    choose([name for name in engines if not named.is_place(name)], registry.names(), "engine")
    return list(engines)


def _installed(engines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of engines that nobody has named those whose packages are installed, and why the others are left out. Raises
    ``EngineError`` where all are left out.
    """
    missing = {name: why for name in engines if (why := registry.lacking(registry.plugin(name)))}
    if len(missing) == len(engines):
        raise EngineError(next(iter(missing.values())))
    return [name for name in engines if name not in missing], list(missing.values())


def judged() -> list[str]:
    """Our own engine, and every engine that has releases."""
    return list(dict.fromkeys(plugin.name for plugin in (registry.own(), *registry.released())))


def shown(found: Kept, rows: Sequence[Json]) -> list[str]:
    """The operations of the trace, numbered as steps; then each result that it shows, the gravest first, with the
    engines and releases that show it.
    """
    steps = [f"  {number}. {line.strip()}" for number, line in enumerate(found.trace.lines(), 1)]
    return [found.name, *steps, *(line for result in _results(rows) for line in _told(result, found.trace.stem))]


def _results(rows: Sequence[Json]) -> list[list[Json]]:
    """The rows with one verdict, step, broken law and detail, together; the gravest verdict first."""
    found: dict[tuple[Any, ...], list[Json]] = {}
    for shows in rows:
        found.setdefault(tuple(shows[key] for key in ("verdict", "step", "law", "kind", "detail")), []).append(shows)
    return sorted(found.values(), key=lambda result: VERDICTS.index(result[0]["verdict"]))


def _told(result: list[Json], stem: str) -> list[str]:
    """A result in lines: the verdict and who shows it, what is broken, what the words of it mean, and what a request
    reads that is not its own.
    """
    first = result[0]
    in_step = f" in step {first['step']}" if first["step"] else ""
    lines = [f"{first['verdict']}{in_step}: {_who(result)}"]
    if first["law"]:
        lines.append(f"  what is broken: {broken(first['law'], first['kind'])}")
    if first["detail"]:
        lines += [f"  {line}" for line in (first["detail"], *remarks.legend({**first, "stem": stem}))]
    harms: dict[str, list[Json]] = {}
    for shows in result:
        if shows["harm"]:
            harms.setdefault(shows["harm"]["sentence"], []).append(shows)
    return [*lines, *(f"  harm: {harm} ({_who(those)})" for harm, those in harms.items())]


def _who(rows: Sequence[Json]) -> str:
    """The engines of the rows with their releases: ``ours; sglang 0.5.10, 0.5.11 to 0.5.14 (core: python)``."""
    groups = groupby(rows, lambda row: (row["subject"], in_words(row.get("ran", {}))))
    named: dict[str, list[str]] = {}
    for (engine, ran), group in groups:
        releases = _ranges(engine, [row["release"] for row in group if row["release"]])
        named.setdefault(engine, []).append(" ".join(part for part in (releases, ran and f"({ran})") if part))
    return "; ".join(f"{engine} {', '.join(parts)}".strip() for engine, parts in named.items())


def _ranges(engine: str, releases: Sequence[str]) -> str:
    """The releases in words. Three or more that follow each other among the engine's own are ``FIRST to LAST``."""
    known = registry.plugin(engine).releases if engine in registry.names() else ()
    place = {release: at for at, release in enumerate(known)}
    runs: list[list[str]] = []
    for release in releases:
        if runs and release in place and place[release] == place.get(runs[-1][-1], -2) + 1:
            runs[-1].append(release)
        else:
            runs.append([release])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


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
    """A row of ``conformance.search.replay`` as files have it, where the engine's name is called ``subject``."""
    return {"subject": found["engine"], **{key: value for key, value in found.items() if key != "engine"}}


def _rows(found: Kept, asked: ReplayOptions) -> list[Json]:
    """One row for each engine, or for each of its releases."""
    plugins = [registry.plugin(name) for name in asked.engines]
    options, releases = asked.options, list(asked.releases)
    declared = [option for p in plugins for option in registry.options_of(p)]
    if not any(named.is_place(name) for name in asked.engines):  # such an engine is asked when it is loaded
        chosen(" or ".join(asked.engines), declared, options)
    unreleased = [p.name for p in plugins if not p.releases]
    if releases and unreleased and len(unreleased) == len(plugins):
        raise EngineError(f"--release {', '.join(releases)}: the engine {unreleased[0]} has no releases")
    source = asked.source
    wanted = [(p, r) for p in plugins for r in (releases or p.releases if p.releases and source is None else [None])]
    rows: list[Json] = []
    with progress() as bar:
        task = bar.add_task("replaying", total=len(wanted))
        for plugin, release in wanted:
            rows += map(as_json, _of_one(found, plugin, release, asked))
            bar.advance(task)
    return rows


def _of_one(found: Kept, plugin: Plugin, release: str | None, asked: ReplayOptions) -> list[Json]:
    """The row of one engine, of a release of it, or of its source in a folder. Our own implementation is driven in this
    process, every other engine in one of its own.
    """
    place = named.is_place(plugin.name)
    options = asked.options if place else known_to(registry.options_of(plugin), asked.options)
    if plugin.own and asked.source is None:
        return [row(found, registry.load(plugin.name, options=options))]
    if plugin.releases:
        return rows_elsewhere([asked.trace], plugin.name, release, options=options, source=asked.source)
    subject = Subject(plugin.name, release, asked.source, stems=(found.trace.stem,), options=options)
    return [row_apart(found, subject, asked.call_limit)]
