"""Each promise, choice and fit is dropped in turn: what no law needs is listed with its place, and with its reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proofs import minimal, prover, unneeded
from proofs.hints import Hints
from proofs.minimal import CHOICE, FITS, PROMISE, REFUTED, Need
from proofs.registry import STEMS, hints_of
from slotproof.proving import minimal as command
from spec.logic import Number, Requirement, Step, but, requires

ROOT = Path(__file__).resolve().parents[1]


def by_sentence(stem: str, name: str) -> dict[str, Need]:
    return {need.asked.sentence: need for need in minimal.needs(stem, name)}


def test_what_a_law_needs_is_refuted_without_it() -> None:
    found = by_sentence("allocator", "shorten")
    needed = found["the new length is at most the row's length"]
    assert "new_token_has_a_slot" in needed.fails
    assert needed.how == REFUTED
    assert not needed.idle


def test_what_one_law_needs_is_not_idle() -> None:
    found = by_sentence("allocator", "free")
    assert found["every freed slot is a slot of a freed page"].fails == ("frees_what_is_named",)
    assert not any(need.idle for need in found.values())


def test_a_choice_is_dropped_too() -> None:
    (need,) = (n for n in minimal.needs("allocator", "free_group_begin") if n.asked.kind == CHOICE)
    assert need.fails == ("a_group_is_open",)


def test_what_only_lengths_within_a_page_need_is_refuted_in_a_world_with_two_slots_a_page() -> None:
    """The small world of the cache has one slot a page: there no row can be made shorter without giving up a page."""
    hints, sentence = hints_of("cache"), "the new length is at least the row's allocated length"
    (number,) = (n for n, asked in minimal.asked_of(hints, "extend").items() if asked.sentence == sentence)
    assert hints.sizes["page_size"] == 1
    assert minimal._is_refuted(hints, "extend", number, ["promises_of_extend"])
    two = minimal._small_worlds(hints_of("allocator"))
    assert [world.sizes["page_size"] for world in two] == [2]


def test_a_useless_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One promise that says nothing about what the call does, and one that another promise implies."""
    known = hints_of("allocator")
    right = known.stem.transitions["shorten"]

    def shorten(st, row, to):  # type: ignore[no-untyped-def]
        step = right(st, row, to)
        more = (requires(st.group < 7, "few groups are open"), requires(row >= -1, "the row number is at least -1"))
        return but(step, promises=(*step.promises, *more))

    shorten.__annotations__ = right.__annotations__
    planted = replace(known, stem=replace(known.stem, transitions={**known.stem.transitions, "shorten": shorten}))
    monkeypatch.setattr(minimal, "hints_of", lambda _: planted)
    found = by_sentence("allocator", "shorten")
    assert (found["few groups are open"].idle, found["few groups are open"].follows) == (True, False)
    assert (found["the row number is at least -1"].idle, found["the row number is at least -1"].follows) == (True, True)
    assert unneeded.reason(found["few groups are open"].asked) is None


def test_a_requirement_that_is_dropped_is_not_asked() -> None:
    def step(_: Number) -> Step[int]:
        return Step(then=0, promises=(Requirement("a", False), Requirement("b", True)), fits=False)

    assert not minimal.without(step, 1)(0).kept
    assert minimal.without(step, 0)(0).kept
    assert [kind for kind, _ in minimal.requirements(step(0))] == [PROMISE, PROMISE, FITS]
    assert minimal.without(step, 2)(0).fits is True


def test_the_place_is_where_the_spec_says_it() -> None:
    for asked in minimal.asked_of(hints_of("session_trim"), "decode").values():
        file, _, line = asked.place.partition(":")
        text = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert ("requires(" in text) or asked.kind == FITS
        assert asked.text.startswith("requires(") or asked.kind == FITS


def known_sentences() -> set[str]:
    stems: list[Hints] = [hints_of(name) for name in STEMS]
    return {
        asked.sentence
        for hints in stems
        for name in hints.stem.transitions
        for asked in minimal.asked_of(hints, name).values()
    }


def test_no_reason_is_left_over() -> None:
    assert set(unneeded.REASONS) <= known_sentences()


def test_what_has_no_reason_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "needs.json"
    needs = minimal.needs("allocator", "roll_back")
    units = [replace(need, fails=(), how=None) for need in needs if need.asked.sentence in unneeded.REASONS]
    assert units
    monkeypatch.setattr(prover, "on_every_core", lambda *_: [units])
    assert command.run(["allocator"], out) == 0
    assert {row["sentence"] for row in json.loads(out.read_text("utf-8"))["requirements"]} == {
        need.asked.sentence for need in units
    }
    monkeypatch.setattr(unneeded, "REASONS", {})
    assert command.run(["allocator"], None) == 1
    assert "nobody has said why it stays" in capsys.readouterr().out
