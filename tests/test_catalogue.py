"""The catalogue of findings: one entry a cause, its reach, its flags, and how grave it is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from conformance.engines import registry
from conformance.search.trials import TRIALS
from conformance.traces import cause_files
from conformance.traces.harm_found import Harm
from conformance.traces.reach_files import ENDS_ANYWAY, Reach
from slotproof.pages import kept_findings, mend_pages, templating
from slotproof.pages.catalogue import SHOWN, UNKNOWN, CatalogueEntry, Severity, entries, repaired_json
from slotproof.pages.cause_pages import needed_flags
from slotproof.pages.chain_pages import NO_CALLER, SCHEDULERS, FoundChain
from slotproof.pages.finding_pages import BROKEN, KeptFinding, of_engine
from slotproof.pages.mend_pages import MendedFinding

ENGINES = [plugin.name for plugin in registry.released()]
CAUSES = cause_files.every()


def test_the_stems_of_schedulers_are_those_that_repairs_are_tried_on() -> None:
    assert set(SCHEDULERS) == TRIALS.keys()


@cache
def standing(engine: str) -> list[KeptFinding]:
    return of_engine(engine, kept_findings.with_rows(kept_findings.kept()))


@pytest.mark.parametrize("engine", ENGINES)
def test_each_finding_that_stands_is_in_one_entry(engine: str) -> None:
    found = standing(engine)
    listed = [one.kept.name for entry in entries(engine, found) for one in entry.findings]
    assert len(listed) == len(set(listed))
    assert {one.kept.name for one in found if one.stands} <= set(listed)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gravest_stand_first_and_causes_have_what_upstream_knows(engine: str) -> None:
    several = entries(engine, standing(engine))
    order = [[*Severity].index(entry.severity) for entry in several]
    assert order == sorted(order)
    for entry in several:
        told = entry.as_json()
        assert (told["cause"] is None) == (entry.cause is None)
        assert bool(entry.upstream) == (entry.cause is not None)
        assert entry.on_scheduler or entry.flags == []
        assert told["releases"][-1] == registry.plugin(engine).releases[-1]


def of(name: str, **harm: Any) -> KeptFinding:
    """A kept finding whose newest release shows this harm."""
    one = next(one for engine in ENGINES for one in standing(engine) if one.kept.name == name)
    told = Harm(**harm).as_json()
    rows = [{**row, "harm": told if row["verdict"] in BROKEN else None} for row in one.rows]
    return replace(one, rows=rows)


ON_SERVER, IN_PART = "two_first_turns_stop_server", "tail_inside_page"
NOTED = Reach(IN_PART, "not shown", "It was tried.", ["a.py:b"])


@pytest.mark.parametrize(
    ("entry", "severity", "reach"),
    [
        (CatalogueEntry("", "", [of(ON_SERVER, request="request 1", reads="nothing")]), Severity.WRONG, SHOWN),
        (CatalogueEntry("", "", [of(ON_SERVER, ended=True)]), Severity.STOP, SHOWN),
        (CatalogueEntry("", "", [of(ON_SERVER)]), Severity.SERVER, SHOWN),
        (
            CatalogueEntry("", "", [of(ON_SERVER), of(IN_PART, request="row 1", reads="nothing")]),
            Severity.SERVER,
            SHOWN,
        ),
        (CatalogueEntry("", "", [of(IN_PART, request="row 1", reads="nothing")]), Severity.REST, UNKNOWN),
        (
            CatalogueEntry("", "", [of(IN_PART)], noted=NOTED),
            Severity.REST,
            "not shown",
        ),
        (
            CatalogueEntry("", "", [of(IN_PART)], noted=Reach(IN_PART, ENDS_ANYWAY, "It raises.", ["a.py:b"])),
            Severity.APART,
            ENDS_ANYWAY,
        ),
        (
            CatalogueEntry("", "", [of(IN_PART)], noted=NOTED, chain=FoundChain("e", IN_PART, "1", "a.py:b")),
            Severity.APART,
            NO_CALLER,
        ),
        (
            CatalogueEntry("", "", [of(IN_PART)], noted=NOTED, chain=FoundChain("e", IN_PART, "1", "a.py:b", "loop")),
            Severity.REST,
            "not shown",
        ),
        (CatalogueEntry("", "", [of(IN_PART)], chain=FoundChain("e", IN_PART, "1")), Severity.REST, UNKNOWN),
    ],
)
def test_how_grave_an_entry_is(entry: CatalogueEntry, severity: Severity, reach: str) -> None:
    assert (entry.severity, entry.reach) == (severity, reach)


def test_flags_that_are_not_needed_are_left_out() -> None:
    cause = next(one for one in CAUSES if one.name == "retracted_turn_is_saved")
    every = cause.room.flags(cause.shown.trace.config)
    assert every == ["--disable-overlap-schedule", "--enable-streaming-session"], "and none that makes a server small"
    assert needed_flags(cause, {"spare_flags": every[:1]}) == every[1:]
    left = cause.room.without(cause.shown.trace.config, every[1])
    assert cause.room.flags(left) == every[:1]
    assert "--page-size" in left["flags"], "the others stay"


def test_a_finding_without_reach_or_with_a_cause_has_no_text_to_file() -> None:
    page = templating.environment().get_template("finding.md.j2")
    found = replace(of(ON_SERVER, ended=True), script='"""A server stops."""\nprint(1)\n')
    part = replace(of(IN_PART), script='"""A tail is lost."""\nprint(1)\n')
    noted = Reach(IN_PART, "not shown", "Nothing sends it", ["a.py:b"])
    texts = [
        page.render(finding=found, entry=CatalogueEntry("", "", [found])),
        page.render(finding=found, entry=CatalogueEntry("A title", "", [found], CAUSES[0])),
        page.render(finding=part, entry=CatalogueEntry("", "", [part], noted=noted)),
    ]
    assert ["To file upstream" in text for text in texts] == [True, False, False]
    assert f"[A title](../causes/{CAUSES[0].name}.md)" in texts[1]
    assert "This is no text to file: not shown: Nothing sends it." in texts[2]
    assert all("print(1)" in text for text in texts)


def test_the_page_of_a_finding_tells_its_chain_and_what_repaired_it() -> None:
    page = templating.environment().get_template("finding.md.j2")
    found = of(IN_PART)
    calls = [{"name": "s.py:Server.loop", "by_name": False}, {"name": "a.py:b", "by_name": True}]
    chain = FoundChain("sglang", IN_PART, "1", "a.py:b", "loop", calls)
    text = page.render(finding=found, entry=None, chain=chain)
    assert "1. `s.py:Server.loop`\n2. `a.py:b` (by name)\n" in text
    assert "no chain of calls leads" in page.render(
        finding=found, entry=None, chain=replace(chain, begins="", chain=())
    )
    functions = [{"file": "a.py", "line": 3, "function": "C.f"}, {"file": "a.py", "line": 9, "function": "g"}]
    mend = MendedFinding("sglang", IN_PART, "1", "2", functions[:1], lawful=7)
    one, two = (page.render(finding=found, entry=None, mend=m) for m in (mend, replace(mend, functions=functions)))
    assert "The cause in sglang 1: `a.py:3` C.f. This function was replaced" in one
    assert "7 kept traces that keep the law" in one
    assert "`a.py:3` C.f, `a.py:9` g. These functions were replaced" in two
    assert "No function of sglang 1" in page.render(finding=found, entry=None, mend=replace(mend, functions=[]))


def test_traces_that_one_function_mends_are_of_one_repaired_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    several = standing("sglang")
    old = [one for one in several if one.shown[-1]["release"] == "0.5.12"][:3]
    last = [one.kept.name for one in old]
    function = [{"file": "a.py", "line": 3, "function": "C.f"}]
    kept = [MendedFinding("sglang", name, "0.5.12", "0.5.13", function if n else []) for n, name in enumerate(last)]
    monkeypatch.setattr(mend_pages, "kept_mends", lambda: kept)
    (cause,) = mend_pages.repaired("sglang", {one.kept.name: one for one in several})
    assert [row.finding for row in cause.rows] == last[1:]
    told = repaired_json("sglang", cause)
    assert (told["title"], told["repaired_in"], told["functions"]) == ("C.f", "0.5.13", function)
    assert told["traces"] == last[1:]
