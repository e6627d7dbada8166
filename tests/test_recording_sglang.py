"""A scheduler of SGLang is recorded while it serves, and the recording is judged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import methodcaller
from pathlib import Path
from typing import Any, ClassVar

import pytest
import short_runs
import torch
from server_plants import PLANTS, SHORT, Classes, ServerPlant, row_names_another_slot
from torch.overrides import TorchFunctionMode
from typer.testing import CliRunner

from conformance.driver.lockstep import ANSWER, breaks
from conformance.driver.naming import UsageError
from conformance.engines.sglang import PLUGIN, RELEASES
from conformance.engines.sglang import recording as of_engine
from conformance.engines.sglang.load import SERVERS, LoadedServer, RandomClients
from conformance.engines.sglang.recording import layout
from conformance.engines.sglang.recording.copies import HostCopy
from conformance.engines.sglang.recording.digests import TextOfRequest, TokenDigests
from conformance.engines.sglang.recording.layout import UnrecordableServer
from conformance.engines.sglang.recording.recorder import ServerRecorder
from conformance.engines.sglang.recording.tree import ServerTree
from conformance.engines.sglang.releases.release import Release
from conformance.recording import asked
from conformance.recording.segments import UNIT, NotARecording, SegmentWriter, records
from conformance.recording.server_records import ANSWER as ANSWER_TEXT
from conformance.recording.server_records import (
    DIGEST_BYTES,
    NOT_ENDED,
    RecordedEvent,
    ServerStart,
    change_of,
    digests_of,
    unpacked_server,
)
from conformance.stems.server.recorded.judged import JudgedServer, judged_server, watched_server
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.run import recorded_run
from conformance.stems.server.recorded.standing import OF_PATHS, stand
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import Midway
from conformance.stems.server.served import GOES_ON
from slotproof import record
from slotproof.cli import app
from slotproof.console.codes import BROKEN, HOLDS, USAGE

pytestmark = pytest.mark.engine
NEWEST = RELEASES[-1]
RECORDED = RELEASES[-3:]
KEY = bytes(32)
HOPES = 2  # tokens of an answer for which memory is set aside: it gets short while requests decode
OFTEN = {"SWA_EVICTION_INTERVAL": "1"}  # windows move in each step
CHUNKS = ("--chunked-prefill-size", "16")
LOADS: list[dict[str, Any]] = [
    {"pages": 64, "requests": 5},
    {"page_size": 1, "pages": 200, "requests": 5},
    {"pages": 64, "requests": 5, "overlap": False, "flushes": 40},
    {"page_size": 1, "pages": 90, "requests": 4, "overlap": False, "estimate": HOPES},
    {"pages": 40, "requests": 5, "flags": CHUNKS, "aborts": 20},
    {"pages": 40, "requests": 5, "flags": (*CHUNKS, "--enable-mixed-chunk"), "flushes": 40},
    {"pages": 30, "requests": 6, "prompt": 16, "outputs": 60, "estimate": HOPES, "aborts": 4},
    {"pages": 40, "requests": 5, "flags": ("--schedule-policy", "lpm", "--enable-priority-scheduling")},
    {"model": "windowed", "pages": 30, "requests": 4, "estimate": HOPES},
    {"model": "windowed", "page_size": 1, "pages": 120, "requests": 4, "overlap": False, "environment": OFTEN},
    {"model": "windowed", "pages": 60, "requests": 4, "flags": CHUNKS, "environment": OFTEN, "aborts": 10},
]
RETRACTS = LOADS[6]


def release_of_server(version: str = NEWEST) -> Release:
    return PLUGIN._import(version, None)


def recorded_server(
    path: Path, load: dict[str, Any], steps: int, seed: int = 1, version: str = NEWEST
) -> ServerRecorder:
    """Records so many turns of a server under load."""
    loaded = LoadedServer(release_of_server(version), RandomClients(**load), seed)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(path), KEY)
    for _ in loaded.steps(steps):
        pass
    recorder.stop()
    assert recorder.failure is None
    return recorder


def events_of(path: Path) -> list[RecordedEvent]:
    start, *events = map(unpacked_server, records(path))
    assert isinstance(start, ServerStart)
    return [event for event in events if isinstance(event, RecordedEvent)]


# What an unmodified release does keeps the law.


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_server_under_load_keeps_the_law(tmp_path: Path, load: dict[str, Any]) -> None:
    recorder = recorded_server(tmp_path / "a", load, 60)
    verdict = judged_server(tmp_path / "a")
    assert verdict.broken is None
    assert verdict.calls == recorder.calls > 300
    functions = {"match_kv_cache", "release_kv_cache", "forward_batch_generation", "ScheduleBatch.prepare_for_decode"}
    assert functions <= {*verdict.by_function}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 5))
@pytest.mark.parametrize("load", LOADS, ids=str)
def test_a_server_under_load_keeps_the_law_for_long(tmp_path: Path, load: dict[str, Any], seed: int) -> None:
    recorded_server(tmp_path / "a", load, 400, seed)
    assert judged_server(tmp_path / "a").broken is None


@pytest.mark.soak
@pytest.mark.parametrize("version", RECORDED[:-1])
def test_older_servers_keep_the_law(tmp_path: Path, version: str) -> None:
    """A process holds one release, so each is recorded and judged by a process of its own."""
    command = [sys.executable, "-m", "slotproof"]
    path = str(tmp_path / "a")
    made = subprocess.run(
        [*command, "record", "--demo", "sglang", "--release", version, "--steps", "200", "-o", path], check=False
    )
    found = subprocess.run([*command, "judge", path], capture_output=True, text=True, check=False)
    assert (made.returncode, found.returncode) == (HOLDS, HOLDS)
    assert "no law is broken in " in found.stdout


def test_each_kind_of_server_is_recorded(tmp_path: Path) -> None:
    assert PLUGIN.under_loads == tuple(SERVERS)
    path = str(tmp_path / "a.rec")
    for kind in PLUGIN.under_loads:
        words = ["record", "--demo", "sglang", "--release", NEWEST, "--server", kind, "--steps", "40", "-o", path]
        assert CliRunner().invoke(app, words).exit_code == HOLDS
        found = CliRunner().invoke(app, ["judge", path])
        assert found.exit_code == HOLDS
        assert "no law is broken in " in found.output


def test_the_loads_reach_what_they_are_for(tmp_path: Path) -> None:
    """Requests are retracted, and computed in chunks."""
    recorded_server(tmp_path / "a", RETRACTS, 60)
    retracted = [one for event in events_of(tmp_path / "a") if event.kind == "left" for one in event.requests]
    assert sum(one.sent == NOT_ENDED for one in retracted) > 3
    recorded_server(tmp_path / "b", LOADS[4], 60)
    chunks = Counter(
        (one.request, one.end) for event in events_of(tmp_path / "b") for one in event.passes if one.end - one.start > 1
    )
    assert max(Counter(request for request, _ in chunks).values()) > 2


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("load", LOADS[::-1], ids=str)
def test_nodes_that_were_written_to_are_all_that_have_changed(
    tmp_path: Path, load: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each look at the nodes that were touched, a walk of the whole tree finds nothing else."""
    look, walked = ServerTree.look, Counter[str]()

    def looked(self: ServerTree) -> Any:
        found = look(self)
        if self._looks:  # else the whole tree was walked
            looks = self._looks
            assert self._walk() == ([], [])
            self._looks = looks
            walked.update(found=len(found.nodes), gone=len(found.gone))
        return found

    monkeypatch.setattr(ServerTree, "look", looked)
    recorded_server(tmp_path / "a", load, 60)
    assert walked["found"] > 5
    assert walked["gone"] > 5


