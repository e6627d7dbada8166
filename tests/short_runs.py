"""From the recording of a server with a bug to a short run that shows it: what is tested of each engine."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from typer.testing import CliRunner

from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.traces.outcome import outcome
from slotproof.cli import app
from slotproof.console.codes import BROKEN


def must_be_found(
    file: Path, engine: str, release: str, stem: str, planted: AbstractContextManager[None], named: str, most: int
) -> None:
    """``slotproof judge --shrink`` finds a run of at most so many operations that breaks the law which the recording
    ``file`` breaks, and prints its test, whose name begins with ``named``. While the bug is ``planted`` the run breaks
    the law; on the release as it is the run keeps it.
    """
    report_file = file.with_suffix(".json")
    make = registry.load(engine, release).makers[stem]
    with planted:
        words = ["judge", str(file), "--json", str(report_file), "--shrink", "60s", "--release", release]
        found = CliRunner().invoke(app, words)
        report = json.loads(report_file.read_text())
        trace = Trace(**report["short"])
        first = outcome(trace, make).first
        assert first is not None
        assert first.law == report["first"]["law"]
    assert found.exit_code == BROKEN
    assert f"a run of {len(trace.steps)} operations breaks the law" in found.output
    assert f"def {named}" in found.output
    assert len(trace.steps) <= most
    assert outcome(trace, make).first is None
