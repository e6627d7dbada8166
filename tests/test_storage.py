"""A storage behind the host memory of a server: what may be fetched and saved, on a scripted server and on SGLang's."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from driven import driven, sampled
from storage_edits import HARMLESS, SAMPLE
from test_host_server import BACK, FREED, PAIRS, STORED, Scripted, begun, comes, told
from test_host_server import DRIVE as DRIVE_SERVERS

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import EngineError, Json, Misuse
from conformance.driver.shadow import READS_OWN, STATES, SWA
from conformance.engines.sglang.launches import STORAGE
from conformance.engines.sglang.server.storing import OrderedStorage, StoppingThread, StorageQueue
from conformance.stems.host_server.keys import MORE_KEYS, KeyNumbers
from conformance.stems.host_server.protocol import HostStep
from conformance.stems.host_server.storing import OnTheWay
from spec import host_tier

# Slots 3 and 4 get the two pages of request 0 from the storage, where they are entries 1 and 2.
PAGES, ENTRIES = ((3, 0), (4, 1)), ((3, 1), (4, 2))
SAVES = HostStep("saves", pairs=PAIRS, copy=1)
SAVED, SAVE_ENDED = HostStep("saved", pairs=PAIRS, copy=1), HostStep("save_ended", copy=1)
LET_GO = HostStep("let_go", copy=1)
KEPT = (*STORED, SAVES, SAVED, SAVE_ENDED, LET_GO)
STAGED = HostStep("staged", pairs=PAGES, copy=2, request=0)
FETCHED, FETCH_ENDED = HostStep("fetched", pairs=ENTRIES, copy=2), HostStep("fetch_ended", copy=2)
INSERTED = HostStep("inserted", pairs=PAGES)
BROUGHT = (STAGED, FETCHED, FETCH_ENDED, INSERTED)
GIVEN_BACK = HostStep("freed", pairs=PAGES)
LOADED = tuple((slot, block) for (slot, _), (_, block) in zip(PAGES, BACK, strict=True))
LOADS = (
    HostStep("promised", pairs=LOADED, ack=8),
    HostStep("loads", pairs=LOADED, copy=5),
    HostStep("ended", copy=5),
    HostStep("loaded", ack=8),
)


def test_what_was_saved_comes_back_and_is_read_as_it_was() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, *KEPT, HostStep("freed", pairs=PAIRS)) == ""
    assert told(lock, engine, *BROUGHT, *LOADS) == ""
    engine.rows[1] = [8, 9, 10, 11]
    comes(lock, engine, 1, 6, 9, [12, 13], start=4)
    assert told(lock, engine, GIVEN_BACK) == ""


def test_two_requests_may_fetch_one_text_and_one_of_them_gives_it_back() -> None:
    engine = Scripted()
    lock = begun(engine)
    assert told(lock, engine, *KEPT, HostStep("freed", pairs=PAIRS)) == ""
    again = STAGED._replace(pairs=((1, 0), (2, 1)), copy=3), FETCHED._replace(pairs=((1, 1), (2, 2)), copy=3)
    assert told(lock, engine, *BROUGHT, *again, FETCH_ENDED._replace(copy=3)) == ""
    assert told(lock, engine, HostStep("freed", pairs=((1, 0), (2, 0)))) == ""
    assert told(lock, engine, GIVEN_BACK) == ""


@pytest.mark.parametrize(
    ("steps", "law"),
    [
        ((*KEPT, STAGED, INSERTED), "publish"),  # before the pages have come
        ((*KEPT, STAGED, FETCHED._replace(pairs=ENTRIES[:1]), FETCH_ENDED, INSERTED), "publish"),  # one has not come
        ((*KEPT, STAGED, GIVEN_BACK), "discard"),  # while a thread writes them
        ((*KEPT, STAGED, FETCHED._replace(pairs=ENTRIES[:1]), GIVEN_BACK), "discard"),
        ((*KEPT, STAGED, FETCH_ENDED, GIVEN_BACK, GIVEN_BACK), "evict"),  # twice
        ((*KEPT, STAGED._replace(pairs=((1, 0),))), "reserve"),  # a slot that a key has
        ((*STORED[:3], SAVES), "find"),  # before the copy to the host is published
        ((*STORED, SAVES, FREED), "evict"),  # while a thread reads it
        ((*STORED, SAVES, LET_GO), "withdraw"),  # the hold is given up before the thread has ended
        ((*STORED, SAVES, SAVED, SAVE_ENDED, FREED), "evict"),  # the hold is not given up
        ((*KEPT, FREED), ""),
    ],
)
def test_what_no_server_may_do_with_a_storage(steps: tuple[HostStep, ...], law: str) -> None:
    engine = Scripted()
    assert told(begun(engine), engine, *steps) == law


def test_pages_of_another_text_are_read_by_nobody() -> None:
    """The storage keeps under one key what two slots hold, so that a request gets the page of another place."""
    engine = Scripted()
    lock = begun(engine)
    swapped = FETCHED._replace(pairs=((3, 2), (4, 1)))
    assert told(lock, engine, *KEPT, STAGED, swapped, FETCH_ENDED, INSERTED, *LOADS) == ""
    engine.rows[1] = [8, 9, 10, 11]
    with pytest.raises(Finding) as caught:
        comes(lock, engine, 1, 6, 9, [12, 13], start=4)
    assert caught.value.law == READS_OWN


def test_a_fetch_keeps_the_number_of_the_key_whose_text_comes() -> None:
    """The numbers run out between the two keys of a page of a fetch: nothing is of the first one yet."""
    law = Law(host_tier.stem, host_tier.initial(MORE_KEYS, 2, 2, 1, 1))
    keys = KeyNumbers()
    for prefix in range(MORE_KEYS - 1):
        keys.number(("full", prefix), law)
    OnTheWay(law, keys, blocks=2).staged(0, [("full", 1, MORE_KEYS)])
    key = law.state.key(1)
    told = keys.number(("full", MORE_KEYS), law)
    others = {keys.number(("full", prefix), law) for prefix in range(100, 100 + MORE_KEYS)}
    assert law.state.tells(key, 0) == told
    assert told not in others


def test_only_threads_that_a_server_has_go_on() -> None:
    engine = Scripted()
    engine.storage_threads = ()
    with pytest.raises(Misuse, match="the server has no thread 'saves'"):
        begun(engine).do("storage_goes_on", thread="saves")


# Threads and queues.


class Kept:
    """A storage of keys, with one of the calls of a release's."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def batch_set(self, keys: list[str], values: Any = None) -> bool:
        """Keeps the keys."""
        del values
        self.keys += keys
        return True

    batch_exists = batch_exists_v2 = batch_get = batch_get_v2 = batch_set_v2 = batch_set


