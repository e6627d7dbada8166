"""``slotproof check``: random runs of an engine beside the law."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path

from rich.text import Text

import spec
from conformance import known, traces
from conformance.check import Result, Search, check
from conformance.engines import registry
from conformance.engines.protocol import Json
from conformance.engines.registry import Loaded
from conformance.known import Known
from conformance.lockstep import CONFORMS, UNSUPPORTED, VIOLATION
from conformance.replay import outcome
from conformance.stems import STEMS
from slotproof.screen import broken, choose, console, progress, story, table, write_json

BROKEN = 1
GONE = "known_difference_is_gone"


@dataclass(frozen=True)
class Options:
    """What was asked for on the command line."""

    engine: str
    release: str | None
    source: Path | None
    device: str
    stems: tuple[str, ...]
    examples: int
    steps: int
    seed: int | None


def run(options: Options, json: Path | None) -> int:
    """Checks the stems, prints the results and writes them to ``json``; the exit code."""
    stems = choose(options.stems, STEMS, "stem")
    loaded = registry.load(options.engine, options.release, options.source, options.device)
    stems = choose(options.stems, [stem for stem in stems if stem in loaded.makers], "stem of this engine")
    results = []
    with progress() as bar:
        task = bar.add_task("", total=len(stems))
        for stem in stems:
            bar.update(task, description=f"{loaded.label} {stem}")
            results.append(one(loaded, stem, options))
            bar.advance(task)
    _print(results, loaded)
    write_json(json, {"subject": loaded.name, "release": loaded.release, "results": [data(r) for r in results]})
    return BROKEN if any(fails(r, loaded) for r in results) else 0


def one(loaded: Loaded, stem: str, options: Options) -> Result:
    """Replays the known differences of the release, each of which must still occur; then draws runs that avoid them."""
    start = time.perf_counter()
    listed = known.of_release(registry.plugin(loaded.name).folder, options.release)
    replayed = [_replayed(k, loaded) for k in listed if k.stem == stem]
    result = _draw(loaded, stem, options, excluded(stem, listed))
    result.known = replayed
    result.seconds = round(time.perf_counter() - start, 1)
    _judge_known(result)
    return result


def _replayed(difference: Known, loaded: Loaded) -> Json:
    """What a known difference shows today, and whether that is what the list says."""
    row = outcome(traces.load(difference.trace), loaded.makers[difference.stem])
    occurs = (row["verdict"], row["law"]) == (difference.verdict, difference.law)
    return {"trace": difference.trace, **row, "occurs": occurs}


def excluded(stem: str, listed: list[Known]) -> frozenset[StrEnum]:
    """What new runs leave out: the known differences of the stem, and of the stems that it is made of."""
    stems, waiting = set(), [import_module(f"{spec.__name__}.{stem}").stem]
    while waiting:
        found = waiting.pop()
        stems.add(found.name)
        waiting += found.parts.values()
    return known.exclusions([k.exclude for k in listed if k.exclude and k.stem in stems])


def _draw(loaded: Loaded, stem: str, options: Options, exclude: frozenset[StrEnum]) -> Result:
    """Draws runs until one breaks a law or enough operations are done."""

    def drawn(seed: int | None) -> Result:
        search = Search(examples=options.examples, seed=seed, strict=loaded.own, exclude=exclude)
        return check(stem, loaded.makers[stem], search)

    result, seed = drawn(options.seed), options.seed or 0
    while result.verdict == CONFORMS and result.steps < options.steps:
        seed += 1
        more = drawn(seed)
        if not more.steps:
            break
        more.steps += result.steps
        more.transitions = _sum(more.transitions, result.transitions)
        result = more
    return result


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def _judge_known(result: Result) -> None:
    """A known violation makes the verdict a violation; so does a known difference that no longer occurs. A violation
    that a run found stays what is reported.
    """
    for row in result.known:
        if result.verdict != VIOLATION and row["verdict"] == VIOLATION and row["occurs"]:
            found = traces.load(row["trace"])
            result.verdict, result.law, result.kind = VIOLATION, found.law, row["kind"]
            result.sentence, result.detail, result.trace = found.why, row["detail"], found.trace
        if not row["occurs"] and result.verdict != VIOLATION:
            result.verdict, result.law, result.kind, result.detail = VIOLATION, GONE, None, None
            result.sentence = f"the trace {row['trace']} no longer breaks its law: take it off the list of known ones"


def fails(result: Result, loaded: Loaded) -> bool:
    """A violation fails, and so does a stem of which no run could be started. For our own implementation a latent
    finding fails too.
    """
    return result.verdict in (VIOLATION, UNSUPPORTED) or (loaded.own and result.verdict != CONFORMS)


def data(result: Result) -> Json:
    """A result as JSON."""
    return {
        "stem": result.stem,
        "verdict": result.verdict,
        "law": result.law,
        "kind": result.kind,
        "sentence": result.sentence,
        "detail": result.detail,
        "steps": result.steps,
        "seconds": result.seconds,
        "transitions": result.transitions,
        "known": result.known,
        "trace": None if result.trace is None else result.trace.as_json(),
    }


def _print(results: list[Result], loaded: Loaded) -> None:
    columns = ("stem", "verdict", "what is broken", "operations", "known differences", "seconds")
    rows = [(r.stem, r.verdict, broken(r.law, r.kind), r.steps, len(r.known), f"{r.seconds:.1f}") for r in results]
    console.print(table(loaded.label, columns, rows))
    for result in results:
        _print_one(result, loaded)


def _print_one(result: Result, loaded: Loaded) -> None:
    counts = ", ".join(f"{name} {number}" for name, number in result.transitions.items())
    console.print(Text(f"{result.stem}: {counts}", style="dim"))
    for row in result.known:
        calls = "; ".join(traces.load(row["trace"]).trace.lines())
        what = "known" if row["occurs"] else "known, but changed"
        console.print(
            f"  {what}: {row['verdict']}, {broken(row['law'], row['kind'])} ({row['trace']}): {calls}", markup=False
        )
    if result.law is not None:
        console.print(Text.assemble((broken(result.law, result.kind), "bold red"), f": {result.sentence}"))
    if result.detail:
        console.print(f"  {result.detail}", markup=False)
    if result.trace is not None:
        story(result.trace, loaded.makers[result.stem], loaded.name, loaded.release)
