"""``slotproof blind``: how many of the kept causes of an engine the search finds from nothing."""

from __future__ import annotations

import json as plain_json
from collections.abc import Sequence
from pathlib import Path

from conformance.driver.naming import UsageError, unknown
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.connection import Subject
from slotproof.checks import blind_search
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.needs import needed_checkout, needed_for_documents
from slotproof.console.output import write_text
from slotproof.console.screen import say, show, table, write_json
from slotproof.pages import blind_pages, kept_findings
from slotproof.pages.blind_pages import AIMS, MINUTES, Searched
from slotproof.pages.chain_pages import SCHEDULERS
from slotproof.pages.finding_pages import of_engine

KEY = ("engine", "release", "seed", "minutes")


def run(engine: str, seeds: Sequence[int], minutes: float, keep: bool, json: Path | None) -> int:
    """Searches the newest release of an engine from each seed, and prints what was found. ``keep``: writes
    ``docs/blind.json``, after each search, and the page made from it. Exit code 1 where fewer odd causes are found than
    ``AIMS`` says.
    """
    names = [one.name for one in registry.released()]
    if engine not in names:
        raise UsageError(unknown("engine with releases", engine, names))
    if len({*seeds}) < len(seeds):
        raise UsageError("blind: a seed is given twice")
    if keep:
        needed_for_documents("blind --keep")
        needed_checkout("blind --keep")
    plugin = registry.plugin(engine)
    registry.must_be_installed(plugin)
    release, done = plugin.releases[-1], list[Json]()
    for seed in seeds:
        say(f"{engine} {release} is searched for {minutes:g} minutes, seed {seed}")
        found = blind_search.search(Subject(engine, release), SCHEDULERS, seed, 60 * minutes)
        done.append({"engine": engine, "release": release, "minutes": minutes, **found})
        _tell(done[-1])
        if keep:
            _keep(done[-1])
    if keep:
        from slotproof.pages.documents import write

        write(check_only=False)
    if json is not None:
        write_json(json, {"searches": done})
    (told,) = blind_pages.searched(engine, done, of_engine(engine, kept_findings.with_rows(kept_findings.kept())))
    return _said(told)


def _tell(search: Json) -> None:
    """What one search has found."""
    causes = ", ".join(f"{name} after {second:.0f} s" for name, second in search["causes"].items())
    say(f"seed {search['seed']}: {len(search['found'])} findings; causes: {causes or 'none'}")
    for one in search["failed"]:
        say(f"seed {search['seed']}: Slotproof itself failed: {one}")


def _keep(search: Json) -> None:
    kept = {tuple(one[name] for name in KEY): one for one in blind_pages.kept_searches()}
    kept[tuple(search[name] for name in KEY)] = search
    searches = (plain_json.dumps(kept[key], separators=(",", ":")) for key in sorted(kept))
    write_text(blind_pages.KEPT, "[\n" + ",\n".join(searches) + "\n]\n")  # runs are long: one line for each search


def _said(told: Searched) -> int:
    columns = ("entry", "", *(f"seed {search['seed']}" for search in told.searches))
    show(table(f"{told.engine} {told.release}, {told.minutes:g} minutes", columns, [_row(one) for one in told.rows]))
    for other, times in told.others:
        say(f"like no entry: {other.stem}, {other.law}: {other.words} ({times} times)")
    say(f"found: {told.share(True)} even causes, {told.share(False)} odd causes")
    odd = [row.found for row in told.rows if row.has_repair and not row.is_even]
    aim = AIMS.get(told.minutes, AIMS[MINUTES])
    return HOLDS if 100 * sum(odd) >= aim * len(odd) else BROKEN


def _row(row: blind_pages.Blind) -> tuple[object, ...]:
    seconds = ("·" if second is None else f"{second:.0f}" for second in row.seconds)
    return row.name, f"{'even' if row.is_even else 'odd'}{'' if row.has_repair else ', no repair'}", *seconds
