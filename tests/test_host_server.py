"""Servers with host memory: what a copy may do, on a scripted server and on SGLang's real scheduler."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from driven import NEWEST, driven
from test_sglang_server_states import CLEARS_NOTHING

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import EngineError, Json, Misuse
from conformance.driver.shadow import FULL, READS_OWN, SWA
from conformance.engines.sglang.server.copying import CopyDevice, CopyStream
from conformance.stems.host_server import run as host
from conformance.stems.host_server.keys import MORE_KEYS
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostStep
from conformance.stems.host_server.run import HostServerRun
from conformance.stems.requests.request import token
from conformance.stems.server.protocol import POLL, ServedRequest, ServerEvent, ServerPass

PAGE, SLOTS, BLOCKS = 2, 4, 6
CONFIG: Json = {"model": "full", "flags": [], "sessions": 0}


class Scripted:
    """A server that does what its script says: each event comes with what the server did to host memory before it.

    ``free``: the free slots of each pool, which the script sets. ``rows``: the slots before the tokens of a pass.
    """

    fragile, lacks = False, frozenset[str]()
    storage_threads: tuple[str, ...] = ("queries", "fetches", "agrees", "saves")

    def __init__(self, overlaps: bool = False, windowed: bool = False, page: int = PAGE) -> None:
        self.overlaps, self.windowed, self.page = overlaps, windowed, page
        self.shape = {"size": BLOCKS, "size_swa": BLOCKS, "page_size": page, "window": 2, "sessions": 0}
        self.host_pages = dict.fromkeys((FULL, SWA), page)
        self.host_slots = dict.fromkeys((FULL, SWA) if windowed else (FULL,), SLOTS)
        self.free = {pool: [*range(1, SLOTS + 1)] for pool in self.host_slots}
        self.script: list[tuple[Sequence[HostStep], ServerEvent]] = []
        self.steps: list[HostStep] = []
        self.kept = ""
        self.rows: dict[int, list[int]] = {}
        self.amiss: list[str] = []

    def generate(self, *_: Any) -> None:
        """It hears nothing."""

    abort = open = close = flush = pause = resume = update_weights = release_memory = resume_memory = generate

    def go_on(self) -> ServerEvent:
        """The next event; a poll after the last one."""
        steps, event = self.script.pop(0) if self.script else ((), ServerEvent(POLL))
        self.steps += steps
        for step in steps:
            for slot, _ in step.pairs:
                if step.kind in ("reserved", "staged") and slot in self.free[step.pool]:
                    self.free[step.pool].remove(slot)
                elif step.kind == "freed":
                    self.free[step.pool].append(slot)
            if step.kind == "cleared":
                self.free[step.pool] = [*range(1, SLOTS + 1)]
        return event

    def host_steps(self) -> list[HostStep]:
        """What the script has said."""
        steps, self.steps = self.steps, []
        return steps

    def end_copies(self, stores: bool, count: int) -> None:
        """The script says when copies are done."""

    def storage_goes_on(self, thread: str, outcome: str) -> None:
        """The script says what comes from a storage."""

    def prefix_slots(self, one: ServerPass) -> list[int]:
        """The row of the request."""
        return self.rows.get(one.request, [])[: one.start]

    def state_slot(self, one: ServerPass) -> int:
        """The model has no states."""
        assert one.row == 0
        return 0

    def swa_mapping(self) -> list[int] | None:
        """Each full slot has the SWA slot of its number."""
        return [*range((BLOCKS + 1) * PAGE)] if self.windowed else None

    def idle_problems(self) -> list[str]:
        """Its own check."""
        return self.amiss

    def kept_on_host(self) -> str:
        """What stays."""
        return self.kept

    def host_snapshot(self) -> Mapping[str, HostPoolSnapshot]:
        """The pools."""
        return {
            pool: HostPoolSnapshot(SLOTS, list(free), [s for s in range(1, SLOTS + 1) if s not in free], len(free))
            for pool, free in self.free.items()
        }


def known(tokens: int, fork: int = 9) -> ServedRequest:
    return ServedRequest([token(n, fork) for n in range(tokens)], [], 0, 0, None, False)


def begun(engine: Scripted, request: int = 0, tokens: int = 4, fork: int = 9) -> LockStep:
    """A run in which a request has come, and its prompt is computed in the first blocks."""
    lock = LockStep(HostServerRun(engine, CONFIG), CONFIG)  # type: ignore[arg-type]
    comes(lock, engine, request, tokens, fork, [*range(PAGE, PAGE + tokens)])
    return lock


def comes(
    lock: LockStep, engine: Scripted, request: int, tokens: int, fork: int, slots: list[int], start: int = 0
) -> None:
    """A request comes and is computed from ``start`` on, into these slots."""
    asked = known(tokens, fork)
    lock.do("generate", request=request, tokens=asked.tokens, longest=1, fork=fork)
    one = ServerPass(request, 0, start, tokens, tuple(asked.tokens[start:]), tuple(slots))
    arrived = ServerEvent("arrived", {request: asked})
    engine.script += [((), arrived), ((), ServerEvent("passed", {request: asked}, [one]))]
    lock.do("turn")


def told(lock: LockStep, engine: Scripted, *steps: HostStep) -> str:
    """The law that the server breaks by these steps; empty if none."""
    engine.script.append((steps, ServerEvent("resulted")))
    try:
        lock.do("turn")
    except Finding as finding:
        return finding.law
    return ""


PAIRS = ((1, 1), (2, 2))
RESERVED = HostStep("reserved", pairs=PAIRS, ack=7)
STORES = HostStep("stores", pairs=PAIRS, copy=1)
ENDED, PUBLISHED = HostStep("ended", copy=1), HostStep("published", ack=7)
BACK = ((1, 4), (2, 5))
PROMISED, LOADS = HostStep("promised", pairs=BACK, ack=8), HostStep("loads", pairs=BACK, copy=2)
LOAD_ENDED, LOADED = HostStep("ended", copy=2), HostStep("loaded", ack=8)
FREED = HostStep("freed", pairs=((1, 0),))
STORED = (RESERVED, STORES, ENDED, PUBLISHED)


def test_what_is_stored_and_loaded_is_read_as_it_was() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, *STORED) == ""
    assert told(lock, engine, PROMISED, LOADS, LOAD_ENDED, LOADED) == ""
    engine.rows[1] = [8, 9, 10, 11]
    comes(lock, engine, 1, 6, 9, [12, 13], start=4)
    assert lock.law.counts["load", "done"] == 2
    assert told(lock, engine, FREED) == ""


def test_what_was_not_loaded_yet_is_not_read() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, *STORED, PROMISED, LOADS) == ""
    engine.rows[1] = [8, 9, 10, 11]
    with pytest.raises(Finding) as caught:
        comes(lock, engine, 1, 6, 9, [12, 13], start=4)
    assert caught.value.law == READS_OWN


@pytest.mark.parametrize(
    ("steps", "law"),
    [
        ((RESERVED, STORES, PUBLISHED), "publish"),  # before the copy has ended
        ((RESERVED, PUBLISHED), "publish"),  # before it has begun
        ((*STORED, PROMISED, FREED), "evict"),  # what was promised
        ((*STORED, PROMISED, LOADS, FREED), "evict"),
        ((RESERVED, STORES, FREED), "discard"),  # under a copy
        ((*STORED, FREED, FREED), "evict"),  # twice
        ((*STORED, LOADS), "load"),  # without a promise
        ((*STORED, PROMISED, LOADED, LOADS), "load"),  # whose promise was taken back
        ((*STORED, FREED, PROMISED), "find"),  # after the slot was freed
        ((RESERVED, RESERVED._replace(pairs=((2, 3),))), "reserve"),  # a slot that is taken
        ((RESERVED._replace(pairs=((1, 0),)),), host.WHOLE),
        ((RESERVED._replace(pairs=((1, 3),)), STORES._replace(pairs=((1, 3),))), "reserve"),  # a block without a text
        ((RESERVED, STORES._replace(pairs=((1, 2), (2, 1)))), "store"),  # of each other's slots
        ((*STORED, PROMISED, LOADS, LOADS._replace(copy=3)), "load"),  # into blocks that another load writes
    ],
)
def test_what_no_server_may_do_to_its_host_memory(steps: tuple[HostStep, ...], law: str) -> None:
    engine = Scripted()
    assert told(begun(engine), engine, *steps) == law


def test_no_pass_writes_what_a_copy_uses() -> None:
    for steps, slots in (((RESERVED, STORES), [2, 3]), ((*STORED, PROMISED, LOADS), [8, 9])):
        engine = Scripted()
        lock = begun(engine)
        assert told(lock, engine, *steps) == ""
        with pytest.raises(Finding) as caught:
            comes(lock, engine, 1, 2, 0, slots)
        assert caught.value.law == "write"


def test_where_steps_overlap_a_copy_waits_for_the_passes_that_write_its_blocks() -> None:
    loose = STORES._replace(fenced=False)
    assert told(begun(engine := Scripted(overlaps=True)), engine, RESERVED, loose) == host.WAITS
    assert told(begun(engine := Scripted(overlaps=True)), engine, RESERVED, STORES) == "", "its stream waits"
    ordered = HostStep("ordered")
    assert told(begun(engine := Scripted(overlaps=True)), engine, ordered, RESERVED, loose) == "", (
        "the scheduler's does"
    )
    assert told(begun(engine := Scripted()), engine, RESERVED, loose) == "", "the stream of the passes is its own"
    lock = begun(engine := Scripted(overlaps=True))
    assert told(lock, engine) == "", "the result of the step has come"
    assert told(lock, engine, RESERVED, loose) == ""


def test_a_cleared_host_forgets_and_copies_in_flight_go_on() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, RESERVED, STORES, HostStep("cleared")) == ""
    assert told(lock, engine, RESERVED._replace(ack=9)) == ""
    assert told(lock, engine, STORES._replace(copy=3)) == "store", "the lost copy still writes the slot"


def test_a_slot_that_nobody_has_is_missed() -> None:
    engine = Scripted()
    lock = begun(engine)
    engine.free[FULL].remove(3)
    with pytest.raises(Finding, match="slot 3 is neither free nor of a key"):
        lock.do("turn")


def test_each_pool_has_slots_of_its_own() -> None:
    engine = Scripted(windowed=True)
    lock = begun(engine)
    both = [
        step._replace(pool=pool, copy=step.copy + 10 * (pool == SWA))
        for pool in (FULL, SWA)
        for step in (RESERVED, STORES)
    ]
    ends = [ENDED, ENDED._replace(pool=SWA, copy=11), PUBLISHED]
    assert told(lock, engine, *both, *ends) == ""
    assert told(lock, engine, FREED._replace(pool=SWA)) == ""
    assert told(lock, engine, FREED) == ""
    assert told(lock, engine, FREED) == "evict"


def test_a_server_at_rest_has_heard_of_all_copies_and_can_evict_everything() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, RESERVED, STORES) == ""
    with pytest.raises(Misuse):
        lock.do("rest")
    assert told(lock, engine, ENDED) == ""
    with pytest.raises(Finding) as caught:
        lock.do("rest")
    assert caught.value.law == host.HEARS
    engine.kept = "2 slots stay"
    assert told(lock, engine, PUBLISHED) == ""
    with pytest.raises(Finding) as caught:
        lock.do("rest")
    assert caught.value.law == host.RESTS
    engine.kept = ""
    lock.do("rest")


def test_the_law_has_as_many_keys_as_there_must_be() -> None:
    """A number is given out again when nothing is of its key any more."""
    engine = Scripted()
    lock = begun(engine)
    for request in range(1, 4 * MORE_KEYS):
        comes(lock, engine, request, 2, 0 if request % 2 else 1, [2 + 2 * (request % 3), 3 + 2 * (request % 3)])
    assert lock.law.state.every_key.size == MORE_KEYS
    engine = Scripted(page=1)
    lock = LockStep(HostServerRun(engine, CONFIG), CONFIG)  # type: ignore[arg-type]
    comes(lock, engine, 0, BLOCKS, 9, [*range(1, BLOCKS + 1)])
    for n in range(MORE_KEYS):
        comes(lock, engine, n + 1, 1, 100 + n, [1])
    assert lock.law.state.every_key.size == MORE_KEYS


# Streams and events.


def test_copies_of_a_stream_are_done_in_their_order_and_an_event_waits_for_those_before_it() -> None:
    device, done = CopyDevice(), []
    stream, event = CopyStream(), device.Event(enable_timing=True)
    with device.stream(stream):
        stream.begin(lambda: done.append(1))
        event.record()
        stream.begin(lambda: done.append(2))
    assert not event.query()
    device.current_stream().wait_event(event)
    assert (event.query(), done) == (True, [1])
    assert stream.end()
    assert not stream.end()
    assert done == [1, 2]
    assert device.Event().query(), "an event that was never recorded is reached"


def test_a_stream_of_copies_that_waits_for_another_one_has_no_verdict() -> None:
    device, one, other = CopyDevice(), CopyStream(), CopyStream()
    one.begin(lambda: None)
    with pytest.raises(EngineError, match="does not follow"):
        other.wait_stream(one)
    one.synchronize()
    other.wait_stream(one)
    assert other.fenced
    del device


# SGLang's real scheduler.

DRIVE = """
    import json, sys
    from conformance.driver.lockstep import Finding
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["host_server"]
    said = []
    PLANT
    for config, steps in json.loads(sys.argv[2]):
        run = start("host_server", make, config)
        law = ""
        try:
            for step in steps:
                run.do(**step)
        except Finding as finding:
            law = finding.law
        done = {name: n for (name, outcome), n in run.law.counts.items() if outcome == "done"}
        said.append({"law": law, "done": done, "core": run.run.engine.ran.get("core", "")})
    print(json.dumps(said))
