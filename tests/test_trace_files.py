"""Traces are data: what is no trace is refused with one line that says where, and no damaged file crashes a replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import typer
from driven import RIGHT, SOAK
from test_house import SMALL
from trace_fuzz import Json, damaged, originals, well_formed

from conformance.driver.lockstep import Calls
from conformance.driver.naming import UsageError
from conformance.driver.operations import Tokens
from conformance.stems.stem_registry import STEMS, start
from conformance.traces import trace_files, trace_schema
from slotproof import cli

KEPT = Path(trace_files.__file__).parents[1] / "engines" / "sglang" / "traces" / "insert_under_reader.json"
FILES, SEED = (10_000, 2) if SOAK else (500, 1)
MISUSED = "what no caller may send"
HANGS = 60  # seconds: a guard against a replay that does not end, no measurement


def written(change: Callable[[Json], object]) -> bytes:
    """A kept trace, changed."""
    trace: Json = json.loads(KEPT.read_text(encoding="utf-8"))
    change(trace)
    return json.dumps(trace).encode()


@pytest.mark.parametrize("trace", originals(), ids=lambda trace: str(trace["stem"]))
def test_every_known_trace_is_one_by_both_opinions(trace: Json) -> None:
    data = json.dumps(trace).encode()
    assert trace_schema.read(data) == trace
    assert well_formed(data)


def test_a_kept_trace_is_read_unchanged() -> None:
    for name in trace_files.names():
        kept = trace_files.load(name)
        path = next(KEPT.parents[2].glob(f"*/traces/{name}.json"))
        assert {**kept.trace.as_json(), **kept.texts} == json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("stem", STEMS)
def test_the_checked_operations_are_those_of_the_run(stem: str) -> None:
    run = start(stem, RIGHT[stem], SMALL).run
    assert set(trace_schema._steps(stem)) == set(run.operations)


def test_a_new_operation_needs_no_edit_and_a_type_without_bounds_is_an_error() -> None:
    def lend(row: int, more: Tokens, rows: list[int], slide: bool = False, sent: Tokens | None = None) -> Calls:
        del row, more, rows, slide, sent
        yield None

    checked = trace_schema.arguments_of(lend)
    checked.validate_python({"row": 0, "more": 4, "rows": [1], "sent": None})
    for wrong in ({"row": True}, {"more": 4097}, {"rows": [-1]}, {"slide": 1}, {"sent": "x"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            checked.validate_python({"row": 0, "more": 4, "rows": [1], **wrong})

    def odd(name: float) -> Calls:
        del name
        yield None

    with pytest.raises(TypeError, match="no bounds"):
        trace_schema.arguments_of(odd)


WRONG: dict[str, tuple[bytes, str]] = {
    "a text": (
        written(lambda t: t["steps"][2].update(more="x")),
        "steps[2].more: expected a whole number from 0 to 4096",
    ),
    "a flag": (written(lambda t: t["steps"][0].update(more=True)), "steps[0].more: expected a whole number"),
    "a fraction": (
        written(lambda t: t["config"].update(size=1.0)),
        "config.size: expected a whole number from 1 to 16",
    ),
    "huge": (written(lambda t: t["config"].update(size=10**9)), "config.size: expected a whole number from 1 to 16"),
    "negative": (written(lambda t: t["steps"][0].update(request=-1)), "steps[0].request: expected a whole number"),
    "many digits": (written(lambda t: t["config"].update(size=10**500)), "a number of 501 digits"),
    "no operation": (
        written(lambda t: t["steps"][1].update(op="chnk")),
        'steps[1].op: no operation "chnk": did you mean chunk?',
    ),
    "no op": (written(lambda t: t["steps"][1].pop("op")), "steps[1].op: is missing"),
    "no argument": (written(lambda t: t["steps"][1].pop("request")), "steps[1].request: is missing"),
    "no such argument": (written(lambda t: t["steps"][1].update(reqest=0)), 'no key "reqest": did you mean request?'),
    "no key": (written(lambda t: t["config"].pop("window")), "config.window: is missing"),
    "no such key": (
        written(lambda t: t["config"].update(windw=1)),
        'config.windw: no key "windw": did you mean window?',
    ),
    "no states": (written(lambda t: t["config"].update(components=["full", "swa", "mamba"])), "needs size_mamba"),
    "components": (written(lambda t: t["config"].update(components=["mamba"])), "config.components: expected one of"),
    "no such stem": (written(lambda t: t.update(stem="cahce")), 'stem: no stem "cahce": did you mean cache?'),
    "no steps": (written(lambda t: t.update(steps=[])), "steps: expected a list with an entry"),
    "too many steps": (written(lambda t: t.update(steps=t["steps"] * 2000)), "steps: expected at most 2000 entries"),
    "deep": (written(lambda t: t.update(why=[[[[[[]]]]]])), "why[0][0][0]: nested more than 4 deep"),
    "very deep": (b"[" * 200_000, "nested more than 4 deep"),
    "a key twice": (b'{"stem": "cache", "config": {"size": 1, "size": 2}}', 'config: the key "size" stands twice'),
    "NaN": (b'{"stem": NaN}', "NaN is no number of JSON"),
    "UTF-16": ("{}".encode("utf-16"), "byte 0 is not UTF-8"),
    "half a letter": (written(lambda t: t.update(why="\ud800")), "why: expected"),
    "cut off": (KEPT.read_bytes()[:60], "no JSON"),
    "empty": (b"", "line 1, column 1: no JSON"),
    "a list": (b"[]", "expected an object, found a list of 0"),
    "too big": (b" " * (1 << 20) + b"{}", "at most 1,048,576 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_place(name: str) -> None:
    data, said = WRONG[name]
    assert not well_formed(data)
    with pytest.raises(UsageError) as caught:
        trace_schema.read(data)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_and_a_name_that_is_too_long_are_no_traces(tmp_path: Path) -> None:
    for name in (str(tmp_path), "x" * 5000, "\0"):
        with pytest.raises(ValueError, match="no trace"):
            trace_files.load(name)
    with pytest.raises(ValueError, match="did you mean insert_under_reader"):
        trace_files.load("insert_under_readers")


# The command.


def replayed(data: bytes, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[int, str]:
    """The exit code of ``slotproof replay FILE ours``, and what it says on standard error."""
    path.write_bytes(data)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["slotproof", "replay", str(path), "ours"])
        patch.setattr(sys, "stdout", sys.stdout)  # each run of the command wraps it
        return cli.run(), capsys.readouterr().err


def test_a_trace_that_sends_what_no_caller_may_send_is_bad_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(lambda t: t["steps"].insert(1, {"op": "cancel", "request": 0}))
    code, said = replayed(data, tmp_path / "t.json", monkeypatch, capsys)
    assert code == 3
    assert "the trace sends at step 2 what no caller may send: the request does not wait" in " ".join(said.split())


def test_damaged_files_are_refused_or_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that the schema written by hand refuses ends with 3 and one line. Any other file is replayed, and our
    implementation conforms (0); or one of its steps is a call that no caller may send, which no schema can tell: then
    it ends with 3 too, and the line says so. 1 would mean that our implementation or the driver has a bug.
    """
    monkeypatch.setattr(cli, "app", typer.main.get_command(cli.app))  # else it is made anew for each file
    seen = {"refused": 0, "replayed": 0, "misused": 0}
    for number, data in enumerate(damaged(SEED, FILES)):
        good, before = well_formed(data), perf_counter()
        code, said = replayed(data, tmp_path / "t.json", monkeypatch, capsys)
        misused = MISUSED in said
        seen["refused" if not good else "misused" if misused else "replayed"] += 1
        assert perf_counter() - before < HANGS, number
        assert (code, misused) in ([(0, False), (3, True)] if good else [(3, False)]), (number, code, said, data[:2000])
        assert not code or len(said.strip().splitlines()) == 1, (number, said)
    assert min(seen.values()) > FILES // 20, seen
