"""Prints the report of ``slotproof check``: first what is new, then what is known, then how hard was looked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.ran import in_words
from conformance.telling.pasted import as_test
from conformance.telling.tell import ToldOperation
from conformance.traces.harm_found import lines_of
from slotproof.checks import by_cause, remarks, weigh
from slotproof.console.screen import STYLES, TableOfRows, broken, say, show, story, table

SHORT = 12  # operations of a known run that are printed
HEADS = {
    "new": "new: the base holds this law on the trace",
    "worse": "worse: the base breaks the trace less gravely or later",
}


def show_report(report: Json) -> None:
    """Prints the report."""
    for line in _heading(report):
        say(line, style="dim")
    beside = report["base"] is not None
    for name in ("new", "worse"):
        for row in report[name]:
            _finding(row, HEADS[name] if beside else "found by a drawn run", report)
    for row in report["incomparable"]:
        say(line_of("incomparable", row), style="dim")
        say(f"  {'; '.join(Trace(**row['trace']).lines())}: {row['detail']}; {row['base']}", style="dim")
    for row in report["gone"]:
        _gone(row, report)
    for number, row in enumerate(report["known"], start=1):
        say(line_of("known", row), style="dim")
        if not row["name"]:
            say(f"  {run_of(row, number)}", style="dim")
    show(_looked(report["results"]))
    for result in report["results"]:
        _reach(result, sentences=len(report["results"]) == 1)
        if result["avoided"]:
            say(avoided(result), style="dim")
    if any(result["avoided"] for result in report["results"]) and can_be_repaired(report):
        say("--repaired draws what stands behind known causes that have a repair", style="dim")
    if not beside and report["subject"]["source"] and report["new"]:
        say(
            "--base shows only what breaks here and holds on your main branch, a release or another folder",
            style="yellow",
        )
    if report["over"]:
        say(f"{report['over']} s more than the budget of {report['options']['budget']:g} s", style="yellow")
    label = report["subject"]["label"] + (", repaired" if report["options"]["repaired"] else "")
    say(f"{label}: {report['reason']} ({report['seconds']} s)", style="bold")


def _heading(report: Json) -> Iterable[str]:
    subject, base = report["subject"], report["base"]
    yield subject["label"] + (f", compared with {base['why']}" if base else "")
    network = subject["isolation"]["network"]
    yield from subject["notes"]
    if repaired := report["options"]["repaired"]:
        yield f"known causes that were repaired first: {', '.join(repaired)}"
    yield f"the engine ran in processes of its own: network {network}, home {subject['isolation']['home']}"


def _finding(row: Json, head: str, report: Json) -> None:
    style = STYLES[row["severity"]]
    say((f"{row['stem']}: {broken(row['law'], row['kind'])}", style), f" ({row['severity']}, {head})")
    say(f"  {row['sentence']}")
    say(f"  step {row['step']}: {row['detail']}")
    for line in remarks.legend(row):
        say(f"  {line}", style="dim")
    say(f"  {remarks.about_trace(row)}")
    for line in lines_of(row["harm"]):
        say(f"  {line}")
    if cause := by_cause.line_of(row):
        say(f"  {cause}")
    if row.get("base"):
        say(f"  {row['base']}")
    if repairs := remarks.repairs(row):
        say(f"  {repairs}")
    for line in remarks.folded(row):
        say(f"  {line}", style="dim")
    subject, source = report["subject"], report["subject"]["source"]
    trace, folder = Trace(**row["trace"]), None if source is None else Path(source)
    asked = subject["engine"], subject["release"], folder, report["options"]["device"], subject["options"]
    test = as_test(trace, row["law"], row["kind"], *asked, row["repaired"])
    story(trace, [ToldOperation.from_json(told) for told in row["story"]], test)


def _gone(row: Json, report: Json) -> None:
    """Beside a base it stands out: the change may have mended what was known, or only hides it."""
    hides = remarks.hides("gone", row, report)
    if hides:
        say((hides, "bold yellow"), f": {line_of('gone', row)}", wrap=False)
        say(f"  {row['detail']}")
        say("  If your change was meant to mend it, all is well; if not, the call that shows it may no longer be made.")
    else:
        say(line_of("gone", row), style="dim")


def run_of(row: Json, number: int) -> str:
    """The operations of the drawn run of a known finding; where they are too many for a line, where they stand.
    ``number``: the place of the finding in the list ``known`` of the report, from 1.
    """
    lines = Trace(**row["trace"]).lines()
    if len(lines) <= SHORT:
        return "; ".join(lines)
    return f"its operations stand in the report of --json FILE; slotproof replay FILE#known.{number} repeats them"


def line_of(name: str, row: Json) -> str:
    """One line about a finding that needs no story."""
    where = f"trace {row['name']}" if row["name"] else f"a run of {remarks.operations(len(row['trace']['steps']))}"
    times = f", in {row['times']} runs" if row["times"] > 1 else ""
    return f"{name}: {row['stem']}: {broken(row['law'], row['kind'])} ({row['severity']}; {where}{times})"


def _looked(results: list[Json]) -> TableOfRows:
    columns = ("stem", "verdict", "ran", "runs", "operations", "refused", "new", "known", "seconds")
    says = any(r["ran"] for r in results)
    rows = [
        (
            *(
                r["stem"],
                r["verdict"],
                *([in_words(r["ran"]) or "-"] if says else []),
                r["runs"],
                r["steps"],
                r["refused"],
            ),
            *(r["new"] + r["worse"], r["known"]),
            _time(r),
        )
        for r in results
    ]
    return table("How hard was looked", [name for name in columns if says or name != "ran"], rows)


def _time(result: Json) -> str:
    """The seconds of a stem, and whether its search was cut short, or took longer than was asked for."""
    over = f" (over by {result['over']:.1f})" if result["over"] >= 0.1 else ""
    return f"{result['seconds']:.1f}{' (cut short)' if result['cut_short'] else ''}{over}"


def can_be_repaired(report: Json) -> bool:
    """``--repaired`` can be asked for: a release was checked without a base, and without repairs."""
    return bool(report["subject"]["release"]) and report["base"] is None and not report["options"]["repaired"]


def avoided(result: Json) -> str:
    """The known differences that changed what was drawn on a stem, each with how often, the most frequent first."""
    often = sorted(result["avoided"].items(), key=lambda one: (-one[1], one[0]))
    said = ", ".join(f"{name} {'once' if times == 1 else f'{times} times'}" for name, times in often)
    return f"{result['stem']}: drawn otherwise, since it is known to break a law: {said}"


def _reach(result: Json, sentences: bool) -> None:
    """What no run reached: first what the engine claims and the verdict needs, then what is the engine's own choice:
    the names of its transitions in one line, or with ``sentences`` each with its first sentence.
    """
    if not result["enough"]:
        say(f"{result['stem']}: {weigh.undecided(result, {'base': None})}", style="yellow")
    said = () if result["enough"] else result["too_seldom"]
    missed = [name for name in result["never_reached"] if name not in said]
    if missed and not sentences:
        say(f"{result['stem']}: no run reached {', '.join(missed)}", style="dim")
    elif missed:
        say(f"{result['stem']}: no run reached", style="dim")
        for name in missed:
            say(f"  {name}: {remarks.first_sentence(result['stem'], name)}", style="dim")
