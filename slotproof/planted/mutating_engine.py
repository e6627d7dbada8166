"""``slotproof mutate engine``: edits of an engine's bookkeeping are drawn, and ``slotproof check`` must find them."""

from __future__ import annotations

import hashlib
import json as plain_json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import conformance
import spec
from conformance.driver.cache_folder import cache_folder, checkout
from conformance.driver.extras import must_have
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.planted.mutants import outcomes
from conformance.planted.mutants.outcomes import AIM, FATES, FOUND, Begun
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.output import write_text
from slotproof.console.screen import say, show, table, write_json
from slotproof.planted.mutating_impl import between

KEPT, REVIEWED = "mutation_engines.json", "mutation_engines_misses.toml"  # in docs/
COUNT = 40  # edits that are drawn, unless another number is asked for
TEXTS = ("was", "now", "said")  # what of a row has text of the engine: it is printed, and not kept in docs/
COLUMNS = ("place", "function", "was", "is", "what became of it", "why")


@dataclass(frozen=True)
class EngineMutationOptions:
    """``engine``, ``release``: whose source is edited. ``seed``, ``count``: which edits are drawn, and how many.
    ``files``: files and folders below the engine's package; without any, those that the engine calls its bookkeeping.
    ``first``: each check ends with its first new violation. ``budget``: seconds after which no other edit is begun.
    ``keep``: write the result to docs/mutation_engines.json.
    """

    engine: str
    release: str | None
    seed: int = 0
    count: int = COUNT
    first: bool = False
    budget: float | None = None
    keep: bool = False
    json: Path | None = None
    files: tuple[str, ...] = ()


def run(options: EngineMutationOptions) -> int:
    """Draws the edits, judges those that were not judged before, and prints what became of them. Exit code 1 where
    fewer than ``AIM`` of those that are not equivalent are found.
    """
    bookkeeping, release = _known(options)
    from conformance.planted.mutants import edits, places
    from slotproof.planted import edit_check

    begun = Begun(_file(options, release))
    root, first = _drawn_from(options.engine, release, begun)
    start = time.monotonic()  # the budget is for edits: to see which lines are driven can take longer than it
    spots = edits.spots(root, options.files or bookkeeping, first["lines"])
    if not spots:
        raise UsageError(f"mutate engine: nothing is executed of {', '.join(options.files or bookkeeping)}")
    chosen = {edits.identity(one.spot): one for one in places.sample(root, spots, options.count, options.seed)}
    done = len(begun.of(chosen))
    say(f"{options.engine} {release}: {len(spots)} edits of {len({s.file for s in spots})} files; seed {options.seed}")
    if done:
        say(f"{done} of {len(chosen)} were judged by an earlier call, in {begun.file}")
    for edit, mutant in chosen.items():
        if edit in begun.rows:
            continue
        if options.budget is not None and time.monotonic() - start > options.budget:
            break
        begun.add(edit_check.judged(options.engine, release, root, mutant, options.first))
        _tell(begun.rows[edit], len(begun.of(chosen)), len(chosen))
    return _finish(options, release, len(spots), begun.of(chosen))


def _known(options: EngineMutationOptions) -> tuple[Sequence[str], str]:
    """What of the engine is bookkeeping, and the release."""
    found = registry.plugin(options.engine)
    bookkeeping = getattr(found, "bookkeeping", ())
    if not bookkeeping:
        raise UsageError(f"mutate engine {options.engine}: this engine does not say which of its files are bookkeeping")
    if options.release is None:
        raise UsageError("mutate engine needs --release VERSION: the release whose source is edited")
    must_have("mutate engine", "mutate")
    registry.must_be_installed(found)
    if options.keep and checkout() is None:
        raise UsageError("--keep writes docs/mutation_engines.json: it needs a checkout of Slotproof")
    return bookkeeping, options.release


def _drawn_from(engine: str, release: str, begun: Begun) -> tuple[Path, Json]:
    """The folder of the release's package, and the lines that the edits are drawn from, measured where an earlier call
    has not.
    """
    from conformance.planted.mutants.driven import driven

    if begun.first is None or not Path(begun.first["root"]).is_dir():
        say(f"{engine} {release} is driven, to see which lines are executed")
        found = driven(engine, release)
        begun.begin({"root": str(found.root), "lines": found.lines})
    assert begun.first is not None
    return Path(begun.first["root"]), begun.first


def _file(options: EngineMutationOptions, release: str) -> Path:
    """Where the judged edits of this draw are kept. Answers of another version of Slotproof's code are not used."""
    name = f"{options.engine}-{release}-seed-{options.seed}{'-first' if options.first else ''}-{_version()}"
    return cache_folder() / "mutants" / f"{name}.jsonl"


