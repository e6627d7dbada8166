"""Mamba state slots in lock-step: what an engine does wrong is named by the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from driven import Variant, between, some

from conformance.driver.lockstep import CONFORMS, LATENT, QUIESCENT, UNSUPPORTED, VIOLATION, Finding, LockStep
from conformance.driver.protocol import EngineError, Json, Misuse, Unsupported
from conformance.engines.ours.mamba_slots import mamba_slots
from conformance.engines.registry import every_kind
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search import replay
from conformance.search.check import Search, check
from conformance.stems.machine import Sink
from conformance.stems.mamba_slots.exclusions import MambaSlotsExclusion as Exclusion
from conformance.stems.mamba_slots.projection import owner_names, project_states
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.mamba_slots.rules import BUFFERS, LAZY, NO_BUFFER, TWO, MambaSlotsMachine
from conformance.stems.mamba_slots.run import MambaSlotsRun
from conformance.telling.tell import tell
from conformance.traces import trace_files

PLACES = ("pr_26941_save", "pr_26941_free", "pr_26941_abort")
# What each release shows of a kept trace: V a violation, L a latent finding, - nothing, . it cannot be sent.
SHOWS = {
    "saved_request_keeps_buffer": "VVV--",
    "freed_request_keeps_buffer": "VVV--",
    "finished_request_keeps_buffer": "LLL--",
    "finished_request_keeps_state": "LLLLL",
    "finished_request_runs_on_state_of_tree": "VVVVV",
    "aborted_turn_leaks": "LVV--",
    "aborted_later_turn_keeps_names": "LLLLL",
    "closed_session_leaks": "VLL--",
    "more_rows_than_slots": "VLLLL",
    "short_admit_is_half_done": "VVVVV",
    "state_without_a_leaf_leaks": ".VVVV",
    "absent_track_is_freed": "...VV",
    "absent_track_is_freed_by_abort": "...VV",
    "nested_state_group_forgets": "...VV",
    "clear_in_state_group": "...VV",
}
RELEASES = between("0.5.10", "0.5.14")  # the letters of ``SHOWS``
Kind = tuple[bool, bool, bool]  # of a track buffer: buffered, doubled, lazy
LETTERS = {VIOLATION: "V", LATENT: "L", CONFORMS: "-", UNSUPPORTED: "."}


def started(
    kind: Kind = TWO, size: int = 8, make: Callable[[Json], Any] = mamba_slots
) -> tuple[MambaSlotsRun, LockStep]:
    """A run of three requests and a session, and its driver."""
    config: Json = {"size": size, "requests": 3, "sessions": 1, "tree": "mamba_radix"}
    config |= dict(zip(("buffered", "doubled", "lazy"), kind, strict=True))
    run = MambaSlotsRun(make(config), config)
    return run, LockStep(run, config)


def running(*, session: int = 0, **kind: Any) -> tuple[MambaSlotsRun, LockStep]:
    """A run with one admitted request."""
    run, lock = started(**kind)
    lock.do("match", request=0, tokens=[1, 2], session=session)
    lock.do("admit", requests=[0])
    return run, lock


def engine_of(run: MambaSlotsRun) -> Any:
    """The engine, of which tests change what no caller may change."""
    return run.engine


def judge(run: MambaSlotsRun, lock: LockStep, op: str) -> None:
    """Reads the engine again and judges what it shows."""
    run.seen = run.snapshot()
    lock.judge(op)


def test_a_request_donates_its_newest_state_and_gives_back_the_rest() -> None:
    run, lock = running()
    lock.do("track", request=0)
    lock.do("cache", request=0)
    lock.do("track", request=0)
    lock.do("finish", request=0)
    assert (run.law.counts["donate_and_replace", "done"], run.law.counts["donate", "done"]) == (1, 1)
    assert len(run.seen.free) == 6
    lock.do("evict", states=2)
    lock.do("audit")


def test_a_tree_that_gives_no_state_up_is_found() -> None:
    run, lock = running()
    run.engine = Variant(run.engine, evict=lambda _: None)
    lock.do("track", request=0)
    lock.do("finish", request=0)
    lock.do("evict", states=1)
    with pytest.raises(Finding, match="the tree keeps the states of") as caught:
        lock.do("audit")
    assert caught.value.law == QUIESCENT


def test_a_request_copies_the_state_that_it_matches() -> None:
    run, lock = running(kind=NO_BUFFER)
    lock.do("finish", request=0)
    lock.do("match", request=1, tokens=[1, 2, 3])
    assert run.law.counts["alloc_for_match", "done"] == 1
    lock.do("withdraw", request=1)
    assert run.law.counts["release", "done"] == 2


def test_a_session_goes_on_with_what_it_saved() -> None:
    run, lock = running(session=1)
    lock.do("finish", request=0)
    lock.do("match", request=1, tokens=[3], session=1)
    lock.do("admit", requests=[1])
    lock.do("abort", request=1)
    assert (run.law.counts["save", "done"], run.law.counts["restore", "done"]) == (1, 1)
    lock.do("close", session=1)
    lock.do("audit")


def test_a_lazy_track_comes_and_goes() -> None:
    run, lock = running(kind=LAZY, size=3)
    lock.do("boundary", request=0)
    lock.do("settle", request=0)
    assert (run.law.counts["alloc_second", "done"], run.law.counts["give_second", "done"]) == (1, 1)
    lock.do("match", request=1, tokens=[9])
    lock.do("boundary", request=0)
    lock.do("boundary", request=0)
    lock.do("admit", requests=[1])
    assert run.law.counts["alloc", "refused"] == 1


def test_a_request_may_give_away_the_track_from_before_its_boundary() -> None:
    """Where it ends before the step of the boundary has ended: the other track is not computed yet."""
    end = FAULTS["turned_to_no_slot"].parts["end"]
    run, lock = running(kind=LAZY, make=partial(mamba_slots, end=end))
    lock.do("track", request=0)
    lock.do("boundary", request=0)
    lock.do("finish", request=0)
    assert run.law.counts["turn_lazy", "done"] == run.law.counts["donate", "done"] == 1
    lock.do("audit")
    run, lock = running(kind=LAZY, make=partial(mamba_slots, end=end))
    lock.do("track", request=0)
    with pytest.raises(Finding):
        lock.do("finish", request=0)


def test_a_group_is_followed() -> None:
    run, lock = started()
    lock.do("begin_group", need=2)
    lock.do("begin_group", need=9)
    lock.do("end_group")
    assert run.seen.waiting == [1, 2]
    lock.do("end_group")
    lock.do("audit")


# What is wrong is named.


def test_a_leaked_slot_is_named() -> None:
    run, lock = running()
    engine_of(run).pool._top += 1
    with pytest.raises(Finding, match="state slot 4 is held by nobody, the law has free") as found:
        judge(run, lock, "admit")
    assert found.value.law == "no_leak"


def test_a_slot_that_is_free_and_owned_is_named() -> None:
    run, lock = running()
    engine_of(run).pool._top -= 1
    with pytest.raises(Finding, match="state slot 3 is free, the law has held by request 0") as found:
        judge(run, lock, "admit")
    assert found.value.law == "one_owner"


def test_a_number_that_is_no_slot_is_named() -> None:
    run, lock = running()
    engine_of(run).pool._stack[-1] = 0
    with pytest.raises(Finding, match="the free list has 0, which is no state slot") as found:
        judge(run, lock, "admit")
    assert found.value.law == "absent_is_no_slot"


def test_a_row_that_stays_behind_is_named() -> None:
    run, lock = running()
    ours = engine_of(run)
    ours.states._table[ours.requests[0].req_pool_idx, 1] = 7
    words = "the first track that the row of request 0 shows is slot 7, the law has slot 2"
    with pytest.raises(Finding, match=words) as found:
        judge(run, lock, "admit")
    assert found.value.law == "row_says_what_is_owned"


def test_a_name_that_is_left_is_latent() -> None:
    run, lock = running()
    lock.do("finish", request=0)
    ours = engine_of(run)
    ours.requests[0].mamba_pool_idx = ours.pool.free_slots[0]
    with pytest.raises(Finding, match="the state that the record of request 0 names is slot") as found:
        judge(run, lock, "finish")
    assert (found.value.law, found.value.latent) == ("gone_names_nothing", True)


def test_a_refusal_that_fits_is_named() -> None:
    run, lock = started()
    lock.do("match", request=0, tokens=[1])
    engine_of(run).states.alloc = lambda _: None
    with pytest.raises(Finding, match="needs 3 slots, and 8 can be handed out") as found:
        lock.do("admit", requests=[0])
    assert (found.value.law, found.value.latent) == ("enough_is_granted", False)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("match", {"request": 0, "tokens": [1]}),
        ("admit", {"requests": [1]}),
        ("track", {"request": 1}),
        ("boundary", {"request": 0}),
        ("withdraw", {"request": 0}),
        ("slide", {"request": 1}),
        ("end_group", {}),
        ("clear", {}),
        ("audit", {}),
    ],
)
def test_what_no_caller_sends_is_misuse(op: str, arguments: dict[str, Any]) -> None:
    _, lock = running()
    with pytest.raises(Misuse):
        lock.do(op, **arguments)


def test_the_engine_is_read_once_for_each_call() -> None:
    run, lock = started()
    ours, reads = run.engine, []

    def snapshot() -> MambaSlotsSnapshot:
        reads.append(1)
        return ours.snapshot()

    run.engine = Variant(ours, snapshot=snapshot)
    for op, arguments in (
        ("match", {"request": 0, "tokens": [1, 2]}),
        ("admit", {"requests": [0]}),
        ("track", {"request": 0}),
        ("cache", {"request": 0}),
        ("finish", {"request": 0}),
        ("begin_group", {"need": 1}),
        ("end_group", {}),
        ("evict", {"states": 2}),
        ("bad", {"kind": "free_padding"}),
    ):
        lock.do(op, **arguments)
    lock.do("audit")
    assert len(reads) == 9, "the audit calls nothing"


# What a snapshot shows.


def test_what_does_not_differ_is_the_laws_own_state() -> None:
    run, _ = running(session=1)
    assert project_states(run.state, run.seen, run.nodes, run.here, run.lent) is run.state
    other = project_states(run.state, MambaSlotsSnapshot([], 0), run.nodes, run.here, run.lent)
    assert (other.available, other.table(0, 0)) == (0, run.state.table(0, 0))


def test_owners_are_named_as_users_know_them() -> None:
    run, lock = running(kind=NO_BUFFER)
    lock.do("finish", request=0)
    name = owner_names(run.state, run.nodes)
    assert [name(owner) for owner in (0, 2, 3)] == ["request 0", "request 2", "session 1"]
    assert [name(owner) for owner in (4, 5)] == ["node [1, 2, 3]", "node 2"]


# What the rules leave out.


def drawn(make: Callable[[Json], Any], *exclude: Exclusion, kind: Kind, size: int) -> MambaSlotsMachine:
    """A machine that has started on a pool of this size, with this kind of track buffer."""
    known = {"make": staticmethod(make), "run_class": MambaSlotsRun, "sink": Sink(), "exclude": exclude}
    known["kinds"] = every_kind()
    made: MambaSlotsMachine = type("Drawn", (MambaSlotsMachine,), known)()
    made.start(config={"size": size, "tree": 0, "buffer": BUFFERS.index(kind)})
    return made


COME, ADMIT, ABORT = 0, 2, 4  # how a request goes on: the second number of a move; it comes whatever the number is
Move = tuple[int, int, int, int, bool]


def move(how: int, request: int = 0, session: int = 3, again: bool = False) -> Move:
    """One step of a request with the first text; session 3 is none."""
    return request, how, 0, session, again


def goes(*moves: Move) -> Callable[[MambaSlotsMachine], None]:
    """The requests do these steps."""

    def situation(machine: MambaSlotsMachine) -> None:
        machine.go(moves=list(moves))

    return situation


def closes(machine: MambaSlotsMachine) -> None:
    goes(move(COME, session=1), move(ADMIT), move(0))(machine)
    machine.give_back(session=1, states=1, close=True)


def clears_in_group(machine: MambaSlotsMachine) -> None:
    machine.group(need=1, how=1)
    machine.group(need=1, how=0)


def begins_group_twice(machine: MambaSlotsMachine) -> None:
    machine.group(need=1, how=1)
    machine.group(need=1, how=1)


# For each exclusion a situation whose last operation is left out, with a kind of track buffer and the size of the pool.
SITUATIONS: dict[Exclusion, tuple[Callable[[MambaSlotsMachine], None], Kind, int]] = {
    Exclusion.LAZY_SESSION: (goes(move(COME, session=1)), LAZY, 8),
    Exclusion.SAME_AGAIN: (goes(move(COME), move(COME), move(COME, again=True)), TWO, 8),
    Exclusion.SHORT_ADMIT: (goes(move(COME), move(ADMIT), move(COME, 1), move(ADMIT, 1)), TWO, 5),
    Exclusion.SHORT_CACHE: (goes(move(COME), move(ADMIT), move(2)), NO_BUFFER, 1),
    Exclusion.SLIDE: (goes(move(COME), move(ADMIT), move(2)), TWO, 8),
    Exclusion.SESSION_ABORT: (goes(move(COME, session=1), move(ADMIT), move(ABORT)), TWO, 8),
    Exclusion.CLOSE: (closes, TWO, 8),
    Exclusion.CLEAR_IN_GROUP: (clears_in_group, TWO, 8),
    Exclusion.NESTED_GROUP: (begins_group_twice, TWO, 8),
}


# More rows than slots are left out of the configurations; stale names are looked past (tests/test_known.py).
@pytest.mark.parametrize("exclusion", [k for k in Exclusion if k not in (Exclusion.MORE_ROWS, Exclusion.STALE_NAMES)])
def test_each_exclusion_leaves_something_out(exclusion: Exclusion) -> None:
    situation, kind, size = SITUATIONS[exclusion]
    everything = drawn(mamba_slots, kind=kind, size=size)
    left_out = drawn(mamba_slots, exclusion, kind=kind, size=size)
    situation(everything)
    situation(left_out)
    last = everything.lock.trace.steps[-1]
    assert everything.lock.trace.steps.count(last) > left_out.lock.trace.steps.count(last)


def test_the_exclusion_of_more_rows_than_slots_makes_the_pool_larger() -> None:
    sizes = [drawn(mamba_slots, *left_out, kind=TWO, size=4).lock.trace.config["size"] for left_out in ((), Exclusion)]
    assert sizes == [4, 5]


def test_kinds_that_the_engine_does_not_support_are_passed_over() -> None:
    def unbuffered(config: Json) -> Any:
        if config["buffered"]:
            raise Unsupported("no track buffer")
        return mamba_slots(config)

    def nothing(_: Json) -> Any:
        raise Unsupported("no states")

    assert drawn(unbuffered, kind=TWO, size=8).lock.trace.config["buffered"] is False
    assert check("mamba_slots", nothing, Search(examples=3)).steps == 0


def test_our_slots_conform_and_every_run_ends_with_a_full_pool() -> None:
    found = check("mamba_slots", mamba_slots, Search(examples=60))
    assert (found.verdict, found.detail) == (CONFORMS, None)
    assert found.transitions["quiescence done"] >= 60


@pytest.mark.parametrize("name", PLACES)
def test_each_place_of_pr_26941_is_found_and_shrinks(name: str) -> None:
    found = check("mamba_slots", FAULTS[name].make)
    assert found.verdict != CONFORMS
    assert found.trace is not None
    assert len(found.trace.steps) <= 8


def test_a_story_of_slots_says_what_changed() -> None:
    told = tell(trace_files.load("aborted_turn_leaks").trace, FAULTS["pr_26941_abort"].make)
    assert "state slot 1: free → held by request 0" in told[1].changed
    assert "no_leak" in told[2].wrong
    slots = told[2].picture["panels"][0]["items"]
    assert [slot["facts"]["place"] for slot in slots] == ["held by nobody"] * 3


# The releases.


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", some(RELEASES))
def test_a_release_shows_what_is_known_of_it(release: str) -> None:
    number = RELEASES.index(release)
    try:
        rows = replay.rows_elsewhere(list(SHOWS), "sglang", release)
    except EngineError as error:
        pytest.skip(str(error))
    shown = {name: LETTERS[row["verdict"]] for name, row in zip(SHOWS, rows, strict=True)}
    assert shown == {name: letters[number] for name, letters in SHOWS.items()}
