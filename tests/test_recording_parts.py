"""Servers are recorded that copy blocks within a step, find parts of blocks, or have blocks of several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driven import sampled
from recording_parts_plants import HARMLESS, PARTS, PLANTS, WINDOWS
from recording_plants import Plant
from test_recording import KEY, NEWEST, judged_with, release_of
from typer.testing import CliRunner

from conformance.driver.protocol import Json
from conformance.engines.vllm import PLUGIN, RELEASES
from conformance.engines.vllm.load import SERVERS, LoadedScheduler, ServerLoad
from conformance.engines.vllm.recording.recorder import Recorder
from conformance.engines.vllm.scheduler import VLLMScheduler
from conformance.engines.vllm.settings import Tuning
from conformance.recording.block_records import LAUNCH, RecordedCall, RecordedLaunch, RecordedStart, unpacked
from conformance.recording.segments import UNIT, NotARecording, SegmentWriter, records
from conformance.stems.block_cache.claims import SIZES
from conformance.stems.block_cache.recorded.judged import JudgedRecording, judged
from conformance.stems.block_cache.recorded.parts import HELD, OWN_COPY
from conformance.stems.block_cache.rules import HOST_POOLS, HOSTS
from conformance.traces import cause_files
from slotproof.cli import app
from slotproof.console.codes import HOLDS

pytestmark = pytest.mark.engine
FULL, LARGE, STATES = {"kind": "full"}, {"kind": "full", "block_size": 32}, {"kind": "mamba"}
RETAINS = Tuning(retention=0)
COMMON: dict[str, Any] = {"blocks": 300, "turns": 40, "resets": 5}
WITH_DRAFTS = {**COMMON, **PARTS, "drafts": 2, "steps_in_flight": 1}
LOADS: dict[str, dict[str, Any]] = {
    "states": {**COMMON, "layers": (FULL, STATES), "tuning": RETAINS},
    "states that passes leave inside": {**COMMON, "layers": (FULL, {**STATES, "checkpoint": 8}), "tuning": RETAINS},
    "parts": {**COMMON, **PARTS},
    "parts, with drafts": WITH_DRAFTS,
    "parts, and states inside": {**COMMON, **PARTS, "layers": (FULL, {**STATES, "checkpoint": 4})},
    "parts of attention alone": {**COMMON, **PARTS, "layers": (FULL, {"kind": "window", "window": 40})},
    "windows of several sizes": {**COMMON, **WINDOWS},
    "large blocks of a window": {**COMMON, "layers": (FULL, {"kind": "window", "window": 40, "block_size": 32})},
    "large blocks, and states": {**COMMON, "layers": (LARGE, STATES), "tuning": RETAINS},
    "large states": {**COMMON, "layers": (LARGE, {**STATES, "block_size": 32}, FULL), "tuning": RETAINS},
    "large blocks, parts, states inside": {
        **COMMON,
        "layers": (LARGE, {**STATES, "checkpoint": 8}),
        "tuning": Tuning(retention=0, match=8),
    },
}
KNOWN = {  # causes in the newest release, each with the methods that its repair replaces
    "part_copied_before_it_is_computed": ("v1.core.kv_cache_manager", "KVCacheManager", "allocate_slots"),
    "state_named_by_its_block": ("v1.core.single_type_kv_cache_manager", "MambaManager", "cache_blocks"),
    "state_named_by_a_longer_text": ("v1.core.sched.scheduler", "Scheduler", "_mamba_block_aligned_split"),
}


@pytest.fixture
def repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest release without what is known of it."""
    release = release_of()
    for cause, (module, kind, method) in KNOWN.items():
        holder = getattr(release.imported.module(module), kind)
        monkeypatch.setattr(holder, method, getattr(holder, method))
        cause_files.load(cause).apply()


