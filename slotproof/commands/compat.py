"""``slotproof compat``: which members of an engine's classes its own code touches, beside those that ours have."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.screen import say, show, table, write_json

FEW = 3  # so many places of a missing member are shown; the JSON has all


def run(engine: str, release: str | None, source: Path | None, json: Path | None) -> int:
    """Prints what ours lack and writes all that was found to ``json``; exit code 1 if something is missing without a
    reason.

    An engine takes part if its plug-in has a function ``compat(release, source)``, which returns ``used``,
    ``inherited`` and ``missing`` as docs/json.md says. ``EngineError`` for any other engine.
    """
    found_engine = registry.plugin(engine)
    compat: Any = getattr(found_engine, "compat", None)
    if compat is None:
        hint = "; its own tests run on our classes with --tests" if hasattr(found_engine, "peer_tests") else ""
        raise EngineError(f"{engine}: this engine has no class that our allocators can replace{hint}")
    registry.must_be_installed(found_engine)
    found: Json = compat(release, source)
    label = f"{engine} {release or source}"
    unexplained = [row for row in found["missing"] if not row["reason"]]
    write_json(json, {"engine": engine, "release": release, "source": source and str(source), **found})
    if found["missing"]:
        rows = [
            (row["class"], row["member"], row["what"], _shown(row), row["reason"] or "-") for row in found["missing"]
        ]
        show(table(f"What our allocators lack of {label}", ("class", "member", "what", "touched in", "reason"), rows))
    say(
        f"{label}: its code touches {len(found['used'])} members of the classes that our allocators can replace; "
        f"{len(found['inherited'])} stay the engine's own, {len(found['missing'])} are missing, "
        f"{len(unexplained)} of them without a reason"
    )
    return BROKEN if unexplained else HOLDS


def run_tests(engine: str, release: str | None, source: Path | None, json: Path | None) -> int:
    """Runs the engine's own tests on its own classes and on ours, and prints what passes where.

    Exit code 1 if a test fails on ours alone and no reason for it is on record, or if a reason is on record for a test
    that passes. An engine takes part if its plug-in has a function ``peer_tests(release, source)``, which returns what
    docs/json.md says. ``EngineError`` for any other engine.
    """
    found_engine = registry.plugin(engine)
    peers: Any = getattr(found_engine, "peer_tests", None)
    if peers is None:
        raise EngineError(f"{engine}: this engine has no tests that can run on our classes")
    registry.must_be_installed(found_engine)
    found: Json = peers(release, source)
    label = f"{engine} {release or source}"
    write_json(json, {"engine": engine, "release": release, "source": source and str(source), **found})
    rows = [(row["file"], row["tests"], row["own"], row["slotproof"]) for row in found["files"]]
    columns = ("file", "tests", "pass on its own classes", "pass on our classes")
    show(table(f"The tests of {label}", columns, rows))
    if found["differences"]:
        named = [(row["test"], row["verdict"] or "?", row["reason"] or row["error"]) for row in found["differences"]]
        show(table("Tests that fail on our classes alone", ("test", "verdict", "why"), named, lines=True))
    for name in found["stale"]:
        say(f"{name}: a reason is on record why it fails on our classes, and it does not: take the reason off the list")
    say(_summary(label, found))
    return BROKEN if found["unnamed"] or found["stale"] else HOLDS


def _summary(label: str, found: Json) -> str:
    files = found["files"]
    tests, own, stood_in = (sum(row[key] for row in files) for key in ("tests", "own", "slotproof"))
    verdicts = Counter(row["verdict"] or "without a reason" for row in found["differences"])
    alone = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    differ = f"{len(found['differences'])} fail on our classes alone" + (f" ({alone})" if alone else "")
    return (
        f"{label}: of {tests} tests {own} pass on its own classes and {stood_in} on our classes; {differ}; "
        f"{sum(found['both'].values())} fail on both, since they need what is not installed here"
    )


def _shown(row: Json) -> str:
    places, more = row["used_in"][:FEW], len(row["used_in"]) - FEW
    return "\n".join([*places, f"and {more} more"] if more > 0 else places)
