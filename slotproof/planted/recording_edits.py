"""``python -m slotproof.planted.recording_edits DRAW``: drawn edits of an engine that a check finds are recorded.

``DRAW`` is the report of ``slotproof mutate engine ENGINE --release V --seed S --json DRAW``. The first edits in it
that were found are planted again, each in a copy of the release. The scheduler of the copy runs under random load and
is recorded, kind of server after kind. The recordings are judged until one breaks a law, and ``judge --shrink`` looks
for the shortest run that breaks this law, whose pasted test is run on the copy and on the release. Each of these is the
command of a user, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.planted.mutants import edits, places
from conformance.planted.mutants.outcomes import FOUND
from conformance.planted.mutants.places import CodeMutant
from conformance.planted.mutants.reasons import ReviewedEdits
from conformance.telling.pasted import as_test
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import say
from slotproof.planted.edit_check import edited
from slotproof.planted.mutating_engine import keep_under

KEPT, REVIEWED = "recorded_edits.json", "recorded_edits.toml"  # in docs/
NAMED, QUIET, UNRECORDED, UNJUDGED = "named", "nothing", "not recorded", "not judged"
LONGEST = 1_800  # seconds after which a command has no end
NO_END = -1  # in the place of an exit code
FAILED, PASSED = 1, 0  # exit codes of pytest
RIGHTLY = ("yes", "late", "no", "not named")  # whether the first wrong call was named: see docs/recorded_edits.toml
BY_HAND = ReviewedEdits("edit", ("engine", "release", "edit"), "right", RIGHTLY)
UNREVIEWED = {"right": "", "reason": ""}
OF_DRAW = ("edit", "file", "line", "function", "words")  # what of a draw's row is kept


def main() -> int:
    """Records the edits of a draw, prints what became of each, and with ``--keep`` writes docs/recorded_edits.json."""
    said = argparse.ArgumentParser(prog=f"python -m {__name__}", description=__doc__)
    said.add_argument("draw", type=Path, help="the report of slotproof mutate engine")
    said.add_argument("--steps", type=int, default=20_000, help="steps of load, all kinds of servers together")
    said.add_argument("--count", type=int, default=10, help="record so many edits: the first that were found")
    said.add_argument("--shrink", default="60s", help="how long a short run is looked for")
    said.add_argument("--jobs", type=int, default=1, help="edits at a time")
    said.add_argument("--keep", action="store_true", help="write the result to docs/recorded_edits.json")
    asked = said.parse_args()
    draw: Json = json.loads(asked.draw.read_text(encoding="utf-8"))
    rows = [row for row in draw["rows"] if row["fate"] == FOUND][: asked.count]
    root = registry.load(draw["engine"], draw["release"]).roots[0]
    planted = _planted(root, rows)

    def one(row: Json) -> Json:
        made = recorded(draw["engine"], draw["release"], root, planted[row["edit"]], asked.steps, asked.shrink)
        found = {name: row[name] for name in OF_DRAW} | {"checked": f"{row['stem']}: {row['law']}"} | made
        _tell(found)
        return found

    with ThreadPoolExecutor(asked.jobs) as pool:
        every = list(pool.map(one, rows))
    folder = checkout()
    if asked.keep and folder is not None:
        drawn = {name: draw[name] for name in ("engine", "release", "seed")} | {"tried": len(draw["rows"])}
        keep_under(folder / "docs" / KEPT, draw["engine"], {**drawn, "steps": asked.steps, "rows": every})
    return HOLDS


def _planted(root: Path, rows: Sequence[Json]) -> dict[str, CodeMutant]:
    """The edits of these rows, by their names."""
    spots = {
        edits.identity(spot): spot
        for file in {row["file"] for row in rows}
        for spot in places.spots(root / file, name=file, line=lambda _: True, messages=True)
    }
    wanted = {row["edit"] for row in rows}
    made = {edit: places.mutant(root, spots[edit]) for edit in wanted & spots.keys()}
    found = {edit: mutant for edit, mutant in made.items() if mutant is not None}
    if missing := sorted(wanted - found.keys()):
        raise UsageError(f"the release in {root} has no such edits: {', '.join(missing)}")
    return found


@dataclass(frozen=True)
class Planted:
    """An edit of a release, and where its files are: ``source``, the copy with the edit, and ``scratch`` for ours.
    ``steps``: so many are recorded of each kind of server.
    """

    engine: str
    release: str
    source: Path
    scratch: Path
    steps: int

    @property
    def report(self) -> Path:
        """Where ``slotproof judge`` writes what it says."""
        return self.scratch / "report.json"

    def told(self) -> Json:
        """What ``slotproof judge`` has written."""
        found: Json = json.loads(self.report.read_text(encoding="utf-8"))
        return found


def recorded(engine: str, release: str, root: Path, mutant: CodeMutant, steps: int, shrink: str) -> Json:
    """What a recording says of an edit, and what became of the short run with the law that it breaks.

    ``fate``: ``NAMED``, a recording breaks a law; ``QUIET``, none does; ``UNRECORDED``, no server could be recorded;
    ``UNJUDGED``, no recording could be judged. ``said``: why, of the last two. ``short``: how many operations the short
    run has, ``None`` where none was found; ``fails``, ``passes``: its pasted test fails on the edit, and passes on the
    release.
    """
    begun = time.monotonic()
    with edited(root, {mutant.spot.file: mutant.text.encode()}) as source, tempfile.TemporaryDirectory() as scratch:
        kinds = _kinds(engine)
        planted = Planted(engine, release, source, Path(scratch), steps // len(kinds))
        found = _first_named(planted, kinds)
        if found["fate"] == NAMED:
            found |= _short(planted, found, shrink)
    return {**found, "seconds": round(time.monotonic() - begun)}


def _kinds(engine: str) -> Sequence[str]:
    """The kinds of servers of an engine that can be put under load."""
    kinds: Sequence[str] = getattr(registry.plugin(engine), "under_loads", ("",))
    return kinds


def _first_named(planted: Planted, kinds: Sequence[str]) -> Json:
    """Records one kind of server after the other, until a recording breaks a law that the release keeps under the
    load.
    """
    others: dict[str, str] = {}  # by fate why
    for kind in kinds:
        file = planted.scratch / f"{kind or 'server'}.rec"
        fate, found = _judged(planted, ["--source", str(planted.source)], kind, file)
        if fate == NAMED and _law(found) != _law(_of_release(planted, kind)):
            return {"fate": NAMED, "said": "", "server": kind, "file": str(file), **found}
        others[QUIET if fate == NAMED else fate] = found.get("said", "")
    fate = next(fate for fate in (QUIET, UNJUDGED, UNRECORDED) if fate in others)
    return {"fate": fate, "said": others[fate]}


def _law(found: Json) -> tuple[Any, ...]:
    """What a recording breaks, and where."""
    return found.get("law"), found.get("kind"), found.get("named")


def _judged(planted: Planted, subject: Sequence[str], kind: str, file: Path) -> tuple[str, Json]:
    """Records a kind of server, and judges the recording: its fate, and the first wrong call or why there is none."""
    load = ["--demo", planted.engine, *subject, "--steps", str(planted.steps), *(["--server", kind] if kind else [])]
    code, said = _slotproof("record", *load, "-o", str(file))
    if code != HOLDS:
        return UNRECORDED, {"said": said}
    code, said = _slotproof("judge", str(file), "--json", str(planted.report))
    if code != BROKEN:
        return (QUIET, {}) if code == HOLDS else (UNJUDGED, {"said": said})
    first = planted.told()["first"]
    return NAMED, {name: first[name] for name in ("call", "law", "kind", "detail")} | {"named": first["function"]}


_own: dict[tuple[str, str, str, int], Json] = {}
_one_at_a_time = Lock()


def _of_release(planted: Planted, kind: str) -> Json:
    """What the release itself breaks under the load, as ``_judged`` says it; nothing where it keeps the law."""
    asked = (planted.engine, planted.release, kind, planted.steps)
    with _one_at_a_time:
        if asked not in _own:
            file = planted.scratch / "release.rec"
            fate, found = _judged(planted, ["--release", planted.release], kind, file)
            _own[asked] = found if fate == NAMED else {}
        return _own[asked]


def _short(planted: Planted, found: Json, shrink: str) -> Json:
    """Looks for a short run that breaks the named law, and runs its test on the copy and on the release."""
    recording, source = found.pop("file"), ["--source", str(planted.source)]
    _slotproof("judge", recording, "--json", str(planted.report), "--shrink", shrink, *source)
    short = planted.told()["short"]
    if short is None:
        return {"short": None, "fails": False, "passes": False}
    law, trace = (found["law"], found["kind"], planted.engine), Trace(**short)
    on_edit = _tested(planted, as_test(trace, *law, source=planted.source))
    on_release = _tested(planted, as_test(trace, *law, release=planted.release))
    return {"short": len(trace.steps), "fails": on_edit == FAILED, "passes": on_release == PASSED}


def _slotproof(*words: str) -> tuple[int, str]:
    """Runs a command of slotproof. Returns its exit code, and the last line that it said."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "slotproof", *words], capture_output=True, text=True, check=False, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return NO_END, f"no end within {LONGEST} s"
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [""]
    return done.returncode, lines[-1].strip()


