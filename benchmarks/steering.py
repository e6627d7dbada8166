"""Whether steering by coverage finds more: runs that are drawn blindly, and runs that Hypothesis draws by what earlier
runs have covered (``slotproof campaign --steer``), each for an equal number of operations and from several seeds.

``python -m benchmarks.steering`` measures, and writes docs/measurements/steering.md and steering.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.progress import track

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.campaign.trial import STEERED, Trial
from conformance.search.check import Search, draw
from conformance.search.judge import excluded
from conformance.stems.machine import Sink, TimeIsUp
from conformance.traces import known

STEM = "cache"
TOGETHER = 40  # runs that one seed draws, as in a trial of a campaign
WAYS = ("", *STEERED)
FOUND = ("early_release_under_window", "node_without_copy", "copy_of_another_state")
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "measurements"


@dataclass(frozen=True)
class Row:
    """What was measured of one way to draw runs: a number for each seed."""

    what: str
    way: str
    numbers: tuple[int, ...]
    missed: int = 0

    @property
    def median(self) -> float:
        """The median of the seeds."""
        return statistics.median(self.numbers)

    @property
    def quarters(self) -> tuple[float, float]:
        """The first and the third quartile of the seeds."""
        first, _, third = statistics.quantiles(self.numbers, method="inclusive")
        return first, third


def covered(make: Callable[[Json], Any], way: str, seed: int, operations: int, exclude: Any = ()) -> int:
    """How many distinct items (transition, promise, outcome) runs of the stem have met after so many operations."""
    sink = _drawn(make, way, seed, operations, exclude, goes_on=True)
    return len({(name, "", outcome) for name, outcome in sink.counts} | {*sink.promised})


def until_found(make: Callable[[Json], Any], way: str, seed: int, most: int) -> int | None:
    """How many operations are sent until a law is broken; ``None`` if none is after ``most``."""
    sink = _drawn(make, way, seed, most, (), goes_on=False)
    return sink.steps if sink.failure is not None else None


def _drawn(make: Callable[[Json], Any], way: str, seed: int, operations: int, exclude: Any, *, goes_on: bool) -> Sink:
    valued = Trial({"stem": STEM, "known": [], "reached": [], "kept": [], "steer": way})
    sink = Sink(passes=lambda *_: goes_on, worth=valued.worth)

    def before(_: Trace, __: Json) -> None:
        if sink.steps >= operations:
            raise TimeIsUp

    sink.before = before
    for number in count(seed * 100_003):
        try:
            draw(STEM, make, sink, Search(TOGETHER, number, strict=False, exclude=exclude, steered=bool(way)))
        except (TimeIsUp, Finding):
            return sink
    raise AssertionError("the numbers have no end")


def measure(engine: str, release: str, operations: int, seeds: Sequence[int], most: int) -> Iterator[Row]:
    """Every way on our implementation, on a release of an engine, and on planted faults."""
    own, plugin = registry.own().name, registry.plugin(engine)
    avoided = excluded(STEM, known.of_release(plugin.folder, release))
    sides: list[tuple[str, Callable[[Json], Any], Any]] = [
        (own, registry.load(own).makers[STEM], ()),
        (f"{engine} {release}", registry.load(engine, release).makers[STEM], avoided),
    ]
    asked = [(name, make, exclude, way) for name, make, exclude in sides for way in WAYS]
    for name, make, exclude, way in track(asked, "coverage", transient=True):
        yield Row(name, way, tuple(covered(make, way, seed, operations, exclude) for seed in seeds))
    for name, way in track([(name, way) for name in FOUND for way in WAYS], "faults", transient=True):
        found = [until_found(FAULTS[name].make, way, seed, most) for seed in seeds]
        yield Row(name, way, tuple(most if n is None else n for n in found), found.count(None))


def page(rows: Sequence[Row], operations: int, seeds: int, most: int) -> str:
    """The measurement as a document."""
    made = Environment(loader=PackageLoader("benchmarks"), undefined=StrictUndefined, trim_blocks=True)
    faults = [row for row in rows if row.what in FOUND]
    values = {"coverage": [row for row in rows if row not in faults], "faults": faults, "stem": STEM}
    return made.get_template("steering.md.j2").render(
        values, operations=operations, seeds=seeds, most=most, together=TOGETHER
    )


def main(
    engine: Annotated[str, typer.Option(help="An engine with releases.")] = registry.released()[0].name,
    release: Annotated[str | None, typer.Option(help="Its release; default: the newest.")] = None,
    operations: Annotated[int, typer.Option(min=1, help="Operations of each measurement of coverage.")] = 1000,
    seeds: Annotated[int, typer.Option(min=2, help="Seeds of each measurement.")] = 10,
    most: Annotated[int, typer.Option(min=1, help="Operations after which a fault is not found.")] = 3000,
) -> None:
    """Measures steering, and writes docs/measurements/steering.md and steering.json."""
    torch.set_num_threads(1)
    newest = release or registry.plugin(engine).releases[-1]
    FOLDER.mkdir(exist_ok=True)
    rows: list[Json] = []
    for row in measure(engine, newest, operations, range(1, seeds + 1), most):  # what was measured is kept at once
        rows.append(asdict(row))
        kept = {"operations": operations, "seeds": seeds, "most": most, "rows": rows}
        (FOLDER / "steering.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        (FOLDER / "steering.md").write_text(of_data(kept), encoding="utf-8")


def of_data(kept: Json) -> str:
    """The document of a measurement that was kept."""
    rows = [Row(**{**row, "numbers": tuple(row["numbers"])}) for row in kept["rows"]]
    return page(rows, kept["operations"], kept["seeds"], kept["most"])


if __name__ == "__main__":
    typer.run(main)
