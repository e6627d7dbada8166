"""A scheduler of vLLM is recorded while it serves, and the recording is judged."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import short_runs
from recording_parts_plants import PARTS
from recording_plants import PLANTS, Core, Plant
from typer.testing import CliRunner

from conformance.driver.lockstep import INVARIANT
from conformance.driver.naming import UsageError
from conformance.engines.vllm import PLUGIN, RELEASES
from conformance.engines.vllm import recording as of_engine
from conformance.engines.vllm.load import LoadedScheduler, ServerLoad
from conformance.engines.vllm.recording.layout import NotRecordable
from conformance.engines.vllm.recording.recorder import Recorder
from conformance.engines.vllm.release import VLLMRelease
from conformance.recording import asked
from conformance.recording.block_records import RecordedCall, RecordedStart, unpacked
from conformance.recording.segments import UNIT, NotARecording, SegmentWriter, records
from conformance.stems.block_cache.recorded.judged import JudgedRecording, judged, watched
from slotproof import record
from slotproof.cli import app
from slotproof.console.codes import BROKEN, HOLDS, USAGE

pytestmark = pytest.mark.engine
NEWEST = RELEASES[-1]
KEY = bytes(32)
LOADS: list[dict[str, Any]] = [
    {},
    {"blocks": 120},
    {"blocks": 150, "aborts": 20, "resets": 30},
    {"blocks": 120, "drafts": 3, "steps_in_flight": 1},
    {"blocks": 120, "drafts": 2, "resets": 20},
    {"blocks": 200, "window": 40, "steps_in_flight": 1},
]


def release_of(version: str = NEWEST) -> VLLMRelease:
    return PLUGIN._import(version, None)


def recorded(path: Path, load: dict[str, Any], steps: int, seed: int = 1, version: str = NEWEST) -> Recorder:
    """Records so many steps of a scheduler under load."""
    loaded = LoadedScheduler(release_of(version), ServerLoad(**load), seed)
    recorder = Recorder(loaded.scheduler, SegmentWriter(path), KEY)
    for _ in loaded.steps(steps):
        pass
    recorder.stop()
    assert recorder.failure is None
    return recorder


# What an unmodified release does keeps the law.


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_release_under_load_keeps_the_law(tmp_path: Path, load: dict[str, Any]) -> None:
    recorder = recorded(tmp_path / "a", load, 300)
    verdict = judged(tmp_path / "a")
    assert verdict.broken is None
    assert verdict.calls == recorder.calls > 600
    assert {"add_request", "schedule", "update_from_output"} <= {*verdict.by_function}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("version", RELEASES[-3:])
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_each_release_under_load_keeps_the_law(tmp_path: Path, load: dict[str, Any], version: str, seed: int) -> None:
    recorded(tmp_path / "a", load, 2000, seed, version)
    assert judged(tmp_path / "a").broken is None


@pytest.mark.soak
def test_all_laws_say_what_the_changes_say(tmp_path: Path) -> None:
    """With every law evaluated after each call the verdict stays, on a lawful recording and on a wrong one."""
    small = {"requests": 3, "blocks": 24, "block_size": 4, "prompt": 20, "outputs": 8}
    recorded(tmp_path / "a", small, 80)
    assert judged(tmp_path / "a", often=1).broken is None
    rare, _ = judged_with(named("touch_forgets_a_holder"), tmp_path / "b", skips=3, load=small)
    always = judged(tmp_path / "b", often=1)
    assert rare.broken is not None
    assert always.broken is not None
    assert (rare.calls, rare.broken.law) == (always.calls, always.broken.law)


# Bugs.


def core_of(release: VLLMRelease) -> Core:
    module = release.imported.module
    single, pool = module("v1.core.single_type_kv_cache_manager"), module("v1.core.block_pool")
    manager, scheduler = module("v1.core.kv_cache_manager"), module("v1.core.sched.scheduler")
    return Core(
        pool.BlockPool,
        single.SingleTypeKVCacheManager,
        single.SlidingWindowManager,
        manager.KVCacheManager,
        scheduler.Scheduler,
        single.FullAttentionManager,
    )


@contextmanager
def planted(plant: Plant, happens: Callable[[], bool]) -> Iterator[None]:
    """The release has a bug."""
    owner, name, function = plant(core_of(release_of()), happens)
    before = owner.__dict__.get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_call_is_named(tmp_path: Path, plant: Plant) -> None:
    verdict, call = judged_with(plant, tmp_path / "a", skips=40)
    assert verdict.broken is not None
    assert verdict.calls == call


@pytest.mark.soak
@pytest.mark.parametrize("skips", [0, 7, 90, 200])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_call_is_named_wherever_it_is(tmp_path: Path, plant: Plant, skips: int) -> None:
    verdict, call = judged_with(plant, tmp_path / "a", skips)
    assert verdict.broken is not None
    assert verdict.calls == call


def named(name: str) -> Plant:
    """The plant with this name."""
    return next(plant for plant in PLANTS if plant.__name__ == name)


def judged_with(
    plant: Plant, path: Path, skips: int, load: dict[str, Any] | None = None
) -> tuple[JudgedRecording, int]:
    """The verdict on a release with a bug, which happens once, after ``skips`` chances; and the call in which it
    happens.
    """
    recorder: Recorder | None = None
    chances, calls = 0, []

    def happens() -> bool:
        nonlocal chances
        if recorder is None:
            return False
        chances += 1
        calls.extend([recorder.calls + 1] if chances == skips + 1 else [])
        return chances == skips + 1

    with planted(plant, happens):
        loaded = LoadedScheduler(release_of(), ServerLoad(**(PLANTS[plant] if load is None else load)), 1)
        recorder = Recorder(loaded.scheduler, SegmentWriter(path), KEY)
        try:
            for _ in loaded.steps(4000):
                if calls and recorder.calls > calls[0] + 50:
                    break
        except (AssertionError, RuntimeError, KeyError, ValueError):
            pass  # the release notices the bug later
    recorder.stop()
    assert recorder.failure is None
    assert calls, "the bug did not happen"
    return judged(path), calls[0]


# What a recording has, and what it has not.


class Renamed(LoadedScheduler):
    """The load with other tokens: each is another number, and equal ones stay equal."""

    def _tokens(self, count: int) -> list[int]:
        return [(token * 7919) % 1000003 + 5000 for token in super()._tokens(count)]


@pytest.mark.parametrize("load", [{"blocks": 150}, PARTS], ids=["plain", "parts"])
def test_a_recording_has_no_text(tmp_path: Path, load: dict[str, Any]) -> None:
    """Two runs that are equal but for a bijection of token ids give recordings that differ in digests and times
    alone; and those have different digests where the keys differ.
    """
    made = []
    for number, (kind, key) in enumerate([(LoadedScheduler, KEY), (Renamed, KEY), (LoadedScheduler, bytes(31) + b"1")]):
        loaded = kind(release_of(), ServerLoad(**load), 1)
        recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / f"{number}"), key)
        for _ in loaded.steps(150):
            pass
        recorder.stop()
        made.append([msgpack.unpackb(one, strict_map_key=False) for one in records(tmp_path / f"{number}")])
    digests: list[list[bytes]] = [[], [], []]
    shapes = [[masked(one, digests[number]) for one in each] for number, each in enumerate(made)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(digests[0]) > 50
    for other in (1, 2):
        assert not {*digests[0]} & {*digests[other]}
        pairs = {*zip(digests[0], digests[other], strict=True)}
        assert len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})  # a bijection


def masked(value: Any, digests: list[bytes], depth: int = 0) -> Any:
    """A record without its time and its digests, which are collected. ``depth``: 0 for the record itself."""
    if isinstance(value, bytes) and len(value) == 8 and depth > 2:
        digests.append(value)
        return "digest"
    if isinstance(value, list):
        return [None if depth == 0 and at == 1 else masked(one, digests, depth + 1) for at, one in enumerate(value)]
    return value


@pytest.mark.parametrize("more", [{}, {**PARTS, "blocks": 150}], ids=["plain", "parts"])
def test_recording_changes_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    """Step by step, a scheduler that is recorded does what one does that is not."""
    load = ServerLoad(**{"blocks": 120, "drafts": 2, "steps_in_flight": 1, "aborts": 10, "resets": 20, **more})
    both = [LoadedScheduler(release_of(), load, 3) for _ in range(2)]
    recorder = Recorder(both[1].scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in range(300):
        for each in both:
            each.step()
        assert shown(both[0]) == shown(both[1])
    recorder.stop()
    assert recorder.calls > 600


def shown(loaded: LoadedScheduler) -> Any:
    manager = loaded.scheduler.kv_cache_manager
    tables = {name: manager.get_block_ids(name) for name in loaded.scheduler.requests}
    counts = [block.ref_cnt for block in manager.block_pool.blocks]
    return tables, counts, [(name, one.num_computed_tokens) for name, one in loaded.scheduler.requests.items()]


class OnDevice:
    """Stands for a tensor on a device: whoever reads it would wait for the device."""

    def _waits(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a hook waits for the device")

    item = tolist = cpu = numpy = to = __bool__ = __len__ = __iter__ = __getitem__ = __int__ = __eq__ = _waits
    __hash__ = object.__hash__


@pytest.mark.parametrize("more", [{}, {**PARTS, "blocks": 150}], ids=["plain", "parts"])
def test_no_hook_waits_for_a_device(tmp_path: Path, more: dict[str, Any]) -> None:
    """What may be a tensor of a device, in what the hooks are given, is never read."""
    load = {"blocks": 120, "drafts": 2, "steps_in_flight": 1, "aborts": 10, "resets": 20, **more}
    loaded = LoadedScheduler(release_of(), ServerLoad(**load), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    update, add = loaded.scheduler.update_from_output, loaded.scheduler.add_request
    given = {"outputs": 0, "requests": 0}

    def update_from_output(output: Any, answer: Any) -> Any:
        given["outputs"] += 1
        vars(output)["on_device"] = OnDevice()
        return update(output, dataclasses.replace(answer, logprobs=OnDevice(), sampling_masks=OnDevice()))

    def add_request(request: Any) -> Any:
        given["requests"] += 1
        request.on_device = OnDevice()
        return add(request)

    loaded.scheduler.update_from_output, loaded.scheduler.add_request = update_from_output, add_request
    for _ in loaded.steps(100):
        pass
    recorder.stop()
    assert recorder.failure is None
    assert min(given.values()) > 20


class Handler:
    """A caller that is no engine: it has a method for requests of another kind."""

    def handle(self, request: object, work: Callable[[], Any]) -> Any:
        """Handles a request."""
        assert request
        return work()


def test_only_the_engine_says_for_which_request_it_acts(tmp_path: Path) -> None:
    """A server whose own methods have a request as their first argument stands above the scheduler on the stack."""
    loaded = LoadedScheduler(release_of(), ServerLoad(resets=100), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in range(60):
        Handler().handle(object(), loaded.step)
    recorder.stop()
    assert recorder.failure is None
    assert judged(tmp_path / "a").by_function["reset_prefix_cache"] > 0


def test_a_server_needs_the_standard_library_and_msgpack_alone() -> None:
    program = """
