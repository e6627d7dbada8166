"""The test that a finding prints, to be pasted into any file of tests, and what this test calls.

``as_test`` makes the text. The test replays the finding's trace in a process of its own, since a process can hold one
release of an engine: so tests of several releases can stand in one file. It needs the installed package alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from conformance.driver.naming import UsageError
from conformance.driver.options import words
from conformance.driver.printable import printable
from conformance.driver.protocol import EngineError, Json
from conformance.traces.outcome import Outcome

if TYPE_CHECKING:
    from conformance.driver.lockstep import Finding
    from conformance.driver.trace import Trace


@dataclass(frozen=True)
class Played:
    """What a trace showed on an engine. ``where``: for each law that it broke, in the order of ``outcome.breaks``, the
    exception of the engine and the engine's functions that it went through, a line each.
    """

    outcome: Outcome
    where: list[list[str]] = field(default_factory=list)


def play(trace: Trace, make: Callable[[Json], Any], roots: Sequence[Path] = ()) -> Played:
    """Replays the trace on a fresh engine. ``roots``: where the engine's own code is, see ``Loaded``."""
    from conformance.telling.where import Roots, raised
    from conformance.traces.outcome import outcome

    own, where = Roots(roots), list[list[str]]()

    def heard(finding: Finding) -> None:
        where.append([text for one in raised(finding, own) for text in (one.what, *map(str, one.frames))])

    return Played(outcome(trace, make, heard), where)


def assert_holds(
    law: str,
    kind: str,
    *,
    stem: str,
    config: Json,
    steps: Sequence[Json],
    engine: str,
    release: str | None = None,
    source: str | Path | None = None,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    repaired: Sequence[str] = (),
) -> None:
    """Replays a trace in a process of its own. Passes if the engine does not break the law on it.

    ``law`` and ``kind`` name what must not be broken, see ``Finding``; another *latent* finding does not matter.
    ``stem``, ``config``, ``steps``: the trace. ``engine``, ``release``, ``source``, ``device``, ``options``: the
    engine, as on the command line. ``repaired``: known causes of the engine that are repaired before.

    Raises ``AssertionError`` if the law is broken, and also if a violation of another law ends the run: what the rest
    of the trace would show is not known then. Raises ``SkipTest``, which pytest takes for a skipped test, if the engine
    cannot be sent the trace, for example since it does not have a call. Raises ``EngineError`` if the engine cannot be
    loaded.
    """
    __tracebackhide__ = True  # pytest shows the pasted test, not this function
    subject: Json = {"name": engine, "release": release, "source": None if source is None else str(source)}
    subject |= {"device": device, "options": sorted((options or {}).items())}
    asked = {"subject": subject, "stem": stem, "config": config, "steps": list(steps), "repaired": list(repaired)}
    played = _played_elsewhere(asked)
    name = " ".join(str(word) for word in (engine, release or source, words(options or {})) if word)
    shown = played.outcome
    numbered = list(enumerate(shown.breaks))
    mine = [n for n, found in numbered if (found.law, found.kind) == (law, kind)]
    others = [n for n, found in numbered if found.severity != "latent"]
    if mine:
        raise AssertionError(printable(f"{name} breaks {_said(played, mine[0], steps)}"))
    if others:
        what = f"{name} does not break {law} here; the trace ends where it breaks {_said(played, others[0], steps)}"
        raise AssertionError(printable(what))
    if shown.stopped:
        raise SkipTest(printable(f"{name}: step {shown.stopped_at} cannot be sent: {shown.stopped}"))


def _said(played: Played, number: int, steps: Sequence[Json]) -> str:
    found = played.outcome.breaks[number]
    at = f"step {found.step}, {steps[found.step - 1]['op']}" if found.step else "step 0, in which it is built"
    lines = [f"{found.law} at {at}", found.sentence, found.detail]
    return "\n  ".join([*lines, *played.where[number]])


def _played_elsewhere(asked: Json) -> Played:
    """The trace, played in a child process. The child finds modules where this process does."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"  # not standard output: an engine may print
        done = subprocess.run(
            [sys.executable, "-P", "-X", "faulthandler", "-m", __name__, str(answer)],
            input=json.dumps(asked),
            env={**os.environ, "PYTHONPATH": places},
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode < 0:
            name = signal.Signals(-done.returncode).name
            raise AssertionError(printable(f"the replay ended with the signal {name}\n{done.stderr[-2000:]}"))
        if done.returncode:
            raise RuntimeError(printable(f"the replay ended with code {done.returncode}\n{done.stderr[-2000:]}"))
        said = json.loads(answer.read_text(encoding="utf-8"))
    if said["error"]:
        raise EngineError(said["error"])
    return Played(Outcome.from_json(said["outcome"]), said["where"])


def main() -> int:
    """``python -m conformance.telling.pasted FILE`` plays the trace on standard input and writes what it shows."""
    from conformance.driver.trace import Trace
    from conformance.engines import registry
    from conformance.traces import cause_files

    asked, out = json.load(sys.stdin), Path(sys.argv[1])
    source, options = (asked["subject"].pop(key) for key in ("source", "options"))
    error, played = "", Played(Outcome())
    try:
        folder = None if source is None else Path(source)
        given = tuple((name, value) for name, value in options)
        loaded = registry.load(**asked["subject"], source=folder, stems=(asked["stem"],), options=given)
        for name in asked["repaired"]:
            cause_files.load(name).apply()
        if asked["stem"] not in loaded.makers:
            played = Played(Outcome((), f"it has no {asked['stem']} to drive", 1))
        else:
            trace = Trace(asked["stem"], asked["config"], asked["steps"])
            played = play(trace, loaded.makers[asked["stem"]], loaded.roots)
    except (EngineError, UsageError) as reason:
        error = str(reason)
    out.write_text(
        json.dumps({"outcome": played.outcome.as_json(), "where": played.where, "error": error}), encoding="utf-8"
    )
    return 0


# The text of a test.


def as_test(
    trace: Trace,
    law: str,
    kind: str,
    engine: str,
    release: str | None = None,
    source: Path | None = None,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    repaired: Sequence[str] = (),
) -> str:
    """A test to paste. It fails as long as the engine breaks the law on the trace.

    ``law``, ``kind``: of the finding. ``engine``, ``release``, ``source``, ``device``: as ``registry.load`` takes them.
    ``options``: the engine's options that the user has set. ``repaired``: see ``assert_holds``.
    """
    given = {"release": release, "source": None if source is None else str(source.absolute())}
    subject: Json = {"engine": engine, **{key: value for key, value in given.items() if value is not None}}
    if device != "cpu":
        subject["device"] = device
    if options:
        subject["options"] = dict(options)
    if repaired:
        subject["repaired"] = list(repaired)
    name = " ".join(str(subject[key]) for key in ("engine", "release", "source") if key in subject)
    told = [law, kind, subject, trace.as_json()]
    number = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:6]
    steps = "".join(f"            {step!r},\n" for step in trace.steps)
    where = ", ".join(f"{key}={value!r}" for key, value in subject.items())
    return f"""\
def test_found_by_slotproof_{re.sub(r"[^A-Za-z0-9_]", "_", law)}_{number}() -> None:
    # Fails as long as {printable(name).replace(chr(10), " ")} breaks the law. Each replay is a process of its own.
    from {__name__} import assert_holds

    assert_holds(
        law={law!r},
        kind={kind!r},
        {where},
        stem={trace.stem!r},
        config={trace.config!r},
        steps=[
{steps}        ],
    )
"""


if __name__ == "__main__":
    sys.exit(main())
