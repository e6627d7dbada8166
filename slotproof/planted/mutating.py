"""``slotproof mutate spec``: wrong transitions, made by small edits of the spec's text, and which of them survive."""

from __future__ import annotations

import json as plain_json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.planted.mutants.record import NAMED, REASONS
from proofs.mutation import asked, record, trial
from proofs.mutation.effects import DRAWN
from proofs.mutation.operators import OPERATORS
from proofs.mutation.record import LEAST, SEED
from proofs.mutation.trial import EQUIVALENT, INVALID, REFUTED, STRICTER, SURVIVES, TriedEdit
from proofs.prover import on_every_core
from proofs.registry import STEMS
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.output import write_text
from slotproof.console.screen import choose, progress, say, show, table, write_json
from slotproof.planted.kept_calls import granted_calls

KEPT, REVIEWED = "mutation.json", "mutation_survivors.toml"  # in docs/


@dataclass(frozen=True)
class SpecMutationOptions:
    """``stems``: whose edits to try; empty: all. ``operators``: of which kinds; empty: all. ``seed``: of
    each place that has several edits of one kind it draws one (``proofs.mutation.effects``), and it draws the
    ``sample``: at most so many edits. ``jobs``: how many at a time. ``keep``: write docs/mutation.json.
    """

    stems: Sequence[str] = ()
    operators: Sequence[str] = ()
    sample: int | None = None
    seed: int = SEED
    jobs: int | None = None
    keep: bool = False
    json: Path | None = None


def run(options: SpecMutationOptions) -> int:
    """Tries the edits and prints what survives; exit code 1 where fewer than 97% of the wrong ones are refuted."""
    stems, operators = choose(options.stems, STEMS, "stem"), choose(options.operators, OPERATORS, "operator")
    everything = not (options.stems or options.operators or options.sample) and options.seed == SEED
    place = _kept_at() if options.keep else None
    if place is not None and not everything:
        what = f"docs/mutation.json has the result of all edits that seed {SEED} draws"
        raise UsageError(f"{what}: keep it without a choice of edits, and without another seed")
    chosen = [edit for edit in record.edits_of(stems, options.seed) if edit.operator in operators]
    if options.sample is not None and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    start = time.perf_counter()
    asked.learn(granted_calls())
    with progress() as bar:
        task = bar.add_task("edits of the spec", total=len(chosen))
        found: list[TriedEdit] = on_every_core(
            trial.tried, [(edit,) for edit in chosen], lambda _: bar.advance(task), options.jobs
        )
    made = {"least": LEAST, **record.fingerprint(options.seed), **record.as_json(found)}
    write_json(options.json, {**made, "edits_tried": [record.named(one) for one in found]})
    if place is not None:
        write_text(place, plain_json.dumps(made, indent=1) + "\n")
    _print(found, time.perf_counter() - start)
    return HOLDS if _share(made) >= LEAST else BROKEN


def operators(json: Path | None) -> int:
    """Prints the operators and how many edits each makes, and writes them to ``json``."""
    made = Counter(edit.operator for edit in record.drawn(record.every_edit(), SEED))
    rows = [{"name": name, "sentence": said, "edits": made[name]} for name, said in OPERATORS.items()]
    write_json(json, {"operators": rows})
    show(
        table(
            "operators", ("operator", "what it does", "edits"), [(r["name"], r["sentence"], r["edits"]) for r in rows]
        )
    )
    return HOLDS


def _kept_at() -> Path:
    root = checkout()
    if root is None:
        raise UsageError("docs/mutation.json belongs to the repository: --keep needs a checkout of Slotproof")
    return root / "docs" / KEPT


def _share(made: Json) -> float:
    return record.share(row for rows in made["counts"].values() for row in rows.values())


def _print(found: Sequence[TriedEdit], seconds: float) -> None:
    for fate, title in ((SURVIVES, "No law refutes"), (STRICTER, "Asks more, and nothing needs it")):
        if rows := [_row(one) for one in found if one.fate == fate]:
            columns = ("place", "function", "operator", "edit", "seen in", "what differs")
            show(table(title, columns, rows, lines=True))
    counts = record.counted(found)
    shown = [(stem, *_sums(rows.values())) for stem, rows in counts.items()]
    show(table("Edits of the spec", ("stem", *record.FATES, "refuted of the wrong ones"), shown))
    fates = Counter(one.fate for one in found)
    share = record.share(row for rows in counts.values() for row in rows.values())
    say(
        f"{len(found) - fates[INVALID]} edits: {fates[REFUTED]} refuted, {fates[SURVIVES]} not refuted, "
        f"{fates[STRICTER]} proved to ask more and do nothing else, {fates[EQUIVALENT]} proved to change nothing; "
        f"{fates[INVALID]} more are no spec that Python can read; {share:.1%} of the wrong ones are refuted, "
        f"{LEAST:.0%} must be; {seconds:.0f} s"
    )


def _row(one: TriedEdit) -> tuple[str, ...]:
    edit = one.edit
    what = f"{edit.was} → {edit.now}"
    return f"{edit.file}:{edit.line}", edit.function, edit.operator, what, f"{one.stem}.{one.transition}", one.by


def _sums(rows: Any) -> tuple[Any, ...]:
    rows = list(rows)
    return (*(sum(row[fate] for row in rows) for fate in record.FATES), f"{record.share(rows):.1%}")


# The table in docs/.


def page() -> Json:
    """What docs/mutation.md shows: the kept result, the present lines of the edits, and why some are not refuted."""
    place = _kept_at()
    if not place.exists():
        raise UsageError(f"docs/{KEPT} is missing: run make mutate first")
    kept: Json = plain_json.loads(place.read_text("utf-8"))
    lines, known = {edit.key: edit.line for edit in record.every_edit()}, REASONS.read(_kept_at().with_name(REVIEWED))
    for row in (row for name in (SURVIVES, STRICTER) for row in kept[name]):
        row["line"] = lines.get(row["key"], "?")
        row["reason"] = known.get(tuple(row[name] for name in NAMED), {"reason": ""})["reason"]
    total = [row for rows in kept["counts"].values() for row in rows.values()]
    sums: Callable[[Any], tuple[Any, ...]] = _sums
    return {
        **{"kept": kept, "operators": OPERATORS, "fates": record.FATES, "sums": sums, "total": total},
        "drawn": DRAWN,
    }


def out_of_date() -> str:
    """Why docs/mutation.json is of an older spec; empty where it is of this one."""
    kept: Json = plain_json.loads(_kept_at().read_text("utf-8")) if _kept_at().exists() else {}
    now = record.fingerprint(SEED)
    old, new = kept.get("spec", {}), now["spec"]
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if changed:
        return f"docs/{KEPT} is of an older spec ({', '.join(changed)}): run make mutate"
    return f"docs/{KEPT} is of other edits: run make mutate" if kept["edits"] != now["edits"] else ""
