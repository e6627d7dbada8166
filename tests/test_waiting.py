"""A long wait is told, and an engine of a user that hangs or ends its process while a trace is replayed is a
finding.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import waiting
from conformance.driver.lockstep import ANSWERED
from conformance.driver.protocol import EngineError
from conformance.driver.trace import Trace
from conformance.search import elsewhere
from conformance.search.connection import Served, Subject
from conformance.search.replay_apart import row_apart
from conformance.traces.trace_files import Kept

CONFIG = {"size": 4, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
STEPS = [
    {"op": "extend", "rows": [0], "more": [2]},
    {"op": "finish", "row": 0, "committed": 2},
    {"op": "extend", "rows": [1], "more": [1]},
]
ENGINE = """
import os, time
from conformance.engines.toy import ToyAllocator

class Engine(ToyAllocator):
    def free(self, slots):
        {free}
        return super().free(slots)

def make(config):
    {make}
    return Engine(config["size"], config["page_size"])
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Subject]:
    """Writes an engine whose ``free`` and whose maker do something first."""
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))

    def written(free: str = "pass", make: str = "pass") -> Subject:
        (tmp_path / "waiting_engine.py").write_text(ENGINE.format(free=free, make=make))
        return Subject("waiting_engine:make", source=tmp_path, stems=("allocator",))

    return written


def kept(steps: list[Any] = STEPS) -> Kept:
    return Kept("run", "", "", "", Trace("allocator", CONFIG, steps))


def test_an_engine_that_keeps_the_law_conforms(engine: Callable[..., Subject]) -> None:
    shown = row_apart(kept(), engine(), 20.0)
    assert (shown["engine"], shown["verdict"], shown["harm"]) == ("waiting_engine:make", "conforms", None)


@pytest.mark.parametrize(
    ("free", "said"),
    [
        ("os._exit(0)", "the process died"),
        ("os.abort()", "the process died: Aborted, in .*waiting_engine.py"),
        ("time.sleep(99)", "the call did not end within 3 s, in .*waiting_engine.py.* in free"),
    ],
)
def test_an_engine_that_ends_its_process_or_hangs_breaks_a_law_in_this_step(
    free: str, said: str, engine: Callable[..., Subject]
) -> None:
    shown = row_apart(kept(), engine(free), 3.0)
    assert (shown["verdict"], shown["law"], shown["step"]) == ("violation", ANSWERED, 2)
    assert re.match(said, shown["detail"]), shown["detail"]


def test_a_maker_that_hangs_for_this_trace_is_an_error(engine: Callable[..., Subject]) -> None:
    subject = engine(make=f"time.sleep(99 if config == {CONFIG} else 0)")
    with pytest.raises(EngineError, match=r"the maker of allocator was called with .*: it did not end within 3 s, in "):
        row_apart(kept(), subject, 3.0)


def test_a_long_wait_is_told_once_with_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "OFTEN", 0.01)
    monkeypatch.setattr(waiting, "LONG", 0.05)
    with waiting.watched(waiting.since_now("the engine", "given up after 9 s")):
        time.sleep(0.3)
    assert capsys.readouterr().err == "slotproof: waits for the engine (0.05 s so far; given up after 9 s)\n"
    with waiting.watched(waiting.since_now("the engine")):
        pass
    assert capsys.readouterr().err == "", "a short wait is not told"
    monkeypatch.setattr(waiting, "LONG", 9.0)
    said = [waiting.after("x", seconds) for seconds in (8.9, 9, 59, 60, 119, 120)]
    assert said == ["", *["x (9 s so far)"] * 2, *["x (1 min so far)"] * 2, "x (2 min so far)"]


def test_a_maker_that_takes_long_while_runs_are_drawn_is_told(
    engine: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "LONG", 0.5)
    monkeypatch.setattr(waiting, "OFTEN", 0.1)
    with Served(engine(make=f"time.sleep(1.5 if config == {CONFIG} else 0)"), 30.0) as served:
        served.ready()
        capfd.readouterr()
        with served.connect() as connection:
            connection.ask({"do": "row", "stem": "allocator", "name": "", "trace": kept().trace.as_json()})
    said = capfd.readouterr().err
    assert "waits for the maker of allocator, called with {" in said
    assert "(0.5 s so far; given up after 30 s, see --call-limit)" in said


def test_a_process_that_is_asked_for_an_answer_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeps_for_ever.py").write_text("import time\ntime.sleep(99)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"replaying on x did not end within 0.5 s: the engine hangs"):
        elsewhere.ask("sleeps_for_ever", [], "replaying on x", 0.5)
