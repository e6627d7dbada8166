"""What became of every edit: counts by stem and operator, the survivors, and of which spec this is known."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from proofs.mutation import reach
from proofs.mutation.effects import DRAWN
from proofs.mutation.operators import OPERATORS, Edit, edits
from proofs.mutation.trial import EQUIVALENT, INVALID, REFUTED, STRICTER, SURVIVES, TriedEdit
from proofs.registry import STEMS

FATES = (REFUTED, EQUIVALENT, STRICTER, SURVIVES)
WRONG = (REFUTED, STRICTER, SURVIVES)
LEAST = 0.97  # of the wrong transitions, so many must be refuted
SEED = 7  # of the edits whose result is kept

Json = dict[str, Any]


@cache
def every_edit() -> tuple[Edit, ...]:
    """Every edit of the functions that transitions are made of, file by file."""
    found: dict[str, set[str]] = {module: set() for module in reach.modules()}
    for module, function in reach.reached():
        found.setdefault(module, set()).add(function)
    return tuple(
        edit
        for module in reach.modules()
        for edit in edits(f"{module}.py", reach.text_of(module), found[module], reach.callee(module))
    )


def drawn(every: Iterable[Edit], seed: int) -> list[Edit]:
    """The edits, of those of one place and of an operator in ``effects.DRAWN`` one alone, drawn with the seed.

    Which one is drawn depends on the seed, the file, the function, the number of the place and the operator: an edit
    elsewhere changes no draw.
    """
    found: dict[tuple[Any, ...], list[Edit]] = {}
    for number, edit in enumerate(every):
        alone = () if edit.operator in DRAWN else (number,)
        found.setdefault((edit.file, edit.function, edit.place, edit.operator, *alone), []).append(edit)
    return [random.Random(f"{seed} {of}").choice(ones) for of, ones in found.items()]


def stem_of(edit: Edit) -> str:
    """The first stem with a transition that is made of the edited function; it judges the edit first."""
    return reach.reached()[edit.module, edit.function][0][0]


def edits_of(stems: Sequence[str], seed: int) -> list[Edit]:
    """The edits that belong to these stems and that the seed draws, in the order of the stems."""
    chosen = drawn(every_edit(), seed)
    return [edit for stem in STEMS if stem in stems for edit in chosen if stem_of(edit) == stem]


def fingerprint(seed: int) -> Json:
    """Of which spec and which edits a result is: the seed, by file the hash of its text without its docstrings, by stem
    the hash of its edits.
    """
    files = sorted(reach.FOLDER.glob("*.py"))
    return {
        "seed": seed,
        "spec": {path.name: _hash(without_sentences(path.read_text(encoding="utf-8"))) for path in files},
        "edits": {stem: _hash("\n".join(edit.key for edit in edits_of([stem], seed))) for stem in STEMS},
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def without_sentences(text: str) -> str:
    """The text without docstrings and empty lines: whoever says a law more clearly changes no law."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            left_out |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    lines = enumerate(text.splitlines(), start=1)
    return "\n".join(line.rstrip() for number, line in lines if number not in left_out and line.strip())


def counted(found: Iterable[TriedEdit]) -> dict[str, dict[str, dict[str, int]]]:
    """By stem, operator and fate, how many edits had this fate; edits that are no spec are left out."""
    counts = {stem: {operator: dict.fromkeys(FATES, 0) for operator in OPERATORS} for stem in STEMS}
    for one in found:
        if one.fate != INVALID:
            counts[stem_of(one.edit)][one.edit.operator][one.fate] += 1
    return {
        stem: {name: row for name, row in rows.items() if any(row.values())}
        for stem, rows in counts.items()
        if any(any(row.values()) for row in rows.values())
    }


def share(rows: Iterable[dict[str, int]]) -> float:
    """The share of the refuted edits among the wrong ones, which are all but those that change nothing."""
    rows = list(rows)
    refuted, wrong = (sum(row[fate] for row in rows for fate in fates) for fates in ((REFUTED,), WRONG))
    return refuted / wrong if wrong else 1.0


def as_json(found: Sequence[TriedEdit]) -> Json:
    """What is kept of a run: the counts, and by name each edit that survived or asks more."""
    return {
        "counts": counted(found),
        **{fate: [named(one) for one in found if one.fate == fate] for fate in (SURVIVES, STRICTER)},
    }


def named(one: TriedEdit) -> Json:
    """An edit and what became of it."""
    edit = one.edit
    return {
        **{"key": edit.key, "file": edit.file, "function": edit.function, "operator": edit.operator},
        **{"was": edit.was, "now": edit.now, "fate": one.fate},
        **{"stem": one.stem or stem_of(edit), "transition": one.transition, "by": one.by},
    }
