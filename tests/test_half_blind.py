"""What the search for the kept causes from nothing counts as found."""

from __future__ import annotations

import hashlib
import json

from benchmarks.half_blind import CATALOGUE, FOLDER, entries, is_even, outline, page


def kept(causes: dict[str, float], found: list[dict[str, object]]) -> dict[str, object]:
    judged = [{"runs": 5, "operations": 70}]
    search = {"seed": 1, "causes": causes, "found": found, "judged": judged, "failed": []}
    known = entries("sglang", "0.5.23")
    return {"engine": "sglang", "release": "0.5.23", "minutes": 1.0, "entries": known, "searches": [search]}


def test_the_parity_is_that_of_the_last_digit() -> None:
    for name in ("freed_window_enters_tree", "turn_counts_draft_slot", "a", "b", "c"):
        assert is_even(name) == (hashlib.sha256(name.encode()).digest()[-1] % 2 == 0)


def test_a_cause_is_found_by_its_repair_and_not_by_the_words_of_a_finding() -> None:
    row = {"stem": "server", "law": "clients_never_stop_a_server", "second": 9.0, "cause": ""}
    row["detail"] = "go_on raised AssertionError: session_id='7' already has a slot"
    assert "| rejected_turn_keeps_session | even | · |" in page(kept({}, [row]))
    assert "| rejected_turn_keeps_session | even | 9 |" in page(kept({"rejected_turn_keeps_session": 9.0}, []))


def test_an_outline_has_no_numbers() -> None:
    one, other = (f"row {n}: the page of row {n} at index [{n}, 2] is page {n}" for n in (1, 22))
    assert outline("cache", "one_owner", one) == outline("cache", "one_owner", other)
    assert outline("cache", "one_owner", one) != outline("allocator", "one_owner", one)


def test_each_standing_entry_has_one_row() -> None:
    shown = page(kept({}, []))
    standing = [one for one in json.loads(CATALOGUE.read_text("utf-8"))["sglang"] if "0.5.23" in one["releases"]]
    for entry in standing:
        name = entry["cause"]["name"] if entry["cause"] else entry["traces"][0]
        assert sum(line.startswith(f"| {name} |") for line in shown.splitlines()) == 1


def test_the_document_is_that_of_what_was_kept() -> None:
    assert (FOLDER / "half_blind.md").read_text("utf-8") == page(
        json.loads((FOLDER / "half_blind.json").read_text("utf-8"))
    )


def test_no_kept_trace_was_replayed_in_the_measurement() -> None:
    searches = json.loads((FOLDER / "half_blind.json").read_text("utf-8"))["searches"]
    assert not [row["name"] for search in searches for row in search["found"] if row["name"]]
