"""``slotproof mutate impl``: one place of our implementation is changed, and random runs must notice it."""

from __future__ import annotations

import json as plain_json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.driver.cache_folder import checkout
from conformance.driver.extras import must_have
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.planted.mutants import record
from conformance.planted.mutants.record import FATES, LEAST, SURVIVES
from conformance.stems.stem_registry import STEMS
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.output import write_text
from slotproof.console.screen import choose, progress, say, show, table, write_json

if TYPE_CHECKING:
    from conformance.planted.mutants.places import Spot
    from conformance.planted.mutants.trials import TriedMutant

KEPT, REVIEWED = "mutation_impl.json", "mutation_impl_survivors.toml"  # in docs/
SAMPLE = 200  # mutants that are tried, unless another number is asked for
HEADINGS = ("mutants", *FATES, "equivalent", "noticed of the wrong ones", "95% interval")


@dataclass(frozen=True)
class ImplMutationOptions:
    """``stems``: only mutants of files that these use; empty: all. ``operators``: of which kinds; empty: all.
    ``sample``: how many are drawn with ``seed``. ``jobs``: how many are tried at a time. ``budget``: seconds after
    which no other mutant is begun. ``keep``: write docs/mutation_impl.json.
    """

    stems: Sequence[str] = ()
    operators: Sequence[str] = ()
    sample: int = SAMPLE
    seed: int = 0
    jobs: int | None = None
    budget: float | None = None
    keep: bool = False
    json: Path | None = None


def run(options: ImplMutationOptions) -> int:
    """Tries the mutants and prints what survives; exit code 1 where fewer than 95% of the wrong ones are noticed."""
    root = _root()
    spots = _spots(root, options)
    if options.keep and (options.stems or options.operators):
        raise UsageError("docs/mutation_impl.json has a sample of all mutants: keep it without a choice of mutants")
    from conformance.planted.mutants import places, trials

    start, jobs = time.perf_counter(), options.jobs or len(os.sched_getaffinity(0))
    chosen = places.sample(root / "impl", spots, options.sample, options.seed)
    with progress() as bar:
        task = bar.add_task("mutants of impl/", total=len(chosen))
        until = math.inf if options.budget is None else time.monotonic() + options.budget
        found = trials.tried(chosen, jobs, until, lambda: bar.advance(task))
    made = kept(root, options, spots, found)
    write_json(options.json, made)
    if options.keep:
        write_text(root / "docs" / KEPT, plain_json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    rows = record.with_reasons(made["mutants"], record.REASONS.read(root / "docs" / REVIEWED))
    _print(rows, time.perf_counter() - start)
    return HOLDS if record.sums(rows)["share"] >= LEAST else BROKEN


def kept(root: Path, options: ImplMutationOptions, spots: Sequence[Spot], found: Sequence[TriedMutant]) -> Json:
    """What docs/mutation_impl.json keeps: which mutants were tried, in the order of their places, of which files.
    ``left_out``: the files that no stem's engine is made of.
    """
    from conformance.planted.mutants import trials

    rows = sorted(map(_row, found), key=lambda row: (row["file"], row["line"], row["was"], row["now"]))
    return {
        **{"least": LEAST, "seed": options.seed, "asked": options.sample},
        **{"places": len({(spot.file, spot.place) for spot in spots}), "impl": record.fingerprint(root)},
        "left_out": [
            name for name in record.fingerprint(root) if not name.startswith("_") and not trials.stems_of(name)
        ],
        "mutants": rows,
    }


def operators(json: Path | None) -> int:
    """Prints the operators and how many mutants each can make, and writes them to ``json``."""
    spots = _spots(_root(), ImplMutationOptions())
    from conformance.planted.mutants.places import SENTENCES

    rows = [
        {"name": name, "sentence": said, "mutants": sum(spot.operator == name for spot in spots)}
        for name, said in SENTENCES.items()
    ]
    write_json(json, {"operators": rows})
    columns = ("operator", "what it does", "mutants")
    show(table("operators", columns, [(row["name"], row["sentence"], row["mutants"]) for row in rows]))
    return HOLDS


def _root() -> Path:
    root = checkout()
    if root is None:
        raise UsageError("mutate impl changes a copy of impl/ and runs its tests: it needs a checkout of Slotproof")
    return root


def _spots(root: Path, options: ImplMutationOptions) -> list[Spot]:
    """What can be changed in the files that the stems use."""
    must_have("mutate impl", "mutate", *registry.extras_of([registry.own()]))
    from conformance.planted.mutants import places, trials

    stems = choose(options.stems, STEMS, "stem")
    operators = choose(options.operators, places.SENTENCES, "operator")
    files = [path for path in sorted((root / "impl").glob("*.py")) if {*trials.stems_of(path.name)} & {*stems}]
    return [spot for path in files for spot in places.spots(path, operators)]


def _row(one: TriedMutant) -> Json:
    spot = one.mutant.spot
    return {
        **{"file": spot.file, "line": spot.place[0][0], "function": spot.function, "operator": spot.operator},
        **{"was": one.mutant.was, "now": one.mutant.now, "fate": one.fate, "by": one.by},
    }


def _print(rows: Sequence[Json], seconds: float) -> None:
    alive = [row for row in rows if row["fate"] == SURVIVES]
    if alive:
        columns = ("place", "function", "was", "is", "why it survives")
        shown = [(f"impl/{r['file']}:{r['line']}", r["function"], r["was"], r["now"], _why(r)) for r in alive]
        show(table("Nothing notices", columns, shown, lines=True))
    show(table("Mutants of impl/", ("file", *HEADINGS), list(lines(rows, "file"))))
    sums = record.sums(rows)
    say(
        f"{sums['mutants']} mutants, {sums['wrong']} of them wrong: {sums['share']:.1%} of these are noticed "
        f"(95% interval {between(sums['interval'])}), {LEAST:.0%} must be; {seconds:.0f} s"
    )


def _why(row: Json) -> str:
    return f"{row['kind']}: {row['reason']}" if row["kind"] else "no reason is given"


def lines(rows: Sequence[Json], by: str) -> Iterable[tuple[str, ...]]:
    """The lines of a table of counts: one for each file or operator, and one for all."""
    groups = {name: [row for row in rows if row[by] == name] for name in sorted({row[by] for row in rows})}
    for name, group in (*groups.items(), ("all", rows)):
        sums = record.sums(group)
        counts = [str(sums[key]) for key in ("mutants", *FATES, "equivalent")]
        yield (name, *counts, f"{sums['share']:.1%}", between(sums["interval"]))


def between(interval: tuple[float, float]) -> str:
    """An interval of shares."""
    return f"{interval[0]:.1%} to {interval[1]:.1%}"


# The table in docs/.


def page() -> Json:
    """What docs/mutation_impl.md shows: the kept result with the reviewed reasons, and which files changed since."""
    root = _root()
    place = root / "docs" / KEPT
    if not place.exists():
        raise UsageError(f"docs/{KEPT} is missing: run slotproof mutate impl --keep first")
    kept: Json = plain_json.loads(place.read_text("utf-8"))
    known = record.REASONS.read(root / "docs" / REVIEWED)
    rows = record.with_reasons(kept["mutants"], known)
    now = record.fingerprint(root)
    alive = [row for row in rows if row["fate"] == SURVIVES]
    return {
        **{"kept": kept, "rows": rows, "sums": record.sums(rows), "lines": lines, "between": between},
        **{"engine": registry.own().name, "fates": FATES, "headings": HEADINGS, "survivors": alive},
        "changed": [name for name in sorted({*now, *kept["impl"]}) if now.get(name) != kept["impl"].get(name)],
    }
