"""One trace on many subjects: each release in a process of its own, since only one can be imported at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from conformance.check import STEMS
from conformance.kept import Kept, load
from conformance.machine import CONFORMS, LATENT, VIOLATION, Finding, Json, Misuse
from conformance.story import tell
from conformance.subjects.errors import SubjectError
from conformance.subjects.loading import Loaded
from conformance.subjects.loading import load as load_subject

UNSUPPORTED = "unsupported"


def outcome(kept: Kept, make: Callable[[Json], Any]) -> Json:
    """What the trace shows on a subject: the first violation, else the first latent finding, else that it conforms."""
    if kept.trace.stem not in STEMS:
        raise SubjectError(f"{kept.name} is about {kept.trace.stem!r}: there are {', '.join(STEMS)}")
    run: Any = STEMS[kept.trace.stem][1](make(kept.trace.config), kept.trace.config, False)
    latent: Json | None = None
    for number, step in enumerate(kept.trace.steps, start=1):
        try:
            run.do(step["op"], **{k: v for k, v in step.items() if k != "op"})
        except Finding as finding:
            return _row(VIOLATION, number, finding)
        except Misuse as misuse:
            return {"verdict": UNSUPPORTED, "step": number, "law": None, "detail": str(misuse)}
        if run.latent and latent is None:
            latent = _row(LATENT, number, run.latent)
    return latent or {"verdict": CONFORMS, "step": None, "law": None, "detail": ""}


def _row(verdict: str, number: int, finding: Finding) -> Json:
    return {"verdict": verdict, "step": number, "law": finding.law, "detail": finding.detail}


def row(kept: Kept, loaded: Loaded, told: bool = False) -> Json:
    """The outcome, with the subject's name and release; ``told``: and the story, where a law is broken."""
    make = loaded.makers.get(kept.trace.stem)
    if make is None:
        nothing = {"verdict": UNSUPPORTED, "step": 1, "law": None, "detail": f"it has no {kept.trace.stem} to drive"}
        return {"subject": loaded.name, "release": loaded.release, **nothing}
    found = {"subject": loaded.name, "release": loaded.release, **outcome(kept, make)}
    if told and found["verdict"] in (VIOLATION, LATENT):
        found["story"] = [asdict(step) for step in tell(kept.trace, make)]
    return found


def rows_elsewhere(traces: Sequence[str], release: str) -> list[Json]:
    """The rows of an SGLang release, made in a process of its own."""
    command = [sys.executable, "-m", "conformance.replaying", release, *traces]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    if done.returncode == 3:
        raise SubjectError(last)
    if done.returncode:
        raise RuntimeError(f"replaying on sglang {release} ended with {done.returncode}: {last}")
    answer: list[Json] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> int:
    """``python -m conformance.replaying RELEASE TRACE…``: a row for each trace as JSON."""
    try:
        loaded = load_subject("sglang", release=sys.argv[1])
        print(json.dumps([row(load(trace), loaded, told=True) for trace in sys.argv[2:]]))
    except SubjectError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
