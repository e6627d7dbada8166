"""A law that no mutant breaks: whether it follows from the others is found by the solvers, and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proofs import obligations, prover
from proofs.following import Following, following
from proofs.hints import Hints
from proofs.registry import hints_of
from slotproof.proving import proof_lines, proving
from slotproof.proving.proof_lines import BareLaw
from spec.allocator import AllocatorState
from spec.logic import Invariant, Truth
from spec.pool import held


def same_as_itself(st: AllocatorState) -> Truth:
    """The number of pages is what it is."""
    return st.now.available == st.now.available + 0


def few_are_held(st: AllocatorState) -> Truth:
    """No page behind the second is held."""
    return st.now.pages.all(lambda page: (page <= 2) | (held(st.now, page) == False))  # noqa: E712


def held_has_one_owner(st: AllocatorState) -> Truth:
    """A page that stands in a row is held by this row alone, at this index alone."""
    law = hints_of("allocator").stem.invariants["one_owner"]
    return law.of(st)


def with_laws(*laws: Callable[[AllocatorState], Truth]) -> Hints:
    """The allocator with more laws, registered last."""
    hints = hints_of("allocator")
    made = {law.__name__: Invariant(law.__name__, law, lambda st: [("", st)]) for law in laws}
    return replace(hints, stem=replace(hints.stem, invariants={**hints.stem.invariants, **made}))


def test_a_law_that_follows_names_the_fewest_from_which_it_follows() -> None:
    found = following(with_laws(held_has_one_owner), ["held_has_one_owner"])
    assert found == {"held_has_one_owner": Following(("one_owner",))}


def test_a_law_that_is_true_of_every_state_follows_from_none() -> None:
    assert following(with_laws(same_as_itself), ["same_as_itself"])["same_as_itself"].laws == ()


def test_a_law_that_says_more_does_not_follow_and_a_small_state_shows_it() -> None:
    hints = with_laws(few_are_held)
    assert following(hints, ["few_are_held"]) == {"few_are_held": Following(None, apart=True)}


@pytest.mark.parametrize("law", ["one_owner", "no_leak", "available_counts"])
def test_no_law_of_the_allocator_follows_from_the_others(law: str) -> None:
    assert following(hints_of("allocator"), [law])[law] == Following(None, apart=True)


def test_of_two_laws_that_follow_from_each_other_only_one_can_be_a_theorem() -> None:
    hints = with_laws(held_has_one_owner)
    found = following(hints, ["one_owner", "held_has_one_owner"])
    assert found == {"one_owner": Following(None, apart=True), "held_has_one_owner": Following(("one_owner",))}


def test_laws_of_parts_count_among_the_others() -> None:
    hints, name = hints_of("block_cache"), "idle_holds_nothing"
    law = replace(hints.stem.invariants[name], theorem=False)
    bare = replace(hints, stem=replace(hints.stem, invariants={**hints.stem.invariants, name: law}))
    found = following(bare, [name])[name].laws
    assert found is not None
    assert {hints.stem.invariants[one].inherited for one in found} == {"", "pool"}
    assert {*found} == {*hints.relevant_laws[name].split()}


def test_what_z3_alone_proves_is_not_said_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover, "prove_formula", lambda _: ("unsat", "unknown"))
    found = following(with_laws(held_has_one_owner), ["held_has_one_owner"])["held_has_one_owner"]
    assert found == Following(None, apart=False)


def test_from_the_laws_that_are_named_both_solvers_prove_it_as_a_theorem() -> None:
    hints = with_laws(held_has_one_owner)
    theorem = replace(hints.stem.invariants["held_has_one_owner"], theorem=True)
    named = replace(hints.stem, invariants={"one_owner": hints.stem.invariants["one_owner"], theorem.name: theorem})
    formula = obligations.follows(replace(hints, stem=named), theorem)
    assert prover.prove_formula(formula) == ("unsat", "unsat")


ADD = "add a mutant in proofs/allocator.py"


@pytest.mark.parametrize(
    ("law", "found", "said"),
    [
        ("one_owner", Following(("places", "no_leak")), "follows from the others (places, no_leak), as z3 and cvc5 pr"),
        ("one_owner", Following(("places",)), f"make it a theorem, or {ADD}"),
        ("one_owner", Following(()), "true of every state, as z3 and cvc5 prove, so that it says nothing: drop it"),
        ("one_owner", Following(None, apart=True), f"so that this law could say nothing: {ADD}"),
        ("one_owner", Following(None), f"{ADD}, or make it a theorem, if it follows from the others, which is not kn"),
        ("row_is_cut", None, f"this law could say nothing: {ADD}"),
    ],
)
def test_a_law_without_a_mutant_says_what_to_do(capsys: Any, law: str, found: Following | None, said: str) -> None:
    proof_lines.end(["allocator"], proof_lines.ProofResults(), [BareLaw("allocator", law, found)], 1.0, 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"no mutant: {'allocator.' if found and found.laws is not None else ''}" in shown
    assert said in shown
    assert ("theorem" in shown) == (found is not None and not found.apart and found.laws != ())


def test_a_theorem_without_a_mutant_is_not_told_to_become_one(capsys: Any) -> None:
    proof_lines.end(["lock_ref"], proof_lines.ProofResults(), [BareLaw("lock_ref", "a_leaf_can_be_evicted")], 1.0, 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert "add a mutant in proofs/lock_ref.py that breaks it together with a law from which it follows" in shown
    assert "make it" not in shown


def test_a_refuted_law_is_not_asked_for_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    hints = with_laws(few_are_held, held_has_one_owner)
    monkeypatch.setattr(proving, "hints_of", lambda _: hints)
    false = prover.Verdict("allocator", "alloc", "few_are_held", "sat", "not asked", 1.0, refuted="alloc() breaks it")
    bare = proving.without_mutants("allocator", proof_lines.ProofResults(verdicts=[false]))
    assert bare == [BareLaw("allocator", "held_has_one_owner", Following(("one_owner",)))]
    assert [one.law for one in proving.without_mutants("allocator", proof_lines.ProofResults())] == [
        "few_are_held",
        "held_has_one_owner",
    ]
