"""Tries the repair of a cause: ``python -m conformance.search.causes CAUSE RELEASE BATCHES SEED`` prints JSON.

Each trace of the cause is replayed on the release as it is, and on the release with the repair. Then random clients
send messages to repaired servers, of the kind in which the cause was found: all laws must hold there.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.elsewhere import ask, tell
from conformance.search.judge import excluded
from conformance.search.replay import row
from conformance.stems.launches import Launches, configuration
from conformance.stems.server.crowd import drive, finish
from conformance.stems.stem_registry import start
from conformance.traces import cause_files, known, trace_files
from conformance.traces.cause_files import Cause

SHOWN = ("verdict", "law", "detail")
LEFT = "requests_end"


def tried(cause: Cause, loaded: Loaded, batches: int, seed: int) -> Json:
    """What the traces show before and after the repair, and what random clients met after it. The release that this
    process has loaded is repaired from then on.
    """
    names = cause.names_of_traces
    file, line = cause.place(loaded.roots)
    before = _shown(names, loaded)
    cause.apply()
    after = _shown(names, loaded)
    others = [cause_files.load(name) for name in cause.also_repaired]
    for other in others:
        other.apply()
    repaired = {name for one in (cause, *others) for name in one.names_of_traces}
    listed = known.of_release(registry.plugin(cause.engine).folder, loaded.release)
    avoid = excluded("server", [one for one in listed if one.trace not in repaired])
    return {
        **{"cause": cause.name, "engine": cause.engine, "release": loaded.release, "file": file, "line": line},
        "traces": {name: {"before": before[name], "after": after[name]} for name in names},
        "repaired": _driven(cause, loaded, batches, seed, avoid),
    }


def _shown(names: list[str], loaded: Loaded) -> Json:
    rows = {name: row(trace_files.load(name), loaded) for name in names}
    return {
        name: {**{key: one[key] for key in SHOWN}, "harm": (one["harm"] or {}).get("sentence", "")}
        for name, one in rows.items()
    }


def _driven(cause: Cause, loaded: Loaded, batches: int, seed: int, avoid: Collection[StrEnum]) -> Json:
    """``runs`` of repaired servers until so many turns with a ``batch`` were judged, the ``requests`` that were sent in
    them, how many of them were ``taken_back`` at the end, since they waited behind idle sessions, and what was
    ``broken``: a law, or a request that did not end, with the seed of the run.
    """
    launches = (loaded.kinds or registry.every_kind()).launches
    runs = done = requests = taken_back = 0
    broken: list[Json] = []
    while done < batches:
        seed += 1
        rng = random.Random(seed)
        try:
            lock = start("server", loaded.makers["server"], configuration(_server(rng, launches, cause.drawn, avoid)))
        except Unsupported:
            continue
        run: Any = lock.run
        try:
            drive(lock, rng, avoid)
            waiting, left = finish(lock)
            taken_back += waiting
            if left:
                broken.append({"law": LEFT, "detail": f"{left} requests are left", "seed": seed})
        except (Finding, EngineError) as error:
            law = error.law if isinstance(error, Finding) else "no verdict"
            broken.append({"law": law, "detail": str(getattr(error, "detail", error)), "seed": seed})
        runs, done, requests = runs + 1, done + run.batches, requests + len(run.forks)
    return {"runs": runs, "batches": done, "requests": requests, "taken_back": taken_back, "broken": broken}


def _server(rng: random.Random, launches: Launches, wanted: Mapping[str, str], avoid: Collection[StrEnum] = ()) -> Any:
    """The choices of a server: the wanted ones, and any others but those that are avoided."""
    numbers = {}
    for option, choices in launches.every.items():
        names = [choice.name for choice in choices]
        numbers[option] = names.index(wanted[option]) if option in wanted else rng.randrange(len(choices))
    return launches.chosen(numbers, avoid)


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
