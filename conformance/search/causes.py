"""Tries the repair of a cause: ``python -m conformance.search.causes CAUSE RELEASE BATCHES SEED`` prints JSON.

Each trace of the cause is replayed on the release as it is, and on the release with the repair. Then random clients
send messages to repaired schedulers, of the kind in which the cause was found: all laws must hold there.
"""

from __future__ import annotations

import logging
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from conformance.driver.lockstep import ANSWER, Finding
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.elsewhere import ask, tell
from conformance.search.judge import excluded
from conformance.search.replay import row
from conformance.search.trials import TRIALS
from conformance.traces import cause_files, known, trace_files
from conformance.traces.cause_files import Cause
from conformance.traces.harm_found import NO_HARM, rank_of
from conformance.traces.outcome import outcome

SHOWN = ("verdict", "law", "detail")
LEFT = "requests_end"
REFUSALS = 100  # seeds in turn of which none has a server: the cause draws what no configuration has


def tried(cause: Cause, loaded: Loaded, batches: int, seed: int) -> Json:
    """What the traces show before and after the repair, and what random clients met after it. The release that this
    process has loaded is repaired from then on.
    """
    names = cause.names_of_traces
    file, line = cause.place(loaded.roots)
    before = _shown(names, loaded)
    spare = _spare_flags(cause, loaded, before[cause.server])
    cause.apply()
    after = _shown(names, loaded)
    others = [cause_files.load(name) for name in cause.also_repaired]
    for other in others:
        other.apply()
    repaired = {name for one in (cause, *others) for name in one.names_of_traces}
    listed = known.of_release(registry.plugin(cause.engine).folder, loaded.release)
    avoid = excluded(cause.shown.trace.stem, [one for one in listed if one.trace not in repaired])
    return {
        **{"cause": cause.name, "engine": cause.engine, "release": loaded.release, "file": file, "line": line},
        "spare_flags": spare,
        "traces": {name: {"before": before[name], "after": after[name]} for name in names},
        "repaired": _driven(cause, loaded, batches, seed, avoid),
    }


def _spare_flags(cause: Cause, loaded: Loaded, shown: Json) -> list[str]:
    """The launch flags that can be left out together: without them the messages break the law that they break with
    all flags, word for word. ``shown``: what they show with all flags. Flags that only make the server small are not
    tried.
    """
    kept, room = cause.shown, cause.room
    spare: list[str] = []
    config = kept.trace.config
    for flag in room.flags(config):
        leaner = replace(kept.trace, config=room.without(config, flag))
        try:
            first = outcome(leaner, loaded.makers[leaner.stem]).first
        except (TypeError, ValueError, EngineError):  # the release launches no server with the flags that are left
            continue
        if first is not None and (first.law, first.detail) == (shown["law"], shown["detail"]):
            spare, config = [*spare, flag], leaner.config
    return spare


def _shown(names: list[str], loaded: Loaded) -> Json:
    rows = {name: row(trace_files.load(name), loaded) for name in names}
    return {name: {**{key: one[key] for key in SHOWN}, "harm": _harm(one)} for name, one in rows.items()}


def _harm(shown: Json) -> str:
    """What came of it. Where no request reads wrong contents, a wrong answer of the engine is what came of it."""
    harm = shown["harm"] or {}
    if shown["kind"] == ANSWER and harm and rank_of(harm) == NO_HARM:
        return str(shown["detail"]).partition(". ")[0]
    return str(harm.get("sentence", ""))


def _driven(cause: Cause, loaded: Loaded, batches: int, seed: int, avoid: Collection[StrEnum]) -> Json:
    """``runs`` of repaired schedulers until so many rounds with a ``batch`` were judged, the ``requests`` that were
    sent in them, how many of them were ``taken_back`` at the end, since they waited for a reason that the law allows,
    and what was ``broken``: a law, or a request that did not end, with the seed of the run.
    """
    trial = TRIALS[cause.shown.trace.stem]
    runs = done = requests = taken_back = refused = 0
    broken: list[Json] = []
    while done < batches:
        seed += 1
        try:
            one = trial(loaded, random.Random(seed), cause.drawn, avoid)
        except Unsupported as error:
            refused += 1
            if refused >= REFUSALS and not runs:
                raise EngineError(f"cause {cause.name}: no server has what it draws: {error}") from error
            continue
        try:
            waiting, left = one.go()
            taken_back += waiting
            if left:
                broken.append({"law": LEFT, "detail": f"{left} requests are left", "seed": seed})
        except (Finding, EngineError) as error:
            law = error.law if isinstance(error, Finding) else "no verdict"
            broken.append({"law": law, "detail": str(getattr(error, "detail", error)), "seed": seed})
        runs, done, requests = runs + 1, done + one.batches, requests + one.requests
    return {"runs": runs, "batches": done, "requests": requests, "taken_back": taken_back, "broken": broken}


class ProgramEnd(NamedTuple):
    """How a program ended. ``program``: its error, in one line; empty where it ended without one. ``told``: what it
    printed between the traceback and the error.
    """

    program: str
    told: list[str]


def ended(program: str) -> ProgramEnd:
    """Runs a program that shows a cause."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        file.write_text(program, encoding="utf-8")
        ran = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    return ending(ran.stderr) if ran.returncode else ProgramEnd("", [])


def ending(errors: str) -> ProgramEnd:
    """Reads how a program ended from what it printed to its standard error."""
    found = re.search(r"^((?:What .*\n(?:  .*\n)*)*)(\w+(?:Error|Exception)\b.*)", errors, re.MULTILINE)
    return ProgramEnd(found[2].strip(), found[1].splitlines()) if found else ProgramEnd("", [])


def tried_elsewhere(cause: Cause, release: str, batches: int, seed: int) -> Json:
    """As ``tried``, in a process of its own. Raises ``EngineError`` if the release cannot be loaded."""
    what = f"{cause.name} on {cause.engine} {release}"
    answer: Json = ask(f"{__package__}.causes", [cause.name, release, str(batches), str(seed)], what)
    return answer


def main() -> int:
    """See the module."""
    logging.disable()  # a server tells of each request that it refuses
    name, release, batches, seed = sys.argv[1:]
    cause = cause_files.load(name)
    return tell(lambda: tried(cause, registry.load(cause.engine, release=release), int(batches), int(seed)))


if __name__ == "__main__":
    sys.exit(main())
