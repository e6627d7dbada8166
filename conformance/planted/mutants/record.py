"""What became of the mutants of ``impl/``: counts, the share that was noticed with its interval, and why some survive.

The reasons are reviewed by hand and kept in ``docs/mutation_impl_survivors.toml``. A survivor that is there as
``equivalent`` changes nothing that a caller can tell, and is not counted as wrong; any other survivor is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.driver.protocol import Json
from conformance.planted.mutants.reasons import ReviewedEdits

RUNS, TESTS, NO_END, SURVIVES = "check", "tests", "no end", "survives"
FATES = (RUNS, TESTS, NO_END, SURVIVES)
EQUIVALENT, OPEN = "equivalent", "open"
LEAST = 0.95  # of the mutants that are not equivalent, so many must be noticed
WITHIN = 1.96  # standard errors: an interval of 95%
NAMED = ("file", "function", "was", "now")  # what names a mutant
REASONS = ReviewedEdits("survivor", NAMED, "kind", (EQUIVALENT, OPEN), empty=("was", "now"))  # why mutants survive


def fingerprint(folder: Path) -> dict[str, str]:
    """By file of ``impl/`` a hash of its text."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted((folder / "impl").glob("*.py"))
    }


def with_reasons(rows: Iterable[Json], known: dict[tuple[str, ...], Json]) -> list[Json]:
    """The mutants; each survivor with its kind and its reason, which are empty where nobody has given one."""
    none = {"kind": "", "reason": ""}
    return [
        row | {name: known.get(tuple(row[n] for n in NAMED), none)[name] for name in none}
        if row["fate"] == SURVIVES
        else row
        for row in rows
    ]


def sums(rows: Sequence[Json]) -> Json:
    """How many mutants had each fate, and the share of the noticed ones among those that are not equivalent."""
    counts: Json = {fate: sum(row["fate"] == fate for row in rows) for fate in FATES}
    equivalent = sum(row.get("kind") == EQUIVALENT for row in rows)
    wrong = len(rows) - equivalent
    noticed = len(rows) - counts[SURVIVES]
    return {
        **{"mutants": len(rows), **counts, "equivalent": equivalent, "wrong": wrong, "noticed": noticed},
        **{"share": noticed / wrong if wrong else 1.0, "interval": interval(noticed, wrong)},
        "check_share": (counts[RUNS] + counts[NO_END]) / wrong if wrong else 1.0,
    }


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's interval of 95% for a share of which a sample shows ``hits`` of ``of``."""
    if not of:
        return 0.0, 1.0
    share, spread = hits / of, WITHIN * WITHIN / of
    middle = share + spread / 2
    half = WITHIN * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
