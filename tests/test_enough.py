"""What a search must have done before an engine is said to conform: operations, and the transitions it claims."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from driven import RIGHT
from one_operation import make as one_operation

import conformance.search.enough
from conformance.driver.clock import Clock
from conformance.driver.lockstep import CONFORMS, UNSUPPORTED, VIOLATION
from conformance.driver.operations import declared
from conformance.driver.protocol import Json, Unsupported
from conformance.engines import registry, toy
from conformance.engines.registry import Loaded
from conformance.search import judge
from conformance.search.campaign.store import Looked
from conformance.search.check import Search, check
from conformance.search.enough import NOT_ENOUGH, OPERATIONS, TIMES, Effort, too_seldom
from conformance.search.harm import harm
from conformance.search.hunt import Hunt, HuntLimits
from conformance.stems import stem_registry
from conformance.stems.allocator.rules import AllocatorMachine
from conformance.stems.claims import claimed
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import STEMS
from conformance.traces import trace_files
from conformance.traces.outcome import How, outcome
from conformance.traces.trace_files import LISTS
from proofs.registry import hints_of
from slotproof.checks import checking
from slotproof.checks.weigh import too_little, undecided
from slotproof.commands import campaign

ROOT = Path(__file__).resolve().parents[1]
OURS = registry.load("ours").makers


def loaded(stem: str, make: Callable[[Json], Any]) -> Loaded:
    return Loaded("mine", None, {stem: make})


def asked(stem: str, **more: Any) -> Json:
    usual = {"engine": "toy", "seed": 1, "examples": 5, "steps": 0, "strict": False, "seconds": None, "listed": None}
    return {**usual, "stem": stem, **more}


def judged(stem: str, make: Callable[[Json], Any], **more: Any) -> Json:
    return judge.alone(loaded(stem, make), asked(stem, **more), lambda *_: None)


# What an engine claims.


@pytest.mark.parametrize("stem", list(STEMS))
def test_each_transition_of_a_law_is_claimed_or_an_own_way(stem: str) -> None:
    claims = STEMS[stem].claims
    assert set(claims) == set(hints_of(stem).stem.transitions)
    operations = set(declared(*STEMS[stem].callers))
    for name, claim in claims.items():
        assert bool(claim.own) != bool(claim.by), name
        assert not claim.own or claim.own.endswith("."), name
        assert set(claim.by) <= operations, name


@pytest.mark.parametrize("stem", list(STEMS))
def test_our_engine_accepts_a_probe_and_claims_most_of_the_law(stem: str) -> None:
    effort = Effort(stem, RIGHT[stem], Sink())
    wanted = {name for name, claim in STEMS[stem].claims.items() if not claim.own}
    elsewhere = {"lock_ref": {"release_state"}}.get(stem, set())  # our locks keep their states to the end
    assert wanted - effort.claims <= elsewhere
    assert effort.probed


def test_what_is_lacking_and_what_is_not_accepted_is_not_claimed() -> None:
    claims = STEMS["lock_ref"].claims
    full, windowed = ({"components": parts} for parts in (["full"], ["full", "swa"]))
    assert "release_swa" not in claimed(claims, full, ())
    assert "release_swa" in claimed(claims, windowed, ())
    assert "release_swa" not in claimed(claims, windowed, ("release_swa",))
    assert {"acquire", "release", "evict_leaf", "add_leaf"} <= claimed(claims, full, ("pin", "compact", "release_swa"))
    assert "acquire" not in claimed(claims, full, ("pin", "acquire"))
    both = {"components": ["full", "swa", "mamba"]}
    assert "release_state" in claimed(claims, both, ())
    assert "release_state" not in claimed(claims, both, ("state_goes_early",))


def test_too_seldom_is_fewer_than_the_minimum() -> None:
    done = {"alloc done": TIMES, "free done": TIMES - 1, "trim refused": 9}
    assert too_seldom({"alloc", "free", "trim"}, done) == ["free", "trim"]


# The minimum.


@pytest.mark.soak
def test_one_operation_a_run_is_not_enough_and_says_what_was_never_reached() -> None:
    found = judged("lock_ref", one_operation)
    assert (found["verdict"], found["enough"]) == (NOT_ENOUGH, False)
    assert {"acquire", "release", "evict_leaf", "add_leaf"} == set(found["too_seldom"])
    assert "acquire" in undecided(found, {"base": None})
    assert found["runs"] > 5  # it went on beyond the five runs that were asked for


def test_few_runs_go_on_until_the_minimum() -> None:
    found = judged("allocator", toy.allocator, examples=1)
    assert found["verdict"] == CONFORMS
    assert found["steps"] >= OPERATIONS
    assert not found["too_seldom"]
    assert min(found["transitions"][f"{name} done"] for name in found["claimed"]) >= TIMES


@pytest.mark.parametrize("name", ["decode", "trim"])
def test_a_dropped_rule_turns_the_verdict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rules that reach a transition it is too seldom reached, whatever else was done."""

    class Dropped(AllocatorMachine):
        def do(self, op: str, **arguments: Any) -> None:
            if op not in ({"trim", "finish"} if name == "trim" else {name}):
                super().do(op, **arguments)

    driven = STEMS["allocator"]._replace(machine=Dropped)
    monkeypatch.setitem(stem_registry.ROOMS, "allocator", driven)
    monkeypatch.setattr(trace_files, "every", list)
    monkeypatch.setattr(conformance.search.enough, "ROUNDS", 3)
    found = judged("allocator", toy.allocator)
    transition = {"decode": "alloc_decode", "trim": "shorten"}[name]
    assert (found["verdict"], found["too_seldom"]) == (NOT_ENOUGH, [transition])
    assert found["steps"] >= OPERATIONS