def saving() -> tuple[StorageQueue, Kept, StoppingThread, list[bool], list[list[str]]]:
    """A thread that saves what comes to a queue: the queue, the storage, the thread, its answers, and what it saved."""
    asked, storage, said, saved = StorageQueue(), Kept(), list[bool](), list[list[str]]()
    OrderedStorage(storage, lambda _, keys: saved.append(keys))

    def saves() -> None:
        while (keys := asked.get()) is not None:
            said.append(storage.batch_set(keys))

    thread = StoppingThread(saves)
    thread.start()
    return asked, storage, thread, said, saved


def test_a_thread_stops_at_its_queue_and_before_each_call_and_does_what_the_run_says() -> None:
    asked, storage, thread, said, saved = saving()
    asked.put(["a", "b", "c", "d"])
    assert (storage.keys, thread.calls) == ([], False)
    thread.go_on()
    assert (storage.keys, thread.calls) == ([], True), "the call has begun, and is not done"
    thread.go_on("partly")
    assert (storage.keys, said, saved, thread.calls) == (["a", "b"], [False], [["a", "b"]], False)
    asked.put(["e"])
    thread.go_on()
    thread.go_on("raises")
    assert not thread.is_alive(), "nobody catches what the storage raises"
    thread.go_on()
    thread.join()


