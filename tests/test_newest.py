"""``slotproof engines --newest``: what it says of an engine that loads, of one that does not, and without a network."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.connection import Subject
from conformance.engines import registry
from conformance.engines.protocol import EngineError
from proofs.registry import DRIVEN
from slotproof import codes, newest

ENGINE = """
from conformance.engines.protocol import EngineError
from conformance.engines.toy import ToyAllocator

def good(config) -> ToyAllocator:
    return ToyAllocator(config["size"], config["page_size"])

def lacking(config) -> ToyAllocator:
    raise EngineError("absent.thing is a stub")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "newest_engine.py").write_text(ENGINE)
    return tmp_path


def test_a_stem_loads_if_an_engine_can_be_built_for_it(folder: Path) -> None:
    found = newest.reasons(Subject("newest_engine:good", source=folder))
    assert list(found) == list(DRIVEN)
    assert found["allocator"] == ""
    assert found["cache"] == newest.MISSING


def test_what_an_engine_lacks_is_the_reason(folder: Path) -> None:
    lacking = newest.reasons(Subject("newest_engine:lacking", source=folder, stems=("allocator",)))
    assert lacking["allocator"] == "absent.thing is a stub"
    nowhere = newest.reasons(Subject("nosuch_engine:make", source=folder))
    assert all("there is no module 'nosuch_engine'" in why for why in nowhere.values())


@pytest.mark.parametrize(("why", "code"), [({}, codes.HOLDS), ({"cache": "absent is missing"}, codes.USAGE)])
def test_one_line_for_each_stem_and_an_exit_code(
    why: dict[str, str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = SimpleNamespace(name="e", releases=("1.0", "1.1"), newest=lambda: "1.2")
    none = SimpleNamespace(name="no index", releases=("1.0",))
    monkeypatch.setattr(registry, "released", lambda: [one, none])
    asked = []

    def reasons(subject: Subject) -> dict[str, str]:
        asked.append(subject)
        return {**dict.fromkeys(DRIVEN, ""), **why}

    monkeypatch.setattr(newest, "reasons", reasons)
    assert newest.run(tmp_path / "out.json") == code
    assert asked == [Subject("e", "1.2")]
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(
        "the newest release of e on the package index is 1.2; `slotproof engines` judges 1.1 and older ones"
    )
    said = {stem: f"does not load: {why[stem]}" if stem in why else "loads" for stem in DRIVEN}
    assert out.endswith(" ".join(f"e 1.2 {stem}: {told}" for stem, told in said.items()))
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["loads"] for row in rows] == [stem not in why for stem in DRIVEN]


def test_without_a_network_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise EngineError("the package index names no release")

    one = SimpleNamespace(name="e", releases=("1.0",), newest=fails)
    monkeypatch.setattr(registry, "released", lambda: [one])
    with pytest.raises(EngineError, match="names no release"):
        newest.run(None)