def test_a_change_that_nothing_tells_is_seen_later(tmp_path: Path) -> None:
    """A dictionary of children is written into, beside the tree's own function: the whole tree is walked at times."""
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in loaded.steps(40):
        pass
    tree = recorder._memory.tree
    tree.look()
    root = loaded.scheduler.tree_cache.tree_core.root_node
    child = next(child for child in root.children.values() if not child.children)
    known = tree.known(child.id)
    assert known is not None
    left = root.children.pop(child.key.child_key(4))
    gone = [number for _ in range(len(tree._nodes)) for number in tree.look().gone]
    recorder.stop()
    assert left is child
    assert gone == [known.number]


def test_a_tree_that_is_not_recorded_any_more_is_as_it_was(tmp_path: Path) -> None:
    recorder = recorded_server(tmp_path / "a", SHORT, 20)
    core = recorder._scheduler.tree_cache.tree_core
    node = type(core.root_node)
    assert "__setattr__" not in vars(node)
    assert "__setattr__" not in vars(type(core.root_node.component_data[0]))
    assert "_remove_leaf_from_parent" not in vars(core)


def test_all_laws_say_what_the_changes_say_of_a_server(tmp_path: Path) -> None:
    """With every law evaluated after each event the verdict stays."""
    recorded_server(tmp_path / "a", {"pages": 12, "requests": 2, "prompt": 12, "outputs": 6}, 12)
    assert judged_server(tmp_path / "a", often=1).broken is None


# Bugs.


def classes_of(release: Release) -> Classes:
    module = release.imported.module
    return Classes(
        module("mem_cache.unified_radix_cache").UnifiedRadixCache,
        module("mem_cache.allocator.paged").PagedTokenToKVPoolAllocator,
        module("mem_cache.memory_pool").ReqToTokenPool,
        module("managers.schedule_batch").ScheduleBatch,
        module("mem_cache.allocator.swa").SWATokenToKVPoolAllocator,
    )


