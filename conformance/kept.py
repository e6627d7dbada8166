"""Kept traces and known differences: every finding stays, is replayed first, and must still occur where it is listed.

``traces/NAME.json`` is one shrunk run. ``known/sglang-RELEASE.json`` lists the traces that show a difference in that
release, each with what the rules have to avoid so as to look past it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from conformance.machine import Json, Trace

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Kept:
    """A trace with its name, the law it is about, and what it shows in plain words (``caller``: who can send it)."""

    name: str
    law: str
    why: str
    caller: str
    trace: Trace


@dataclass(frozen=True)
class Known:
    """A difference that a release is known to have: the kept trace shows ``verdict`` on ``law``."""

    trace: str
    law: str
    verdict: str
    avoid: str


def names() -> list[str]:
    """The kept traces, by name."""
    return sorted(path.stem for path in (HERE / "traces").glob("*.json"))


def load(name_or_path: str) -> Kept:
    """A kept trace by name, or any trace by path; ``ValueError`` says what is wrong with it."""
    kept = HERE / "traces" / f"{name_or_path}.json"
    path = kept if kept.is_file() else Path(name_or_path)
    if not path.is_file():
        raise ValueError(f"no trace {name_or_path!r}: give a file, or one of {', '.join(names()) or 'none kept'}")
    try:
        data = json.loads(path.read_text())
        trace = Trace(data["stem"], data["config"], data["steps"])
        return Kept(path.stem, data.get("law", ""), data.get("why", ""), data.get("caller", ""), trace)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no trace: expected JSON with stem, config and steps ({error})") from error


def as_json(trace: Trace) -> Json:
    """A trace as it is written to a file."""
    return {"stem": trace.stem, "config": trace.config, "steps": trace.steps}


def known(release: str | None) -> list[Known]:
    """The known differences of a release, none where there is no list."""
    path = HERE / "known" / f"sglang-{release}.json"
    return [Known(**entry) for entry in json.loads(path.read_text())] if path.is_file() else []
