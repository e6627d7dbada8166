"""Mamba state slots in lock-step: what a subject does wrong is named by the law that it breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from conformance import kept
from conformance.check import check
from conformance.faults import FAULTS
from conformance.machine import CONFORMS, LATENT, VIOLATION, Finding, Misuse
from conformance.mamba_rules import LAZY, NO_BUFFER, TWO
from conformance.mamba_slots import MambaSlotsRun
from conformance.replaying import UNSUPPORTED
from conformance.story import tell
from conformance.subjects import ours, releases
from conformance.subjects.errors import SubjectError

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
RELEASES = ("0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.14")
LETTERS = {VIOLATION: "V", LATENT: "L", CONFORMS: "-", UNSUPPORTED: "."}


def started(kind: tuple[bool, bool, bool] = TWO, size: int = 8, make: Any = ours.mamba_slots) -> MambaSlotsRun:
    config = {"size": size, "requests": 3, "sessions": 1, "tree": "mamba_radix"}
    config |= dict(zip(("buffered", "doubled", "lazy"), kind, strict=True))
    return MambaSlotsRun(make(config), config)


def running(*, session: int = 0, **kind: Any) -> MambaSlotsRun:
    """A run with one admitted request."""
    run = started(**kind)
    run.do("match", request=0, tokens=[1, 2], session=session)
    run.do("admit", requests=[0])
    return run


def test_a_request_donates_its_newest_state_and_gives_back_the_rest() -> None:
    run = running()
    run.do("track", request=0)
    run.do("cache", request=0)
    run.do("track", request=0)
    run.do("finish", request=0)
    assert (run.counts["donate_and_replace", "done"], run.counts["donate", "done"]) == (1, 1)
    assert len(run.subject.observe().free) == 6
    run.do("evict", states=2)
    run.do("audit")


def test_a_request_copies_the_state_that_it_matches() -> None:
    run = running(kind=NO_BUFFER)
    run.do("finish", request=0)
    run.do("match", request=1, tokens=[1, 2, 3])
    assert run.counts["alloc_for_match", "done"] == 1
    run.do("withdraw", request=1)
    assert run.counts["release", "done"] == 2


def test_a_session_goes_on_with_what_it_saved() -> None:
    run = running(session=1)
    run.do("finish", request=0)
    run.do("match", request=1, tokens=[3], session=1)
    run.do("admit", requests=[1])
    run.do("abort", request=1)
    assert (run.counts["save", "done"], run.counts["restore", "done"]) == (1, 1)
    run.do("close", session=1)
    run.do("audit")


def test_a_lazy_track_comes_and_goes() -> None:
    run = running(kind=LAZY, size=3)
    run.do("boundary", request=0)
    run.do("settle", request=0)
    assert (run.counts["alloc_second", "done"], run.counts["give_second", "done"]) == (1, 1)
    run.do("match", request=1, tokens=[9])
    run.do("boundary", request=0)
    run.do("boundary", request=0)
    run.do("admit", requests=[1])
    assert run.counts["alloc", "refused"] == 1


def test_a_group_is_followed() -> None:
    run = started()
    run.do("begin", need=2)
    run.do("begin", need=9)
    run.do("end")
    assert run.subject.observe().waiting == [1, 2]
    run.do("end")
    run.do("audit")


# What is wrong is named.


def test_a_leaked_slot_is_named() -> None:
    run = running()
    run.subject.pool._top += 1
    with pytest.raises(Finding, match="slot 4 is nobody's, not free") as found:
        run.compare("admit")
    assert found.value.law == "no_leak"


def test_a_slot_that_is_free_and_owned_is_named() -> None:
    run = running()
    run.subject.pool._top -= 1
    with pytest.raises(Finding, match="slot 3 is free, not request 0's") as found:
        run.compare("admit")
    assert found.value.law == "one_owner"


def test_a_number_that_is_no_slot_is_named() -> None:
    run = running()
    run.subject.pool._stack[-1] = 0
    with pytest.raises(Finding) as found:
        run.compare("admit")
    assert found.value.law == "absent_is_no_slot"


def test_a_row_that_stays_behind_is_named() -> None:
    run = running()
    run.subject.states._table[run.subject.requests[0].req_pool_idx, 1] = 7
    with pytest.raises(Finding, match=r"the row of request 0 holds \[1, 7, 3\], not \[1, 2, 3\]") as found:
        run.compare("admit")
    assert found.value.law == "row_says_what_is_owned"


def test_a_name_that_is_left_is_latent() -> None:
    run = running()
    run.do("finish", request=0)
    run.subject.requests[0].mamba_pool_idx = run.subject.pool.free_slots[0]
    with pytest.raises(Finding) as found:
        run.compare("finish")
    assert (found.value.law, found.value.latent) == ("gone_names_nothing", True)


def test_a_refusal_that_fits_is_named() -> None:
    run = started()
    run.do("match", request=0, tokens=[1])
    run.subject.states.alloc = lambda _: None
    with pytest.raises(Finding, match="needs 3 of 8 slots") as found:
        run.do("admit", requests=[0])
    assert found.value.law == "enough_is_granted"


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("match", {"request": 0, "tokens": [1]}),
        ("admit", {"requests": [1]}),
        ("track", {"request": 1}),
        ("boundary", {"request": 0}),
        ("withdraw", {"request": 0}),
        ("slide", {"request": 1}),
        ("end", {}),
        ("clear", {}),
        ("audit", {}),
    ],
)
def test_what_no_caller_sends_is_misuse(op: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        running().do(op, **arguments)


def test_our_slots_conform_and_every_run_ends_with_a_full_pool() -> None:
    found = check("mamba_slots", ours.mamba_slots, examples=60)
    assert (found.verdict, found.detail) == (CONFORMS, None)
    assert found.transitions["quiescence done"] >= 60


@pytest.mark.parametrize("name", PLACES)
def test_each_place_of_pr_26941_is_found_and_shrinks(name: str) -> None:
    found = check("mamba_slots", FAULTS[name].make)
    assert found.verdict != CONFORMS
    assert found.trace is not None
    assert len(found.trace.steps) <= 8


def test_a_story_of_slots_says_what_changed() -> None:
    trace = kept.load("aborted_turn_leaks").trace
    told = tell(trace, FAULTS["pr_26941_abort"].make)
    assert "slot 1 free → request 0's" in told[1].changed
    assert "no_leak" in told[2].wrong
    assert "held by nobody: 1, 2, 3" in told[2].picture["words"]


# The releases.


@pytest.mark.engine
@pytest.mark.parametrize("number", range(len(RELEASES)), ids=RELEASES)
def test_a_release_shows_what_is_known_of_it(number: int) -> None:
    release = RELEASES[number]
    try:
        releases.release(release)
    except SubjectError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "conformance.replaying", release, *SHOWS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    shown = {name: LETTERS[row["verdict"]] for name, row in zip(SHOWS, rows, strict=True)}
    assert shown == {name: letters[number] for name, letters in SHOWS.items()}
