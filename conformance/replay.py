"""Replays one trace on many engines. Each release has a process of its own, since a process can import only one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from conformance import traces
from conformance.engines import registry
from conformance.engines.protocol import EngineError, Json, Misuse, Unsupported
from conformance.engines.registry import Loaded
from conformance.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, Finding
from conformance.stems import STEMS, start
from conformance.traces import Kept


def outcome(kept: Kept, make: Callable[[Json], Any]) -> Json:
    """What the trace shows on an engine: the first violation; if there is none, the first latent finding; else that it
    conforms.

    The verdict is ``unsupported`` where the engine cannot be built for the trace, or where a step cannot be sent to
    it. ``step`` counts from 1. Raises ``EngineError`` for a trace of an unknown stem.
    """
    if kept.trace.stem not in STEMS:
        raise EngineError(f"{kept.name} is about {kept.trace.stem!r}: there are {', '.join(STEMS)}")
    try:
        lock = start(kept.trace.stem, make, kept.trace.config, strict=False)
    except Unsupported as reason:
        return _unsupported(1, str(reason))
    latent: Json | None = None
    for number, step in enumerate(kept.trace.steps, start=1):
        try:
            lock.do(**step)
        except Finding as finding:
            return _row(VIOLATION, number, finding)
        except Misuse as misuse:
            return _unsupported(number, str(misuse))
        if lock.law.latent and latent is None:
            latent = _row(LATENT, number, lock.law.latent)
    return latent or {"verdict": CONFORMS, "step": None, "law": None, "kind": None, "detail": ""}


def _unsupported(number: int, reason: str) -> Json:
    return {"verdict": UNSUPPORTED, "step": number, "law": None, "kind": None, "detail": reason}


def _row(verdict: str, number: int, finding: Finding) -> Json:
    return {
        "verdict": verdict,
        "step": number,
        "law": finding.law,
        "kind": finding.kind,
        "detail": finding.detail,
    }


def row(kept: Kept, loaded: Loaded, told: bool = False) -> Json:
    """The outcome with the engine's name and release. ``told``: with the story too, where a law is broken."""
    make = loaded.makers.get(kept.trace.stem)
    named = {"engine": loaded.name, "release": loaded.release}
    if make is None:
        return {**named, **_unsupported(1, f"it has no {kept.trace.stem} to drive")}
    found = {**named, **outcome(kept, make)}
    if told and found["verdict"] in (VIOLATION, LATENT):
        from conformance.story.tell import tell

        found["story"] = [asdict(step) for step in tell(kept.trace, make)]
    return found


def rows_elsewhere(names: Sequence[str], engine: str, release: str, told: bool = False) -> list[Json]:
    """The rows of one release, made in a process of its own. Raises ``EngineError`` if the release cannot be loaded."""
    command = [sys.executable, "-m", f"{__package__}.replay", engine, release, "told" if told else "plain", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    if done.returncode == 3:
        raise EngineError(last)
    if done.returncode:
        raise RuntimeError(f"replaying on {engine} {release} ended with {done.returncode}: {last}")
    answer: list[Json] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> int:
    """``python -m conformance.replay ENGINE RELEASE told|plain TRACE…`` prints a row for each trace, as JSON."""
    engine, release, how, *names = sys.argv[1:]
    try:
        loaded = registry.load(engine, release=release)
        print(json.dumps([row(traces.load(name), loaded, told=how == "told") for name in names]))
    except EngineError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
