"""The page on which a counterexample is stepped through: what each step shows, from the story of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conformance.driver.lockstep import DIFFERENCE, INVARIANT
from conformance.driver.protocol import Json
from conformance.traces.trace_files import Kept
from slotproof.checks.remarks import arguments_in
from slotproof.pages.marking import Panels, folded, marked
from slotproof.pages.strip import Owners, figures, repeated
from slotproof.pages.terms import GlossaryTerm, met_in

FILES = ("style.css", "explorer.js")  # what each page loads from the report's folder
TEMPLATES = Path(__file__).with_name("templates")


class LawSide(NamedTuple):
    """The law's side of a step. ``compared``: it is what the engine should show; else it is the last lawful state."""

    panels: Panels
    compared: bool


class ExplorerStep(NamedTuple):
    """One step of an explorer. ``call``: empty before the first call. ``does``: the operation in English. ``broken``:
    the laws that broke, see ``conformance.telling.tell``. ``wrong``: why the run ends here, where no law broke.
    ``driven_on``: the call is not of the trace, it was sent after it to see what comes of the broken law. ``harmed``:
    what a request read that was not written for it. ``figures``: the drawings of the pools, see ``strip``.
    """

    call: str
    does: str
    changed: list[str]
    wrong: str
    broken: list[Json]
    panels: Panels
    law: LawSide | None
    told: Json
    driven_on: bool = False
    harmed: Json | None = None
    figures: Sequence[Json] = ()

    @property
    def hurts(self) -> list[str]:
        """Who is hurt by which page."""
        return [said for panel in self.panels for item in panel["items"] for said in item["hurts"]]


def steps_of(story: Sequence[Json]) -> list[ExplorerStep]:
    """The steps of a story as ``conformance.telling.tell`` tells it, each as plain data."""
    if not story:
        return []
    first: Panels = story[0]["picture"]["before"]
    start = ExplorerStep("", "", [], "", [], marked(first, first, []), None, {})
    steps = [start, *map(_step, story)]
    pictures = folded([step.panels for step in steps])
    owners = Owners(pictures)
    drawn = repeated([figures(panels, owners) for panels in pictures])
    return [
        step._replace(panels=panels, figures=shown) for step, panels, shown in zip(steps, pictures, drawn, strict=True)
    ]


def _step(told: Json) -> ExplorerStep:
    picture = told["picture"]
    broken, law, now = picture.get("broken", []), picture.get("law", []), picture["panels"]
    compared = any(found["kind"] in (INVARIANT, DIFFERENCE) for found in broken)
    detail = "; ".join(found["detail"] for found in broken)
    harmed = picture.get("harmed")
    panels = marked(now, picture["before"], law if compared else [], detail, harmed)
    changed = [] if told["changed"] == "nothing" else told["changed"].split("; ")
    return ExplorerStep(
        told["call"],
        picture["does"],
        changed,
        told["wrong"],
        broken,
        panels,
        _side(law, now, compared),
        told,
        told.get("driven_on", False),
        harmed,
    )


def _side(law: Panels, now: Panels, compared: bool) -> LawSide | None:
    """What the law has where the engine shows something else; ``None`` where they agree."""
    shown = marked(law, law, now)
    for panel in shown:
        panel["items"] = [item for item in panel["items"] if item["differs"]]
    shown = [panel for panel in shown if panel["items"]]
    return LawSide(shown, compared) if law and shown else None


def words_of(steps: Sequence[ExplorerStep]) -> Iterator[str]:
    """The sentences of what broke, the titles of the panels, and what is said of rows."""
    for step in steps:
        yield from (text for found in step.broken for text in (found["sentence"], found["detail"]))
        yield from (panel["title"] for panel in step.panels)
        rows = (item for panel in step.panels if panel["kind"] == "rows" for item in panel["items"])
        yield from (fact["name"] for row in rows for fact in row["facts"])


def _arguments(kept: Kept, row: Json) -> Iterator[GlossaryTerm]:
    """The arguments of the transition that the finding names, and what each means."""
    said = arguments_in({**row, "stem": kept.trace.stem}) if row.get("law") else {}
    yield from (GlossaryTerm(f"argument {name}", "", means) for name, means in said.items())


def page(templates: Any, kept: Kept, row: Json, **more: Any) -> str:
    """The explorer of a trace on an engine. ``row``: what the trace shows there, with its story, see
    ``conformance.search.replay.row``. ``more``: other values of the template; ``plain``, for a page that will be
    packed: the command that shows the run without a script.
    """
    steps = steps_of(row["story"])
    broken = next((n for n, step in enumerate(steps) if n == row["step"]), len(steps) - 1)
    values = {
        "kept": kept,
        "row": {"beside": 0, **row},
        "steps": steps,
        "first": broken,
        "harm_at": next((n for n, step in enumerate(steps) if step.harmed), None),
        "broke": next(({**found, "step": n} for n, step in enumerate(steps) for found in step.broken), None),
        "own_steps": sum(not step.driven_on for step in steps[1:]),
        "terms": [*met_in(words_of(steps)), *_arguments(kept, row)],
        "bug": None,
        "plain": "",
        **more,
    }
    text: str = templates.get_template("explorer.html.j2").render(values)
    return text


def files() -> Iterator[tuple[str, str]]:
    """The files that each page loads, by name."""
    return ((name, TEMPLATES.joinpath(name).read_text("utf-8")) for name in FILES)
