"""Whether the repair of a cause mends runs: ``python -m conformance.search.of_cause CAUSE SUBJECT``.

SUBJECT is a file with JSON: the ``release`` or the ``source`` of the engine, and ``runs``, each a trace as plain data.
Printed is a list of truths, one a run: the run keeps the law on the repaired engine. It is empty where the repaired
function is not in this source.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.elsewhere import ask, tell
from conformance.traces import cause_files
from conformance.traces.cause_files import Cause
from conformance.traces.outcome import outcome


def mended(cause: Cause, release: str | None, source: Path | None, runs: Sequence[Json]) -> list[bool]:
    """Whether the repair mends each run. The engine that this process has loaded is repaired from then on."""
    loaded = registry.load(cause.engine, release=release, source=source)
    try:
        cause.place(loaded.roots)
    except UsageError:
        return []
    cause.apply()
    traces = [Trace(**run) for run in runs]
    return [not (told := outcome(trace, loaded.makers[trace.stem])).breaks and not told.stopped for trace in traces]


def mended_elsewhere(cause: Cause, release: str | None, source: Path | None, runs: Sequence[Json]) -> list[bool]:
    """As ``mended``, in a process of its own. No run is mended if the engine cannot be loaded, or kills the process."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({"release": release, "source": None if source is None else str(source), "runs": list(runs)}, file)
        file.flush()
        try:
            found: list[bool] = ask(f"{__package__}.of_cause", [cause.name, file.name], f"the repair of {cause.name}")
        except (EngineError, RuntimeError):
            return []
    return found


def main() -> int:
    """See the module."""
    logging.disable()  # a server tells of each request that it refuses
    name, file = sys.argv[1:]
    asked = json.loads(Path(file).read_text("utf-8"))
    source = None if asked["source"] is None else Path(asked["source"])
    return tell(lambda: mended(cause_files.load(name), asked["release"], source, asked["runs"]))


if __name__ == "__main__":
    sys.exit(main())
