"""Corners: a promise that excludes what engines do is seen, and so is what runs and is not what is proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driven import SOAK

from proofs import corners, walks
from proofs.hints import Hints, Transition, altered
from proofs.registry import STEMS, hints_of
from proofs.walks import Seen, seen
from slotproof.console.codes import HOLDS, UNKNOWN
from slotproof.pages import corners as kept_traces
from slotproof.proving.proof_lines import ProofResults, failures
from slotproof.proving.proving import code_of
from spec.block_pool_state import UNWRITTEN, BlockPoolState
from spec.lock_ref_state import LockRefState
from spec.logic import Number, Seq, Step, Truth, but, requires
from spec.session_trim_state import SessionTrimState


def test_the_corners_are_those_of_the_kept_traces() -> None:
    assert corners.KEPT.read_text(encoding="utf-8") == kept_traces.derived(), "run make docs"


def test_a_decode_within_a_page_and_one_that_crosses_a_page_are_two_corners() -> None:
    decodes = corners.kept()["session_trim"]["decode"]
    assert any("full_pages empty" in corner for corner in decodes)
    assert any("full_pages of one" in corner for corner in decodes)


# `make verify` walks through every stem, and fails where a corner is missing. The cache takes longer than all others.
@pytest.mark.soak(but=4)
@pytest.mark.parametrize("stem", [stem for stem in STEMS if SOAK or stem != "cache"])
def test_each_corner_has_a_granted_call(stem: str) -> None:
    found = seen(stem)
    assert (found.missing, found.wrong) == ((), ())
    assert found.calls >= walks.CALLS


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Transition], Seen]:
    """Walks where a transition of a stem has this text."""

    def plant(stem: str, name: str, text: Transition) -> Seen:
        known = hints_of(stem)
        transitions = {**known.stem.transitions, name: text}
        found = replace(known, stem=replace(known.stem, transitions=transitions))
        monkeypatch.setattr(walks, "hints_of", lambda _: found)
        monkeypatch.setattr(walks, "MOST", 6_000)
        return seen(stem)

    return plant


def right(stem: str, name: str) -> Transition:
    return hints_of(stem).stem.transitions[name]


@pytest.mark.soak
def test_a_promise_that_excludes_a_decode_across_a_page_is_seen(planted: Any) -> None:
    """The promise holds of nine decodes in ten, and every law and every proof stays true."""
    lawful = right("session_trim", "decode")

    def decode(st: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
        step = lawful(st, row, full_pages, swa_pages)
        within = requires(full_pages.length == 0, "the token has a slot in the row's last page")
        return but(step, promises=(*step.promises, within))

    found = planted("session_trim", "decode", decode)
    assert {name for name, _ in found.missing} == {"decode"}
    assert all("full_pages of one" in corner for _, corner in found.missing)
    assert found.wrong == ()
    assert [said for _, _, said in failures(found, final=True) if "full_pages of one" in said]


def test_a_promise_of_another_kind_excludes_nothing(planted: Any) -> None:
    """The honest sibling: a promise that every caller keeps."""
    lawful = right("session_trim", "decode")

    def decode(st: SessionTrimState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SessionTrimState]:
        step = lawful(st, row, full_pages, swa_pages)
        return but(step, promises=(*step.promises, requires(row >= 0, "the row has a number")))

    found = planted("session_trim", "decode", decode)
    assert (found.missing, found.wrong) == ((), ())


def test_an_update_that_lists_too_few_keys_is_seen(planted: Any) -> None:
    """Provers do not read ``among``: they prove what is not done."""

    def restore_swa(st: LockRefState, node: Number) -> Step[LockRefState]:
        step = lawful(st, node)
        return altered(step, swa=st.swa.where(lambda n: n == node, 1, list))

    lawful = right("lock_ref", "restore_swa")
    found = planted("lock_ref", "restore_swa", restore_swa)
    assert any("restore_swa" in wrong for wrong in found.wrong)


def test_a_listing_is_looked_at_beside_the_laws(planted: Any) -> None:
    """A reset that lists no block wipes none; not every such update breaks a law."""

    def reset(st: BlockPoolState, done: Truth) -> Step[BlockPoolState]:
        return altered(lawful(st, done), content=st.content.where(lambda _: done, UNWRITTEN, list))

    lawful = right("block_pool", "reset")
    found = planted("block_pool", "reset", reset)
    assert any("changes what it does not list" in wrong for wrong in found.wrong)


def test_what_breaks_a_law_is_seen(planted: Any) -> None:
    known: Hints = hints_of("allocator")
    mutant = next(mutant for mutant in known.mutants if mutant.name == "forgets_count")
    found = planted("allocator", mutant.transition, mutant.wrong)
    assert found.wrong == ("free breaks available_counts",)
    assert failures(found, final=True)


def test_walks_count_for_the_verdict() -> None:
    fine = Seen("allocator", 1, (), ())
    assert code_of(ProofResults(walks=[fine]), []) == HOLDS
    assert code_of(ProofResults(walks=[replace(fine, missing=(("free", "gone of one"),))]), []) == UNKNOWN
    assert code_of(ProofResults(walks=[replace(fine, wrong=("free breaks places",))]), []) == UNKNOWN
