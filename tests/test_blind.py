"""What the search for the kept causes from nothing counts as found, and that nothing is known to it."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import Any

import pytest

from conformance.driver.protocol import EngineError
from conformance.search.connection import ToolError
from slotproof.checks import blind_search
from slotproof.checks.blind_search import BlindSearch
from slotproof.commands import blind
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.pages import blind_pages, kept_findings
from slotproof.pages.blind_pages import Searched, is_even, outline, searched
from slotproof.pages.catalogue import entries
from slotproof.pages.finding_pages import of_engine

RELEASE = "0.5.23"
FINDINGS = of_engine("sglang", kept_findings.with_rows(kept_findings.kept()))


def told(causes: dict[str, float], found: list[dict[str, object]]) -> Searched:
    """What is told of one search."""
    done = {"engine": "sglang", "release": RELEASE, "minutes": 10.0, "seed": 1, "causes": causes, "found": found}
    (one,) = searched("sglang", [{**done, "judged": [{"runs": 5, "operations": 70}], "failed": []}], FINDINGS)
    return one


def row_of(one: Searched, name: str) -> blind_pages.Blind:
    (row,) = [row for row in one.rows if row.name == name]
    return row


def test_the_parity_is_that_of_the_last_digit() -> None:
    for name in ("freed_window_enters_tree", "turn_counts_draft_slot", "a", "b", "c"):
        assert is_even(name) == (hashlib.sha256(name.encode()).digest()[-1] % 2 == 0)


def test_a_cause_is_found_by_its_repair_and_not_by_the_words_of_a_finding() -> None:
    row = {"stem": "server", "law": "clients_never_stop_a_server", "second": 9.0, "cause": ""}
    row["detail"] = "go_on raised AssertionError: session_id='7' already has a slot"
    assert not row_of(told({}, [row]), "rejected_turn_keeps_session").found
    assert row_of(told({"rejected_turn_keeps_session": 9.0}, []), "rejected_turn_keeps_session").seconds == [9.0]


def test_a_finding_without_a_repair_is_found_by_the_words_of_its_trace() -> None:
    entry = next(one for one in entries("sglang", FINDINGS) if one.cause is None and one.stands)
    finding = entry.findings[-1]
    (shown,) = [row for row in finding.rows if row["release"] == RELEASE]
    row = {"stem": finding.kept.trace.stem, "law": shown["law"], "detail": shown["detail"], "second": 7.0, "cause": ""}
    assert row_of(told({}, [row]), finding.kept.name).seconds == [7.0]
    assert told({}, [row]).others == []
    assert not row_of(told({}, [{**row, "law": "no_leak_of_this_name"}]), finding.kept.name).found
    assert not row_of(told({}, [{**row, "cause": "another"}]), finding.kept.name).found


def test_an_outline_has_no_numbers() -> None:
    one, other = (f"row {n}: the page of row {n} at index [{n}, 2] is page {n}" for n in (1, 22))
    assert outline("cache", "one_owner", one) == outline("cache", "one_owner", other)
    assert outline("cache", "one_owner", one) != outline("allocator", "one_owner", one)


def test_each_standing_entry_has_one_row() -> None:
    names = [row.name for row in told({}, []).rows]
    assert len(names) == len({*names}) == len([one for one in entries("sglang", FINDINGS) if one.stands])


def test_too_few_odd_causes_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [row.name for row in told({}, []).rows if row.has_repair and not row.is_even]
    assert len(odd) > 1

    def run(causes: list[str]) -> int:
        found = dict.fromkeys(causes, 1.0)
        done: dict[str, Any] = {"seed": 1, "causes": found, "found": [], "judged": [], "failed": []}
        monkeypatch.setattr(blind_search, "search", lambda *_: done)
        return blind.run("sglang", [1], 10.0, False, None)

    assert run(odd) == HOLDS
    assert run([]) == BROKEN
    assert run([row.name for row in told({}, []).rows if row.is_even]) == BROKEN


class Answers:
    """A connection to an engine: what it was asked, and what it answers. ``failing``: so many of its first answers
    are ``failure``.
    """

    def __init__(self, failing: int = 0, failure: Exception | None = None) -> None:
        self.asked: list[dict[str, Any]] = []
        self.repairs: list[list[str]] = []
        self.failing, self.failure = failing, failure
        self.subject = type("Named", (), {"engine": "sglang"})()

    def connect(self, repairs: list[str]) -> Answers:
        """The engine with these repairs."""
        self.repairs.append(repairs)
        return self

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """One finding a judgement."""
        self.asked.append(asked)
        if len(self.asked) <= self.failing:
            assert self.failure is not None
            raise self.failure
        shown = {"law": "a law", "severity": "violation", "detail": "", "name": "", "trace": {"stem": asked["stem"]}}
        return {"runs": 1, "steps": 2, "new": [shown]}


def searching(answers: Any, judgements: int, monkeypatch: pytest.MonkeyPatch, causes: list[str]) -> BlindSearch:
    names = iter(causes)

    def named(rows: list[dict[str, Any]], *_: object) -> None:
        for row in rows:
            row["cause"] = next(names)

    monkeypatch.setattr(blind_search, "name_causes", named)
    one = BlindSearch(answers, deadline=float("inf"))
    one.judge(iter(["server"] * judgements), iter(range(judgements)))
    return one


def test_nothing_that_is_known_is_sent_and_what_is_found_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    one = searching(answers, 3, monkeypatch, ["first", "", "second"])
    wanted = (None, True, True)
    assert all((asked["listed"], asked["drawn_alone"], asked["first"]) == wanted for asked in answers.asked)
    assert answers.repairs == [[], ["first"], ["first"]]
    assert list(one.repairs) == ["first", "second"]
    assert ["trace" in row for row in one.found] == [False, True, False], "a run that nobody has is kept"


@pytest.mark.parametrize("failure", [ToolError("the tool failed", "a report"), EngineError("the tool failed")])
def test_a_failure_of_ours_or_of_a_repair_is_told_and_the_search_goes_on(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = searching(Answers(1, failure), 2, monkeypatch, ["first"])
    assert one.failed == ["server, seed 0: the tool failed"]
    assert list(one.repairs) == ["first"]


def test_what_is_kept_knew_no_trace() -> None:
    kept = json.loads(blind_pages.KEPT.read_text("utf-8"))
    assert not [row["name"] for search in kept for row in search["found"] if row["name"]]
    newest = FINDINGS[0].rows[-1]["release"]
    assert {one["release"] for one in kept if one["engine"] == "sglang"} == {newest}


def test_half_of_the_second_judge_and_all_of_the_first_go_to_schedulers() -> None:
    first, second = (
        list(islice(stems, 8)) for stems in blind_search.turns(["a", "server", "b", "host", "c"], ["server", "host"])
    )
    assert first == ["server", "host"] * 4
    assert second == ["host", "a", "server", "b", "host", "c", "server", "a"]


@pytest.mark.parametrize(("stems", "judges"), [(["a", "b"], 1), (["server"], 1), ([], 0)])
def test_one_kind_of_stems_has_one_judge(stems: list[str], judges: int) -> None:
    found = blind_search.turns(stems, ["server"])
    assert [list(islice(one, len(stems))) for one in found] == [stems] * judges
