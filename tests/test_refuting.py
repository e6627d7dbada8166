"""A false law is refuted on a small world before the solvers look long for a proof, and is told when it is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proofs import counterexample, explore, obligations, prover
from proofs.asking import NOT_ASKED
from proofs.hints import Hints
from proofs.prover import Verdict
from proofs.registry import hints_of
from slotproof.console import screen
from slotproof.proving import proof_lines
from spec import allocator
from spec.allocator import AllocatorState
from spec.finite import Seq
from spec.lengths import Length
from spec.logic import Invariant, Truth


def small_pool(st: AllocatorState) -> Truth:
    """Each pool of the allocator has at most two pages."""
    return st.now.pages.all(lambda page: page <= 2)


def with_law(law: Callable[[AllocatorState], Truth], **more: Any) -> Hints:
    """The allocator with one more law."""
    hints = hints_of("allocator")
    made = Invariant(law.__name__, law, lambda st: [("", st)], **more)
    return replace(hints, stem=replace(hints.stem, invariants={**hints.stem.invariants, law.__name__: made}))


def planted(mutant: str) -> Hints:
    """The allocator with a mutant in the place of its transition."""
    hints = hints_of("allocator")
    wrong = next(m for m in hints.mutants if m.name == mutant)
    transitions = {**hints.stem.transitions, wrong.transition: wrong.wrong}
    return replace(hints, stem=replace(hints.stem, transitions=transitions))


def test_a_small_world_refutes_before_long_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "hints_of", lambda _: planted("keeps_reference"))
    monkeypatch.setattr(prover, "at_length", lambda *_: pytest.fail("long looks"))
    verdicts = prover.look_briefly("allocator", "free")
    refuted = [verdict for verdict in verdicts if verdict.refuted]
    assert "one_owner" in {verdict.invariant for verdict in refuted}
    assert all((v.z3, v.cvc5, v.proved, v.open) == ("sat", NOT_ASKED, False, False) for v in refuted)
    assert all("breaks" in verdict.refuted for verdict in refuted)
    told = proof_lines.failures(verdicts, final=False)
    assert [line[0] for line in told] == ["refuted"] * len(refuted), "it is printed when the unit ends"
    assert all(verdict.refuted in line[2] for verdict, line in zip(refuted, told, strict=True))


@pytest.mark.parametrize("theorem", [True, False])
def test_a_false_law_is_refuted_at_the_start(theorem: bool) -> None:
    hints = with_law(small_pool, theorem=theorem)
    found = counterexample.of_obligation(hints, obligations.START, "small_pool", prover.SMALL_WORLD)
    assert found is not None
    assert "small_pool" in {law.name for law, _ in hints.stem.broken(found.before)}
    assert "a lawful state breaks small_pool" in str(found)


def test_a_true_law_is_not_refuted() -> None:
    hints = hints_of("allocator")
    for name, law in (("free", "one_owner"), (obligations.START, "one_owner")):
        assert counterexample.of_obligation(hints, name, law, prover.SMALL_WORLD) is None


def verdict(name: str, **more: Any) -> Verdict:
    return replace(Verdict("allocator", name, "one_owner", "unknown", "unknown", 1.0), **more)


def test_what_is_unknown_is_looked_at_longer_and_stays_a_failure() -> None:
    left = verdict("free", number=3)
    proved = verdict("trim", z3="unsat", cvc5="unsat")
    half = verdict("alloc", z3="unsat")
    assert prover.still_open([left, proved, half]) == [("allocator", "free", [left]), ("allocator", "alloc", [half])]
    assert proof_lines.failures([left], final=False) == []
    assert [line[0] for line in proof_lines.failures([left, half, proved], final=True)] == ["not proved"] * 2
    later = replace(left, z3="unsat", cvc5="unsat")
    assert prover.with_later([[left, proved], [half]], [[later]]) == [later, proved, half]


def test_no_time_is_spent_on_a_law_that_is_refuted_and_its_open_obligations_are_listed(capsys: Any) -> None:
    found = [verdict("free", z3="sat", cvc5=NOT_ASKED, refuted="free() breaks one_owner"), verdict("trim")]
    assert prover.still_open(found) == []
    proof_lines.end(["allocator"], proof_lines.ProofResults(verdicts=found), [], 1.0, 1)
    shown = " ".join(capsys.readouterr().out.split())
    assert "not proved: allocator.one_owner of trim: no long looks, since the law is refuted above" in shown
    assert "0 of 2 obligations proved" in shown


def test_in_a_pipe_the_end_is_short(capsys: Any) -> None:
    assert not screen.console.is_terminal
    fine = [verdict(name, z3="unsat", cvc5="unsat") for name in hints_of("allocator").stem.transitions]
    proof_lines.end(["allocator"], proof_lines.ProofResults(verdicts=fine), [], 1.0, 0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 8
    assert "every law holds" in lines[-1]
    proof_lines.end(["allocator"], proof_lines.ProofResults(verdicts=[*fine, verdict("free")]), [], 1.0, 2)
    shown = capsys.readouterr().out
    assert "one_owner" in shown, "the rows that fail are shown"
    assert "alloc_decode" not in shown


def test_what_both_solvers_refute_at_once_is_shown_by_a_small_state_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law without quantifiers, of which z3 finds at its first look that it is false."""

    def never_free(st: AllocatorState) -> Truth:
        """No free group is ever opened."""
        return st.group == 0

    hints = with_law(never_free)
    monkeypatch.setattr(prover, "hints_of", lambda _: hints)
    verdicts = prover.look_briefly("allocator", "free_group_begin")
    (false,) = [verdict for verdict in verdicts if not verdict.proved]
    assert (false.invariant, false.z3, false.cvc5) == ("never_free", "sat", NOT_ASKED)
    assert "breaks never_free; the state before: now.page_size=" in false.refuted


def test_a_state_is_told_by_what_is_not_0_in_it() -> None:
    first = allocator.initial(page_size=2, size=3, rows=1, need_sort=False)
    taken = allocator.alloc_extend(first, 0, Length(0, 1), Seq([3])).then
    said = explore.told(taken)
    assert "now.table={(0, 0): 3}" in said
    assert "need_sort" not in said
    assert "<" not in said