import sys
before = {*sys.modules}
from slotproof import record
from conformance.engines.vllm.recording import recorder
more = {name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names}
print(sorted(name for name in more if "cython" not in name))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['conformance', 'msgpack', 'slotproof']"


# A recording may begin in the middle, and end anywhere.


def test_a_recording_begins_in_the_middle(tmp_path: Path) -> None:
    for number, load in enumerate(LOADS[2:5]):
        loaded = LoadedScheduler(release_of(), ServerLoad(**load), 1)
        for _ in loaded.steps(100):
            pass
        recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / f"{number}"), KEY)
        for _ in loaded.steps(200):
            pass
        recorder.stop()
        verdict = judged(tmp_path / f"{number}")
        assert verdict.start.requests
        assert verdict.broken is None
        assert verdict.calls > 350


def test_the_state_with_which_a_recording_begins_is_judged(tmp_path: Path) -> None:
    loaded = LoadedScheduler(release_of(), ServerLoad(), 1)
    for _ in loaded.steps(100):
        pass
    held = next(block for block in loaded.scheduler.kv_cache_manager.block_pool.blocks if block.ref_cnt > 0)
    held.ref_cnt += 1
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in loaded.steps(5):
        pass
    recorder.stop()
    verdict = judged(tmp_path / "a")
    assert verdict.calls == 0
    assert verdict.broken is not None
    assert verdict.broken.law == "count_is_holders"


