"""Traces that a report of ``slotproof check`` holds, engines that are named by their place, and standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.naming import UsageError
from conformance.traces import trace_files
from slotproof.console import output

ROOT = Path(__file__).resolve().parents[1]
CONFIG = {"size": 3, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}


def trace(more: int) -> Any:
    steps = [{"op": "extend", "rows": [0], "more": [more]}, {"op": "finish", "row": 0, "committed": more}]
    return {"stem": "allocator", "config": CONFIG, "steps": steps}


def report(folder: Path, **lists: list[int]) -> Path:
    rows = {name: [{"trace": trace(more)} for more in lists.get(name, [])] for name in trace_files.LISTS}
    path = folder / "report.json"
    path.write_text(json.dumps({"schema": 1, "results": [], **rows}))
    return path


def test_a_finding_of_a_report_is_a_trace(tmp_path: Path) -> None:
    path = report(tmp_path, known=[1, 2], worse=[3])
    for number, more in (("1", 3), ("2", 1), ("3", 2), ("worse.1", 3), ("known.2", 2)):
        assert trace_files.load(f"{path}#{number}").trace.as_json() == trace(more), "worse comes before known"
    there = r"1 \(worse.1\), 2 \(known.1\), 3 \(known.2\)"
    for wrong in ("new.1", "0", "4", "-1", "01", " 1", "known"):
        with pytest.raises(UsageError, match=rf"has no finding {wrong}: there are {there}"):
            trace_files.load(f"{path}#{wrong}")
    with pytest.raises(UsageError, match="#: the number of the finding is missing: there are"):
        trace_files.load(f"{path}#")


def test_without_a_number_a_report_must_have_one_finding(tmp_path: Path) -> None:
    assert trace_files.load(str(report(tmp_path, gone=[2]))).trace.as_json() == trace(2)
    path = report(tmp_path, known=[*range(1, 12)])
    with pytest.raises(UsageError, match=r"has 11 findings, say which, such as .*#1: 1 \(known.1\), .*, … to 11$"):
        trace_files.load(str(path))
    with pytest.raises(UsageError, match="insert_under_reader is a kept trace; #1 is for a report"):
        trace_files.load("insert_under_reader#1")


def test_what_has_no_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a check without findings: it has no trace"):
        trace_files.load(str(report(tmp_path)))
    alone = tmp_path / "trace.json"
    alone.write_text(json.dumps(trace(2)))
    assert trace_files.load(str(alone)).trace.as_json() == trace(2)
    with pytest.raises(UsageError, match="is no report of slotproof check --json"):
        trace_files.load(f"{alone}#known.1")
    with pytest.raises(UsageError, match=r"there is no file nosuch\.json"):
        trace_files.load("nosuch.json")
    with pytest.raises(UsageError, match="no trace 'nosuch'"):
        trace_files.load("nosuch")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SLOTPROOF_CACHE": str(folder / "cache")}
    line = [sys.executable, "-m", "slotproof", *words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.soak
def test_a_trace_is_replayed_on_an_engine_that_is_named_by_its_place_and_json_goes_to_standard_output(
    tmp_path: Path,
) -> None:
    (tmp_path / "my_engine.py").write_text(
        "from conformance.engines.toy import ToyAllocator\n"
        "def make(config):\n    return ToyAllocator(config['size'], config['page_size'], leaks=True)\n"
    )
    report(tmp_path, new=[2])
    done = command(tmp_path, "replay", "report.json", "my_engine:make", "--json", "-")
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["subject"], row["law"]) == ("my_engine:make", "no_leak")
    assert "extend(rows=[0], more=[2])" in done.stderr, "what is for people"


def test_a_syntax_error_of_an_engine_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "broken_engine.py").write_text("def make(config:\n")
    done = command(tmp_path, "check", "broken_engine:make", "allocator")
    assert done.returncode == 3
    assert f"({tmp_path / 'broken_engine.py'}:1)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_called_dash_is_standard_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert output.file_to_write(Path("-"), "--json") == Path("-")
    output.write_json(Path("-"), {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert not [*tmp_path.iterdir()]