def recorded(path: Path, load: dict[str, Any], steps: int, seed: int = 1, before: int = 0, ring: int = 0) -> Recorder:
    """Records a scheduler of the newest release under load, after so many steps that are not recorded."""
    loaded = LoadedScheduler(release_of(), ServerLoad(**load), seed)
    for _ in loaded.steps(before):
        pass
    recorder = Recorder(loaded.scheduler, SegmentWriter(path, UNIT + ring * UNIT if ring else None, UNIT), KEY)
    for _ in loaded.steps(steps):
        pass
    recorder.stop()
    assert recorder.failure is None
    return recorder


def calls_of(path: Path) -> list[RecordedCall]:
    """The calls of a recording."""
    return [call for data in records(path) if isinstance(call := unpacked(data), RecordedCall)]


@pytest.mark.soak(but=1)
@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("load", sampled(LOADS, 3))
def test_a_release_keeps_the_law(tmp_path: Path, load: str) -> None:
    """From the beginning, from the middle, and from the oldest state of a ring."""
    recorder = recorded(tmp_path / "a", LOADS[load], 250)
    verdict = judged(tmp_path / "a")
    assert verdict.broken is None
    assert verdict.calls == recorder.calls > 500
    recorded(tmp_path / "b", LOADS[load], 150, seed=2, before=100)
    assert judged(tmp_path / "b").broken is None
    recorded(tmp_path / "c", LOADS[load], 300, seed=3, before=100, ring=24)
    assert judged(tmp_path / "c").broken is None


@pytest.mark.soak
@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("seed", range(4, 12))
@pytest.mark.parametrize("load", LOADS)
def test_a_release_keeps_the_law_under_many_loads(tmp_path: Path, load: str, seed: int) -> None:
    recorded(tmp_path / "a", LOADS[load], 1500, seed)
    assert judged(tmp_path / "a").broken is None
    recorded(tmp_path / "b", LOADS[load], 500, seed, before=20 * seed)
    assert judged(tmp_path / "b").broken is None


@pytest.mark.soak
@pytest.mark.usefixtures("repaired")
def test_all_laws_say_what_the_changes_say(tmp_path: Path) -> None:
    """With every law evaluated after each call the verdict stays."""
    small = {"requests": 3, "block_size": 8, "prompt": 40, "outputs": 8, "blocks": 40}
    for number, load in enumerate(("parts", "parts, and states inside", "large blocks, and states")):
        recorded(tmp_path / f"{number}", {**LOADS[load], **small}, 60)
        assert judged(tmp_path / f"{number}", often=1).broken is None


def test_the_loads_have_what_is_judged(tmp_path: Path) -> None:
    recorded(tmp_path / "a", LOADS["parts"], 250)
    calls = calls_of(tmp_path / "a")
    assert sum(len(RecordedLaunch(*call.rest).copies) for call in calls if call.code == LAUNCH) > 20
    assert sum(len(call.parts) for call in calls) > 100
    recorded(tmp_path / "b", LOADS["parts, and states inside"], 250)
    launches = [RecordedLaunch(*call.rest) for call in calls_of(tmp_path / "b") if call.code == LAUNCH]
    assert sum(len(launch.states) for launch in launches) > 50


def test_a_server_without_parts_says_nothing_of_them(tmp_path: Path) -> None:
    recorded(tmp_path / "a", {"blocks": 300, "turns": 40}, 100)
    calls = calls_of(tmp_path / "a")
    launches = [RecordedLaunch(*call.rest) for call in calls if call.code == LAUNCH]
    assert not any(call.parts for call in calls)
    assert not any(launch.copies or launch.states for launch in launches)


# Bugs.


@pytest.mark.soak(but=8)
@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_call_is_named(tmp_path: Path, plant: Plant) -> None:
    must_be_named(plant, tmp_path / "a", 5)


@pytest.mark.soak
@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("skips", [0, 2, 12])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_call_is_named_wherever_it_is(tmp_path: Path, plant: Plant, skips: int) -> None:
    must_be_named(plant, tmp_path / "a", skips)


