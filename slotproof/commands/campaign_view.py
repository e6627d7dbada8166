"""What ``slotproof campaign`` shows: a live view on a terminal, lines elsewhere, and the report at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

from rich.console import Group
from rich.live import Live

from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.campaign import coverage
from conformance.search.campaign.coverage import KnownTransition
from conformance.search.campaign.store import Store
from conformance.search.ran import in_words
from conformance.traces.harm_found import lines_of
from slotproof.console import screen
from slotproof.console.screen import STYLES, TableOfRows, broken, literal, say, table

SHORTEST, LONGEST = 5.0, 60.0  # seconds between two lines
REFRESHED = 2  # times a second that the live view is drawn again
FEW = 12  # names of what was never reached that are printed for each stem; coverage.json has all


class View:
    """Shows how a campaign goes on. ``heard`` and ``ended`` may be called by any thread."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.between = seconds, min(max(seconds / 20, SHORTEST), LONGEST)
        self.trials = self.steps = 0
        self.lock = Lock()
        self.under_way: dict[int, int] = {}
        self.begun = self.said = time.monotonic()
        self.live: Live | None = None

    @contextmanager
    def of(self, label: str, store: Store, known: Mapping[str, Mapping[str, KnownTransition]]) -> Iterator[None]:
        """Shows the campaign of the engine ``label`` until the end of the block. ``known``: each stem's transitions."""
        self.label, self.store, self.known, self.begun = label, store, known, time.monotonic()
        if not screen.console.is_terminal:
            yield
            return
        shown = Live(get_renderable=self._drawn, console=screen.console, refresh_per_second=REFRESHED, transient=True)
        with shown as self.live:
            yield

    def heard(self, asked: Json, steps: int) -> None:
        """A trial has sent so many operations."""
        with self.lock:
            self.under_way[asked["number"]] = steps

    def ended(self, asked: Json, result: Json, new: list[Json]) -> None:
        """A trial has ended, and the campaign knows its result."""
        with self.lock:
            self.under_way.pop(asked["number"], None)
            self.trials, self.steps = self.trials + 1, self.steps + result["steps"]
        for row in new:
            what = f"{row['stem']}: {broken(row['law'], row['kind'])}"
            say((f"found in trial {asked['number']}: {what}", STYLES[row["severity"]]), f" ({row['severity']})")
        if result["lost"]:
            say(f"trial {asked['number']} ({asked['stem']}): {result['lost']['why'].splitlines()[0]}", style="yellow")
        if self.live is None and time.monotonic() - self.said > self.between:
            self.said = time.monotonic()
            say(self._line(), style="dim")

    def _line(self) -> str:
        with self.lock:
            steps = self.steps + sum(self.under_way.values())
        took = max(time.monotonic() - self.begun, 0.1)
        did = f"{self.trials} trials, {steps:,} operations ({steps / took:,.0f} a second), reached {self._reached()}"
        return f"{self.label}: {took:.0f} of {self.seconds:.0f} s, {did}, findings: {len(self.store.findings)}"

    def _reached(self, *stems: str) -> str:
        """How much of what runs of these stems, or of all, can reach was reached."""
        looked = {name: one.counts for name, one in self.store.stems.copy().items() if not stems or name in stems}
        tables = [coverage.table(name, self.known[name], counts.copy()) for name, counts in looked.items()]
        return f"{sum(one['reached'] for one in tables)} of {sum(one['items'] for one in tables)}"

    def _drawn(self) -> Group:
        rows = [
            (
                *(name, stem.trials, f"{stem.steps:,}", self._reached(name), len(stem.covering)),
                sum(f["stem"] == name for f in self.store.findings),
            )
            for name, stem in sorted(self.store.stems.copy().items())
        ]
        columns = ("stem", "trials", "operations", "reached", "kept", "findings")
        return Group(literal(self._line()), table("", columns, rows))


# The report.


def show(report: Json) -> None:
    """Prints the report of a campaign."""
    for finding in report["findings"]:
        _finding(finding)
    for lost in report["lost"]:
        why = lost["why"].splitlines()[0]
        say(f"lost: trial {lost['trial']} ({lost['stem']}, seed {lost['seed']}): {why}", style="dim")
    screen.show(_table(report["results"]))
    for result in report["results"]:
        _missed(result)
    now, total = report["now"], report["total"]
    rate = now["steps"] / max(now["seconds"], 0.1)
    did = f"{now['trials']} trials, {now['steps']:,} operations in {now['seconds']} s, {rate:,.0f} a second"
    whole = f"{total['trials']} trials, {total['runs']:,} runs, {total['steps']:,} operations"
    workers = f"workers: {report['options']['workers']}"
    say(f"now: {did}, {workers}; in all: {whole}; folder: {report['folder']}", style="dim")
    say(f"{report['subject']['label']}: {report['reason']}", style="bold")


def _finding(row: Json) -> None:
    gone = ", gone: its traces no longer show it" if row["gone"] else ""
    style = "dim" if row["gone"] else STYLES[row["severity"]]
    where = f"in {row['times']} runs, first in trial {row['trial']}, seed {row['seed']}"
    say((f"{row['stem']}: {broken(row['law'], row['kind'])}", style), f" ({row['severity']}, {where}{gone})")
    say(f"  {row['sentence']}")
    say(f"  step {row['step']}: {row['detail']}")
    for line in lines_of(row["harm"]):
        say(f"  {line}")
    for shape in row["shapes"]:
        say(f"  {shape['file']}: {'; '.join(Trace(**shape['trace']).lines())}", style="dim")


def _table(results: list[Json]) -> TableOfRows:
    rows = [
        (
            *(r["stem"], in_words(r["ran"]) or "-", r["trials"], f"{r['runs']:,}", f"{r['steps']:,}"),
            *(f"{r['coverage']['reached']} of {r['coverage']['items']}", len(r["covering"])),
        )
        for r in results
    ]
    columns = ("stem", "ran", "trials", "runs", "operations", "reached", "covering runs kept")
    return table("How hard was looked", columns, rows)


def _missed(result: Json) -> None:
    missed = result["coverage"]["never_reached"]
    if missed:
        more = f", and {len(missed) - FEW} more in coverage.json" if len(missed) > FEW else ""
        say(f"{result['stem']}: never reached: {'; '.join(missed[:FEW])}{more}", style="dim")
