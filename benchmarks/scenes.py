"""How soon a search meets each scene (``conformance.search.scenes``): the newest release of an engine, its known
differences avoided, in each room whose law has scenes.

``python -m benchmarks.scenes ENGINE`` measures, and writes docs/measurements/scenes.md and scenes.json. Times are
processor time of the search's process, so that a busy machine does not change them much.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import count
from typing import Annotated, Any

import torch
import typer
from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.progress import track

from benchmarks.steering import FOLDER
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.check import Search, draw
from conformance.search.judge import excluded
from conformance.search.scenes.scene import LAWS, met, of_law, of_stem
from conformance.stems.found import law_of
from conformance.stems.machine import Sink, TimeIsUp
from conformance.traces import known
from spec.logic import Step

TOGETHER = 20  # runs that one seed draws
WARMS_UP = 6  # runs before the time counts: an engine imports much when it is first built
KEPT = FOLDER / "scenes.json"


class Watched:
    """Notes when scenes are met in drawn runs of a room. ``first``: by scene the seconds until it was met first."""

    def __init__(self, room: str, seconds: float) -> None:
        self.law, self.seconds = law_of(room), seconds
        self.first: dict[str, float] = {}
        self.begun = time.process_time()
        self.sink = Sink(passes=lambda *_: True, before=self._before, witness=self._sees)

    def _passed(self) -> float:
        return time.process_time() - self.begun

    def _before(self, _: Trace, __: Json) -> None:
        if self._passed() > self.seconds:
            raise TimeIsUp

    def _sees(self, name: str, was: Any, step: Step[Any], arguments: tuple[Any, ...]) -> None:
        for scene in met(self.law, name, was, step.then, arguments, step.calls):
            self.first.setdefault(scene.full_name, round(self._passed(), 1))


def searched(loaded: Loaded, room: str, seed: int, seconds: float, exclude: Any) -> Json:
    """What a search in a room has met, and how many runs and operations it had time for."""
    watched = Watched(room, seconds)
    for number in count(seed * 100_003):
        search = Search(TOGETHER, number, strict=False, exclude=exclude, kinds=loaded.kinds)
        try:
            draw(room, loaded.makers[room], watched.sink, search)
        except TimeIsUp:
            break
    sink = watched.sink
    return {"room": room, "seed": seed, "runs": sink.runs, "operations": sink.steps, "met": watched.first}


def rooms_of(loaded: Loaded) -> list[str]:
    """The rooms of an engine whose laws have scenes."""
    return [room for room in loaded.makers if of_stem(law_of(room))]


def measure(engine: str, rooms: Sequence[str], seeds: Sequence[int], seconds: float) -> Json:
    """The searches of all rooms of the newest release of an engine; of all that have scenes where none is named."""
    plugin = registry.plugin(engine)
    release = plugin.releases[-1]
    loaded = registry.load(engine, release)
    chosen = rooms or rooms_of(loaded)
    listed = known.of_release(plugin.folder, release)
    found = []
    for room, seed in track([(room, seed) for room in chosen for seed in seeds], engine, transient=True):
        if seed == seeds[0]:
            warm = Sink(passes=lambda *_: True)
            draw(room, loaded.makers[room], warm, Search(WARMS_UP, 5, strict=False, kinds=loaded.kinds))
        found.append(searched(loaded, room, seed, seconds, excluded(room, listed)))
    return {"release": release, "seconds": seconds, "seeds": [*seeds], "searches": found}


def table(kept: Json) -> list[Json]:
    """For each law and each engine that has a room for it, its scenes: the room in which most seeds met the scene, and
    the seconds of each seed there, ``None`` where it was not met.
    """
    rows = []
    for law in LAWS:
        for engine, of in kept.items():
            searches = [one for one in of["searches"] if law in {scene.law for scene in of_stem(law_of(one["room"]))}]
            for scene in of_law(law) if searches else ():
                rooms = dict.fromkeys(one["room"] for one in searches)
                times = {
                    room: [one["met"].get(scene.full_name) for one in searches if one["room"] == room] for room in rooms
                }
                best = min(times, key=lambda room: (times[room].count(None), sum(t or 0 for t in times[room])))
                rows.append({"engine": engine, "scene": scene, "room": best, "times": times[best]})
    return rows


def of_data(kept: Json) -> str:
    """The document of a measurement that was kept."""
    made = Environment(loader=PackageLoader("benchmarks"), undefined=StrictUndefined, trim_blocks=True)
    return made.get_template("scenes.md.j2").render(engines=kept, rows=table(kept), laws=LAWS)


def main(
    engine: Annotated[str, typer.Argument(help="An engine with releases.")],
    rooms: Annotated[list[str] | None, typer.Argument(help="Rooms; default: all that have scenes.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each search.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Processor time of each search.")] = 60,
) -> None:
    """Measures how soon scenes are met, and writes docs/measurements/scenes.md and scenes.json."""
    torch.set_num_threads(1)
    found = measure(engine, rooms or [], range(1, seeds + 1), seconds)
    kept = json.loads(KEPT.read_text("utf-8")) if KEPT.is_file() else {}
    kept = dict(sorted({**kept, engine: found}.items()))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "scenes.md").write_text(of_data(kept), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
