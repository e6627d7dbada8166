"""``docs/faults.json``: what the last kept search for the known bugs found, and on which day it was.

``slotproof faults --search --keep`` writes it, and ``docs/status.md`` is made from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.planted.faults.known_bugs import FAULTS
from conformance.planted.faults.show import Shown
from slotproof.console.output import write_text

ROOT = checkout()
KEPT = ROOT / "docs" / "faults.json" if ROOT else None
OUT_OF_DATE = "docs/faults.json does not say what there is: run make faults"


class KeptSearch(NamedTuple):
    """How many of the known bugs were found from nothing, of how many, and when; ``None`` where that is not known."""

    found: int
    of: int
    day: str

    def __str__(self) -> str:
        return f"{self.found} of {self.of}, {self.day}"


def keep(shown: Sequence[Shown]) -> None:
    """Writes the file. Raises ``UsageError`` in an installed package, which has no documents."""
    if KEPT is None:
        raise UsageError("--keep writes a document of the repository: it needs a checkout of Slotproof")
    today = datetime.now(UTC).date().isoformat()
    faults = {one.fault.name: {**as_kept(one), "seconds": round(one.seconds)} for one in shown}
    write_text(KEPT, json.dumps({"searched": today, "faults": faults}, indent=1) + "\n")


def as_kept(shown: Shown) -> Json:
    """What is kept of a fault. ``invariant``: the law that the proof says is broken; ``law``, ``kind``: what the drawn
    runs broke, see ``Finding``; ``short``: the shrunk run has at most 8 operations.
    """
    return {
        "proof": shown.proof,
        "invariant": shown.invariant,
        "found": shown.found,
        "short": shown.steps <= 8,
        "law": shown.run.law,
        "kind": shown.run.kind,
    }


def faults(path: Path | None = None) -> list[Json]:
    """The known bugs as the last kept search showed them, each with its name and its sentence. ``path``: by default
    ``docs/faults.json``. Raises ``UsageError`` where the file is not about the known bugs that there are.
    """
    kept = _read(path)["faults"]
    if list(kept) != list(FAULTS):
        raise UsageError(OUT_OF_DATE)
    return [{"name": fault.name, "sentence": fault.sentence, **kept[fault.name]} for fault in FAULTS.values()]


def search(path: Path | None = None) -> KeptSearch:
    """What the last kept search found. Raises ``UsageError`` as ``faults`` does, and for a day that is none."""
    known = faults(path)
    day = str(_read(path).get("searched"))
    try:
        date.fromisoformat(day)
    except ValueError:
        raise UsageError(f"{OUT_OF_DATE} (searched: expected a day, found {day!r})") from None
    found = sum(one["proof"] == "refuted" and one["found"] == "found" for one in known)
    return KeptSearch(found, len(known), day)


def seconds() -> dict[str, float]:
    """How long the last kept search for each fault took; empty where nothing is kept."""
    if KEPT is None or not KEPT.exists():
        return {}
    return {name: one["seconds"] for name, one in _read()["faults"].items() if "seconds" in one}


def _read(path: Path | None = None) -> Json:
    place = path or KEPT
    if place is None or not place.exists():
        raise UsageError(f"{OUT_OF_DATE} (there is no such file)")
    found: Json = json.loads(place.read_text("utf-8"))
    if found.keys() != {"searched", "faults"}:
        raise UsageError(f"{OUT_OF_DATE} (expected the keys searched and faults)")
    return found
