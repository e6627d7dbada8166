"""The reviewer's page shows every law, every fault and every kept trace, and draws what broke."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import kept
from conformance.faults import FAULTS
from conformance.picture import frame
from conformance.story import tell
from conformance.subjects import ours
from proofs import prover
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof import report
from spec.finite import Seq
from spec.lengths import Length
from spec.swa_mapping import alloc_extend, initial


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prover has its own tests: here it says at once that one obligation is open."""
    verdicts = [
        Verdict(stem, name, law, "unsat", "unsat", 0.0)
        for stem in STEMS
        for name in hints_of(stem).stem.transitions
        for law in hints_of(stem).stem.invariants
    ]
    verdicts[0] = Verdict("allocator", "alloc", "places", "unknown", "unsat", 20.0)
    monkeypatch.setattr(prover, "prove", lambda *_: verdicts)


def test_the_page_shows_everything(tmp_path: Path, proved: None) -> None:
    del proved
    assert report.run(tmp_path / "deep" / "folder") == 0
    page = (tmp_path / "deep" / "folder" / "index.html").read_text()
    laws = [law for stem in STEMS for law in hints_of(stem).stem.invariants]
    assert [word for word in (*laws, *FAULTS, *kept.names()) if word not in page] == []
    assert page.count('class="open"') >= 1
    assert page.count("<svg") > len(FAULTS)
    assert 'class="wrong"' in page
    assert "def test_found_by_slotproof" in page
    assert "``" not in page


def test_a_frame_says_who_owns_what_and_what_maps_where() -> None:
    first = initial(page_size=2, size=2, size_swa=2, rows=2, need_sort=False)
    after = alloc_extend(first, 1, Length(0, 1), Seq([2]), Seq([1])).then
    drawn = frame(after)
    full, swa = drawn["pools"]
    assert full["pages"][1] == {"page": 2, "place": "held", "row": 1, "used": 1}
    assert swa["pages"][0]["row"] == 1
    assert drawn["lines"] == [{"from": [2, 0], "to": [1, 0], "wrong": False}]


@pytest.mark.parametrize("name", ["tail_inside_page", "nested_group_forgets"])
def test_a_picture_marks_what_is_wrong(name: str) -> None:
    fault: dict[str, Any] = {"tail_inside_page": "tail_inside_page", "nested_group_forgets": "nested_group"}
    last = tell(kept.load(name).trace, FAULTS[fault[name]].make)[-1]
    pages = [page for pool in last.picture["pools"] for page in pool["pages"]]
    lost = [page for page in pages if page["place"] == "held" and page["row"] is None]
    assert last.wrong
    assert lost or any(line["wrong"] for line in last.picture["lines"])


def test_a_lawful_story_has_nothing_wrong() -> None:
    for name in kept.names():
        trace = kept.load(name).trace
        for step in tell(trace, ours.MAKERS[trace.stem]):
            assert not step.wrong, (name, step)
            assert not any(line["wrong"] for line in step.picture["lines"]), (name, step)
