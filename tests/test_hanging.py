"""An engine that hangs: a call is a finding, a maker is an error that names the configuration and the line."""

from __future__ import annotations

import faulthandler
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from driven import sampled

from conformance.driver import watchdog
from conformance.driver.forking import forked
from conformance.driver.lockstep import ANSWERED
from conformance.driver.protocol import EngineError
from conformance.search.connection import Served, Subject
from conformance.search.served import GivesUp, given_up_after
from slotproof.checks import checking
from slotproof.checks.checking import CheckOptions
from slotproof.cli import app
from slotproof.console import codes

LIMIT = 3.0
ENGINE = """
import pathlib, time
from conformance.engines.toy import ToyAllocator

class Engine(ToyAllocator):
    def decode(self, after, last):
        slots = super().decode(after, last)
        if "{mode}" == "call" and slots is None:
            wait_for_ever()
        return slots

def wait_for_ever():
    while True:
        time.sleep(1)

def allocator(config):
    once = pathlib.Path("{once}")
    if "{mode}" == "maker" or ("{mode}" == "later" and once.exists()):
        wait_for_ever()
    return Engine(config["size"], config["page_size"])

if "{mode}" == "module":
    wait_for_ever()
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))


def written(folder: Path, mode: str) -> Path:
    folder.mkdir()
    (folder / "engine_that_hangs.py").write_text(ENGINE.format(mode=mode, once=folder / "once"))
    return folder


def options(folder: Path, base: Path | None = None) -> CheckOptions:
    subject = Subject("engine_that_hangs:allocator", source=folder, stems=("allocator",))
    base_name = None if base is None else str(base)
    return CheckOptions(subject, base_name, ("allocator",), examples=20, workers=1, again=False, call_limit=LIMIT)


def test_a_call_that_hangs_is_a_finding(tmp_path: Path) -> None:
    sound, hangs = written(tmp_path / "sound", "none"), written(tmp_path / "hangs", "call")
    report: Any = checking.report_of(options(hangs, sound))
    (row,) = report["new"]
    assert (report["exit"], row["law"], row["trace"]["steps"][-1]["op"]) == (codes.BROKEN, ANSWERED, "decode")
    assert row["detail"].startswith("the call did not end within 3 s, in ")
    assert "engine_that_hangs.py" in row["detail"]
    assert row["detail"].endswith("in wait_for_ever")


@pytest.mark.soak
def test_a_call_that_hangs_is_known_where_the_base_hangs(tmp_path: Path) -> None:
    hangs = written(tmp_path / "hangs", "call")
    known: Any = checking.report_of(options(hangs, hangs))
    assert (known["new"], known["known"][0]["law"]) == ([], ANSWERED)


@pytest.mark.soak
@pytest.mark.parametrize("mode", sampled(["maker", "module"], 2))
def test_a_module_or_a_maker_that_hangs_while_it_is_loaded_is_an_error(mode: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as told:
        checking.report_of(options(written(tmp_path / "hangs", mode)))
    assert "its module or its maker hangs, in " in str(told.value)
    assert "in wait_for_ever" in str(told.value)
    assert "--call-limit" in str(told.value)


@pytest.fixture
def hangs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an engine whose maker hangs once the engine is loaded."""
    folder = written(tmp_path / "hangs", "later")
    ready = Served.ready

    def from_now_on(served: Any) -> Any:
        hello = ready(served)
        (folder / "once").touch()
        return hello

    monkeypatch.setattr(Served, "ready", from_now_on)
    return folder


NO_END = "it did not end within 3 s, in "


def test_a_maker_that_hangs_later_is_an_error_that_has_the_configuration(hangs_later: Path) -> None:
    with pytest.raises(EngineError) as told:
        checking.report_of(options(hangs_later))
    assert "the maker of allocator was called with {" in str(told.value)
    assert '"page_size"' in str(told.value)
    assert NO_END in str(told.value)


def test_a_maker_that_hangs_is_a_finding_where_the_base_is_built(hangs_later: Path, tmp_path: Path) -> None:
    report: Any = checking.report_of(options(hangs_later, written(tmp_path / "sound", "none")))
    (row,) = report["new"]
    assert (report["exit"], row["law"], row["trace"]["steps"]) == (codes.BROKEN, ANSWERED, [])
    assert row["detail"].startswith(f"the engine cannot be built: {NO_END}")
    assert row["detail"].endswith("in wait_for_ever")


@pytest.mark.soak
def test_a_maker_that_hangs_in_the_base_too_is_an_error(hangs_later: Path) -> None:
    with pytest.raises(EngineError, match=NO_END):
        checking.report_of(options(hangs_later, hangs_later))


@pytest.mark.soak
def test_a_base_that_takes_long_says_nothing_of_a_maker(
    hangs_later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a slow machine, where what takes long has an end."""
    monkeypatch.setattr(checking, "SOON", 0.0)
    with pytest.raises(EngineError, match=NO_END):
        checking.report_of(options(hangs_later, written(tmp_path / "sound", "none")))


@pytest.mark.parametrize(("limit", "ends"), [(0.2, False), (60.0, True), (None, True)])
def test_what_only_warms_up_is_given_up(limit: float | None, ends: bool) -> None:
    ended = False
    with suppress(GivesUp), given_up_after(limit):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            with suppress(Exception):
                time.sleep(0.01)
        ended = True
    assert ended == ends


def test_a_watch_counts_no_time_in_which_another_process_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda limit, **_: waits.append(limit))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: waits.append(None))
    monkeypatch.setattr(faulthandler, "enable", lambda _: None)
    monkeypatch.setattr(faulthandler, "disable", lambda: None)
    watch = watchdog.Watch(tmp_path / "death", 100.0)
    with watchdog.paused():
        assert waits == [100.0, None]
        time.sleep(0)
    assert waits == [100.0, None, 100.0], "it waits again, though it has just begun"
    watchdog.again()
    assert len(waits) == 3, "each time costs a thread"
    watch.end()
    watchdog.again()
    with watchdog.paused():
        pass
    assert waits[3:] == [None], "no watch, nothing to do"


def test_a_forked_process_has_no_watch(tmp_path: Path) -> None:
    """A call to the engine that comes in it begins no watch, and waits for no thread of its parent."""
    watch = watchdog.Watch(tmp_path / "death", 600.0)
    watch.since -= 600  # so long ago that each call would begin it again

    def calls() -> str:
        with watchdog.paused():
            watchdog.again()
        watch.again()
        watch.end()
        return "went on"

    try:
        assert forked(calls, seconds=5) == "went on"
        assert watchdog.written_in(tmp_path / "death") == ""
        assert (tmp_path / "death").exists(), "the watch of the parent goes on"
    finally:
        watch.end()


def test_check_has_the_option() -> None:
    import typer

    command = typer.main.get_command(app)
    (check,) = [found for name, found in command.commands.items() if name == "check"]  # type: ignore[attr-defined]
    (option,) = [parameter for parameter in check.params if "--call-limit" in parameter.opts]
    assert option.default == "60s"
