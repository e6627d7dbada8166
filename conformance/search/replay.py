"""Replays one trace on many engines. Each release has a process of its own, since a process can import only one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.driver.lockstep import LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.naming import UsageError
from conformance.driver.options import Given
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.elsewhere import ask, tell
from conformance.search.harm import harm, with_another
from conformance.search.ran import Ran
from conformance.traces import trace_files
from conformance.traces.outcome import Outcome, outcome
from conformance.traces.trace_files import Kept

SHOWN = ("verdict", "step", "law", "kind")  # what a trace shows on an engine; a detail may name numbers of the process


def row(kept: Kept, loaded: Loaded, told: bool = False, known: Json | None = None) -> Json:
    """What the trace shows on an engine: the first violation; if there is none, the first latent finding; else that it
    conforms. ``step`` counts from 1.

    The verdict is ``unsupported`` where the engine cannot be built for the trace, or where a step cannot be sent to
    it. Where a law is broken, ``harm`` says what came of it. ``told``: with the ``story`` too, where all steps
    could be sent, and the ``roots`` of the engine's code. ``known``: a row that was made before, on this release; where
    the trace shows now what it showed then, the harm is taken from it, since to look for harm takes most of the time.
    Raises ``EngineError`` for a trace of an unknown stem, and ``UsageError`` if our own implementation shows that the
    trace sends what no caller may send.
    """
    maker = loaded.makers.get(kept.trace.stem)
    make = None if maker is None else Ran(maker)
    shown = outcome(kept.trace, make) if make else Outcome((), f"it has no {kept.trace.stem} to drive", 1)
    if shown.misused and loaded.own:
        what = f"the trace sends at step {shown.stopped_at} what no caller may send"
        raise UsageError(f"{kept.name}: {what}: {shown.stopped}")
    found = {"engine": loaded.name, "release": loaded.release, **_shown(shown)}
    if make and make.values:
        found["ran"] = make.as_json()
    broken = found["verdict"] in (VIOLATION, LATENT)
    if known is not None and all(known[key] == found[key] for key in SHOWN):
        found["harm"] = known["harm"]
    else:
        found["harm"] = harm(kept.trace, found["step"], make) if make and broken else None
    if told:
        sent = make if found["verdict"] != UNSUPPORTED else None
        found |= _story(kept.trace, sent, loaded, found) if sent else {"story": [], "beside": 0}
        found["roots"] = [str(root) for root in loaded.roots]
    return found


def _story(trace: Trace, make: Ran, loaded: Loaded, found: Json) -> Json:
    """The operations told one by one: those of the trace, then those that led to the harm. ``beside``: how many tokens
    another request has that was there before the first operation, since nobody reads wrong contents without it.
    """
    from conformance.search.driven_on import driven_on
    from conformance.telling.tell import tell

    harm = found["harm"]
    after = driven_on(trace, found["step"], make, harm) if harm else []
    beside = harm["beside"] if after else 0
    steps = [asdict(step) for step in tell(with_another(trace, beside), make, loaded.roots, beside=beside)]
    if beside:
        steps = steps[1:]  # the other request came in the first operation
    return {"story": [*steps[: found["step"]], *after] if after else steps, "beside": beside}


def _shown(found: Outcome) -> Json:
    """The verdict of an outcome, with the step and the law that it rests on."""
    row = {"verdict": found.verdict, "step": None, "law": None, "kind": None, "detail": ""}
    if found.verdict == UNSUPPORTED:
        return {**row, "step": found.stopped_at, "detail": found.stopped}
    first = found.first
    return row if first is None else {**row, **{key: getattr(first, key) for key in ("step", "law", "kind", "detail")}}


def rows_elsewhere(
    names: Sequence[str],
    engine: str,
    release: str | None,
    told: bool = False,
    options: Given = (),
    source: Path | None = None,
    limit: float | None = None,
) -> list[Json]:
    """The rows of one release, or of the checkout in the folder ``source``, made in a process of its own. ``options``:
    the engine's options that the user has set. ``limit``: the seconds that this may take. Raises ``EngineError`` if the
    engine cannot be loaded, or if the time is over.
    """
    subject = {"name": engine, "release": release, "source": source and str(source)}
    arguments = [json.dumps(subject), "told" if told else "plain", json.dumps(options), *names]
    what = f"replaying on {engine} {release or source or ''}".strip()
    answer: list[Json] = ask(f"{__package__}.replay", arguments, what, limit)
    return answer


def main() -> int:
    """``python -m conformance.search.replay SUBJECT told|plain OPTIONS TRACE…`` prints a row for each trace, as JSON.
    SUBJECT is JSON too: an object with ``name``, ``release`` and ``source``; and so is OPTIONS: a list of names and
    values.
    """
    subject, how, options, *names = sys.argv[1:]

    def answer() -> list[Json]:
        given = tuple((name, value) for name, value in json.loads(options))
        wanted = json.loads(subject)
        source = wanted["source"] and Path(wanted["source"])
        loaded = registry.load(wanted["name"], release=wanted["release"], source=source, options=given)
        return [row(trace_files.load(name), loaded, told=how == "told") for name in names]

    return tell(answer)


if __name__ == "__main__":
    sys.exit(main())