"""
FLAGS = [
    "--max-total-tokens",
    "32",
    "--context-length",
    "24",
    "--max-running-requests",
    "2",
    "--attention-backend",
    "triton",
]


def config(model: str = "full", page: int = 1, policy: str = "write_through", core: str = "", *more: str) -> Json:
    own = [
        "--page-size",
        str(page),
        "--enable-hierarchical-cache",
        "--hicache-ratio",
        "2",
        "--hicache-write-policy",
        policy,
    ]
    environment = {"environment": {"UNIFIED_RADIX_TREE_CORE_BACKEND": core}} if core else {}
    return {"model": model, "flags": [*own, *FLAGS, *more], "sessions": 0, **environment}


def asks(request: int, fork: int, tokens: int = 16) -> Json:
    text = [token(n, fork) for n in range(tokens)]
    return {"op": "generate", "request": request, "tokens": text, "longest": 3, "fork": fork}


SLOTS_OF_STATES = ("--max-mamba-cache-size", "10")
ENDS = [{"op": "copies_end", "stores": True, "count": 100}, {"op": "copies_end", "stores": False, "count": 100}]
TURN = {"op": "turn", "times": 6}
# A text, others that take its place on the device, and the text again, which is loaded.
AGAIN = [step for n, fork in enumerate((0, 1, 2, 0, 1, 2)) for step in (asks(n, fork, 16 + n // 3), TURN, *ENDS, TURN)]
AGAIN += [*ENDS, {"op": "turn", "times": 9}, {"op": "rest"}]


def sent(*runs: tuple[Json, list[Json]], plant: str = "") -> list[Any]:
    found: list[Any] = driven(NEWEST, DRIVE.replace("PLANT", plant), json.dumps(runs))
    return found


@pytest.mark.engine
def test_what_sglang_does_with_its_host_memory_is_followed_by_the_law() -> None:
    every = [(m, c) for m in ("full", "windowed") for c in ("python", "rust")]
    through = sent(*((config(model, 1, "write_through", core), AGAIN) for model, core in every))
    (states,) = sent(
        (config("recurrent", 1, "write_through", "", "--disable-overlap-schedule", *SLOTS_OF_STATES), AGAIN)
    )
    assert (states["law"], states["done"]["load"] > 0) == ("", True), states
    back = sent(*((config("full", page, "write_back", ""), AGAIN) for page in (1, 4)))
    for said in (*through, *back):
        assert said["law"] == "", said
        assert {"store", "publish", "promise", "load", "withdraw"} <= said["done"].keys(), said
    assert [said["core"] for said in through] == ["python", "rust"] * 2


# Each changes one method, so that this law is broken.
PLANTS = {
    "copy_waits_for_passes": """
    from sglang.srt.managers.cache_controller import HiCacheController
    real = HiCacheController.start_writing
    def loose(self):
        self.write_fence_stream = None
        return real(self)
    HiCacheController.start_writing = loose
