"""The table that leads from an engine's functions to transitions: what is watched, what is kept, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.operations import declared
from conformance.engines import registry
from conformance.search import functions as watching
from conformance.stems.stem_registry import STEMS
from proofs.registry import hints_of
from slotproof.pages import engine_functions, kept_findings
from slotproof.pages.engine_functions import FILE

KEPT = json.loads(kept_findings.FINDINGS.with_name(FILE).read_text(encoding="utf-8"))


def test_the_functions_of_our_allocator_lead_to_their_transitions() -> None:
    found = watching.functions(registry.load(registry.own().name), ["allocator"], runs=12)
    assert [*found] == ["allocator"]
    of = found["allocator"]
    for op, function in (("extend", "alloc_extend"), ("decode", "alloc_decode"), ("begin_group", "free_group_begin")):
        names = [name.rpartition(".")[2] for name in of[op]["functions"]]
        assert function in names
        assert function in of[op]["transitions"]
        assert "alloc_decode" not in names or op == "decode"
    every = {name.rpartition(".")[2] for one in of.values() for name in one["functions"]}
    assert "__init__" not in every
    assert "available_size" not in every, "it is called to read an engine"


def test_a_run_that_breaks_a_law_is_watched_up_to_there(monkeypatch: pytest.MonkeyPatch) -> None:
    own = registry.load(registry.own().name)

    def refuses(*_: Any) -> Any:
        raise RuntimeError("no page")

    whole = watching.functions(own, ["allocator"], runs=6)["allocator"]
    real = own.makers["allocator"]

    def make(config: Any) -> Any:
        engine = real(config)
        monkeypatch.setattr(engine, "decode", refuses)
        return engine

    broken = watching.of_stem("allocator", make, own.roots, 6)
    assert "decode" in whole
    assert "decode" not in broken
    assert broken["extend"] == whole["extend"]


def kept(tmp_path: Path, found: Any) -> Path:
    (tmp_path / FILE).write_text(json.dumps(found))
    return tmp_path


def test_a_table_has_what_runs_took_and_what_is_claimed(tmp_path: Path) -> None:
    evict = {"functions": ["Tree.evict"], "transitions": ["evict_swa"]}
    docs = kept(tmp_path, {"a 1": {"lock_ref": {"evict": evict}}, "b 2": {"lock_ref": {}}, "c 3": {"cache": {}}})
    table = engine_functions.table(docs, "lock_ref")
    assert table.releases == ["a 1", "b 2"]
    (entry,) = [entry for entry in table.entries if entry.name == "evict"]
    assert entry.functions == [["Tree.evict"], []]
    assert entry.transitions == ["evict_leaf", "evict_swa"]
    assert entry.sentence == "The tree is asked to free memory, and chooses what it evicts."
    assert "bad" not in {entry.name for entry in table.entries}, "it takes no transition"


def test_a_stem_that_no_engine_has_and_a_missing_file_have_no_table(tmp_path: Path) -> None:
    for stem in ("kv_events", "lock_ref"):
        assert engine_functions.table(tmp_path, stem).entries == []


def test_some_stems_are_watched_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{plugin.name} {plugin.releases[-1]}" for plugin in registry.released()]
    old = {"cache": {"admit": {"functions": ["f"], "transitions": []}}, "lock_ref": {}}
    docs = kept(tmp_path, {names[0]: old, "gone 0.1": old})
    monkeypatch.setattr(engine_functions, "elsewhere", lambda *_: {"lock_ref": {"new": {}}})
    engine_functions.keep(docs, ["lock_ref"])
    found = json.loads((docs / FILE).read_text())
    assert [*found] == names
    assert found[names[0]] == {"cache": old["cache"], "lock_ref": {"new": {}}}
    engine_functions.keep(docs)
    assert json.loads((docs / FILE).read_text())[names[0]] == {"lock_ref": {"new": {}}}


@pytest.mark.parametrize("release", KEPT)
def test_what_is_kept_names_operations_and_transitions_that_there_are(release: str) -> None:
    """Where it fails, a stem has changed since: run `make engines`."""
    for stem, by_operation in KEPT[release].items():
        owners = {owner for caller in STEMS[stem].callers for owner in caller.__mro__}
        assert by_operation.keys() <= declared(*owners).keys()
        for one in by_operation.values():
            assert {*one["transitions"]} <= hints_of(stem).stem.transitions.keys()


def test_each_stem_that_a_release_has_leads_from_functions_to_its_main_transitions() -> None:
    pages = {stem: engine_functions.table(kept_findings.FINDINGS.parent, stem) for stem in STEMS}
    for stem, function, transition in (
        ("allocator", "PagedTokenToKVPoolAllocator.alloc_decode", "alloc_decode"),
        ("lock_ref", "UnifiedRadixCache.unlock", "release"),
        ("cache", "alloc_for_decode", "decode"),
        ("block_pool", "BlockPool.free_blocks", "release"),
    ):
        rows = [one for one in pages[stem].entries if any(function in names for names in one.functions)]
        assert any(transition in row.transitions for row in rows), (stem, function)
