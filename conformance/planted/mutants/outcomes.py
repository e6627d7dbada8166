"""What became of the edits of an engine: counts, the share that was found, and why others were missed.

The reasons are reviewed by hand and kept in ``docs/mutation_engines_misses.toml``. An edit that stands there as
``equivalent`` changes nothing that a caller of the engine can tell. At most one edit in ten is left out of the count
for that; where more are called equivalent, the rest counts as missed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from conformance.driver.protocol import Json
from conformance.planted.mutants.reasons import ReviewedEdits
from conformance.planted.mutants.record import EQUIVALENT, interval

FOUND, MISSED, HANGS, NO_VERDICT = "found", "missed", "hangs", "no verdict"
FATES = (FOUND, MISSED, HANGS, NO_VERDICT)
KINDS = (EQUIVALENT, "not modelled", "rule never sent", "configuration never made", "too shallow")
AIM = 0.8  # of the edits that are not equivalent, so many should be found
MOST_EQUIVALENT = 0.1
NAMED = ("engine", "release", "edit")  # what names an edit in the file of reasons
REASONS = ReviewedEdits("miss", NAMED, "kind", KINDS)  # why edits are missed


def with_reasons(rows: Iterable[Json], engine: str, release: str, known: dict[tuple[str, ...], Json]) -> list[Json]:
    """The rows; each edit that was not found with ``kind`` and ``reason``, which are empty where nobody has given
    one.
    """
    none = {"kind": "", "reason": ""}

    def of(row: Json) -> Json:
        given = known.get((engine, release, row["edit"]), none)
        return row if row["fate"] == FOUND else row | {name: given[name] for name in none}

    return [of(row) for row in rows]


def sums(rows: Sequence[Json]) -> Json:
    """How many edits had each fate, the share of the found ones among those that are not equivalent with its interval
    of 95%, and of how many of the found ones the edited function was shown.
    """
    counts: Json = {fate: sum(row["fate"] == fate for row in rows) for fate in FATES}
    called = sum(row.get("kind") == EQUIVALENT for row in rows)
    equivalent = min(called, int(MOST_EQUIVALENT * len(rows)))
    wrong = len(rows) - equivalent
    return {
        **{"edits": len(rows), **counts, "equivalent": equivalent, "called_equivalent": called, "wrong": wrong},
        **{"share": counts[FOUND] / wrong if wrong else 1.0, "interval": interval(counts[FOUND], wrong)},
        **{
            "shown": sum(bool(row["shown"]) for row in rows),
            "unexplained": sum(row.get("reason") == "" for row in rows),
        },
    }


def of_report(report: Json, file: str, function: str) -> Json:
    """What a report of ``slotproof check --base`` says of an edit: its fate, the first finding of it, how many rows of
    findings there are, and whether one of them shows the edited function.
    """
    rows = [row for name in ("new", "worse") for row in report[name] if row["severity"] == "violation"]
    fate = FOUND if rows else MISSED if report["exit"] == 0 else NO_VERDICT
    first = rows[0] if rows else {"stem": "", "law": ""}
    shown = any(shows(row, file, function) for row in rows)
    said = "" if rows else report["reason"]
    return {"fate": fate, "stem": first["stem"], "law": first["law"], "rows": len(rows), "shown": shown, "said": said}


def without_report(fate: str, said: str) -> Json:
    """The same of a check that ended without a report. ``said``: why."""
    return {"fate": fate, "stem": "", "law": "", "rows": 0, "shown": False, "said": said}


def shows(row: Json, file: str, function: str) -> bool:
    """A finding names the function among those that one of its operations called, or that an exception went through."""
    told = [frame for step in row["story"] for frame in (*step["engine"], *step.get("below", []))]
    told += [frame for step in row["story"] for raised in step["raised"] for frame in raised["frames"]]
    return any((frame["file"], frame["function"]) == (file, function) for frame in told)


class Begun:
    """The edits of one draw that were judged so far, in a file to which each is added at once. A second call with the
    same arguments goes on where the first one ended.

    ``first``: what the draw was made from. ``rows``: what became of the edits, by edit.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = _whole_lines(file)
        self.first: Json | None = lines[0] if lines else None
        self.rows: dict[str, Json] = {row["edit"]: row for row in lines[1:]}

    def begin(self, first: Json) -> None:
        """Begins the file anew."""
        self.first, self.rows = first, {}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(first) + "\n", encoding="utf-8")

    def add(self, row: Json) -> None:
        """Adds what became of an edit."""
        self.rows[row["edit"]] = row
        text = "".join(json.dumps(one) + "\n" for one in (self.first, *self.rows.values()))
        beside = self.file.with_suffix(".new")
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.file)

    def of(self, edits: Collection[str]) -> list[Json]:
        """What became of those of these edits that were judged, in their order."""
        return [self.rows[edit] for edit in edits if edit in self.rows]


def _whole_lines(file: Path) -> list[Json]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []
