"""``slotproof campaign``: trials in many processes, what they add up to, and what is left when processes are killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import z3

from benchmarks import steering
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.toy import ToyAllocator
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search import check
from conformance.search.campaign import coverage, store, trial, workers
from conformance.search.campaign.coverage import KnownTransition
from conformance.search.campaign.known import Unknown, transitions
from conformance.search.campaign.store import Store, replace_text
from conformance.search.campaign.workers import EngineWorker, lost
from conformance.search.connection import EngineDied, Subject
from conformance.search.served import Progress, run_in
from conformance.stems import stem_registry
from conformance.stems.allocator.rules import AllocatorMachine
from conformance.stems.machine import Sink
from conformance.traces import trace_files
from conformance.traces.outcome import outcome
from proofs.obligations import call
from proofs.registry import STEMS, hints_of
from proofs.symbols import World, lift
from slotproof import cli
from slotproof.commands import campaign
from slotproof.commands.campaign import CampaignOptions, report_of
from slotproof.console import codes

ROOT = Path(__file__).resolve().parents[1]
SUBJECT: Json = {"engine": "toy", "release": None, "source": None, "device": "cpu", "options": {}}
ENGINES = """
import ctypes, time
from conformance.engines.toy import ToyAllocator

class Crashing(ToyAllocator):
    def free(self, slots):
        if len(slots) > 3:
            ctypes.string_at(0)
        super().free(slots)

class Hanging(ToyAllocator):
    def free(self, slots):
        while len(slots) > 3:
            time.sleep(1)
        super().free(slots)

class Slow(ToyAllocator):
    def extend(self, before, after, last):
        time.sleep(0.05)
        return super().extend(before, after, last)

def crashing(config): return Crashing(config["size"], config["page_size"])
def hanging(config): return Hanging(config["size"], config["page_size"])
def leaking(config): return ToyAllocator(config["size"], config["page_size"], leaks=True)
def slow(config): return Slow(config["size"], config["page_size"])
"""


@pytest.fixture
def engines(tmp_path: Path) -> Callable[[str], Subject]:
    """Makes the subject of an engine of ``ENGINES``."""
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "planted_engines.py").write_text(ENGINES)
    return lambda name: Subject(f"planted_engines:{name}", source=folder, stems=("allocator",))


def asked(number: int = 0, **more: Any) -> Json:
    """A trial of the stem ``allocator``."""
    told: Json = {"do": "trial", "run": str(number), "number": number, "stem": "allocator", "seed": 7, "engine": "toy"}
    told |= {"listed": None, "examples": 20, "steer": "", "seconds": 60.0, "limit": 60.0, "claims": True}
    return {**told, **{"replay": [], "known": [], "reached": [], "kept": []}, **more}


def played(make: Callable[[Json], Any] | None = None, **more: Any) -> Json:
    """The result of a trial in this process, on the toy."""
    loaded = registry.load("toy")
    if make is not None:
        loaded = registry.Loaded("toy", None, {"allocator": make})
    return trial.trial(loaded, asked(**more), lambda *_: None)


# Coverage.


def test_the_table_knows_every_transition_and_promise_of_the_law() -> None:
    known = transitions("allocator")
    assert [*known] == [*hints_of("allocator").stem.transitions]
    table = coverage.table("allocator", known, {})
    assert table["reached"] == 0
    assert {f"{name}: taken" for name in known} <= {*table["never_reached"]}
    assert "alloc_extend: refused, no room" in table["never_reached"]
    assert "free: refused, no room" not in table["never_reached"], "a free always fits"
    assert "bad input: free_again" in table["never_reached"]


def test_a_transition_that_no_rule_sends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = transitions("allocator")

    def missed() -> list[str]:
        result = played(registry.load("ours").makers["allocator"], examples=30)
        found: list[str] = coverage.table("allocator", known, coverage.from_rows(result["coverage"]))["never_reached"]
        return found

    whole = missed()
    without = type("AllocatorMachine", (AllocatorMachine,), {"clear": None})
    monkeypatch.setitem(stem_registry.ROOMS, "allocator", stem_registry.ROOMS["allocator"]._replace(machine=without))
    less = missed()
    assert "clear: taken" not in whole
    assert "clear: taken" in less


def test_counts_are_those_of_the_runs() -> None:
    result = played(examples=10)
    counts = coverage.from_rows(result["coverage"])
    (promises,) = [one.promises for name, one in transitions("allocator").items() if name == "alloc_extend"]
    assert counts["alloc_extend", "", "done"] > 0
    assert promises
    assert all(counts["alloc_extend", p, "done"] == counts["alloc_extend", "", "done"] for p in promises)
    assert coverage.from_rows(json.loads(json.dumps(coverage.rows(counts)))) == counts
    table = coverage.table("allocator", transitions("allocator"), counts)
    assert {"bad", "begin_group"} <= {*table["not_offered"]}
    assert not any(name.startswith("bad input") for name in table["never_reached"]), "the toy does not offer it"


# Trials.


def test_a_trial_is_repeated_by_its_seed() -> None:
    one, other, third = played(seed=3), played(seed=3), played(seed=4)
    assert one["coverage"] == other["coverage"]
    assert one["covering"] == other["covering"]
    assert one["coverage"] != third["coverage"]


def test_a_run_that_reaches_something_new_is_kept_and_can_begin_another() -> None:
    first = played()
    kept = [run["trace"] for run in first["covering"]]
    assert len(kept) > 3
    reached = [item for run in first["covering"] for item in run["items"]]
    again = played(kept=kept, reached=reached)
    assert again["coverage"] != first["coverage"], "some runs begin with a kept run"
    assert again["steps"] > 0
    assert all({*map(tuple, run["items"])}.isdisjoint(map(tuple, reached)) for run in again["covering"])


def test_the_page_on_steering_is_that_of_the_measurement() -> None:
    kept = json.loads((steering.FOLDER / "steering.json").read_text("utf-8"))
    assert (steering.FOLDER / "steering.md").read_text("utf-8") == steering.of_data(kept)
    assert {row["way"] for row in kept["rows"]} == {"", *trial.STEERED}
    assert all(len(row["numbers"]) == kept["seeds"] >= 10 for row in kept["rows"])


def test_steering_is_measured_on_equal_numbers_of_operations() -> None:
    make = registry.load("ours").makers[steering.STEM]
    sinks = [steering._drawn(make, way, 1, 60, (), goes_on=True) for way in steering.WAYS]
    assert [sink.steps for sink in sinks] == [60] * len(steering.WAYS)
    assert steering.until_found(FAULTS[steering.FOUND[0]].make, "", 1, 1) is None


@pytest.mark.parametrize("steer", trial.STEERED)
def test_a_steered_trial_draws_other_runs(steer: str) -> None:
    steered = played(steer=steer, examples=40)
    assert steered["runs"] >= 40
    assert steered["coverage"] != played(examples=40)["coverage"]
    assert steered["findings"] == []


def test_the_file_of_a_run_holds_it_whole_and_leaves_out_half_a_line(tmp_path: Path) -> None:
    progress, trace = Progress(lambda _: None, tmp_path / "run"), Trace("allocator", {"size": 3})
    for number in range(3):
        progress("drawn runs", trace, {"op": "clear", "n": number}, number)
        assert run_in(tmp_path / "run") == Trace("allocator", {"size": 3}, [*trace.steps, {"op": "clear", "n": number}])
        trace.steps.append({"op": "clear", "n": number})
    progress("drawn runs", trace, {"op": "free"}, 3)  # it is not sent
    progress("drawn runs", trace, {"op": "alloc"}, 3)
    shown = run_in(tmp_path / "run")
    assert shown is not None
    assert [step["op"] for step in shown.steps] == ["clear"] * 3 + ["alloc"]
    with (tmp_path / "run").open("ab") as file:
        file.write(b'{"op": "cl')
    assert run_in(tmp_path / "run") == shown
    other = Trace("swa_mapping", {}, [{"op": "clear"}])
    progress("a kept trace", other, None, 0)
    assert run_in(tmp_path / "run") == other
    assert run_in(tmp_path / "none") is None


class Declining(ToyAllocator):
    """It declines the end of a free group that is not open, and forgets a page."""

    groups = 0

    def begin_group(self) -> None:
        self.groups += 1

    def end_group(self) -> None:
        if not self.groups:
            raise RuntimeError("no group is open")
        self.groups -= 1

    def free(self, slots: Sequence[int]) -> None:
        pages = list(dict.fromkeys(slot // self.page_size for slot in slots))
        self.free_pages += pages[: 1 + (len(pages) < 2)]


def declining(config: Json) -> Any:
    made: Any = Declining(config["size"], config["page_size"])
    made.lacks = ("alloc", "backup", "restore", "bad")
    return made


def test_a_call_that_is_declined_is_declined_again_after_a_step_back() -> None:
    result = played(declining, examples=40)
    assert {row["law"] for row in result["findings"]} >= {"no_leak"}


# The folder.


def result(**more: Any) -> Json:
    """The result of a trial with nothing in it but ``more``."""
    return {**workers.NOTHING, "lost": None, **more}


def finding(*operations: str, law: str = "no_leak", **more: Any) -> Json:
    steps = [{"op": name} for name in operations]
    row = {"stem": "allocator", "law": law, "kind": "invariant", "severity": "violation", "times": 1}
    return {**row, "step": len(steps), "trace": {"stem": "allocator", "config": {}, "steps": steps}, **more}


def opened(folder: Path, seed: int | None = None, **subject: Any) -> Store:
    return Store.open(folder, {**SUBJECT, **subject}, seed, 99)


def test_a_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert (first.seed, first.seed_of(0) != first.seed_of(1)) == (99, True)
    rows = [["free", "", "done", 3], ["free", "a promise", "done", 3]]
    run = {"trace": {"stem": "allocator", "config": {"size": 3}, "steps": []}, "items": [["free", "", "done"]]}
    for number in (0, 2):
        first.add(asked(number), result(coverage=rows, runs=2, steps=9, covering=[run], findings=[finding("free")]))
    first.add(asked(5), lost("killed", "from outside", Trace("allocator", {}, [])))
    first.close()
    second = opened(tmp_path)
    assert second.done == {0, 2, 5}
    assert second.seed == 99
    known = second.stems["allocator"]
    assert (known.trials, known.runs, known.steps) == (3, 4, 18)
    assert known.counts == Counter({("free", "", "done"): 6, ("free", "a promise", "done"): 6})
    assert len(known.covering) == 1, "the second run reached nothing new"
    assert [f["times"] for f in second.findings] == [2]
    assert [one["seed"] for one in second.lost] == [7]
    assert second.as_json() == first.as_json()
    second.close()


def test_what_is_half_written_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened(tmp_path)
    first.add(asked(0), result(steps=5))
    before = (tmp_path / store.STATE).read_text()

    def killed(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr("os.fsync", killed)  # between the writing and the renaming
    with pytest.raises(SystemExit):
        first.add(asked(1), result(steps=5))
    first.close()
    assert (tmp_path / store.STATE).read_text() == before
    monkeypatch.undo()
    again = opened(tmp_path)
    assert again.done == {0}
    again.close()


def test_a_folder_is_of_one_campaign_and_of_one_process(tmp_path: Path) -> None:
    first = opened(tmp_path, seed=3)
    with pytest.raises(UsageError, match="another campaign works in this folder"):
        opened(tmp_path)
    first.close()
    with pytest.raises(UsageError, match=r"its campaign has the release None, not '0\.5\.23'"):
        opened(tmp_path, release="0.5.23")
    with pytest.raises(UsageError, match=r"--seed 4: the campaign in .* has the seed 3"):
        opened(tmp_path, seed=4)
    (tmp_path / store.STATE).write_text(json.dumps({**first.as_json(), "schema": 99}))
    with pytest.raises(UsageError, match="version 99"):
        opened(tmp_path)


def test_a_finding_is_one_where_law_kind_and_severity_are_one(tmp_path: Path) -> None:
    found = opened(tmp_path)
    assert found.add(asked(0), result(findings=[finding("extend", "extend", "free")])) != []
    assert found.add(asked(1), result(findings=[finding("extend", "free")])) == []
    assert found.add(asked(2), result(findings=[finding("extend", "finish")])) == []
    assert len(found.add(asked(3), result(findings=[finding("free", law="no_double_free")]))) == 1
    assert len(found.add(asked(4), result(findings=[finding("free", severity="latent")]))) == 1
    first = found.findings[0]
    assert (first["times"], first["trial"], len(found.findings)) == (3, 1, 3)
    assert [len(shape["trace"]["steps"]) for shape in first["shapes"]] == [2, 2], "the shortest for each last operation"
    for shape in first["shapes"]:
        assert json.loads((tmp_path / shape["file"]).read_text()) == shape["trace"]
    found.close()


def test_a_finding_whose_traces_no_longer_show_it_is_gone(tmp_path: Path) -> None:
    found = opened(tmp_path)
    found.add(asked(0), result(findings=[finding("free"), finding("free", law="other")]))
    (file, _), (other, _) = found.to_replay("allocator")
    found.add(asked(1), result(replayed=[[file, []], [other, [["other", "invariant", "violation"]]]]))
    assert [f["gone"] for f in found.findings] == [True, False]
    found.add(asked(2), result(again=[[["no_leak", "invariant", "violation"], 4]]))
    assert [(f["gone"], f["times"]) for f in found.findings] == [(False, 5), (False, 1)]
    found.close()


# Processes.


@pytest.fixture
def toy() -> Iterator[EngineWorker]:
    loaded = EngineWorker(Subject("toy"))
    yield loaded
    loaded.close()


def in_a_thread(work: Callable[[], Json]) -> Callable[[], Json]:
    """Begins the work. Returns a function that waits for its result."""
    kept: list[Json] = []
    thread = threading.Thread(target=lambda: kept.append(work()), daemon=True)
    thread.start()

    def result() -> Json:
        thread.join(60)
        return kept[0]

    return result


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The first value of the condition that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)
    return found


@pytest.mark.soak
def test_a_killed_worker_loses_its_trial_alone_and_so_does_the_server(toy: EngineWorker) -> None:
    heard = threading.Event()
    ended = in_a_thread(lambda: toy.trial(asked(0, examples=10**6), lambda _: heard.set()))
    assert heard.wait(60)
    (child,) = psutil.Process(toy.served.process.pid).children()
    child.kill()
    gone = ended()
    assert gone["lost"]["kind"] == workers.KILLED
    assert gone["lost"]["trace"]["steps"]
    assert gone["findings"] == []
    server = toy.served
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    done = toy.trial(asked(1))
    assert (done["lost"], done["runs"] >= 20, toy.served is server) == (None, True, False)


@pytest.mark.soak
def test_a_trial_that_waits_for_a_dead_server_is_begun_again(
    toy: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the server keeps its socket open for a moment, so that the trial is connected to nobody."""
    server = toy.served

    class Reset:
        def __enter__(self) -> Reset:
            return self

        def __exit__(self, *_: object) -> None: ...

        def ask(self, *_: object) -> None:
            server.process.kill()
            server.process.wait()
            raise EngineDied("Connection reset by peer")

    monkeypatch.setattr(server, "connect", Reset)
    done = toy.trial(asked(1))
    assert (done["lost"], done["findings"], toy.served is server) == (None, [], False)


def test_a_crash_and_a_hang_are_findings_with_their_seed(engines: Callable[[str], Subject], tmp_path: Path) -> None:
    words = {"crashing": "the process died: Segmentation fault, in ", "hanging": "the call did not end within 2 s, in "}
    for name, says in words.items():
        found = opened(tmp_path, engine=name) if name == "crashing" else None
        loaded = EngineWorker(engines(name))
        try:
            done = loaded.trial(asked(examples=1000, limit=2.0))
        finally:
            loaded.close()
        (row,) = done["findings"]
        assert (row["law"], row["severity"]) == ("lawful_call_is_answered", "violation")
        assert row["detail"].startswith(says)
        assert row["step"] == len(row["trace"]["steps"])
        if found is not None:
            assert [new["seed"] for new in found.add(asked(3), done) and found.findings] == [7]
            assert trace_files.load(str(tmp_path / found.findings[0]["shapes"][0]["file"])).trace.stem == "allocator"
            found.close()


def options(subject: Subject, folder: Path, seconds: float = 5.0, **more: Any) -> CampaignOptions:
    return CampaignOptions(subject, seconds, folder, stems=("allocator",), workers=2, **more)


def test_a_fault_is_one_finding_that_many_trials_find(engines: Callable[[str], Subject], tmp_path: Path) -> None:
    folder = tmp_path / "found"
    folder.mkdir()
    report = report_of(options(engines("leaking"), folder))
    violations = [f for f in report["findings"] if f["severity"] == "violation"]
    leaks = [f for f in violations if f["law"] == "no_leak"]
    assert report["exit"] == codes.BROKEN
    assert len(leaks) == 1
    assert leaks[0]["times"] > report["total"]["trials"] > 1, "each trial has met it"
    assert len(leaks[0]["trace"]["steps"]) <= 3
    valid(report)
    assert report["results"][0]["coverage"] == json.loads((folder / "coverage.json").read_text())["allocator"]
    kept = trace_files.load(str(folder / leaks[0]["shapes"][0]["file"])).trace
    leaking, whole = (
        (lambda config: ToyAllocator(config["size"], config["page_size"], leaks=True)),
        registry.load("toy"),
    )
    shown = outcome(kept, leaking).first
    assert shown is not None
    assert shown.law == "no_leak"
    assert outcome(kept, whole.makers["allocator"]).first is None, "the toy that does not leak"


def valid(report: Json) -> None:
    """The report is as its schema and its page say."""
    schema = json.loads((ROOT / "docs" / "campaign-report.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(report)))
    page = (ROOT / "docs" / "json.md").read_text("utf-8").partition("## `slotproof campaign`")[2]
    assert {name for name in report if f"`{name}`" not in page} == set()


def test_the_page_tells_every_field_as_the_schema_does() -> None:
    schema = json.loads((ROOT / "docs" / "campaign-report.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    page = (ROOT / "docs" / "json.md").read_text("utf-8").partition("## `slotproof campaign`")[2]
    of_check = json.loads((ROOT / "docs" / "check-report.schema.json").read_text("utf-8"))["$defs"]["finding"]
    told = [("", schema["properties"]), *((name, schema["$defs"][name]["properties"]) for name in TOLD)]
    for name, fields in told:
        for field, of in fields.items():
            if name != "finding" or of != of_check["properties"].get(field):
                said = of.get("description") or schema["$defs"][of["$ref"].rpartition("/")[2]]["description"]
                assert f"| `{field}` | {said} |" in page


TOLD = ("finding", "lost", "result", "coverage", "transition")
MARK = "SLOTPROOF_TEST_CAMPAIGN"


def marked(folder: Path) -> list[psutil.Process]:
    """The processes that a command of the campaign in the folder has started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.soak
def test_a_killed_campaign_goes_on_and_repeats_no_seed(tmp_path: Path) -> None:
    folder = tmp_path / "campaign"
    words = [sys.executable, "-m", "slotproof", "campaign", "toy", "--workers", "2", "-o", str(folder), "--for"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), MARK: str(folder), "SLOTPROOF_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen([*words, "60s"], env=env, stdout=subprocess.PIPE, text=True) as running:
        try:
            until(lambda: (folder / store.STATE).exists() and state(folder)["stems"])
            for process in marked(folder):
                if process.pid != running.pid and process.ppid() == running.pid:
                    process.kill()  # the process that does the campaign
            running.wait(30)
        finally:
            running.kill()
    until(lambda: not marked(folder), 20)
    before = state(folder)
    done = subprocess.run([*words, "5s"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == codes.HOLDS, done.stdout + done.stderr
    after = state(folder)
    assert after["seed"] == before["seed"]
    assert numbers(after) > numbers(before)
    one, other = before["stems"]["allocator"], after["stems"]["allocator"]
    assert other["trials"] == len(numbers(after)) > one["trials"] == len(numbers(before)), "each number once"
    assert {*map(tuple, (r[:3] for r in one["counts"]))} <= {*map(tuple, (r[:3] for r in other["counts"]))}
    assert sum(r[3] for r in other["counts"]) > sum(r[3] for r in one["counts"])
    assert marked(folder) == []


def state(folder: Path) -> Json:
    found: Json = json.loads((folder / store.STATE).read_text())
    return found


def numbers(data: Json) -> set[int]:
    return {*range(data["done"]["below"]), *data["done"]["also"]}


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install slotproof[ray]")
def test_trials_are_tasks_of_ray(tmp_path: Path) -> None:
    report = report_of(options(Subject("toy"), tmp_path, ray="local"))
    assert report["exit"] == codes.HOLDS
    assert report["total"]["trials"] >= 1
    assert report["lost"] == []
    valid(report)


# Bad arguments.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("toy --for 8", "--for 8: expected a time from 5s to 720h, such as 90s, 10m or 8h"),
        ("toy --for 1s", "--for 1s: expected a time"),
        ("toy --for nanh", "--for nanh: expected a time"),
        ("toy --for 10m --call-limit x", "--call-limit x: expected a time"),
        ("toy --workers 0", "--workers"),
        ("toy --steer most", "--steer"),
        ("toy alocator --for 5s", "did you mean allocator"),
        ("tyo --for 5s", "no engine 'tyo': there are ours"),
        ("toy --option core=rust --for 5s", "the engine toy has no option 'core'"),
        ("toy --for 5s -o {file}", "-o {file}: this is a file, a folder is wanted"),
        ("toy --release 1.0 --for 5s", "has neither releases nor sources"),
    ],
)
def test_bad_arguments_are_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.chdir(tmp_path)
    place = {"file": tmp_path / "file"}
    monkeypatch.setattr(sys, "argv", ["slotproof", "campaign", *words.format(**place).split()])
    assert cli.run() == codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(**place) in line
    assert {path.name for path in tmp_path.iterdir()} <= {"file", "campaign-toy-1.0"}, "an empty folder at most"


def test_the_law_is_read_without_a_solver_as_the_proofs_read_it() -> None:
    """What a transition promises, and whether it can be refused, of an unknown state and on symbols."""
    different = []
    for stem in STEMS:
        hints = hints_of(stem)
        for name, known in transitions(stem).items():
            step = call(hints, hints.stem.transitions[name], World()).step
            promises = tuple(dict.fromkeys(promise.sentence for promise in step.promises))
            refused = not z3.is_true(z3.simplify(lift(step.fits)))
            if known != KnownTransition(promises, refused):
                different.append(f"{stem}.{name}")
    assert different == []
    assert transitions("server") == transitions("cache"), "a room for whole servers follows the law of a stem"
    with pytest.raises(TypeError, match="may not branch"):
        bool(Unknown())


def test_ray_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--ray needs the extra 'ray': pip install 'slotproof\[ray\]'"):
        report_of(options(Subject("toy"), tmp_path, ray="local"))


def test_a_campaign_that_looked_at_little_is_no_verdict(tmp_path: Path) -> None:
    little = {"stem": "x", "steps": 199, "enough": False, "too_little": "199 operations, 200 are asked for"}
    no_verdict = (codes.FAILED, "not enough, so no verdict: x (199 operations, 200 are asked for)")
    assert campaign._exit({"findings": [], "lost": [], "results": [little]}) == no_verdict
    replace_text(tmp_path / "x", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    lacking = {"kind": workers.NO_VERDICT, "why": "it uses what is stood in for"}
    few: Json = {"findings": [], "lost": [lacking], "results": [{"stem": "x", "steps": 900, "enough": True}]}
    assert campaign._exit(few) == (codes.FAILED, "no verdict in 1 trials: it uses what is stood in for")
    found = {"severity": "latent", "gone": False}
    for own, gone, code in ((True, False, 1), (False, False, 0), (True, True, 0)):
        told: Json = {"subject": {"own": own}, "findings": [{**found, "gone": gone}], "lost": []}
        assert campaign._exit({**told, "results": [{"stem": "x", "steps": 900, "enough": True}]})[0] == code


def test_promises_of_a_transition_that_was_never_taken_are_not_named_each() -> None:
    known = {"one": KnownTransition(("it is free",), True), "two": KnownTransition(("it is held",), False)}
    counts = {("one", "", "done"): 2, ("one", "it is free", "refused"): 1}
    table = coverage.table("allocator", known, counts)
    assert 'one: taken, where "it is free"' in table["never_reached"]
    assert "two: taken" in table["never_reached"]
    assert not any("it is held" in name for name in table["never_reached"])


@pytest.mark.parametrize("stem", ["session_trim", "cache"])
def test_a_run_that_begins_in_a_free_group_leaves_it_first(stem: str) -> None:
    """A kept run may be cut while an engine processes results. No engine makes a batch there."""
    second: list[str] = []

    def before(trace: Trace, step: Json) -> None:
        if len(trace.steps) == 1:
            second.append(step["op"])

    sink = Sink(beginning=lambda config: Trace(stem, config, [{"op": "begin_group"}]), before=before)
    check.draw(stem, registry.load("ours").makers[stem], sink, check.Search(20))
    assert len(second) >= 20
    assert set(second) == {"end_group"}
