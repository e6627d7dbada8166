"""Engines in processes of their own: what they print, write or kill, and which base a subject is compared with."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from conformance.driver.lockstep import ANSWERED
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search import served as serving
from conformance.search.connection import EngineDied, Served, Subject, ToolError, _answer
from conformance.search.enough import OPERATIONS
from conformance.traces.outcome import Break, Outcome
from slotproof.checks import checking
from slotproof.checks.again import Again
from slotproof.checks.checking import CheckOptions
from slotproof.checks.subjects import DEFAULT, base_of
from slotproof.console import codes

ENGINE = """
import os, pathlib, signal, socket, sys, time
from conformance.engines.toy import ToyAllocator

MODE = "{mode}"

class Engine(ToyAllocator):
    def decode(self, after, last):
        slots = super().decode(after, last)
        if MODE in ("kills", "leaks, and kills") and slots is None:
            os.kill(os.getpid(), signal.SIGSEGV)
        if MODE == "slow":
            time.sleep(0.05)
        return slots

    def extend(self, before, after, last):
        print("an engine says something")
        if MODE == "calls":
            socket.create_connection(("127.0.0.1", {port}), timeout=2)
        if MODE == "slow":
            time.sleep(0.05)
        return super().extend(before, after, last)

def allocator(config):
    if MODE == "writes":
        pathlib.Path("~/written-by-an-engine").expanduser().write_text("x")
    return Engine(config["size"], config["page_size"], leaks=MODE in ("leaks", "leaks, and kills"))
