"""``slotproof causes``: each cause is shown on the engine's own scheduler, and its repair is tried."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.traces import cause_files
from conformance.traces.cause_files import Cause
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.needs import needed_checkout, needed_for_documents
from slotproof.console.screen import choose, say, show, table, write_json
from slotproof.pages.cause_pages import KEEPS, KEPT, kept_rows


def run(names: Sequence[str], batches: int, seed: int, keep: bool) -> int:
    """Tries causes on the newest release of their engines, and prints what they show. ``keep``: writes what was found
    and the pages made from it. The exit code tells whether each cause was shown, and mended by its repair alone.
    """
    if keep:
        needed_for_documents("causes --keep")
        needed_checkout("causes --keep")
    every = cause_files.every()
    choose(names, [cause.name for cause in every], "cause")
    for engine in dict.fromkeys(cause.engine for cause in every if not names or cause.name in names):
        registry.must_be_installed(registry.plugin(engine))
    found = [_tried(cause, batches, seed) for cause in every if not names or cause.name in names]
    columns = ("cause", "where", "traces shown", "mended", "steps when repaired", "amiss there")
    show(table("Causes", columns, [_row(one) for one in found]))
    for one in found:
        for amiss in one["repaired"]["broken"]:
            say(f"{one['cause']}, repaired, seed {amiss['seed']}: {amiss['law']}: {amiss['detail']}")
    if keep:
        rows = kept_rows() | {one["cause"]: one for one in found}
        write_json(KEPT, [rows[cause.name] for cause in every if cause.name in rows])
        from slotproof.pages.documents import write

        write(check_only=False)
    return HOLDS if all(is_settled(one) for one in found) else BROKEN


def is_settled(found: Json) -> bool:
    """Each trace shows the cause, none does after the repair, and nothing else is amiss then."""
    traces = found["traces"].values()
    shown = all(one["before"]["verdict"] not in KEEPS for one in traces)
    return shown and all(one["after"]["verdict"] in KEEPS for one in traces) and not found["repaired"]["broken"]


def _tried(cause: Cause, batches: int, seed: int) -> Json:
    from conformance.search.causes import ProgramEnd, ended, tried_elsewhere

    release = registry.plugin(cause.engine).releases[-1]
    end = ended(cause.program(release)) if cause.room.RUNS_ALONE else ProgramEnd("", [])
    return {**tried_elsewhere(cause, release, batches, seed), **end._asdict()}


def _row(found: Json) -> tuple[object, ...]:
    traces, repaired = found["traces"].values(), found["repaired"]
    shown = sum(one["before"]["verdict"] not in KEEPS for one in traces)
    mended = sum(one["after"]["verdict"] in KEEPS for one in traces)
    where = f"{found['file']}:{found['line']}"
    return found["cause"], where, f"{shown} of {len(traces)}", mended, repaired["batches"], len(repaired["broken"])
