"""Runs of ``host_tier``: every fault is found, every wrong snapshot and answer is named, and what an engine may choose
is let through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from driven import Variant, done, judge, sampled

from conformance.driver.lockstep import CONFORMS, ENOUGH, REFUSED, Finding, LockStep
from conformance.driver.operations import declared
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.shadow import BLOCKS
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.search.harm import harm
from conformance.stems.fault import Fault
from conformance.stems.host_tier.contents import HOST
from conformance.stems.host_tier.faults import FAULTS as MINE
from conformance.stems.host_tier.manager import HostManager, host_manager
from conformance.stems.host_tier.protocol import ABSENT, FOUND, PENDING, HostTierSnapshot, Offered
from conformance.stems.host_tier.run import KNOWN, OWN_SLOT, STAYS, STORES, WAITS, HostTierRun
from conformance.stems.stem_registry import start
from conformance.telling.tell import tell
from conformance.traces.outcome import outcome
from spec.host_tier import stem as law

STEM = "host_tier"
SMALL: Json = {
    **{"slots": 2, "keys": 4, "parts": 2, "requests": 2},
    **{"policy": "lru", "threshold": 1, "events": True},
}


def run(make: Callable[[Json], Any] = host_manager, **config: Any) -> LockStep:
    """A run on a small host."""
    return start(STEM, make, {**SMALL, **config})


def run_of(lock: LockStep) -> HostTierRun:
    assert isinstance(lock.run, HostTierRun)
    return lock.run


def computed(lock: LockStep, request: int, keys: Sequence[int]) -> None:
    """A request has computed all its keys."""
    lock.do("begin", request=request, keys=list(keys))
    lock.do("compute", request=request, to=len(keys) * run_of(lock).parts)


def stored(lock: LockStep, job: int, well: bool = True) -> None:
    """The copies of a job begin and end, and their end is reported."""
    lock.do("start", job=job)
    lock.do("end", job=job, well=well)
    lock.do("report", job=job)


def begun(make: Callable[[Json], Any] = host_manager, **config: Any) -> LockStep:
    """Key 1 of request 1 is found, in slot 1; key 2 has slot 2, and its copy has not begun: it is job 1."""
    lock = run(make, **config)
    computed(lock, 1, [1, 2])
    lock.do("offer", request=1, first=0, last=1, job=1)
    stored(lock, 1)
    lock.do("offer", request=1, first=1, last=2, job=1)
    return lock


# Every operation and every transition.


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("seed", sampled([None, 1, 2], 2))
def test_drawn_runs_take_every_transition_and_send_every_operation(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: set[str] = set()
    do = LockStep.do

    def noted(lock: LockStep, op: str, **arguments: Any) -> None:
        sent.add(op)
        do(lock, op, **arguments)

    monkeypatch.setattr(LockStep, "do", noted)
    found = check(STEM, host_manager, Search(examples=60, seed=seed))
    assert found.verdict == CONFORMS, f"{found.law}: {found.detail} {found.trace}"
    assert sent == set(declared(HostTierRun))
    often = {name: found.transitions.get(f"{name} done", 0) for name in law.transitions}
    assert min(often.values()) > 40, often
    assert found.transitions["reserve refused"] > 40


# Faults.


@pytest.mark.soak(but=1)  # the nightly workflow finds every fault from nothing
@pytest.mark.parametrize("seed", sampled([None, 1, 2], 3))
@pytest.mark.parametrize("fault", MINE, ids=lambda fault: fault.name)
def test_each_fault_is_found_in_one_search(fault: Fault, seed: int | None) -> None:
    assert check(STEM, fault.make, Search(examples=300, seed=seed)).verdict != CONFORMS


@pytest.mark.parametrize("fault", MINE, ids=lambda fault: fault.name)
def test_the_kept_run_of_a_fault_holds_on_a_right_manager_and_does_no_harm_there(fault: Fault) -> None:
    trace = kept_run(fault).trace
    assert outcome(trace, host_manager).breaks == ()
    (shown,) = outcome(trace, fault.make).breaks
    assert shown.step == len(trace.steps)
    found = harm(trace, len(trace.steps), host_manager)
    assert (found["request"], found["stops"]) == (None, "")
    assert found["operations"] > 100


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("failed_store_is_found", "reads a block that nobody has written"),
        ("found_while_written", "reads a block that nobody has written"),
        ("found_when_reserved", "reads a block that nobody has written"),
        ("evicted_under_a_load", "reads request 3's tokens"),
        ("evicted_while_written", "reads request 3's tokens"),
    ],
)
def test_the_harm_of_a_fault_is_found(name: str, reads: str) -> None:
    trace = kept_run(FAULTS[name]).trace
    assert reads in harm(trace, len(trace.steps), FAULTS[name].make)["sentence"]


def test_a_leak_has_no_harm_of_this_kind() -> None:
    trace = kept_run(FAULTS["failed_store_leaks"]).trace
    assert harm(trace, len(trace.steps), FAULTS["failed_store_leaks"].make)["request"] is None


def test_a_story_says_what_changed() -> None:
    trace = kept_run(FAULTS["failed_store_leaks"]).trace
    told = tell(trace, FAULTS["failed_store_leaks"].make)
    assert "key 1: not on the host → being written" in told[2].changed
    assert "the slot of key 1: none → slot 1" in told[2].changed
    assert "available_counts" in told[-1].wrong


# What the snapshot shows.

# Each: what is wrong in the snapshot after ``begun``, and the words that say it.
WRONG: dict[str, tuple[Json, str]] = {
    "a key that is lost": ({"slots": {2: 2}, "refs": {2: -1}}, "key 1 is not on the host, the law has found"),
    "a key that is found too early": ({"refs": {1: 0, 2: 0}}, "key 2 is found, the law has being written"),
    "a key that is not published": ({"refs": {1: -1, 2: -1}}, "key 1 is being written, the law has found"),
    "a promise too many": ({"refs": {1: 1, 2: -1}}, "the number of promises of key 1 is 1, the law has 0"),
    "another slot": ({"slots": {1: 2, 2: 1}}, "the slot of key 1 is slot 2, the law has slot 1"),
    "a slot with two keys": ({"slots": {1: 1, 2: 1}}, "2 keys have slot 1; slot 2 is neither free nor of a key"),
    "a slot outside": ({"slots": {1: 1, 2: 9}}, "the slot of key 2 is slot 9, the law has slot 2"),
    "a taken slot that is free": ({"free": [1], "available": 1}, "slot 1 is free, and a key has it"),
    "a slot that is free twice": ({"free": [1, 1], "available": 2}, "slot 1 is free 2 times"),
    "a free slot outside": ({"free": [9], "available": 1}, "slot 9 is free, which is no slot of the host"),
    "another number of free slots": ({"available": 1}, "the manager reports 1 free slots, and it has 0"),
    "a key of nobody": (
        {"slots": {1: 1, 2: 2, 0: 2}, "refs": {1: 0, 2: -1, 0: 0}},
        "the host has a key that no request has",
    ),
    "a key too many that is evictable": ({"evictable": 2}, "the manager counts 2 evictable keys, and 1 are found"),
    "a key that is not listed": ({"listed": frozenset()}, r"the list of evictable keys is \[\], and .* are \[1\]"),
    "a key that is listed while it is written": ({"listed": frozenset({1, 2})}, r"the list of .* is \[1, 2\]"),
    "a key too many that is written": ({"writing": 2}, "the manager counts 2 keys that are written, and 1 are not"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_snapshot_is_said(name: str) -> None:
    change, words = WRONG[name]
    lock = begun()
    lock.run.seen = replace(lock.run.seen, **change)
    with pytest.raises(Finding, match=words):
        lock.judge("offer")


def test_a_right_snapshot_is_let_through() -> None:
    lock = begun()
    assert lock.run.seen == HostTierSnapshot({1: 1, 2: 2}, {1: 0, 2: -1}, [], 0)
    lock.run.seen = replace(lock.run.seen, evictable=1, listed=frozenset({1}), writing=1)
    lock.judge("offer")


# What the engine answers.

TAKEN: Json = {"op": "offer", "request": 2, "first": 0, "last": 1, "job": 2}
ASK: Json = {"op": "look_up", "request": 1, "first": 0, "last": 2}
LOAD: Json = {"op": "load", "request": 2, "count": 1, "job": 2}
# Each: the keys of request 2 and how many it has computed, the call, what it answers in the place of the manager, the
# operation, the law that breaks, and the words.
ANSWERS: list[tuple[list[int], int, str, Callable[..., Any], Json, str, str]] = [
    ([3], 1, "offer", lambda *_: Offered([3], [1], []), TAKEN, REFUSED, "reserve was granted"),
    ([3], 1, "offer", lambda *_: Offered([3], [2], [1]), TAKEN, "reserve", "the slot is of no other key"),
    ([3], 1, "offer", lambda *_: Offered([3], [9], [1]), TAKEN, "reserve", "the slot is of no other key"),
    ([3], 1, "offer", lambda *_: Offered([3], [0], [1]), TAKEN, "reserve", "the slot is of no other key"),
    ([3], 1, "offer", lambda *_: Offered([3], [2], [2]), TAKEN, "evict", "the key is found"),
    ([3], 1, "offer", lambda *_: Offered([3], [1], [4]), TAKEN, "evict", "the key is found"),
    ([3], 1, "offer", lambda *_: Offered([4], [1], [1]), TAKEN, KNOWN, r"of the keys \[3\] it stores \[4\]"),
    ([3], 1, "offer", lambda *_: Offered([3, 3], [1, 1], [1]), TAKEN, KNOWN, r"it stores \[3, 3\]"),
    ([3], 1, "offer", lambda *_: Offered([3], [], [1]), TAKEN, KNOWN, r"in the slots \[\]"),
    ([3], 1, "offer", lambda *_: Offered([], [], []), TAKEN, STORES, r"it does not store \[3\]"),
    ([3], 1, "offer", lambda *_: None, TAKEN, ENOUGH, "reserve said out of memory"),
    ([1], 1, "offer", lambda *_: Offered([1], [1], [1]), TAKEN, STAYS, r"key 1 is evicted for an offer of \[1\]"),
    ([2], 1, "offer", lambda *_: Offered([2], [1], [1]), TAKEN, "reserve", "the key is not on the host"),
    ([3], 0, "look_up", lambda *_: PENDING, {**ASK, "first": 0}, WAITS, "key 1 is not under way"),
    ([3], 0, "look_up", lambda *_: FOUND, {**ASK, "first": 1}, "find", "a key is found only after its copy ended"),
    ([1], 0, "promise", lambda *_: [2], LOAD, OWN_SLOT, r"for the keys \[1\] it names \[2\], not \[1\]"),
    ([1], 0, "promise", lambda *_: [1], LOAD, "promise", "the number of promises of key 1 is 0, the law has 1"),
]


@pytest.mark.parametrize(("keys", "have", "call", "answer", "step", "name", "words"), ANSWERS)
def test_a_wrong_answer_is_a_finding(
    keys: list[int], have: int, call: str, answer: Callable[..., Any], step: Json, name: str, words: str
) -> None:
    made: list[Variant] = []

    def make(config: Json) -> Variant:
        made.append(Variant(host_manager(config)))
        return made[-1]

    lock = begun(make)
    lock.do("begin", request=2, keys=keys)
    if have:
        lock.do("compute", request=2, to=2 * have)
    setattr(made[-1], call, answer)
    with pytest.raises(Finding, match=words) as caught:
        lock.do(**step)
    assert caught.value.law == name


@pytest.mark.parametrize(("call", "well", "words"), [("stored", True, "key 2 is being written"), ("loaded", True, "1")])
def test_a_report_that_is_not_heard_is_a_finding(call: str, well: bool, words: str) -> None:
    lock = begun(lambda config: Variant(host_manager(config)))
    if call == "loaded":
        lock.do("begin", request=2, keys=[1])
        lock.do("load", request=2, count=1, job=2)
    job = 1 if call == "stored" else 2
    lock.do("start", job=job)
    lock.do("end", job=job, well=well)
    setattr(run_of(lock).engine, call, lambda *_: None)
    with pytest.raises(Finding, match=words):
        lock.do("report", job=job)


def test_an_offer_that_does_not_fit_is_refused() -> None:
    lock = begun(lambda config: Variant(host_manager(config)))
    lock.do("begin", request=2, keys=[1])
    lock.do("load", request=2, count=1, job=2)
    lock.do("finish", request=2)
    computed(lock, 2, [3])
    lock.do("offer", request=2, first=0, last=1, job=3)
    assert lock.law.counts["reserve", "refused"] == 1
    assert 3 not in run_of(lock).jobs
    run_of(lock).engine.offer = lambda *_: Offered([3], [1], [])  # type: ignore[method-assign]
    with pytest.raises(Finding) as caught:
        lock.do("offer", request=2, first=0, last=1, job=3)
    assert caught.value.law == REFUSED, "key 1 is promised, and key 2 is written"


def test_a_refused_offer_may_have_evicted_what_nobody_needs_and_says_so_in_its_events() -> None:
    class Evicts(HostManager):
        """Evicts before it knows that this is not enough."""

        told = True

        def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
            """Says no, after it has evicted all that it could."""
            answer = super().offer(request, keys)
            if answer is None:
                gone = self.unneeded(keys)
                for key in gone:
                    self.forget(key)
                self._tell("BlockRemoved", gone if self.told else [])
            return answer

    class EvictsSilently(Evicts):
        """Publishes no event of it."""

        told = False

    for kind, breaks in ((Evicts, False), (EvictsSilently, True)):
        lock = begun(partial(host_manager, kind=kind))
        computed(lock, 2, [3, 4])
        if breaks:
            with pytest.raises(Finding, match="believed and gone: 1"):
                lock.do("offer", request=2, first=0, last=2, job=2)
            continue
        lock.do("offer", request=2, first=0, last=2, job=2)
        assert (done(lock)["evict"], run_of(lock).seen.slots) == (1, {2: 2})


# What the engine may choose.


class EvictsTheNewest(HostManager):
    """The key that was used last is evicted first, and the slot that was freed last is handed out first."""

    def unneeded(self, offered: Collection[int]) -> list[int]:
        """From the other end."""
        return super().unneeded(offered)[::-1]

    def forget(self, key: int) -> None:
        """Puts the slot to the front."""
        super().forget(key)
        self.free.insert(0, self.free.pop())


class EvictsMore(HostManager):
    """An offer evicts all that nobody needs, where it has to evict anything."""

    def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
        """Evicts the rest, too."""
        answer = super().offer(request, keys)
        if answer is None or not answer.evicted:
            return answer
        more = self.unneeded(keys)
        for key in more:
            self.forget(key)
        self._tell("BlockRemoved", more)
        return answer._replace(evicted=[*answer.evicted, *more])


class SaysNo(HostManager):
    """A look-up does not always find what is there, as where a tier answers later."""

    asked = 0

    def look_up(self, request: int, key: int) -> str:
        """Every third time it says no."""
        self.asked += 1
        return super().look_up(request, key) if self.asked % 3 else ABSENT


class Slow(HostManager):
    """A key is stored when it has been offered three times."""

    def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
        """With a threshold of its own, where a threshold may be."""
        self.threshold = 3 if self.threshold > 1 else 1
        return super().offer(request, keys)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [EvictsTheNewest, EvictsMore, SaysNo, Slow], ids=lambda kind: kind.__name__)
def test_what_is_lawful_is_let_through(kind: type[HostManager]) -> None:
    found = check(STEM, lambda config: host_manager(config, kind=kind), Search(examples=100, seed=3))
    assert found.verdict == CONFORMS, f"{found.law}: {found.detail} {found.trace}"
    assert found.transitions["evict done"] > 50


@pytest.mark.soak
def test_a_manager_without_resets_and_touches_is_driven_without_them() -> None:
    def make(config: Json) -> Any:
        return host_manager(config, lacks=("reset", "touch"))

    found = check(STEM, make, Search(examples=100, seed=3))
    assert found.verdict == CONFORMS
    assert found.transitions["reset not offered"] > 10
    assert "reset done" not in found.transitions


def test_a_manager_without_a_policy_is_driven_with_the_other() -> None:
    with pytest.raises(Unsupported):
        run(policy="arc")
    found = check(STEM, host_manager, Search(examples=20, seed=3))
    assert found.transitions["reserve done"] > 100, "half of the drawn configurations have the other policy"


# Copies.


def test_what_is_loaded_is_what_was_stored() -> None:
    lock = begun()
    stored(lock, 1)
    lock.do("begin", request=2, keys=[1, 2])
    lock.do("compute", request=2, to=1)
    lock.do("load", request=2, count=2, job=1)
    assert run_of(lock).seen.refs == {1: 1, 2: 1}
    assert [part for _, _, part in run_of(lock).jobs[1].places(2)] == [1, 0, 1], "its own first part stays"
    lock.do("start", job=1)
    lock.do("end", job=1, well=True)
    of = run_of(lock).requests[2]
    assert of.filled == 4
    held = [lock.run.shadow.holds(BLOCKS, block) for block in of.blocks]
    assert [one and one.prefix for one in held] == run_of(lock).texts([1, 2])
    lock.do("report", job=1)
    assert run_of(lock).seen.refs == {1: 0, 2: 0}
    judge(lock, "report")


def test_a_load_that_fails_brings_nothing_and_its_request_computes_the_rest() -> None:
    lock = begun()
    lock.do("begin", request=2, keys=[1, 3])
    lock.do("load", request=2, count=1, job=2)
    with pytest.raises(Misuse, match="waits for a load"):
        lock.do("compute", request=2, to=2)
    lock.do("start", job=2)
    lock.do("end", job=2, well=False)
    lock.do("report", job=2)
    assert run_of(lock).requests[2].filled == 0
    lock.do("compute", request=2, to=4)
    assert lock.run.shadow.wrong is None


def test_a_store_that_fails_leaves_no_key_and_no_text() -> None:
    lock = begun()
    stored(lock, 1, well=False)
    assert run_of(lock).seen.slots == {1: 1}
    failed = lock.run.shadow.holds(HOST, 3)
    assert failed is not None
    assert failed.prefix == 0
    lock.do("offer", request=1, first=1, last=2, job=1)
    lock.do("report", job=1)
    assert done(lock)["discard"] == 2, "a job whose copies never begin is given up, too"


def test_two_requests_load_one_key() -> None:
    lock = begun(requests=3)
    for request, job in ((2, 2), (3, 3)):
        lock.do("begin", request=request, keys=[1])
        lock.do("load", request=request, count=1, job=job)
        lock.do("start", job=job)
    assert run_of(lock).seen.refs[1] == 2
    lock.do("end", job=3, well=True)
    lock.do("report", job=3)
    assert run_of(lock).seen.refs[1] == 1
    with pytest.raises(Misuse, match="in flight"):
        lock.do("report", job=2)


def test_after_a_reset_a_copy_goes_on_and_nothing_is_offered_before_its_end() -> None:
    lock = begun()
    lock.do("start", job=1)
    lock.do("begin", request=2, keys=[1])
    lock.do("load", request=2, count=1, job=2)
    lock.do("reset")
    assert (run_of(lock).seen.slots, run_of(lock).seen.free, [*run_of(lock).jobs]) == ({}, [1, 2], [1])
    with pytest.raises(Misuse, match="from before a reset"):
        lock.do("offer", request=1, first=0, last=1, job=2)
    with pytest.raises(Misuse, match="a reset has forgotten it"):
        lock.do("report", job=1)
    lock.do("end", job=1, well=True)
    assert run_of(lock).jobs == {}
    lock.do("offer", request=1, first=0, last=2, job=1)
    stored(lock, 1)
    assert run_of(lock).seen.refs == {1: 0, 2: 0}


def test_a_request_that_has_finished_still_has_its_jobs() -> None:
    lock = begun()
    lock.do("finish", request=1)
    computed(lock, 1, [3])
    assert not {*run_of(lock).requests[1].blocks} & {*run_of(lock).jobs[1].blocks}, "blocks that are stored stay"
    stored(lock, 1)
    assert run_of(lock).seen.refs == {1: 0, 2: 0}


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"op": "begin", "request": 1, "keys": [1]}, "no request 1 that is not in use"),
        ({"op": "begin", "request": 3, "keys": [1]}, "no request 3"),
        ({"op": "begin", "request": 2, "keys": [1, 1]}, "different keys"),
        ({"op": "begin", "request": 2, "keys": [9]}, "keys of the host"),
        ({"op": "finish", "request": 2}, "request 2 is not in use"),
        ({"op": "compute", "request": 1, "to": 4}, "has the parts already"),
        ({"op": "offer", "request": 1, "first": 2, "last": 3, "job": 2}, "no such keys"),
        ({"op": "offer", "request": 1, "first": 0, "last": 1, "job": 1}, "no job 1 that is not in use"),
        ({"op": "offer", "request": 1, "first": 0, "last": 1, "job": 9}, "no job 9"),
        ({"op": "load", "request": 1, "count": 1, "job": 2}, "has a job"),
        ({"op": "start", "job": 2}, "no job 2"),
        ({"op": "end", "job": 1, "well": True}, "not in flight"),
        ({"op": "touch", "request": 1, "first": 2, "last": 3}, "no keys there"),
    ],
)
def test_what_no_caller_may_send_is_a_misuse(step: Json, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        begun().do(**step)