def test_a_ring_is_judged_from_its_oldest_state_on(tmp_path: Path) -> None:
    for load in LOADS[3:]:
        loaded = LoadedScheduler(release_of(), ServerLoad(**load), 1)
        recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a", UNIT + 16 * UNIT, UNIT), KEY)
        for _ in loaded.steps(400):
            pass
        recorder.stop()
        verdict = judged(tmp_path / "a")
        assert verdict.broken is None
        assert verdict.starts > 1
        assert 0 < verdict.calls < recorder.calls


def test_a_wrong_count_that_no_call_names_is_seen_when_the_state_is_shown(tmp_path: Path) -> None:
    loaded = LoadedScheduler(release_of(), ServerLoad(resets=0), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a", None, UNIT), KEY)
    for number in loaded.steps(400):
        if number == 100:
            pool = loaded.scheduler.kv_cache_manager.block_pool
            next(block for block in pool.blocks if block.ref_cnt > 0 and not block.is_null).ref_cnt += 1
    recorder.stop()
    verdict = judged(tmp_path / "a")
    assert verdict.broken is not None
    assert verdict.broken.kind == INVARIANT


def test_a_recording_is_judged_while_it_is_written(tmp_path: Path) -> None:
    """Whoever watches says at once what is said afterwards, and each look judges what has come since the last one."""
    seen: list[int] = []
    loaded = LoadedScheduler(release_of(), ServerLoad(blocks=120), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a", UNIT + 40 * UNIT, UNIT), KEY)

    def goes_on(verdict: JudgedRecording | None) -> bool:
        assert verdict is not None
        seen.append(verdict.calls)
        for _ in loaded.steps(5):
            pass
        return len(seen) < 60

    watching = watched(tmp_path / "a", goes_on)
    assert watching is not None
    assert watching.broken is None
    assert seen[-1] == watching.calls > 500
    assert len({*seen}) == len(seen)
    recorder.stop()


def test_who_watches_ends_with_the_first_wrong_call(tmp_path: Path) -> None:
    verdict, call = judged_with(named("block_is_freed_twice"), tmp_path / "a", skips=3)
    found = watched(tmp_path / "a", lambda _: False)
    assert found is not None
    assert (found.calls, str(found.broken)) == (verdict.calls, str(verdict.broken))
    assert found.calls == call


def test_who_reads_too_slowly_is_told(tmp_path: Path) -> None:
    loaded = LoadedScheduler(release_of(), ServerLoad(blocks=120), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a", UNIT + 16 * UNIT, UNIT), KEY)

    def sleeps(_: JudgedRecording | None) -> bool:
        for _step in loaded.steps(600):
            pass
        return True

    with pytest.raises(NotARecording, match="was written over before it was read"):
        watched(tmp_path / "a", sleeps)
    recorder.stop()


def test_a_recording_that_is_cut_has_no_false_verdict(tmp_path: Path) -> None:
    recorded(tmp_path / "a", {"blocks": 120}, 120)
    whole = (tmp_path / "a").read_bytes()
    calls = judged(tmp_path / "a").calls
    used = len(whole.rstrip(b"\0"))
    for cut in range(UNIT + 100, used, used // 12):
        (tmp_path / "b").write_bytes(whole[:cut])
        try:
            verdict = judged(tmp_path / "b")
        except NotARecording:
            continue
        assert verdict.broken is None
        assert verdict.calls <= calls


# A server goes on, whatever becomes of its recording.


def test_a_hook_that_fails_ends_the_recording_and_not_the_server(tmp_path: Path) -> None:
    loaded = LoadedScheduler(release_of(), ServerLoad(), 1)
    recorder = Recorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for number in loaded.steps(60):
        if number == 30:
            recorder._numbers = {}  # every hook that looks a request up fails from now on
    assert isinstance(recorder.failure, KeyError)
    assert judged(tmp_path / "a").broken is None


def test_what_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotRecordable, match="scheduler: object has no add_request, schedule"):
        Recorder(object(), SegmentWriter(tmp_path / "a"), KEY)
    with pytest.raises(ValueError, match="of builtins is of no engine that can be recorded"):
        record.start(object(), tmp_path / "b")
    loaded = LoadedScheduler(release_of(), ServerLoad(), 1)
    with pytest.raises(ValueError, match="key: 3 bytes"):
        record.start(loaded.scheduler, tmp_path / "b", key=b"abc")
    assert not (tmp_path / "b").exists()
    recorder = record.start(loaded.scheduler, tmp_path / "b")
    loaded.step()
    recorder.stop()
    assert judged(tmp_path / "b").calls > 0


def test_the_plug_in_records_what_the_environment_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = core_of(release_of()).scheduler
    monkeypatch.setattr(scheduler, "__init__", scheduler.__init__)
    monkeypatch.setenv(asked.FILE, str(tmp_path / "server-%p.rec"))
    asked.on_each(scheduler, of_engine.record)
    loaded = LoadedScheduler(release_of(), ServerLoad(), 1)
    for _ in loaded.steps(20):
        pass
    loaded.scheduler.slotproof_recorder.stop()
    assert judged(tmp_path / f"server-{os.getpid()}.rec").calls > 40


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [(asked.BYTES, "many", "a number of bytes"), (asked.BYTES, "100", "ring: 100 bytes"), (asked.KEY, "xy", "digits")],
)
def test_a_server_whose_recording_cannot_begin_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str, says: str
) -> None:
    scheduler = core_of(release_of()).scheduler
    monkeypatch.setattr(scheduler, "__init__", scheduler.__init__)
    monkeypatch.setenv(asked.FILE, str(tmp_path / "a"))
    monkeypatch.setenv(name, value)
    asked.on_each(scheduler, of_engine.record)
    LoadedScheduler(release_of(), ServerLoad(), 1).step()
    assert says in caplog.text


# The commands.


def test_the_commands_record_and_judge(tmp_path: Path) -> None:
    path = str(tmp_path / "a.rec")
    run = CliRunner().invoke
    made = run(app, ["record", "--demo", "vllm", "--release", NEWEST, "--steps", "60", "-o", path])
    assert made.exit_code == HOLDS
    found = run(app, ["judge", path])
    assert found.exit_code == HOLDS
    assert "no law is broken in " in found.output


def test_the_command_says_that_a_scheduler_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = release_of(NEWEST).imported.module("v1.core.kv_cache_manager")
    monkeypatch.setattr(found, "get_kv_cache_coordinator", None)
    path = tmp_path / "a.rec"
    made = CliRunner().invoke(app, ["record", "--demo", "vllm", "--release", NEWEST, "--steps", "5", "-o", str(path)])
    assert isinstance(made.exception, UsageError)
    assert "--demo vllm: its scheduler cannot be built: the engine raised TypeError: " in str(made.exception)
    assert not path.exists()


def test_the_command_names_the_first_wrong_call(tmp_path: Path) -> None:
    verdict, call = judged_with(named("touch_forgets_a_holder"), tmp_path / "a", skips=3)
    found = CliRunner().invoke(app, ["judge", str(tmp_path / "a")])
    assert found.exit_code == BROKEN
    assert f"the first wrong call is call {call}, schedule at " in found.output
    assert verdict.broken is not None
    assert f"law {verdict.broken.law}" in found.output


@pytest.mark.soak
def test_a_short_run_with_the_broken_law_is_found(tmp_path: Path) -> None:
    """From the recording to a run of a few operations on a small pool of the code that was recorded, and its test. On
    the release as it is this run keeps the law.
    """
    plant = named("touch_forgets_a_holder")
    judged_with(plant, tmp_path / "a", skips=3)
    test = "test_found_by_slotproof_count_is_holders_"
    bug = planted(plant, lambda: True)
    short_runs.must_be_found(tmp_path / "a", "vllm", NEWEST, "block_cache", bug, test, most=8)


def test_an_engine_that_raises_under_load_is_recorded_up_to_there(tmp_path: Path) -> None:
    path = str(tmp_path / "a.rec")
    with planted(named("held_block_is_handed_out"), lambda: True):
        made = CliRunner().invoke(app, ["record", "--demo", "vllm", "--release", NEWEST, "--steps", "400", "-o", path])
    assert made.exit_code == HOLDS
    assert "and then the engine raised " in made.output
    assert judged(Path(path)).broken is not None


def test_the_command_refuses_what_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    for path in (tmp_path / "a", tmp_path / "none"):
        found = subprocess.run(
            [sys.executable, "-m", "slotproof", "judge", str(path)], capture_output=True, text=True, check=False
        )
        assert found.returncode == USAGE
        assert "Traceback" not in found.stderr


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded(tmp_path / "a", {"blocks": 120}, 40)
    first, *rest = map(unpacked, records(tmp_path / "a"))
    assert isinstance(first, RecordedStart)
    assert all(isinstance(one, RecordedCall) for one in rest)
    assert first.config["blocks"] == 120
