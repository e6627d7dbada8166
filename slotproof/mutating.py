"""``slotproof mutate spec``: wrong transitions by small changes of the spec's text, and which of them survive."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.engines.protocol import Json
from proofs.mutation import trial
from proofs.mutation.operators import Change, changes
from proofs.mutation.trial import EQUIVALENT, FOLDER, KILLED, SURVIVES, Tried
from proofs.prover import on_every_core
from slotproof.codes import BROKEN, HOLDS
from slotproof.screen import progress, say, show, table, write_json

LEAST = 0.95  # of the changes that are not equivalent, so many must be refuted
UNCHANGED = ("__init__.py", "logic.py", "finite.py", "lengths.py")  # the language of the spec, and plain integers


def run(files: Sequence[str], sample: int | None, seed: int, json: Path | None) -> int:
    """Tries every change of these files of the spec, or a ``sample`` of so many; exit code 1 if too many survive."""
    chosen = every_change(files)
    if sample is not None and sample < len(chosen):
        chosen = sorted(random.Random(seed).sample(chosen, sample), key=lambda change: change.name)
    start = time.perf_counter()
    with progress() as bar:
        task = bar.add_task("changes of the spec", total=len(chosen))
        found: list[Tried] = on_every_core(trial.tried, [(change,) for change in chosen], lambda _: bar.advance(task))
    write_json(json, {"changes": [as_json(one) for one in found]})
    alive = [one for one in found if one.fate == SURVIVES]
    if alive:
        show(table("No law refutes", ("file", "line", "function", "change"), [_row(one.change) for one in alive]))
    fates = Counter(one.fate for one in found)
    say(
        f"{len(found)} changes: {fates[KILLED]} refuted, {fates[SURVIVES]} not, {fates[EQUIVALENT]} proved to change "
        f"nothing; {share(found):.1%} of those that change something are refuted; {time.perf_counter() - start:.0f} s"
    )
    return HOLDS if share(found) >= LEAST else BROKEN


def every_change(files: Sequence[str]) -> list[Change]:
    """Every change of the files of the spec with these names (all files if there are none), in order."""
    names = [path for path in sorted(FOLDER.glob("*.py")) if path.name not in UNCHANGED]
    wanted = [path for path in names if not files or path.name in files or path.stem in files]
    return [change for path in wanted for change in changes(path.name, path.read_text(encoding="utf-8"))]


def share(found: Sequence[Tried]) -> float:
    """The share of refuted changes among those that are not equivalent."""
    real = [one for one in found if one.fate != EQUIVALENT]
    return sum(one.fate == KILLED for one in real) / len(real) if real else 1.0


def as_json(one: Tried) -> Json:
    """What became of a change, without the text of the changed file."""
    said = asdict(one)
    change = {key: value for key, value in said.pop("change").items() if key != "text"}
    return {**change, **said}


def _row(change: Change) -> tuple[str, int, str, str]:
    return change.file, change.line, change.function, change.what