"""
PLACE = "engine_of_a_test:allocator"
CONFIG = {"size": 2, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
FULL = Trace("allocator", CONFIG, [{"op": "extend", "rows": [0, 1], "more": [1, 1]}, {"op": "decode", "rows": [0]}])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))


def written(folder: Path, mode: str, port: int = 0) -> Path:
    """A folder with an engine that does what ``mode`` says."""
    folder.mkdir(parents=True, exist_ok=True)
    text = ENGINE.format(mode=mode, port=port)
    (folder / "engine_of_a_test.py").write_text(text)
    return folder


def subject(folder: Path, mode: str, port: int = 0) -> Subject:
    return Subject(PLACE, source=written(folder, mode, port))


def checked(options: CheckOptions) -> Any:
    return checking.report_of(options)


# A served engine.


def test_a_served_engine_answers_whatever_it_prints(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        hello = served.ready()
        assert hello["stems"] == ["allocator"]
        with served.connect() as one, served.connect() as other:
            assert one.outcome(FULL) == other.outcome(FULL) == Outcome()


def test_an_engine_that_kills_its_process_breaks_a_law_and_the_connection_goes_on(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "kills")) as served:
        served.ready()
        with served.connect() as connection:
            found = connection.outcome(FULL).first
            assert found is not None
            assert (found.law, found.step) == (ANSWERED, 2)
            assert connection.outcome(Trace("allocator", CONFIG, FULL.steps[:1])) == Outcome()


def test_no_process_of_a_served_engine_is_left(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        served.ready()
        with served.connect() as connection:
            connection.outcome(FULL)
            found = [psutil.Process(served.process.pid), *psutil.Process(served.process.pid).children(recursive=True)]
            assert len(found) >= 2
    _, alive = psutil.wait_procs(found, timeout=10)
    assert alive == []
    assert not served.scratch.exists()


def test_a_served_engine_ends_when_the_caller_is_gone(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        served.ready()
        assert served.process.stdin is not None
        served.process.stdin.close()
        assert served.process.wait(timeout=10) != 0


@pytest.mark.soak(but=2)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (Subject("nosuch"), "no engine 'nosuch'"),
        (Subject("ours", release="1.0"), "--release"),
        (Subject("nosuch_module:allocator"), "nosuch_module"),
        (Subject("toy", device="cuda"), "device"),
    ],
)
def test_what_cannot_be_loaded_is_an_engine_error(what: Subject, message: str) -> None:
    with Served(what) as served, pytest.raises(EngineError, match=message):
        served.ready()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_engine_on_cuda_is_driven_in_a_child_of_its_process() -> None:
    with Served(Subject("ours", device="cuda")) as served:
        served.ready()
        with served.connect() as connection:
            assert connection.outcome(FULL) == Outcome()


def test_an_engine_on_cuda_is_not_built_before_the_fork() -> None:
    made: list[str] = []
    loaded = registry.load("ours")

    def makes(stem: str, _: Json) -> None:
        made.append(stem)

    makers: dict[str, Callable[[Json], Any]] = {stem: partial(makes, stem) for stem in loaded.makers}
    warm = partial(serving._warm_up, watched=nullcontext, limit=None)
    warm(replace(loaded, makers=makers, device="cuda"), {*makers})
    assert made == []
    warm(replace(loaded, makers=makers), {*makers})
    assert set(made) == set(makers)


def test_an_engine_is_built_before_the_fork_for_the_stems_that_are_named() -> None:
    made: list[Json] = []
    makers: dict[str, Callable[[Json], Any]] = {"lock_ref": made.append, "cache": lambda _: pytest.fail("not named")}
    loaded = replace(registry.load("ours"), makers=makers)
    serving._warm_up(loaded, {"lock_ref", "no_such_stem"}, nullcontext, None)
    assert len(made) == 1


def test_a_stem_that_an_engine_has_not_can_be_compared_with_nothing(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        served.ready()
        with served.connect() as connection:
            assert connection.outcome(Trace("cache", {}, [])) == Outcome((), "it has no cache to drive", 1)
            with pytest.raises(EngineError, match="has no cache to drive"):
                connection.ask({"do": "alone", "stem": "cache"})


def test_a_failure_of_ours_in_the_process_is_one_here_with_its_report(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        served.ready()
        with served.connect() as connection, pytest.raises(ToolError, match="KeyError") as caught:
            connection.ask({"do": "outcome", "stem": "allocator"})
        assert "Traceback" in caught.value.report
    with pytest.raises(EngineError, match="torn"):
        _answer({"error": "torn", "kind": "engine"})


def test_a_connection_to_a_dead_process_says_so(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "sound")) as served:
        served.ready()
        with served.connect() as connection:
            served.kill()
            with pytest.raises(EngineDied):
                connection.ask({"do": "outcome", "stem": "allocator", "trace": FULL.as_json()})


# The fence around it.


def test_an_engine_writes_to_a_scratch_home(tmp_path: Path) -> None:
    with Served(subject(tmp_path, "writes")) as served:
        served.ready()
        with served.connect() as connection:
            assert connection.outcome(FULL) == Outcome()
        assert (served.scratch / "home" / "written-by-an-engine").exists()
    assert not Path("~/written-by-an-engine").expanduser().exists()


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_an_engine_reaches_no_network_or_the_check_says_that_it_may(tmp_path: Path, port: int) -> None:
    with Served(subject(tmp_path, "calls", port)) as served:
        isolation = served.ready()["isolation"]
        with served.connect() as connection:
            reached = connection.outcome(FULL) == Outcome()
    assert reached == isolation["network"].startswith("open")


# A whole check.


def options(what: Subject, base: Path | None = None, **more: Any) -> CheckOptions:
    given = {"examples": 40, "seed": 1, "stems": ("allocator",), "again": False, **more}
    return CheckOptions(what, base=None if base is None else str(base), **given)


@pytest.mark.soak
def test_a_leak_is_new_beside_a_sound_folder_and_known_beside_itself(tmp_path: Path) -> None:
    sound, leaks = written(tmp_path / "sound", "sound"), subject(tmp_path / "leaks", "leaks")
    report = checked(options(leaks, sound))
    assert (report["exit"], {row["law"] for row in report["new"]}) == (codes.BROKEN, {"no_leak"})
    assert report["new"][0]["story"]
    again = checked(options(leaks, tmp_path / "leaks"))
    assert (again["exit"], again["reason"], again["new"]) == (codes.HOLDS, "nothing new", [])
    assert {row["law"] for row in again["known"]} == {"no_leak"}


@pytest.mark.soak
def test_an_engine_that_kills_its_process_is_a_finding_with_the_run_that_did_it(tmp_path: Path) -> None:
    sound, kills = written(tmp_path / "sound", "sound"), subject(tmp_path / "kills", "kills")
    for base in (sound, None):
        report = checked(options(kills, base))
        assert report["exit"] == codes.BROKEN
        row = report["new"][0]
        assert (row["law"], row["severity"]) == (ANSWERED, "violation")
        assert row["trace"]["steps"][-1]["op"] == "decode"
    known = checked(options(kills, tmp_path / "kills"))
    assert (known["new"], known["known"][0]["law"]) == ([], ANSWERED)
    assert known["exit"] == codes.FAILED, "no run came to its end, so nothing can be said of the rest"


def test_a_death_after_other_findings_does_not_hide_them(tmp_path: Path) -> None:
    """What the search has found is lost with the process; the next one ends with its first finding."""
    report = checked(options(subject(tmp_path, "leaks, and kills"), examples=200))
    assert {"no_leak", ANSWERED} <= {row["law"] for row in report["new"]}


def test_a_search_leaves_time_to_name_the_causes_of_an_engine_that_has_some() -> None:
    def kept(engine: str, budget: float | None, base: str | None = None) -> float:
        return checking._kept_for_naming(CheckOptions(Subject(engine), base=base, budget=budget))

    assert 0 < kept("sglang", 100.0) == kept("sglang", 100.0, "0.5.23") < 20
    assert [kept("toy", 100.0), kept("sglang", None)] == [0.0, 0.0]


@pytest.mark.soak
def test_the_minimum_of_operations_wins_over_the_budget_and_the_overrun_is_told(tmp_path: Path) -> None:
    slow = subject(tmp_path / "slow", "slow")
    report = checked(options(slow, examples=None, budget=4.0))
    (result,) = report["results"]
    assert (report["exit"], result["enough"]) == (codes.HOLDS, True)
    assert result["steps"] >= OPERATIONS
    assert report["over"] > 0


@pytest.mark.soak
def test_runs_that_failed_are_replayed_first_and_forgotten_when_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    sound, folder = written(tmp_path / "sound", "sound"), tmp_path / "new"
    new = subject(folder, "leaks")
    assert checked(options(new, sound, again=True))["exit"] == codes.BROKEN
    kept = Again(PLACE, kept=True)
    names = [name for name, _ in kept.of("allocator")]
    assert names
    first = checked(options(new, sound, again=True, examples=1, seed=3))
    (found,) = first["new"]
    assert found["name"] in names, "found without a drawn run"
    assert kept.of("allocator"), "and kept on"
    written(folder, "sound")
    assert checked(options(new, sound, again=True))["exit"] == codes.HOLDS
    assert kept.of("allocator") == []


def test_a_run_that_needs_repairs_is_kept_where_engines_were_not_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("slotproof.checks.again.cache_folder", lambda: tmp_path)

    def finding(number: int, *repairs: str, stem: str = "allocator") -> Json:
        config = {"size": number, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
        trace = Trace(stem, config, [{"op": "extend", "rows": [0], "more": [1]}])
        return Break("violation", 0, "no_leak", "", "", "").row(trace, repaired=[*repairs])

    kept, numbers = Again(PLACE, kept=True), [1, 2]
    plain, repaired = finding(1), finding(2, "a_cause")
    kept.keep([plain, repaired], ["allocator"])

    def known() -> list[int]:
        return sorted(trace["config"]["size"] for _, trace in kept.of("allocator"))

    assert known() == numbers
    kept.keep([plain], ["allocator"])
    assert known() == numbers, "the search ended before engines were repaired"
    kept.keep([finding(3, stem="lock_ref")], ["lock_ref"])
    assert known() == numbers, "another stem"
    kept.keep([repaired], ["allocator"])
    assert known() == [2]
    kept.keep([], ["allocator"])
    assert known() == []


@pytest.mark.soak
def test_in_continuous_integration_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    sound = written(tmp_path / "sound", "sound")
    checked(options(subject(tmp_path / "new", "leaks"), sound, again=True))
    assert not (tmp_path / "cache" / "failed").exists()


# Which base.


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout with a sound engine on ``main``, a branch that is ahead by a leak, and a change on top of it."""
    folder = written(tmp_path / "checkout" / "python", "sound")
    git(tmp_path / "checkout", "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "sound")
    git(folder, "checkout", "-qb", "change")
    written(folder, "leaks")
    git(folder, "commit", "-qam", "a leak")
    return folder


@pytest.mark.soak
def test_the_default_base_is_the_merge_base_with_the_main_branch(checkout: Path, tmp_path: Path) -> None:
    base = base_of(Subject(PLACE, source=checkout), DEFAULT, tmp_path / "scratch")
    assert base.subject.source is not None
    assert "sound" in (base.subject.source / "engine_of_a_test.py").read_text()
    assert "the merge base with main" in base.why
    assert git(checkout, "rev-parse", "main")[:12] in base.why
    assert git(checkout, "status", "--porcelain") == ""
    report = checked(replace_base(options(Subject(PLACE, source=checkout)), DEFAULT))
    assert (report["exit"], report["base"]["why"]) == (codes.BROKEN, base.why)


def replace_base(asked: CheckOptions, base: str) -> CheckOptions:
    return CheckOptions(**{**asked.__dict__, "base": base})


def test_a_revision_and_a_folder_are_bases(checkout: Path, tmp_path: Path) -> None:
    what = Subject(PLACE, source=checkout)
    head = base_of(what, "HEAD", tmp_path / "scratch")
    assert head.subject.source is not None
    assert "leaks" in (head.subject.source / "engine_of_a_test.py").read_text()
    assert "the git revision HEAD" in head.why
    folder = base_of(what, str(checkout), tmp_path / "scratch")
    assert folder.subject.source == checkout
    with pytest.raises(EngineError, match="no such folder, and no git revision"):
        base_of(what, "nosuch", tmp_path / "scratch")


def test_changes_on_the_main_branch_are_compared_with_its_head(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "checkout", "-q", "main")
    written(checkout, "leaks")
    base = base_of(Subject(PLACE, source=checkout), DEFAULT, tmp_path / "scratch")
    assert "changes that are not committed are judged" in base.why


def test_a_source_that_says_its_release_is_compared_with_it(tmp_path: Path) -> None:
    package = tmp_path / "source" / "sglang"
    (package / "srt" / "mem_cache").mkdir(parents=True)
    (package / "_version.py").write_text('__version__ = version = "0.5.14"\n')
    base = base_of(Subject("sglang", source=tmp_path / "source"), DEFAULT, tmp_path / "scratch")
    assert (base.subject.release, base.subject.source) == ("0.5.14", None)
    assert "the release that the source says it is" in base.why
    (package / "_version.py").write_text('__version__ = version = "0.5.15.dev3+gabc"\n')
    with pytest.raises(EngineError, match="does not say which release it is"):
        base_of(Subject("sglang", source=tmp_path / "source"), DEFAULT, tmp_path / "scratch")
    release = base_of(Subject("sglang", source=tmp_path / "source"), "0.5.12", tmp_path / "scratch")
    assert (release.subject.release, release.why) == ("0.5.12", "sglang 0.5.12")


def test_without_a_source_the_default_base_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="needs --source"):
        base_of(Subject("sglang", release="0.5.14"), DEFAULT, tmp_path)


@pytest.mark.parametrize(("budget", "seconds"), [("60s", 60), ("10m", 600), ("7", 7), (None, None)])
def test_a_budget_is_a_time(budget: str | None, seconds: float | None) -> None:
    assert checking.seconds(budget, None) == seconds
    assert checking.seconds(None, Path()) == 60


@pytest.mark.parametrize("budget", ["", "s", "-5s", "1s", "5h", "nan", "inf", "1e9"])
def test_what_is_no_time_is_refused(budget: str) -> None:
    with pytest.raises(ValueError, match="expected a time from 5s to 24 hours"):
        checking.seconds(budget, None)
