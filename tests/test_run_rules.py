"""The page of what runs judge beside the laws: it has each rule that a finding can name."""

from __future__ import annotations

import re

from conformance.driver.lockstep import ANSWERED, ANSWERED_SENTENCE, DIFFERENCE
from conformance.stems.found import law_of
from conformance.traces import trace_files
from slotproof.pages import kept_findings, law_pages
from slotproof.pages.run_rules import RunRule, rules

PAGE = kept_findings.FINDINGS.with_name("laws") / "runs.md"


def test_each_rule_stands_once_with_its_sentence() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert sorted({rule.name for rule in rules()}) == re.findall(r'^- <a id="(\w+)"></a>', page, re.MULTILINE)
    for rule in rules():
        assert page.count(rule.sentence) == 1
        assert all(f"`{room}`" in page for room in rule.rooms)


def test_rules_of_all_runs_and_of_some_are_told_apart() -> None:
    assert RunRule(ANSWERED, ANSWERED_SENTENCE, ()) in rules()
    assert {rule.rooms for rule in rules() if rule.name == "quiescent"} == {(), ("block_cache",)}
    assert [rule.rooms for rule in rules() if rule.name == "clients_never_stop_a_server"] == [("host_server", "server")]


def test_each_law_that_a_kept_finding_names_has_a_place() -> None:
    """But for a difference after an operation, which is of no law."""
    for name, rows in kept_findings.kept()["traces"].items():
        stem = law_of(trace_files.load(name).trace.stem).name
        for row in rows:
            if row.get("law") and row["kind"] != DIFFERENCE:
                assert law_pages.place(stem, row["law"]), (name, row["law"])


def test_another_name_has_no_place() -> None:
    assert law_pages.place("allocator", "one_owner") == "laws/allocator.md#one_owner"
    assert law_pages.place("cache", "full_pairs") == "laws/lock_ref.md#full_pairs"
    assert law_pages.place("allocator", "alloc") == "laws/allocator.md#alloc"
    assert law_pages.place("allocator", ANSWERED) == f"laws/runs.md#{ANSWERED}"
    assert law_pages.place("allocator", "no_such_law") is None