""",
    "publish": """
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    real = UnifiedRadixCache.writing_check
    def early(self, write_back=False, finish_count=None):
        for ack in self.cache_controller.ack_write_queue:
            for number in ack.node_ids:
                self._finish_write_through_ack(number)
        self.cache_controller.ack_write_queue.clear()
    UnifiedRadixCache.writing_check = early
""",
    "reads_own_content": """
    from sglang.srt.managers.tp_worker import TpModelWorker
    TpModelWorker.set_hicache_consumer = lambda self, index: None
""",
    "host_memory_comes_back": """
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    UnifiedRadixCache.dec_host_lock_ref = lambda self, node, params=None: None
""",
}


@pytest.mark.engine
@pytest.mark.parametrize("law", PLANTS)
def test_a_bug_of_host_memory_is_found(law: str) -> None:
    """A load is done when the server waits for it, or at the end; so what does not wait for it is seen."""
    late = [step for step in AGAIN[:-4] if step.get("stores", True)] + AGAIN[-4:]
    stops = {"op": "generate", "request": 90, "tokens": [1, 2], "longest": 4, "fork": 9, "stop": 2}
    (said,) = sent((config(), [stops, TURN, *ENDS, TURN, *late]), plant=PLANTS[law])
    assert said["law"] == law


@pytest.mark.engine
def test_a_text_that_begins_on_a_state_that_was_not_cleared_is_found() -> None:
    states = config("recurrent", 1, "write_through", "", "--disable-overlap-schedule", *SLOTS_OF_STATES)
    others = [step for fork in range(9) for step in (asks(fork, fork), TURN, *ENDS, TURN)]
    (said,) = sent((states, others), plant=CLEARS_NOTHING)
    assert said["law"] == READS_OWN