def test_who_waits_for_a_thread_gets_all_that_it_has_to_do() -> None:
    asked, storage, thread, said, _ = saving()
    for item in (["a"], ["b"], None):
        asked.put(item)
    thread.join(timeout=10)
    assert (storage.keys, said, thread.is_alive()) == (["a", "b"], [True, True], False)


def test_a_thread_that_never_ends_and_a_queue_that_nobody_fills_are_errors_of_the_run() -> None:
    def asks() -> None:
        while True:
            with suppress(Empty):
                StorageQueue().get()

    thread = StoppingThread(asks)
    thread.start()
    with pytest.raises(EngineError, match="asks does not end"):
        thread.join()
    with pytest.raises(EngineError, match="no thread puts one there"):
        StorageQueue().get()
    with pytest.raises(Empty):
        StorageQueue().get(timeout=1)
    filled = StorageQueue()
    filled.others_go_on = lambda: filled.put(1)
    assert filled.get() == 1, "while the scheduler waits, the threads go on"


# SGLang's real scheduler, controller, storage and threads.

THREADS = ("saves", "queries", "fetches", "agrees")
FETCHES: Json = {"op": "storage_goes_on", "thread": "fetches"}
QUERIES: Json = {"op": "storage_goes_on", "thread": "queries"}
BEGUN = (QUERIES, QUERIES, {"op": "turn", "times": 1}, FETCHES)  # the thread that fetches stands before its call


def served(core: str, *between: Json, model: str = "full") -> tuple[Json, list[Json]]:
    """A prompt is computed and saved, the cache is flushed, and a longer one comes. ``between``: what is done
    before its pages are fetched.
    """
    flags = f"--page-size {1 if model == 'recurrent' else 2} --max-total-tokens 48 --context-length 36"
    flags += " --disable-overlap-schedule --max-running-requests 2 --max-mamba-cache-size 10"
    flags += " --enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through"
    flags += " --hicache-storage-backend sim --hicache-storage-prefetch-policy wait_complete"
    known = [*flags.split(), "--hicache-storage-backend-extra-config", json.dumps(STORAGE)]
    config: Json = {"model": model, "flags": known, "sessions": 0}
    if core:
        config["environment"] = {"UNIFIED_RADIX_TREE_CORE_BACKEND": core}
    asked: Json = {"op": "generate", "session": 0, "tokens": [*range(1, 21)], "longest": 2, "fork": 20}
    goes: list[Json] = [{"op": "storage_goes_on", "thread": thread} for thread in (*THREADS, *THREADS)]
    ends: list[Json] = [{"op": "copies_end", "stores": stores, "count": 9} for stores in (True, False)]
    works: list[Json] = 6 * [*ends, *goes, {"op": "turn", "times": 2}]
    longer = {**asked, "tokens": [*asked["tokens"], 500, 501, 502], "request": 1}
    again: list[Json] = [{"op": "flush"}, {"op": "turn"}, longer, {"op": "turn"}]
    return config, [{**asked, "request": 0}, *works, *again, *between, *works, {"op": "rest"}]


DRIVE = """
    import json, sys
    from conformance.driver.lockstep import Finding, Law
    from conformance.engines.registry import load
    from conformance.stems.stem_registry import start

    make = load("sglang", release=sys.argv[1]).makers["host_server"]
    config, steps = json.loads(sys.argv[2])
    run = start("host_server", make, config)
    real, counts = run.run.engine.host_steps, {}

    def host_steps():
        found = real()
        for step in found:
            name = f"{step.kind} {step.pool}"
            counts[name] = counts.get(name, 0) + len(step.pairs)
        return found

    run.run.engine.host_steps = host_steps
    for step in steps:
        run.do(**step)
    print(json.dumps([counts]))
"""
CORES = [(release, core) for release in ("0.5.23", "0.5.22", "0.5.21", "0.5.20") for core in ("", "python")]


def counted(release: str, core: str, *between: Json, model: str = "full") -> Json:
    found: list[Json] = driven(release, DRIVE, json.dumps(served(core, *between, model=model)))
    return found[0]


