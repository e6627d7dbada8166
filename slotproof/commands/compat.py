"""``slotproof compat``: which members of an engine's classes its own code touches, beside those that ours have."""

from __future__ import annotations

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
        raise EngineError(f"{engine}: this engine has no class that our allocators can replace")
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


def _shown(row: Json) -> str:
    places, more = row["used_in"][:FEW], len(row["used_in"]) - FEW
    return "\n".join([*places, f"and {more} more"] if more > 0 else places)