@contextmanager
def planted_in_server(plant: ServerPlant, happens: Callable[[], bool]) -> Iterator[None]:
    """The release has a bug."""
    owner, name, function = plant(classes_of(release_of_server()), happens)
    before = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def judged_with_plant(plant: ServerPlant, path: Path, skips: int, before: int = 0) -> tuple[JudgedServer, int]:
    """The verdict on a release with a bug, which happens once, after ``skips`` chances; and the event in which it
    happens. The server makes so many turns ``before`` it is recorded.
    """
    recorder: ServerRecorder | None = None
    chances, calls = 0, []

    def happens() -> bool:
        nonlocal chances
        if recorder is None or not recorder.has_begun:
            return False
        chances += 1
        calls.extend([recorder.calls + 1] if chances == skips + 1 else [])
        return chances == skips + 1

    with planted_in_server(plant, happens):
        loaded = LoadedServer(release_of_server(), RandomClients(**PLANTS[plant][0]), 1)
        for _ in loaded.steps(before):
            pass
        recorder = ServerRecorder(loaded.scheduler, SegmentWriter(path), KEY)
        try:
            for _ in loaded.steps(400):
                if calls and recorder.calls > calls[0] + 30:
                    break
        except (AssertionError, RuntimeError, KeyError, ValueError):
            pass  # the release notices the bug
    recorder.stop()
    assert recorder.failure is None
    assert calls, "the bug did not happen"
    return judged_server(path), calls[0]


def must_name(verdict: JudgedServer, call: int, plant: ServerPlant, path: Path) -> None:
    """The event in which the bug happens is named, or the next one after which a server is judged; or the next one of
    the function that ``PLANTS`` says.
    """
    named, midway = PLANTS[plant][1], Midway()
    events = [(number, event, midway.after(event.kind)) for number, event in enumerate(events_of(path), start=1)]
    later = ((number, event.function == named if named else not is_midway) for number, event, is_midway in events)
    due = next(number for number, judged in later if number >= call and judged)
    assert verdict.broken is not None
    assert verdict.calls == due, (call, verdict.function, str(verdict.broken))


@pytest.mark.soak(but=5)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_event_is_named(tmp_path: Path, plant: ServerPlant) -> None:
    verdict, call = judged_with_plant(plant, tmp_path / "a", skips=10)
    must_name(verdict, call, plant, tmp_path / "a")


@pytest.mark.soak
@pytest.mark.parametrize(("skips", "before"), [(0, 0), (3, 0), (25, 0), (0, 40), (10, 95)])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_first_wrong_event_is_named_wherever_it_is(
    tmp_path: Path, plant: ServerPlant, skips: int, before: int
) -> None:
    verdict, call = judged_with_plant(plant, tmp_path / "a", skips, before)
    must_name(verdict, call, plant, tmp_path / "a")


# What a recording has, and what it has not.


class RenamedClients(LoadedServer):
    """The load with other tokens: each is another number, and equal ones stay equal."""

    def _token(self) -> int:
        return (super()._token() * 7919) % 1000003 + 5000


def test_a_recording_of_a_server_has_no_text(tmp_path: Path) -> None:
    """Two runs that are equal but for a bijection of token ids give recordings that differ in digests and times
    alone; and those have different digests where the keys differ.
    """
    made: list[list[RecordedEvent]] = []
    runs = [(LoadedServer, KEY), (RenamedClients, KEY), (LoadedServer, bytes(31) + b"1")]
    for number, (kind, key) in enumerate(runs):
        loaded = kind(release_of_server(), RandomClients(**SHORT), 1)
        recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / f"{number}"), key)
        for _ in loaded.steps(60):
            pass
        recorder.stop()
        assert recorder.failure is None
        made.append(events_of(tmp_path / f"{number}"))
    shapes, digests = zip(*([masked_events(events) for events in made]), strict=True)
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(digests[0]) > 500
    for other in (1, 2):
        assert not {*digests[0]} & {*digests[other]}
        pairs = {*zip(digests[0], digests[other], strict=True)}
        assert len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})  # a bijection


def masked_events(events: list[RecordedEvent]) -> tuple[list[Any], list[bytes]]:
    """Events without times, and with numbers of digests in the place of digests; and the digests."""
    digests: list[bytes] = []

    def masked(packed: bytes | None) -> Any:
        digests.extend(digests_of(packed or b""))
        return packed if packed is None else len(packed)

    shapes = []
    for event in events:
        texts = [one._replace(digests=masked(one.digests)) for one in event.texts]
        passes = [one._replace(digests=masked(one.digests)) for one in event.passes]
        change = event.change
        if change is not None:
            change = change._replace(nodes=[one._replace(digests=masked(one.digests)) for one in change.nodes])
        shapes.append(event._replace(at=0, texts=texts, passes=passes, change=change))
    return shapes, digests