def test_an_engine_that_accepts_nothing_is_unsupported_and_not_driven() -> None:
    def refuses(_: Json) -> Any:
        raise Unsupported("nothing")

    found = judged("allocator", refuses)
    assert (found["verdict"], found["runs"], found["too_seldom"]) == (UNSUPPORTED, 0, [])


# Only what is accepted is drawn.


@pytest.mark.parametrize(
    ("stem", "accepts"),
    [
        ("lock_ref", lambda c: c["components"] == ["full"] and c["page_size"] == 1),
        ("allocator", lambda c: c["page_size"] == 4 and c["need_sort"] and c["size"] > 5),
        ("session_trim", lambda c: c["page_size"] == 16 and c.get("components") == ["full"]),
        ("cache", lambda c: c["components"] == ["full", "mamba"] and c["page_size"] == 1 and c["lazy"]),
        ("block_pool", lambda c: not c["caching"] and c["groups"] == 2),
        ("block_cache", lambda c: not c["caching"] and c["steps_in_flight"] == 2 and len(c["layers"]) == 1),
        ("mamba_slots", lambda c: c["lazy"]),
    ],
)
def test_only_accepted_configurations_use_up_runs(stem: str, accepts: Callable[[Json], bool]) -> None:
    begun: Counter[str] = Counter()

    def make(config: Json) -> Any:
        if not accepts(config):
            raise Unsupported("another kind")
        return OURS[stem](config)

    def has_begun(config: Json, lacks: Collection[str]) -> None:
        del lacks
        begun[json.dumps(config)] += 1

    sink = Sink(begun=has_begun)
    check(stem, make, Search(8, seed=1), sink)
    assert sink.runs >= 8
    assert begun


def test_a_refused_configuration_is_not_tried_again() -> None:
    tried: Counter[str] = Counter()

    def make(config: Json) -> Any:
        if config["page_size"] != 4:
            tried[json.dumps(config, sort_keys=True)] += 1
            raise Unsupported("another page size")
        return OURS["allocator"](config)

    check("allocator", make, Search(60, seed=1))
    assert set(tried.values()) == {1}


# The time.


class Ticks:
    """A time that goes on by a step at each look, as on a machine that is busy with something else."""

    def __init__(self, step: float) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def test_the_time_counts_from_the_first_operation() -> None:
    now = Ticks(0.0)
    clock = Clock(10.0, now)
    now.time = 1_000.0  # loading took so long
    assert (clock.passed, clock.is_up(), clock.left) == (0.0, False, 10.0)
    clock.begin()
    now.time = 1_009.0
    assert (clock.passed, clock.is_up(), clock.is_up(0.5), clock.left, clock.over) == (9.0, False, True, 1.0, 0.0)
    clock.begin()  # a second call changes nothing
    now.time = 1_013.0
    assert (clock.is_up(), clock.left, clock.over) == (True, 0.0, 3.0)


def test_on_a_busy_machine_the_minimum_wins_over_the_clock() -> None:
    """Each look at the clock takes 30 of the 60 seconds: the time is over after two operations."""
    search = judge.Alone(
        loaded("allocator", toy.allocator), asked("allocator", examples=None, seconds=60.0), lambda *_: None,
        Clock(60.0, Ticks(30.0)),
    )  # fmt: skip
    assert search.new() == []
    done = search.done.as_json(None, search.cut_short)
    assert done["verdict"] == CONFORMS
    assert done["cut_short"]
    assert done["steps"] >= OPERATIONS
    assert done["over"] > 0


