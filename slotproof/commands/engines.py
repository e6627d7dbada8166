"""``slotproof engines``: every release on every stem, every kept trace on every release, and which functions of the
newest releases lead to which transitions.
"""

from __future__ import annotations

import json as jsonlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.enough import NOT_ENOUGH
from conformance.search.replay import row, rows_elsewhere
from conformance.stems.stem_registry import ROOMS
from conformance.traces import trace_files
from slotproof.checks.checking import STEM_OF_ENGINE
from slotproof.checks.replays import as_json
from slotproof.checks.weigh import too_little
from slotproof.commands.appeared import Looking
from slotproof.commands.appeared import as_json as appeared
from slotproof.console.codes import FAILED, USAGE
from slotproof.console.screen import TableOfRows, broken, choose, progress, say, show, table, write_json
from slotproof.pages import engine_functions
from slotproof.pages.documents import write
from slotproof.pages.kept_findings import FINDINGS, packed, stems_of_traces, unpacked


def run(json: Path | None, stems: Sequence[str] = (), only: Sequence[str] = ()) -> int:
    """Checks and replays, prints the verdicts, and writes the findings and the documents that are made from them.
    ``stems``, ``only``: these stems and these releases alone, where some are named; what is known of others stays.
    """
    choose(stems, list(ROOMS), "stem")
    every = [(plugin.name, release) for plugin in registry.released() for release in plugin.releases]
    if strange := sorted({*only} - {release for _, release in every}):
        raise UsageError(
            f"--release: no release {strange[0]!r} is checked: `slotproof list engines` names those that are"
        )
    releases = [one for one in every if not only or one[1] in only]
    looking = Looking(registry.released())
    stem_of, own = stems_of_traces(), registry.load(registry.own().name)
    names = [name for name in trace_files.names() if not stems or stem_of[name] in stems]
    if only and (new := sorted({*names} - jsonlib.loads(FINDINGS.read_text(encoding="utf-8"))["traces"].keys())):
        raise UsageError(f"--release: no release has replayed {', '.join(new)} yet: run without --release first")
    checks: list[Json] = []
    found = {name: [as_json(row(trace_files.load(name), own))] for name in names}

    def shown(one: tuple[str, str]) -> tuple[list[Json], list[Json]]:
        return _checked(*one, stems=stems), rows_elsewhere(names, *one)

    # Each release needs processes of its own; the threads wait for them.
    with progress() as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = bar.add_task("releases", total=len(releases))
        for checked, rows in pool.map(shown, releases):
            checks += checked
            for name, one in zip(names, rows, strict=True):
                found[name].append(as_json(one))
            bar.advance(task)
    lasting = [_lasting(c) for c in checks]
    if stems or only:
        lasting, found = beside(jsonlib.loads(FINDINGS.read_text(encoding="utf-8")), lasting, found, stem_of)
    write_json(FINDINGS, {"checks": lasting, **packed(found, stem_of)})
    news = looking.news()
    write_json(json, {"checks": checks, "traces": found, "index": appeared(news)})
    show(_verdicts(checks))
    for line in filter(None, (one.line() for one in news)):
        say(line, style="yellow")
    few = [c for c in checks if c["verdict"] == NOT_ENOUGH]
    if few:
        those = "; ".join(f"{c['subject']} {c['release']} {c['stem']} ({too_little(c)})" for c in few)
        say(f"{NOT_ENOUGH}, so no verdict: {those}", style="yellow")
        return FAILED
    if gone := [f"{c['subject']} {c['release']} {c['stem']}" for c in checks if c["gone"]]:
        raise UsageError(f"a known difference no longer occurs on {', '.join(gone)}: take it off the list")
    engine_functions.keep(FINDINGS.parent, stems, only)
    return write(check_only=False)


def beside(
    kept: Json, checks: Sequence[Json], found: dict[str, list[Json]], stem_of: dict[str, str]
) -> tuple[list[Json], dict[str, list[Json]]]:
    """What was found, and what the file says of everything else. Traces that are no more are left out."""
    new = {(check["subject"], check["release"], check["stem"]): check for check in checks}
    every = []
    for of_release, group in groupby(kept["checks"], key=lambda check: (check["subject"], check["release"])):
        every += [new.pop((*of_release, check["stem"]), check) for check in group]
        every += [new.pop(key) for key in [*new] if key[:2] == of_release]
    still = {**kept, "traces": {name: rows for name, rows in kept["traces"].items() if name in stem_of}}
    known = unpacked(still, stem_of)
    both = {name: _joined(known.get(name, []), found.get(name, [])) for name in {*known, *found}}
    return [*every, *new.values()], {name: both[name] for name in sorted(both)}


def _joined(kept: Iterable[Json], found: Iterable[Json]) -> list[Json]:
    """The rows of a trace: what was found, and what is kept of other releases, in the order of what is kept."""
    return [*{(row["subject"], row["release"]): row for rows in (kept, found) for row in rows}.values()]


def _lasting(checked: Json) -> Json:
    """What of a check is the same each time: not the law that was found first, and not the time."""
    return {key: checked[key] for key in ("subject", "release", "stem", "verdict", "known", "ran")}


def _checked(engine: str, release: str, stems: Sequence[str]) -> list[Json]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "check.json"
        command = [sys.executable, "-m", "slotproof", "check", engine, *stems, "--release", release, "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if stems and f"no {STEM_OF_ENGINE}" in done.stderr:  # the release has not one of them
            return []
        if not out.exists():
            raise _failed(f"{engine} {release}", done)
        results = jsonlib.loads(out.read_text(encoding="utf-8"))["results"]
    keys = ("stem", "verdict", "law", "kind", "steps", "seconds", "known", "gone", "ran", "transitions", "too_seldom")
    named = {"subject": engine, "release": release}
    return [{**named, **{key: r[key] for key in keys}} for r in results]


def _failed(which: str, done: subprocess.CompletedProcess[str]) -> Exception:
    """Why a check has no result: the release cannot be loaded, or Slotproof itself failed."""
    if done.returncode == USAGE:
        return UsageError(f"{which}: {done.stderr.strip()}")
    return RuntimeError(f"the check of {which} ended with {done.returncode}: {done.stderr.strip() or 'no message'}")


def _verdicts(checks: Iterable[Json]) -> TableOfRows:
    columns = ("engine", "stem", "verdict", "what is broken", "known differences", "operations", "seconds")
    return table(
        "Releases",
        columns,
        [
            (
                f"{c['subject']} {c['release']}",
                *(c["stem"], c["verdict"], broken(c["law"], c["kind"]), c["known"], c["steps"], c["seconds"]),
            )
            for c in checks
        ],
    )
