"""Standard input and output as files: a document that goes to standard output stands there alone, and what is printed
for people goes to standard error.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from conformance.driver.naming import UsageError
from conformance.traces.trace_files import LISTS
from slotproof import cli
from slotproof.console import codes, screen, stdin

CONFIG = {"size": 3, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
ENGINE = """
from conformance.engines.toy import ToyAllocator
def make(config):
    return ToyAllocator(config["size"], config["page_size"], leaks=True)
"""
STORED = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1], "block_size": 1}
STREAM: bytes = msgpack.packb([0.5, [STORED]])


def trace(more: int) -> Any:
    steps = [{"op": "extend", "rows": [0], "more": [more]}, {"op": "finish", "row": 0, "committed": more}]
    return {"stem": "allocator", "config": CONFIG, "steps": steps}


def report(*more: int) -> bytes:
    rows = {name: [{"trace": trace(one)} for one in more] if name == "new" else [] for name in LISTS}
    return json.dumps({"schema": 1, "results": [], **rows}).encode()


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    (tmp_path / "leaking_engine.py").write_text(ENGINE)
    yield
    screen.console.stderr = False


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command line with a standard input; its exit code, and what it printed."""

    def run(words: str, given: bytes = b"") -> tuple[int, str, str]:
        screen.console.stderr = False
        monkeypatch.setattr(sys, "argv", ["slotproof", *words.split()])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given), isatty=lambda: False))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", sys.stdout)  # each run of the command wraps it
            code = cli.run()
        return (code, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("list stems", 0, "allocator"),
        ("replay insert_under_reader ours", 0, "conforms: ours"),
        ("check leaking_engine:make --examples 5", 1, "law no_leak"),
        ("events stream.msgpack", 0, "every event keeps the law"),
        ("diff HEAD", 0, "nothing changed"),
    ],
)
def test_json_on_standard_output_stands_there_alone(
    words: str, code: int, said: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "stream.msgpack").write_bytes(STREAM)
    found, out, err = command(f"{words} --json -")
    assert found == code, err
    assert json.loads(out)
    assert said in err
    assert said not in out.splitlines()


def test_junit_and_sarif_go_to_standard_output_too(command: Callable[..., Any], tmp_path: Path) -> None:
    code, out, err = command("check leaking_engine:make --examples 5 --junit - --json r.json")
    assert (code, ET.fromstring(out.encode()).tag) == (1, "testsuites")
    assert "law no_leak" in err
    code, out, err = command("check leaking_engine:make --examples 5 --sarif -")
    (run,) = json.loads(out)["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (code, place.endswith(".py")) == (1, True)
    assert (tmp_path / "r.json").is_file()
    assert not (tmp_path / "-").exists()


@pytest.mark.soak
def test_a_trace_and_a_report_are_read_from_standard_input(command: Callable[..., Any], tmp_path: Path) -> None:
    for words, given, steps, broken in (
        ("replay - leaking_engine:make", json.dumps(trace(2)).encode(), "more=[2]", 1),
        ("replay - leaking_engine:make", report(1), "more=[1]", 0),  # it leaks where two pages are freed
        ("replay -#2 leaking_engine:make", report(1, 3), "more=[3]", 1),
        ("replay -#new.1 leaking_engine:make", report(1, 3), "more=[1]", 0),
    ):
        code, out, err = command(words, given)
        assert (code, steps in out) == (broken, True), err
    code, _, err = command("report -o page --trace -#2 --engine ours", report(1, 2))
    assert code == 0, err
    assert "more=[2]" in (tmp_path / "page" / "index.html").read_text("utf-8")


def test_a_stream_is_read_from_standard_input(command: Callable[..., Any]) -> None:
    code, out, _ = command("events - --json -", STREAM)
    assert (code, json.loads(out)["stream"], json.loads(out)["events"]) == (0, "-", 1)
    code, _, err = command("events -", STREAM[:-1])
    assert (code, err) == (codes.USAGE, "slotproof: standard input: the file ends within object 1\n")


def test_a_report_of_a_check_is_handed_on(command: Callable[..., Any]) -> None:
    """`slotproof check … --json - | slotproof replay -#1 ENGINE`"""
    _, out, _ = command("check leaking_engine:make --examples 5 --json -")
    code, shown, err = command("replay -#1 leaking_engine:make", out.encode())
    assert (code, "law no_leak" in shown) == (1, True), err


def test_a_pipe_is_read_once(command: Callable[..., Any], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(report(1, 2)))
    writer.start()
    code, out, err = command("replay pipe#2 leaking_engine:make")
    writer.join()
    assert (code, "more=[2]" in out) == (1, True), err


def test_who_types_is_told_that_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}"), isatty=lambda: True))
    with stdin.as_file("-") as file:
        assert Path(file).read_bytes() == b"{}"
    assert capsys.readouterr().err == "slotproof: reads standard input; Ctrl-D ends it\n"
    assert not Path(file).exists()
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="there is no standard input"), stdin.as_file("-"):
        pass