def test_a_hunt_on_a_busy_machine_goes_on_to_the_minimum() -> None:
    hunt = Hunt(
        "allocator", toy.allocator, lambda t: outcome(t, toy.allocator), HuntLimits(None, 60.0, 1, minimum=True)
    )
    hunt.clock.now = Ticks(30.0)
    hunted = hunt.run([], ())
    assert hunted.cut_short
    assert hunt.done.effort.enough


def test_the_search_for_the_minimum_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the further rounds take too long, the verdict is that too little was done."""
    monkeypatch.setattr(conformance.search.enough, "LONGEST", 0.0)
    search = judge.Alone(
        loaded("allocator", toy.allocator), asked("allocator", examples=None, seconds=60.0), lambda *_: None,
        Clock(60.0, Ticks(30.0)),
    )  # fmt: skip
    search.new()
    assert search.done.as_json(None, search.cut_short)["verdict"] == NOT_ENOUGH


def leaking(config: Json) -> Any:
    return toy.ToyAllocator(config["size"], config["page_size"], leaks=True)


def test_shrinking_ends_with_the_time_and_says_so() -> None:
    late = Sink(late=lambda: True)
    found = check("allocator", leaking, Search(60, seed=1), late)
    assert (found.verdict, found.how) == (VIOLATION, How.CUT_SHORT)
    whole = check("allocator", leaking, Search(60, seed=1))
    assert whole.how is How.SHRUNK
    assert whole.trace is not None
    assert found.trace is not None
    assert len(whole.trace.steps) < len(found.trace.steps)


@pytest.mark.parametrize(("step", "how"), [(0.0, How.SHRUNK), (30.0, How.CUT_SHORT)])
def test_what_the_search_for_the_minimum_finds_is_shrunk_in_the_time_of_the_stem(
    step: float, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time is over at the first look. Then each look takes so many of 60 seconds."""
    hunt = Hunt("allocator", leaking, lambda t: outcome(t, toy.allocator), HuntLimits(None, 60.0, 1, minimum=True))
    hunt.clock.now = now = Ticks(60.0)
    ends = hunt.done.ends

    def slower() -> None:
        now.step = step
        ends()

    monkeypatch.setattr(hunt.done, "ends", slower)
    hunted = hunt.run([], ())
    assert hunt.done.effort.limit.begun is not None
    assert [found.how for found in hunted.differences] == [how]


def test_harm_that_there_is_no_time_for_is_marked() -> None:
    trace = check("allocator", leaking, Search(60, seed=1)).trace
    assert trace is not None
    none = harm(trace, len(trace.steps), leaking, seconds=0)
    assert none["cut_short"]
    assert none["sentence"] == "not looked for, since the time was over"
    assert not harm(trace, len(trace.steps), leaking)["cut_short"]


# Reports.


def result(**more: Any) -> Json:
    usual: Json = {"stem": "lock_ref", "steps": 300, "transitions": {}, "too_seldom": [], "enough": False, "runs": 9}
    return {**usual, "verdict": NOT_ENOUGH, **more}


def test_what_is_missing_is_said() -> None:
    few = result(steps=1, transitions={"release done": 2}, too_seldom=["acquire", "release"])
    assert too_little(few) == (
        f"1 operations, {OPERATIONS} are asked for; never reached: acquire; reached fewer than {TIMES} times: release 2"
    )


@pytest.mark.parametrize("base", [None, {"label": "base"}])
def test_a_stem_on_which_too_little_was_done_ends_with_4(base: Json | None) -> None:
    lists: Json = {name: [] for name in LISTS}
    report = {**lists, "base": base, "subject": {"own": False, "options": {}}, "options": {"stems": [], "repaired": []}}
    report["results"] = [result(too_seldom=["acquire"])]
    code, reason = checking._exit(report)
    assert (code, reason) == (4, "not enough, so no verdict: lock_ref (never reached: acquire)")


def test_a_campaign_needs_the_minimum_too() -> None:
    counts = Counter({("alloc", "", "done"): TIMES, ("free", "", "done"): TIMES - 1})
    stem = Looked(steps=OPERATIONS, counts=counts, claimed=["alloc", "free"])
    assert not campaign.enough(stem)
    counts["free", "", "done"] += 1
    assert campaign.enough(stem)
    stem.claimed = None  # no trial has asked what the engine claims
    assert not campaign.enough(stem)
    assert not campaign.enough(None)


@pytest.mark.soak
def test_the_command_ends_with_4_on_the_one_operation_engine(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "tests" / "one_operation.py").read_text("utf-8"), encoding="utf-8")
    command = [sys.executable, "-m", "slotproof", "check", "mine:make", "lock_ref", "--source", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "CI": "1", "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--budget", "5s"], cwd=tmp_path, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "every law holds" not in done.stdout
    assert "never reached: acquire, add_leaf, evict_leaf, release" in " ".join(done.stdout.split())
