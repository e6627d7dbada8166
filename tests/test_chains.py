"""Which chains of calls are kept, and that the places where they begin are in the releases."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from driven import NEWEST, between, have, some

from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.search.call_graph import HANDLER, LOOP, START, source_file
from conformance.search.chains import bookkeeping, entrances_of, reach_elsewhere
from slotproof.pages import chain_pages, kept_findings
from slotproof.pages.catalogue import entries
from slotproof.pages.chain_pages import NO_CALLER, FoundChain
from slotproof.pages.finding_pages import of_engine

FINDINGS = kept_findings.with_rows(kept_findings.kept())
ASKED = {one.key: one for one in chain_pages.asked(FINDINGS)}
KEPT = {one.key: one for one in chain_pages.kept_chains()}
SGLANG = registry.plugin("sglang")


def test_the_kept_chains_are_of_findings_of_parts_in_the_last_release_that_shows_them() -> None:
    assert KEPT.keys() <= ASKED.keys()
    assert [*KEPT] == [key for key in ASKED if key in KEPT]
    assert {key: one.release for key, one in KEPT.items()} == {key: ASKED[key].release for key in KEPT}


def test_each_finding_of_a_part_has_a_row() -> None:
    assert ASKED.keys() == KEPT.keys()


def test_a_kept_chain_leads_from_where_it_begins_to_its_function() -> None:
    """And that is a function of the bookkeeping: what only sets an engine up for a call is none."""
    for one in KEPT.values():
        assert one.function.startswith(bookkeeping(one.engine))
        assert one.begins in ("", LOOP, HANDLER, START)
        assert bool(one.chain) == bool(one.begins)
        if one.chain:
            assert one.chain[-1]["name"] == one.function
            assert not one.chain[0]["by_name"]


@pytest.mark.parametrize("engine", [plugin.name for plugin in registry.released()])
def test_no_caller_is_what_the_chains_say(engine: str) -> None:
    rows = chain_pages.by_finding(engine)
    for entry in entries(engine, of_engine(engine, FINDINGS)):
        row = rows.get(entry.findings[0].kept.name)
        assert (entry.reach == NO_CALLER) == (not entry.on_scheduler and row is not None and row.no_caller)


def test_a_row_without_a_function_says_nothing() -> None:
    row = FoundChain("e", "f", "1")
    assert not row.no_caller
    assert replace(row, function="a.py:g").no_caller
    assert not replace(row, function="a.py:g", begins=LOOP).no_caller


def test_an_engine_that_names_no_entrances_is_told() -> None:
    with pytest.raises(EngineError, match="toy does not say where the calls of its server begin"):
        entrances_of("toy")


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize("release", some(between("0.5.10")))
def test_the_table_of_messages_and_the_loops_are_in_the_release(release: str) -> None:
    root = have(release) / "sglang"
    entrances = entrances_of("sglang")
    files = [*(root / "srt" / "managers").glob("*.py"), *(root / "srt" / "disaggregation").glob("*.py")]
    places = {
        f"{path.relative_to(root).as_posix()}:{name}": source_file(path.read_text("utf-8")).functions[name]
        for path in files
        for name in source_file(path.read_text("utf-8")).functions
    }

    def matching(patterns: tuple[str, ...]) -> list[str]:
        return [place for place in places if any(re.fullmatch(pattern, place) for pattern in patterns)]

    (table,) = matching(entrances.tables)
    named = {word for _, word in places[table]}
    assert {"handle_generate_request", "abort_request", "open_session", "close_session"} <= named
    loops = {Path(place).name.rpartition(".")[2] for place in matching(entrances.loops)}
    assert {"event_loop_normal", "event_loop_overlap", "event_loop_normal_disagg_decode"} <= loops
    assert len(matching(entrances.start)) == 2


@pytest.mark.engine
@pytest.mark.soak
def test_a_kept_chain_is_found_again() -> None:
    """What the driver calls last in the broken operation only sets the engine up, and is no answer."""
    have(NEWEST)
    kept = KEPT["sglang", "tail_finds_no_room"]
    assert (
        FoundChain("sglang", kept.finding, NEWEST, **reach_elsewhere("sglang", NEWEST, [kept.finding])[kept.finding])
        == kept
    )