def test_equal_beginnings_have_equal_digests() -> None:
    digests = TokenDigests(KEY)
    one, other = (TextOfRequest(digests, None, tokens) for tokens in ([1, 2, 3], [1, 2, 4]))
    salted = TextOfRequest(digests, ("adapter", None), [1, 2, 3])
    first, second, third = (list(digests_of(text.input)) for text in (one, other, salted))
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert not {*first} & {*third}
    assert one.answers([7]) == one.named(3, [7])
    assert one.named(9, [7]) == b""
    assert len({*first}) * DIGEST_BYTES == len(one.input)


@pytest.mark.parametrize(
    ("part", "method", "named"),
    [
        ("batch_result_processor", "_prepare_kv_cache_release", "process_batch_result raised ZeroDivisionError"),
        ("policy", "calc_priority", "get_next_batch_to_run raised ZeroDivisionError"),
    ],
)
def test_what_ends_a_server_is_named_also_outside_of_all_watched_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, method: str, named: str
) -> None:
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in loaded.steps(20):
        pass
    monkeypatch.setattr(type(getattr(loaded.scheduler, part)), method, lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        all(True for _ in loaded.steps(60))
    recorder.stop()
    for verdict in (judged_server(tmp_path / "a"), watched_server(tmp_path / "a", lambda _: True, silence=1)):
        assert verdict is not None
        assert verdict.broken is not None
        assert (verdict.broken.law, verdict.broken.kind, verdict.function) == (GOES_ON, ANSWER, named)


# A recording that is watched while it is written.


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("load", LOADS[::-1], ids=str)
def test_a_recording_of_a_server_is_judged_while_it_is_written(tmp_path: Path, load: dict[str, Any]) -> None:
    """Whoever watches says soon what is said afterwards. What a pass samples is told a turn or two later, and until
    then the pass waits.
    """
    loaded = LoadedServer(release_of_server(), RandomClients(**load), 4)
    for _ in loaded.steps(20):
        pass
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    seen, behind = [0], []

    def goes_on(verdict: JudgedServer | None) -> bool:
        seen.append(0 if verdict is None else verdict.calls)
        behind.append(recorder.calls - seen[-1])
        for _ in loaded.steps(3):
            pass
        return len(seen) < 50

    watching = watched_server(tmp_path / "a", goes_on)
    recorder.stop()
    assert watching is not None
    assert watching.broken is None
    assert max(behind) < 150
    assert seen[-1] > recorder.calls - 150
    assert len({*seen}) > 30
    assert judged_server(tmp_path / "a").broken is None


def test_who_watches_a_server_ends_with_the_first_wrong_event(tmp_path: Path) -> None:
    plant = next(iter(PLANTS))
    verdict, _ = judged_with_plant(plant, tmp_path / "a", skips=3, before=30)
    found = watched_server(tmp_path / "a", lambda _: False)
    assert found is not None
    assert (found.calls, found.function, str(found.broken)) == (verdict.calls, verdict.function, str(verdict.broken))
    assert found.broken is not None


def test_an_exception_that_a_server_survives_is_not_its_end_for_who_watches(tmp_path: Path) -> None:
    """The exception waits for what comes after it."""
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    calls = []

    def goes_on(verdict: JudgedServer | None) -> bool:
        calls.append(0 if verdict is None else verdict.calls)
        if len(calls) == 10:
            recorder.raised("evicted", ValueError("the engine catches it"))
        elif len(calls) != 11:  # it takes long
            for _ in loaded.steps(3):
                pass
        return len(calls) < 20

    watching = watched_server(tmp_path / "a", goes_on)
    recorder.stop()
    assert watching is not None
    assert watching.broken is None
    assert calls[11] <= calls[10] + 1
    assert calls[-1] > calls[10] + 20


def test_recording_a_server_changes_nothing(tmp_path: Path) -> None:
    """Turn by turn, a server that is recorded does what one does that is not."""
    load = RandomClients(**RETRACTS)
    both = [LoadedServer(release_of_server(), load, 3) for _ in range(2)]
    recorder = ServerRecorder(both[1].scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in range(60):
        for each in both:
            each.step()
        assert shown_by(both[0]) == shown_by(both[1])
    recorder.stop()
    assert recorder.calls > 300


def shown_by(loaded: LoadedServer) -> Any:
    scheduler = loaded.scheduler
    rows = {one.rid: (one.kv.req_pool_idx, one.kv.kv_committed_len) for one in scheduler.running_batch.reqs}
    return rows, scheduler.token_to_kv_pool_allocator.free_pages.tolist(), len(scheduler.waiting_queue)


# No hook waits for a device.


class WaitsForDevice(AssertionError):
    """A hook has asked for the numbers of a tensor."""


class NoWaiting(TorchFunctionMode):
    """While this lasts, whoever asks a tensor for its numbers would wait for the device, unless the tensor is a copy
    on the host that is done.
    """

    ASKING: ClassVar[set[str]] = {
        *("item", "tolist", "cpu", "numpy", "to", "nonzero", "unique", "equal", "allclose", "is_nonzero"),
        *("__bool__", "__int__", "__index__", "__float__", "__contains__", "masked_select"),
    }
    copies: ClassVar[set[int]] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.ASKING and not (args and id(args[0]) in self.copies):
            raise WaitsForDevice(f"a hook asks a tensor for its numbers: {name}")
        return func(*args, **(kwargs or {}))


ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    **{"bool": bool, "int": int, "float": float, "index": [0, 1].__getitem__},
    **{name: methodcaller(name) for name in ("tolist", "item", "cpu", "numpy", "nonzero")},
}


@pytest.mark.parametrize("name", ASKED)
def test_whoever_asks_a_tensor_for_its_numbers_is_seen(name: str) -> None:
    tensor = torch.tensor([1])
    with NoWaiting(), pytest.raises(WaitsForDevice):
        ASKED[name](tensor)


def test_no_hook_of_a_server_waits_for_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook runs where no tensor may be asked for its numbers, but a copy that was queued in an earlier turn."""
    ran: Counter[str] = Counter()
    read: list[int] = []
    safely, numbers = ServerRecorder._safely, HostCopy.numbers
    turn_of: dict[int, int] = {}

    def guarded(self: ServerRecorder, hook: Callable[..., None], *args: Any) -> None:
        ran[hook.__name__] += 1
        with NoWaiting():
            safely(self, hook, *args)

    def made(self: HostCopy, tensor: Any) -> None:
        init(self, tensor)
        turn_of[id(self)] = loaded.turns

    def asked_for(self: HostCopy) -> list[int]:
        read.append(loaded.turns - turn_of.pop(id(self)))
        NoWaiting.copies.add(id(self._host))
        try:
            return numbers(self)
        finally:
            NoWaiting.copies.discard(id(self._host))

    init = HostCopy.__init__
    loaded = LoadedServer(release_of_server(), RandomClients(**RETRACTS, flushes=30), 1)
    monkeypatch.setattr(ServerRecorder, "_safely", guarded)
    monkeypatch.setattr(HostCopy, "__init__", made)
    monkeypatch.setattr(HostCopy, "numbers", asked_for)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for _ in loaded.steps(60):
        pass
    assert recorder.failure is None
    assert min(read) >= 1, "a copy was read in the turn in which it was queued"
    assert {"_told", "_passes", "_polls"} <= {*ran}
    assert min(ran[name] for name in ("_told", "_passes", "_polls")) > 50
    recorder.stop()
    assert judged_server(tmp_path / "a").broken is None


def test_a_copy_is_of_the_moment_at_which_it_was_queued() -> None:
    tensor = torch.tensor([1, 2, 3])
    copy = HostCopy(tensor)
    tensor[0] = 9
    assert copy.is_done
    assert copy.numbers() == [1, 2, 3]


def test_a_server_of_sglang_needs_the_standard_library_and_msgpack_alone() -> None:
    program = """
import sys
before = {*sys.modules}
from slotproof import record
from conformance.engines.sglang.recording import recorder
more = {name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names}
print(sorted(name for name in more if "cython" not in name))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['conformance', 'msgpack', 'slotproof']"


# A recording may end anywhere.


@pytest.mark.soak
def test_a_killed_server_leaves_all_but_its_last_turns(tmp_path: Path) -> None:
    path = tmp_path / "a"
    program = f"""
import os, signal, sys
from slotproof import record
from conformance.engines.sglang import PLUGIN
loaded = PLUGIN.under_load({NEWEST!r}, 1)
recorder = record.start(loaded.scheduler, {str(path)!r}, ring=None)
for number in loaded.steps(40):
    if number == 37:
        print(recorder.calls, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == -signal.SIGKILL
    verdict = judged_server(path)
    assert verdict.broken is None
    assert verdict.calls >= int(found.stdout.split()[-1])


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("load", LOADS[::-1], ids=str)
def test_a_recording_begins_while_requests_run(tmp_path: Path, load: dict[str, Any]) -> None:
    """One server is recorded eight times, one after the other: each recording begins with what stands there then."""
    loaded = LoadedServer(release_of_server(), RandomClients(**load), 2)
    held = retracted = 0
    for number in range(8):
        path = tmp_path / f"{number}"
        recorder = ServerRecorder(loaded.scheduler, SegmentWriter(path), KEY)
        for _ in loaded.steps(17):
            pass
        recorder.stop()
        assert recorder.failure is None
        verdict = judged_server(path)
        assert verdict.broken is None
        assert verdict.calls == recorder.calls > 10
        standing = verdict.start.standing
        assert standing is not None
        assert standing.change is not None
        held += len(standing.change.holds or ())
        rows = {row.request for row in standing.change.rows}
        answered = {one.request for one in standing.texts if one.part == ANSWER_TEXT}
        retracted += len(answered - rows)
    assert held > 4
    assert retracted or load != RETRACTS


def test_laws_of_paths_hold_where_a_recording_begins(tmp_path: Path) -> None:
    """The judge does not ask them: so it is made sure here that a tree of many nodes keeps them as it is read."""
    loaded = LoadedServer(release_of_server(), RandomClients(**LOADS[-1]), 2)
    for _ in loaded.steps(60):
        pass
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    recorder._polls()
    recorder.stop()
    start = unpacked_server(next(records(tmp_path / "a")))
    assert isinstance(start, ServerStart)
    assert start.standing is not None
    texts = RecordedTexts()
    config = {**start.config, "nodes": 64, "longest": 64}
    engine = PlayedServer(start.standing, start.overlaps, config, texts)
    run = recorded_run(engine, config, texts)
    stand(run, engine, start.standing, texts)
    assert sum(run.law.state.tree.alive(n) for n in range(1, 65)) > 20
    assert [name for name in OF_PATHS if breaks(run.law.stem.invariants[name], run.law.state)] == []


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("load", LOADS[2:], ids=str)
def test_a_ring_is_judged_from_its_oldest_start_on(tmp_path: Path, load: dict[str, Any]) -> None:
    """All that the server shows is written again and again, also while requests run. A file that grows has it too, and
    is judged with it.
    """
    for ring, most in ((None, 1.0), (12 * UNIT, 0.9)):
        loaded = LoadedServer(release_of_server(), RandomClients(**load), 1)
        path = tmp_path / f"{ring}"
        recorder = ServerRecorder(loaded.scheduler, SegmentWriter(path, ring, UNIT), KEY)
        for _ in loaded.steps(120):
            pass
        recorder.stop()
        assert recorder.failure is None
        verdict = judged_server(path)
        assert verdict.broken is None
        assert 50 < verdict.calls <= recorder.calls * most
        assert verdict.starts > 1


def leaks_page(scheduler: Any, _: Any) -> None:
    """A page is on no list, and nobody has it."""
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free_pages = allocator.free_pages[1:]


def frees_page_of_request(scheduler: Any, request: Any) -> None:
    """The last page of a request is free, too."""
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free_pages = torch.cat([allocator.free_pages, last_slot(scheduler, request) // allocator.page_size])


def frees_row_of_request(scheduler: Any, request: Any) -> None:
    """The row of a request is free, too."""
    scheduler.req_to_token_pool.free_slots.append(request.kv.req_pool_idx)


def nodes_of(scheduler: Any) -> Iterator[Any]:
    """The nodes of a server's tree without the root."""
    waiting = [scheduler.tree_cache.tree_core.root_node]
    while waiting:
        below = [*waiting.pop().children.values()]
        yield from below
        waiting += below


def loses_row(scheduler: Any, _: Any) -> None:
    """A row is not free, and no request has it."""
    scheduler.req_to_token_pool.free_slots.pop()


def counts_lock_twice(scheduler: Any, _: Any) -> None:
    """A node that a request has locked counts one lock too many."""
    next(node for node in nodes_of(scheduler) if node.component_data[0].lock_ref).component_data[0].lock_ref += 1


def reads_other_page(scheduler: Any, request: Any) -> None:
    """The first page that a request reads is not that of the node that it has locked."""
    table, row = scheduler.req_to_token_pool.req_to_token, request.kv.req_pool_idx
    size = scheduler.page_size
    table[row, :size] = table[row, size : 2 * size].clone()


def last_slot(scheduler: Any, request: Any) -> Any:
    """The slot of the last token that a request has one for, as a tensor of one element."""
    table = scheduler.req_to_token_pool.req_to_token
    return table[request.kv.req_pool_idx, request.kv.kv_allocated_len - 1].reshape(1).to(torch.int64)


def frees_window_of_request(scheduler: Any, request: Any) -> None:
    """The last SWA page of a request is free, too."""
    allocator = scheduler.token_to_kv_pool_allocator
    swa, page = allocator.swa_attn_allocator, scheduler.page_size
    slot = allocator.full_to_swa_index_mapping[last_slot(scheduler, request)]
    swa.free_pages = torch.cat([swa.free_pages, slot // page])


def maps_to_another_offset(scheduler: Any, request: Any) -> None:
    """The last token of a request has another place in its SWA page."""
    mapping, slot = scheduler.token_to_kv_pool_allocator.full_to_swa_index_mapping, last_slot(scheduler, request)
    mapping[slot] = mapping[slot] // scheduler.page_size * scheduler.page_size + (slot + 1) % scheduler.page_size


def loses_window_of_node(scheduler: Any, _: Any) -> None:
    """The window of a node that a request has locked counts no lock."""
    swa = layout.parts(scheduler)[1]
    node = next(node for node in nodes_of(scheduler) if node.component_data[swa].lock_ref)
    node.component_data[swa].lock_ref = 0


WINDOWED = LOADS[8]
WRONG_WINDOWS: dict[Callable[[Any, Any], None], str] = {
    frees_window_of_request: "one_owner",
    maps_to_another_offset: "mapping_keeps_offset",
    loses_window_of_node: "swa_evictable_is_sum",
}
WRONG_STATES: dict[Callable[[Any, Any], None], str] = {
    leaks_page: "no_leak",
    frees_page_of_request: "one_owner",
    frees_row_of_request: "every_row_has_one_owner",
    loses_row: "every_row_has_one_owner",
    counts_lock_twice: "full_pairs",
    reads_other_page: "reads_what_it_holds",
}


@pytest.mark.parametrize("wrong", WRONG_STATES | WRONG_WINDOWS, ids=lambda wrong: wrong.__name__)
def test_a_state_with_which_a_recording_begins_is_judged(tmp_path: Path, wrong: Callable[[Any, Any], None]) -> None:
    """What was wrong before a server was recorded is named, and of no call."""
    load = WINDOWED if wrong in WRONG_WINDOWS else SHORT
    loaded = LoadedServer(release_of_server(), RandomClients(**load), 1)
    for _ in loaded.steps(60):
        request = next((one for one in loaded.scheduler.running_batch.reqs if one.kv.cache_protected_len >= 8), None)
        if request is not None:
            break
    assert request is not None
    wrong(loaded.scheduler, request)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    with suppress(AssertionError, RuntimeError):  # the release may notice it
        for _ in loaded.steps(2):
            pass
    recorder.stop()
    verdict = judged_server(tmp_path / "a")
    assert verdict.broken is not None
    assert (verdict.calls, verdict.broken.law) == (0, {**WRONG_STATES, **WRONG_WINDOWS}[wrong])
    said = CliRunner().invoke(app, ["judge", str(tmp_path / "a")])
    assert said.exit_code == BROKEN
    assert "breaks a law: who made it so was not recorded" in " ".join(said.output.split())


def test_a_state_that_does_not_say_which_lock_holds_a_window_is_passed_over(tmp_path: Path) -> None:
    """Two locks reach over the window of a node that counts one: one of them may have skipped it."""
    loaded = LoadedServer(release_of_server(), RandomClients(**{**LOADS[8], "pages": 60, "prompt": 12}), 1)
    for _ in loaded.steps(200):
        swa = layout.parts(loaded.scheduler)[1]
        shared = next((one for one in nodes_of(loaded.scheduler) if one.component_data[swa].lock_ref > 1), None)
        if shared is not None:
            break
    recorders = []
    assert shared is not None
    for more in (-1, 1):
        shared.component_data[swa].lock_ref += more
        recorders.append(ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / f"{more}"), KEY))
        recorders[-1]._polls()
        recorders[-1].stop()
    with pytest.raises(NotARecording, match=r"1 of 2 locks hold the window of a node of .* tokens, and it is not told"):
        judged_server(tmp_path / "-1")
    assert judged_server(tmp_path / "1").broken is None


# A server goes on, whatever becomes of its recording.


def test_a_hook_that_fails_ends_the_recording_and_not_a_server(tmp_path: Path) -> None:
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    for number in loaded.steps(60):
        if number == 30:
            recorder._objects = {}  # every hook that looks a request up fails from now on
    assert isinstance(recorder.failure, KeyError)
    assert judged_server(tmp_path / "a").broken is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "sliding"}, "a model whose layers all have a sliding window"),
    (
        {
            **{"model": "recurrent", "overlap": False},
            "flags": ("--max-mamba-cache-size", "40", "--attention-backend", "triton"),
        },
        "recurrent layers",
    ),
    ({"flags": ("--enable-hierarchical-cache",)}, "host memory"),
    ({"flags": ("--disable-radix-cache",)}, "a server without a prefix cache"),
    (
        {
            "flags": (
                *("--speculative-algorithm", "STANDALONE", "--speculative-num-steps", "2"),
                *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
            )
        },
        "speculative decoding",
    ),
]


