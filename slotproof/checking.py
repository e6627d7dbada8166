"""``slotproof check``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from conformance import kept
from conformance.check import STEMS, Result, check
from conformance.kept import Known, as_json
from conformance.machine import CONFORMS, VIOLATION
from conformance.replaying import outcome
from conformance.subjects.loading import Loaded, load
from slotproof.screen import choose, console, progress, story, write_json

BROKEN = 1
GONE = "known_difference_is_gone"


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line."""

    subject: str
    release: str | None
    source: Path | None
    device: str
    stems: tuple[str, ...]
    examples: int
    steps: int
    seed: int | None


def run(wanted: Wanted, json: Path | None) -> int:
    """Checks, prints and writes; the exit code."""
    stems = choose(wanted.stems, STEMS, "stem")
    loaded = load(wanted.subject, wanted.release, wanted.source, wanted.device)
    stems = choose(wanted.stems, [stem for stem in stems if stem in loaded.makers], "stem of this release")
    results = []
    with progress() as bar:
        task = bar.add_task("", total=len(stems))
        for stem in stems:
            bar.update(task, description=f"{wanted.subject} {wanted.release or ''} {stem}")
            results.append(one(loaded, stem, wanted))
            bar.advance(task)
    _print(results, loaded)
    write_json(json, {"subject": loaded.name, "release": loaded.release, "results": [data(r) for r in results]})
    return BROKEN if any(fails(r, loaded) for r in results) else 0


def one(loaded: Loaded, stem: str, wanted: Wanted) -> Result:
    """The known differences first, each of which must still occur; then new runs that look past them."""
    start = time.perf_counter()
    known = [(k, outcome(kept.load(k.trace), loaded.makers[stem])) for k in _known(loaded, stem)]
    result = _run(loaded, stem, wanted, _avoided(loaded, stem))
    result.known = [_seen(k, row) for k, row in known]
    result.seconds = round(time.perf_counter() - start, 1)
    _raise_verdict(result)
    return result


def _known(loaded: Loaded, stem: str) -> list[Known]:
    return [k for k in kept.known(loaded.release) if kept.load(k.trace).trace.stem == stem]


def _avoided(loaded: Loaded, stem: str) -> list[str]:
    """What new runs look past: what is known of the stem, and of the stems that it is made of."""
    stems, waiting = set(), [STEMS[stem][1].stem]
    while waiting:
        one = waiting.pop()
        stems.add(one.name)
        waiting += one.parts.values()
    return sorted({k.avoid for name in stems for k in _known(loaded, name) if k.avoid})


def _run(loaded: Loaded, stem: str, wanted: Wanted, avoid: list[str]) -> Result:
    strict = loaded.name == "ours"
    result = check(stem, loaded.makers[stem], wanted.examples, wanted.seed, strict, avoid)
    seed = wanted.seed or 0
    while result.verdict == CONFORMS and result.steps < wanted.steps:
        seed += 1
        more = check(stem, loaded.makers[stem], wanted.examples, seed, strict, avoid)
        more.steps += result.steps
        more.transitions = _added(more.transitions, result.transitions)
        result = more
    return result


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def _seen(known: Known, row: dict[str, Any]) -> dict[str, Any]:
    occurs = row["verdict"] == known.verdict and row["law"] == known.law
    return {"trace": known.trace, "verdict": row["verdict"], "law": row["law"], "step": row["step"], "occurs": occurs}


def _raise_verdict(result: Result) -> None:
    """A known violation is a violation; a known difference that is gone must be taken off its list."""
    for seen in result.known:
        if result.verdict != VIOLATION and seen["verdict"] == VIOLATION and seen["occurs"]:
            found = kept.load(seen["trace"])
            result.verdict, result.law, result.trace, result.sentence = VIOLATION, found.law, found.trace, found.why
        if not seen["occurs"]:
            result.verdict, result.law = VIOLATION, GONE
            result.sentence = f"the trace {seen['trace']} no longer shows its law broken: take it off the known list"


def fails(result: Result, loaded: Loaded) -> bool:
    """Against our own implementation a latent finding fails too."""
    return result.verdict == VIOLATION or (loaded.name == "ours" and result.verdict != CONFORMS)


def data(result: Result) -> dict[str, Any]:
    """A result as JSON."""
    return {
        "stem": result.stem,
        "verdict": result.verdict,
        "law": result.law,
        "sentence": result.sentence,
        "detail": result.detail,
        "steps": result.steps,
        "seconds": result.seconds,
        "transitions": result.transitions,
        "known": result.known,
        "trace": None if result.trace is None else as_json(result.trace),
    }


def _print(results: list[Result], loaded: Loaded) -> None:
    table = Table(title=f"{loaded.name} {loaded.release or ''}".strip(), title_justify="left")
    for column in ("stem", "verdict", "law", "steps", "known differences", "seconds"):
        table.add_column(column)
    for r in results:
        table.add_row(r.stem, r.verdict, r.law or "-", str(r.steps), str(len(r.known)), f"{r.seconds:.1f}")
    console.print(table)
    for r in results:
        _print_counts(r)
        for seen in r.known:
            steps = "; ".join(kept.load(seen["trace"]).trace.lines())
            console.print(f"  known {seen['verdict']} of {seen['law']} ({seen['trace']}): {steps}", markup=False)
        if r.trace is not None:
            console.print(f"[bold red]{r.law}[/]: {r.sentence}")
            story(r.trace, loaded.makers[r.stem], loaded.name, loaded.release)


def _print_counts(result: Result) -> None:
    words = ", ".join(f"{name} {n}" for name, n in result.transitions.items())
    console.print(f"{result.stem}: {words}", style="dim")
