"""How the time of a check is dealt out to stems and processes, and how what they found becomes one judgement."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.connection import Connection, Subject
from conformance.search.enough import NOT_ENOUGH
from conformance.stems.stem_registry import ROOMS
from conformance.traces.outcome import Break
from slotproof.checks import checking, weigh
from slotproof.checks.checking import CheckOptions
from slotproof.checks.pieces import Piece, Shares, pieces, together

HEAVY = ROOMS["block_cache"].weight


def told(*, stems: tuple[str, ...], workers: int, limited: bool = True) -> list[tuple[str, int, float]]:
    return [(one.stem, one.number, one.weight) for one in pieces(stems, workers, limited)]


def test_a_stem_that_is_hard_to_search_gets_several_processes() -> None:
    stems = ("block_pool", "block_cache", "host_tier")
    heavy = [("block_cache", number, HEAVY / 2) for number in (0, 1)]
    assert told(stems=stems, workers=2) == [*heavy, ("block_pool", 0, 1), ("host_tier", 0, 1)]
    assert told(stems=("allocator",), workers=2) == [("allocator", 0, 0.5), ("allocator", 1, 0.5)]
    alone = [("block_cache", 0, HEAVY), ("block_pool", 0, 1), ("host_tier", 0, 1)]
    assert told(stems=stems, workers=1) == alone
    assert told(stems=stems, workers=2, limited=False) == alone, "the number of runs is given"


def test_pieces_have_seeds_and_files_of_their_own() -> None:
    first, second = pieces(("allocator",), 2, limited=True)
    assert (first.run, second.run) == ("allocator", "allocator-1")
    assert (first.seed(None), first.seed(7)) == (None, 7)
    assert len({first.seed(7), second.seed(7), second.seed(8), second.seed(None)}) == 4


class Run:
    """Pieces that take all their time, on a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float | None, workers: int, *stems: str) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.todo = pieces(stems, workers, limited=seconds is not None)
        self.shares = Shares(self.todo, workers, seconds)

    def begin(self, piece: Piece) -> float | None:
        return self.shares.begins(piece)

    def end(self, piece: Piece, now: float) -> None:
        self.now = now
        self.shares.ends(piece)


def test_the_time_is_dealt_out_by_weight_and_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, 80, 2, "block_pool", "block_cache", "host_tier")
    one, two, pool, host = run.todo
    assert [run.begin(one), run.begin(two)] == [60, 60], "six of eight parts of 160 seconds, in two processes"
    run.end(one, 30)  # it has found something, and ends early
    assert run.begin(pool) == (2 * 50 - 30) / 2
    run.end(two, 60)
    assert run.begin(host) == 20, "no more than is left"


def test_a_piece_that_begins_late_gets_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, 10, 1, "block_pool", "host_tier")
    assert run.begin(run.todo[0]) == 5
    run.end(run.todo[0], 30)
    assert run.begin(run.todo[1]) == 0.1


def test_without_a_budget_there_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, None, 2, "block_pool")
    assert run.begin(run.todo[0]) is None


def found(law: str, name: str = "", times: int = 1, severity: str = VIOLATION) -> Json:
    return Break(severity, 1, law, "", "", "").row(Trace("allocator", {}, [{"op": law}]), name=name, times=times)


def part(**more: Any) -> Json:
    empty = {**weigh.nothing_judged("allocator"), "enough": True, "verdict": CONFORMS, "cut_short": False, "runs": 1}
    return {**empty, "steps": 150, "never_reached": ["free", "sort"], **more}


def test_what_several_processes_did_is_one_judgement() -> None:
    one = part(transitions={"alloc done": 2}, claimed=["alloc"], enough=False, verdict=NOT_ENOUGH, seconds=3.0)
    two = part(transitions={"alloc done": 1, "free done": 4}, claimed=["free"], never_reached=["sort"], refused=2)
    both = together([one, {**two, "enough": False, "seconds": 5.0, "cut_short": True, "ran": {"core": ["rust"]}}])
    assert (both["runs"], both["steps"], both["refused"], both["seconds"]) == (2, 300, 2, 5.0)
    assert both["transitions"] == {"alloc done": 3, "free done": 4}
    assert (both["claimed"], both["too_seldom"], both["enough"]) == (["alloc", "free"], [], True)
    assert (both["verdict"], both["never_reached"], both["cut_short"]) == (CONFORMS, ["sort"], True)
    assert both["ran"] == {"core": ["rust"]}
    seldom = together([one, {**two, "enough": False, "transitions": {}}])
    assert (seldom["verdict"], seldom["too_seldom"]) == (NOT_ENOUGH, ["alloc", "free"])
    assert together([one]) is one


@pytest.mark.parametrize("other", [CONFORMS, LATENT, UNSUPPORTED, NOT_ENOUGH])
def test_a_violation_of_one_process_is_one_of_the_stem(other: str) -> None:
    grave = part(verdict=VIOLATION, new=[found("no_leak")])
    for parts in ([grave, part(verdict=other)], [part(verdict=other), grave]):
        both = together(parts)
        assert (both["verdict"], [row["law"] for row in both["new"]]) == (VIOLATION, ["no_leak"])


def test_a_law_that_several_processes_break_is_one_finding() -> None:
    one = part(new=[found("no_leak", times=2), found("order", severity=LATENT)], known=[found("lock", name="kept")])
    two = part(new=[found("no_leak", times=3), found("order")], known=[found("lock", times=4), found("held", times=5)])
    both = together([one, two])
    assert [(row["law"], row["severity"], row["times"]) for row in both["new"]] == [
        ("no_leak", VIOLATION, 5),
        ("order", LATENT, 1),
        ("order", VIOLATION, 1),
    ]
    assert [(row["law"], row["name"], row["times"]) for row in both["known"]] == [("lock", "kept", 1), ("held", "", 5)]


def test_the_processes_of_a_stem_draw_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Json] = []
    real = Connection.ask

    def ask(connection: Any, request: Json, *more: Any) -> Any:
        answer = real(connection, request, *more)
        if request["do"] == "alone":
            asked.append({**request, "told": answer})
        return answer

    monkeypatch.setattr(Connection, "ask", ask)
    report = checking.report_of(CheckOptions(Subject("toy"), stems=("allocator",), budget=8.0, again=False))
    one, two = sorted(asked, key=lambda each: bool(each["further"]))
    assert (one["run"], two["run"], one["seed"] != two["seed"]) == ("allocator", "allocator-1", True)
    (result,) = report["results"]
    assert two["told"]["runs"] > 0
    assert result["runs"] == one["told"]["runs"] + two["told"]["runs"]
    assert result["steps"] == one["told"]["steps"] + two["told"]["steps"]