@pytest.mark.parametrize(("load", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_a_server_that_no_recording_describes_is_refused(tmp_path: Path, load: dict[str, Any], says: str) -> None:
    loaded = LoadedServer(release_of_server(), RandomClients(**({"page_size": 1, "pages": 64} | load)), 1)
    recorder = record.start(loaded.scheduler, tmp_path / "a")
    loaded.step()
    recorder.stop()
    found = CliRunner().invoke(app, ["judge", str(tmp_path / "a")])
    assert isinstance(found.exception, UsageError)
    assert says in str(found.exception)
    if says == REFUSED[0][1]:
        command = [sys.executable, "-m", "slotproof", "judge", str(tmp_path / "a")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == USAGE
        assert says in " ".join(done.stderr.split())


def test_what_is_no_scheduler_of_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnrecordableServer, match="scheduler: object has no tree_cache, req_to_token_pool"):
        ServerRecorder(object(), SegmentWriter(tmp_path / "a"), KEY)


def test_a_turn_of_a_session_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    recorder = ServerRecorder(loaded.scheduler, SegmentWriter(tmp_path / "a"), KEY)
    monkeypatch.setattr(layout, "is_of_session", lambda request: request.rid == "9")
    for _ in loaded.steps(60):
        pass
    assert isinstance(recorder.failure, UnrecordableServer)
    assert "a turn of a session" in str(recorder.failure)
    assert judged_server(tmp_path / "a").broken is None


def test_the_plug_in_of_sglang_records_what_the_environment_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = release_of_server().imported.module("managers.scheduler").Scheduler
    monkeypatch.setattr(scheduler, "__init__", scheduler.__init__)
    monkeypatch.setenv(asked.FILE, str(tmp_path / "server-%p.rec"))
    asked.on_each(scheduler, of_engine.record)
    loaded = LoadedServer(release_of_server(), RandomClients(**SHORT), 1)
    for _ in loaded.steps(20):
        pass
    loaded.scheduler.slotproof_recorder.stop()
    assert judged_server(tmp_path / f"server-{os.getpid()}.rec").calls > 40


# The commands.


def test_the_commands_record_and_judge_a_server(tmp_path: Path) -> None:
    path = str(tmp_path / "a.rec")
    run = CliRunner().invoke
    made = run(app, ["record", "--demo", "sglang", "--release", NEWEST, "--steps", "30", "-o", path])
    assert made.exit_code == HOLDS
    found = run(app, ["judge", path])
    assert found.exit_code == HOLDS
    assert "no law is broken in " in found.output
    assert "recorded: sglang" in found.output
    watched = run(app, ["watch", path, "--for", "5s"])
    assert watched.exit_code == HOLDS
    assert "no law is broken in " in watched.output


def test_a_short_run_of_a_server_with_the_broken_law_is_found(tmp_path: Path) -> None:
    """From the recording to a few messages for a small server of the code that was recorded, and its test. On the
    release as it is this run keeps the law.
    """
    judged_with_plant(row_names_another_slot, tmp_path / "a", skips=10)
    bug = planted_in_server(row_names_another_slot, lambda: True)
    short_runs.must_be_found(tmp_path / "a", "sglang", NEWEST, "server", bug, "test_found_by_slotproof_", most=6)


def test_the_command_refuses_a_release_that_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LOOP", ("not_there",))
    words = ["record", "--demo", "sglang", "--release", NEWEST, "--steps", "5", "-o", str(tmp_path / "a")]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, UsageError)
    assert "--demo sglang: scheduler: Scheduler has no not_there" in str(found.exception)


def test_the_command_names_the_first_wrong_event(tmp_path: Path) -> None:
    plant = next(plant for plant in PLANTS if plant.__name__ == "row_is_not_given_back")
    _, call = judged_with_plant(plant, tmp_path / "a", skips=3)
    found = CliRunner().invoke(app, ["judge", str(tmp_path / "a")])
    assert found.exit_code == BROKEN
    assert f"the first wrong call is call {call}, release_kv_cache at " in found.output
    assert "every_row_has_one_owner" in found.output


# Records.


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ([1, 2, 3], [2, 3]),
        ([2, 3], [1, 2, 3]),
        ([1, 2, 3], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3]),
        ([1, 1, 1], [1, 1]),
        ([], [1]),
        ([1], []),
    ],
)
def test_a_list_is_told_by_its_change(before: list[int], now: list[int]) -> None:
    change = change_of(before, now)
    assert change is not None
    assert change.of(before) == now
    assert len(change.middle) < max(2, len(now))
    assert change_of(now, now) is None