@pytest.mark.soak(but=1)
@pytest.mark.engine
@pytest.mark.parametrize(("release", "core"), sampled(CORES, 4))
def test_a_flushed_prompt_comes_back_from_the_storage(release: str, core: str) -> None:
    """Its pages are found under the keys under which they were saved; the core in Rust has hashed them itself."""
    counts = counted(release, core)
    found = [counts.get(f"{kind} full", 0) for kind in ("staged", "fetched", "inserted", "loads", "freed")]
    assert found == [10, 10, 10, 10, 0]


@pytest.mark.engine
@pytest.mark.parametrize(("model", "pool", "slots"), [("windowed", SWA, 2), ("recurrent", STATES, 1)])
def test_windows_and_states_come_back_too(model: str, pool: str, slots: int) -> None:
    """``slots``: those of the window, and of the state, that come with the pages of the text."""
    counts = counted("0.5.23", "", model=model)
    assert [counts.get(f"{kind} {pool}", 0) for kind in ("staged", "fetched", "inserted")] == 3 * [slots]
    assert counts[f"loads {pool}"] >= slots, "a state is loaded for the tree and for the request"


@pytest.mark.engine
def test_what_a_storage_cannot_give_is_computed() -> None:
    """The query finds ten pages, and the fetch half of them, or the storage cannot be reached then."""
    for outcome, come in (("partly", 5), ("raises", 0)):
        counts = counted("0.5.23", "", *BEGUN, {**FETCHES, "outcome": outcome})
        found = [counts.get(f"{kind} full", 0) for kind in ("staged", "fetched", "inserted", "freed")]
        assert found == [10, come, come, 10 - come]


@pytest.mark.engine
def test_an_abort_under_a_fetch_gives_its_slots_back_when_the_thread_has_ended() -> None:
    """The thread sees it, and leaves the pages out."""
    counts = counted("0.5.23", "", *BEGUN, {"op": "abort", "request": 1}, {"op": "turn", "times": 2})
    assert [counts.get(f"{kind} full", 0) for kind in ("staged", "fetched", "inserted", "freed")] == [10, 0, 0, 10]


EDITED = """
    import json, sys
    from drawn_edits import broken
    from host_memory_edits import made
    from storage_edits import ALL, with_storage
    from conformance.engines import registry
    from conformance.engines.sglang.kinds import KINDS
    from conformance.search.judge import excluded, listed_of

    release, name = sys.argv[1:]
    make = registry.load("sglang", release=release).makers["host_server"]
    exclude = excluded("host_server", listed_of({"engine": "sglang", "listed": release}))
    with made(ALL[name]):
        kinds = KINDS._replace(hosting=with_storage(KINDS.hosting))
        laws = (broken("host_server", make, exclude, seed, kinds) for seed in (2, 1, 3))
        print(json.dumps([next((law for law in laws if law), None)]))
"""
PLANT = "from host_memory_edits import made; from storage_edits import ALL; edit = made(ALL[{!r}]); edit.__enter__()"


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts can import the edits beside this file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


HALF = ("failed_fetch_is_published", "counts_a_missing_page")


@pytest.mark.usefixtures("edits")
@pytest.mark.engine
@pytest.mark.parametrize("name", HALF)
def test_a_page_that_has_not_come_is_not_published(name: str) -> None:
    runs = [served("", *BEGUN, {**FETCHES, "outcome": "partly"})]
    found = driven("0.5.23", DRIVE_SERVERS.replace("PLANT", PLANT.format(name)), json.dumps(runs))
    assert [said["law"] for said in found] == ["publish"]


@pytest.mark.soak
@pytest.mark.usefixtures("edits")
@pytest.mark.engine
@pytest.mark.parametrize("name", sorted(SAMPLE.keys() - HALF))
def test_a_bug_is_found(name: str) -> None:
    found: list[Any] = driven("0.5.23", EDITED, name)
    assert found != [None]


@pytest.mark.soak
@pytest.mark.usefixtures("edits")
@pytest.mark.engine
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_edit_is_let_through(name: str) -> None:
    found: list[Any] = driven("0.5.23", EDITED, name)
    assert found == [None]