def _tested(planted: Planted, text: str) -> int:
    """Runs a test that a user would paste, and returns the exit code of pytest."""
    file = planted.scratch / "test_pasted.py"
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(planted.scratch)]
    return subprocess.run([*command, str(file)], capture_output=True, check=False, timeout=LONGEST).returncode


# What is printed and kept.


def _tell(row: Json) -> None:
    where = f"{row['edit']} {row['file']}:{row['line']} {row['function']}: {row['words']}"
    if row["fate"] != NAMED:
        say(f"{row['fate']}, {row['seconds']} s: {where}{': ' if row['said'] else ''}{row['said']}", wrap=False)
        return
    on = f" on {row['server']}" if row["server"] else ""
    short = "no short run" if row["short"] is None else f"{row['short']} operations, {_of_test(row)}"
    what = f"call {row['call']} {row['named']}{on}: {row['law']}; {short}"
    say(f"{what}, {row['seconds']} s: {where}", wrap=False)


def _of_test(row: Json) -> str:
    on_edit = "fails on the edit" if row["fails"] else "does not fail on the edit"
    return f"{on_edit} and {'passes' if row['passes'] else 'does not pass'} on the release"


# The page in docs/.


def page() -> Json:
    """What docs/recorded_edits.md shows: for each engine its edits, with the reviewed verdict on the call."""
    root = checkout()
    assert root is not None, "documents are made in a checkout"
    kept: Json = json.loads((root / "docs" / KEPT).read_text("utf-8"))
    known = BY_HAND.read(root / "docs" / REVIEWED)
    every = []
    for one in kept.values():
        said = [known.get((one["engine"], one["release"], row["edit"]), UNREVIEWED) for row in one["rows"]]
        rows = [row | {name: text[name] for name in UNREVIEWED} for row, text in zip(one["rows"], said, strict=True)]
        rows = [{**row, "test": _of_test(row) if row.get("short") is not None else ""} for row in rows]
        named = [row for row in rows if row["fate"] == NAMED]
        counts = {
            **{"named": len(named), "right": sum(row["right"] == "yes" for row in named)},
            **{"short": sum(row["short"] is not None for row in named)},
            **{"tested": sum(row["fails"] and row["passes"] for row in named)},
        }
        every.append({**one, "rows": rows, "counts": counts})
    return {"engines": every, "named": NAMED}


if __name__ == "__main__":
    sys.exit(main())