def must_be_named(plant: Plant, path: Path, skips: int) -> None:
    """A bug that happens once, after ``skips`` chances, is named at its call."""
    verdict, call = judged_with(plant, path, skips, PLANTS[plant])
    assert verdict.broken is not None
    assert verdict.calls == call


@pytest.mark.usefixtures("repaired")
@pytest.mark.parametrize("plant", HARMLESS, ids=lambda plant: plant.__name__)
def test_a_harmless_edit_shows_nothing(tmp_path: Path, plant: Plant) -> None:
    verdict, _ = judged_with(plant, tmp_path / "a", 5, HARMLESS[plant])
    assert verdict.broken is None


def known_of(path: Path, load: str, seed: int) -> JudgedRecording:
    """What is said of the newest release as it is."""
    recorded(path, LOADS[load], 500, seed)
    return judged(path)


def test_known_bugs_of_the_newest_release_are_named(tmp_path: Path) -> None:
    """Where one is mended, the newest release has another law here: take another seed, or an older release."""
    assert NEWEST == RELEASES[-1] == "0.33.0"
    copied = known_of(tmp_path / "a", "parts, with drafts", 2)
    assert copied.broken is not None
    assert (copied.broken.law, copied.function) == (OWN_COPY, "schedule")
    assert "this step computes it" in copied.broken.detail
    longer = known_of(tmp_path / "b", "large states", 1)
    assert longer.broken is not None
    assert (longer.broken.law, longer.function) == (HELD, "schedule")


# What a recording has.


def test_a_recording_without_the_new_fields_is_read() -> None:
    """Recordings that were made before are judged as they were."""
    start = RecordedStart(1, "vllm", "0.33.0", {}, [], 0, [], [], [], [])
    assert (start.parts, start.places) == ((), ())
    call = RecordedCall(LAUNCH, 1, "schedule", [], [], 0, [], [], [], "", [1, [], [], [], [], [], []])
    launch = RecordedLaunch(*call.rest)
    assert (call.parts, launch.copies, launch.states) == ((), (), ())


# The command.


def test_each_kind_of_server_is_recorded(tmp_path: Path) -> None:
    assert PLUGIN.under_loads == tuple(SERVERS)
    path = str(tmp_path / "a.rec")
    for kind in PLUGIN.under_loads:
        words = ["record", "--demo", "vllm", "--release", NEWEST, "--server", kind, "--steps", "60", "-o", path]
        assert CliRunner().invoke(app, words).exit_code == HOLDS
        found = CliRunner().invoke(app, ["judge", path])
        assert found.exit_code == HOLDS
        assert "no law is broken in " in found.output
    assert "blocks of 8 or 16 or 32 tokens" in found.output


def test_a_table_has_a_state_for_each_draft_behind_the_longest_text(tmp_path: Path) -> None:
    """Requests reach the length that the server allows, and the tables of their states are longer by their drafts."""
    drafted = {"requests": 3, "blocks": 100, "prompt": 20, "outputs": 28, **SERVERS["drafted_states"]}
    recorded(tmp_path / "a", drafted, 60)
    verdict = judged(tmp_path / "a")
    assert verdict.broken is None
    assert verdict.calls > 100


@pytest.mark.parametrize("host", [HOSTS[0], HOST_POOLS[0]], ids=["slots", "pool"])
def test_a_server_with_host_memory_is_refused(tmp_path: Path, host: Json) -> None:
    """What copies to and from host memory do is not recorded. The server is recorded, and the judge says why not."""
    of_host = {"transfers": True, "host": host, "layers": [FULL], "drafts": 0, "steps_in_flight": 1, "caching": True}
    driven = VLLMScheduler(release_of(), {**SIZES, **of_host})
    recorder = Recorder(driven._scheduler, SegmentWriter(tmp_path / "a"), KEY)
    driven.add(1, range(10), 2)
    driven.schedule()
    recorder.stop()
    assert recorder.failure is None
    with pytest.raises(NotARecording, match="what no recording says: a KV connector: its transfers are not recorded"):
        judged(tmp_path / "a")