@cache
def _version() -> str:
    """Slotproof's code that drives and judges, as a short hash: of the files as they were at the first call."""
    made = hashlib.sha256()
    for package in (conformance, spec):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            made.update(path.read_bytes())
    for name in ("checks/checking.py", "planted/edit_check.py"):
        made.update(Path(__file__).parents[1].joinpath(name).read_bytes())
    return made.hexdigest()[:10]


# What is printed and kept.


def _tell(row: Json, number: int, of: int) -> None:
    """One line for each edit when it has been judged."""
    shown = "" if row["fate"] != FOUND else ", function shown" if row["shown"] else ", function not shown"
    what = f" {row['stem']}: {row['law']}, {row['rows']} findings{shown}" if row["fate"] == FOUND else ""
    where = f"{row['file']}:{row['line']} {row['function']}: {row['words']}"
    say(f"{number}/{of} {row['fate']}{what}, {row['seconds']:.0f} s: {where}", wrap=False)


def _finish(options: EngineMutationOptions, release: str, places: int, rows: Sequence[Json]) -> int:
    root = checkout()
    known = outcomes.REASONS.read(root / "docs" / REVIEWED) if root else {}
    explained = outcomes.with_reasons(rows, options.engine, release, known)
    sums = outcomes.sums(explained)
    drawn = {"engine": options.engine, "release": release, "files": [*options.files], "seed": options.seed}
    asked = {"asked": options.count, "first": options.first, "places": places, "aim": AIM, "version": _version()}
    made: Json = {**drawn, **asked}
    write_json(options.json, {**made, **sums, "rows": explained})
    if options.keep and root is not None:
        _keep(root / "docs" / KEPT, made, rows)
    _print(explained, sums)
    return HOLDS if sums["share"] >= AIM and sums["edits"] == options.count else BROKEN


def _keep(file: Path, made: Json, rows: Sequence[Json]) -> None:
    """Puts the draw in the place of the engine's earlier one from these files. No text of the engine is kept."""
    short = [{name: value for name, value in row.items() if name not in TEXTS} for row in rows]
    keep_under(file, " ".join((made["engine"], *made["files"])), {**made, "rows": short})


def keep_under(file: Path, name: str, result: Json) -> None:
    """Puts a result into a file of results by name, in the place of the earlier one with this name."""
    kept = plain_json.loads(file.read_text("utf-8")) if file.exists() else {}
    write_text(
        file, plain_json.dumps(dict(sorted({**kept, name: result}.items())), indent=1, ensure_ascii=False) + "\n"
    )


def _print(rows: Sequence[Json], sums: Json) -> None:
    missed = [row for row in rows if row["fate"] != FOUND]
    if missed:
        shown = [
            (f"{r['file']}:{r['line']} ({r['edit']})", r["function"], r["was"], r["now"], _fate(r), _why(r))
            for r in missed
        ]
        show(table("Not found", COLUMNS, shown, lines=True))
    counts = ", ".join(f"{sums[fate]} {fate}" for fate in FATES)
    say(f"{sums['edits']} edits: {counts}; {sums['equivalent']} equivalent ({sums['called_equivalent']} called so)")
    say(
        f"{sums['share']:.1%} of the {sums['wrong']} that are not equivalent are found "
        f"(95% interval {between(sums['interval'])}), {AIM:.0%} is the aim; the edited function is shown for "
        f"{sums['shown']} of {sums[FOUND]}; {sum(row['seconds'] for row in rows):.0f} s"
    )


def _fate(row: Json) -> str:
    return f"{row['fate']}: {row['said']}" if row["said"] else str(row["fate"])


def _why(row: Json) -> str:
    return f"{row['kind']}: {row['reason']}" if row["kind"] else "no reason is given"


# The page in docs/.


def page() -> Json:
    """What docs/mutation_engines.md shows: for each engine the kept draws, with the reviewed reasons."""
    root = checkout()
    assert root is not None, "documents are made in a checkout"
    kept: Json = plain_json.loads((root / "docs" / KEPT).read_text("utf-8"))
    known = outcomes.REASONS.read(root / "docs" / REVIEWED)
    draws = []
    for one in kept.values():
        rows = outcomes.with_reasons(one["rows"], one["engine"], one["release"], known)
        missed = [row for row in rows if row["fate"] != FOUND]
        draws.append({**one, "sums": outcomes.sums(rows), "missed": missed, "laws": _laws(rows)})
    return {"draws": draws, "between": between, "aim": AIM, "fates": FATES}


def _laws(rows: Sequence[Json]) -> list[tuple[str, str, int]]:
    """By stem and law how many edits were found, the most frequent first."""
    found = [(row["stem"], row["law"]) for row in rows if row["fate"] == FOUND]
    counted = [(*key, found.count(key)) for key in dict.fromkeys(found)]
    return sorted(counted, key=lambda one: (-one[2], one))
