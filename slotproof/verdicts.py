"""Prints the report of ``slotproof check``: first what is new, then what is known, then how hard was looked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from conformance.engines.protocol import Json
from conformance.story.tell import as_test
from conformance.traces import Trace
from slotproof.screen import broken, console, table

HEADS = {
    "new": "new: the base holds this law on the trace",
    "worse": "worse: the base breaks the trace less gravely or later",
    "incomparable": "incomparable: the base does not get so far",
}


def show(report: Json) -> None:
    """Prints the report."""
    for line in _heading(report):
        _say(line, "dim")
    beside = report["base"] is not None
    for name in ("new", "worse", "incomparable"):
        for row in report[name]:
            _finding(row, HEADS[name] if beside else "found", report)
    for name in ("gone", "known"):
        for row in report[name]:
            _line(name, row)
    console.print(_looked(report["results"]))
    for result in report["results"]:
        _reach(result)
    _say(f"{report['subject']['label']}: {report['reason']} ({report['seconds']} s)", "bold")


def nothing_judged(stem: str) -> Json:
    """The judgement on a stem on which no search came to its end."""
    empty: dict[str, Any] = {name: [] for name in ("new", "worse", "incomparable", "known", "gone")}
    looked = {"runs": 0, "steps": 0, "refused": 0, "transitions": {}, "never_reached": [], "cut_short": True}
    return {"stem": stem, "verdict": "unsupported", "seconds": 0.0, **looked, **empty}


def _say(line: str, style: str = "") -> None:
    console.print(Text(line, style=style))


def _heading(report: Json) -> Iterable[str]:
    subject, base = report["subject"], report["base"]
    yield subject["label"] + (f", compared with {base['why']}" if base else "")
    network = subject["isolation"]["network"]
    yield f"the engine ran in processes of its own: network {network}, home {subject['isolation']['home']}"


def _finding(row: Json, head: str, report: Json) -> None:
    what = broken(row["law"], row["kind"])
    console.print(Text.assemble((f"{row['stem']}: {what}", "bold red"), f" ({row['severity']}, {head})"))
    _say(f"  {row['sentence']}")
    _say(f"  step {row['step']}: {row['detail']}")
    if row.get("base"):
        _say(f"  {row['base']}")
    if row.get("story"):
        _story(row)
    subject = report["subject"]
    trace = Trace(**row["trace"])
    _say("A pytest test that fails while the finding is there:", "dim")
    _say(as_test(trace, subject["engine"], subject["release"]))


def _story(row: Json) -> None:
    lines = []
    for number, told in enumerate(row["story"], start=1):
        changed = Text(told["changed"])
        if told["wrong"]:
            changed.append(f"\n{told['wrong']}", style="bold red")
        lines.append((number, told["call"], changed))
    config = ", ".join(f"{name}={value}" for name, value in row["trace"]["config"].items())
    console.print(table(f"{row['stem']}: {config}", ("", "operation", "what it changed"), lines, lines=True))


def _line(name: str, row: Json) -> None:
    """One line about a finding that needs no story."""
    where = f"trace {row['name']}" if row["name"] else f"a run of {len(row['trace']['steps'])} operations"
    times = f", in {row['times']} runs" if row.get("times", 1) > 1 else ""
    _say(f"{name}: {row['stem']}: {broken(row['law'], row['kind'])} ({row['severity']}; {where}{times})", "dim")


def _looked(results: list[Json]) -> Any:
    columns = ("stem", "verdict", "runs", "operations", "refused", "new", "known", "seconds")
    rows = [
        (
            *(r["stem"], r["verdict"], r["runs"], r["steps"], r["refused"], r["new"] + r["worse"], r["known"]),
            f"{r['seconds']:.1f}{' (cut short)' if r['cut_short'] else ''}",
        )
        for r in results
    ]
    return table("How hard was looked", columns, rows)


def _reach(result: Json) -> None:
    missed = ", ".join(result["never_reached"])
    if missed:
        _say(f"{result['stem']}: no run reached {missed}", "dim")
