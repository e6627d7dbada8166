"""The proofs prove what they say, and can fail: mutants, false lemmas and false laws are not proved."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import z3
from driven import SOAK, sampled

from proofs import asking, counterexample, explore, lemmas, obligations, prover, second_solver
from proofs.draining import claim_names
from proofs.fitting import ANSWERED, FITS
from proofs.hints import Hints, Mutant, searched, unasked, without_mutant
from proofs.registry import STEMS, hints_of
from proofs.symbols import Count, World, lift
from spec import allocator, cache, lock_ref
from spec.allocator import AllocatorState
from spec.cache_state import CacheState
from spec.lengths import Length
from spec.logic import Number, Seq, Stem, Step, Truth, but, call, ite, number
from spec.pool import HELD, PENDING

# Of each mutant `make verify` shows that its law refutes it, and proves what the mutant changed. One in eight is
# looked at more closely here, and each in `make soak`.
MUTANTS = sampled(
    (pytest.param(stem, m, id=f"{stem}-{m.name}") for stem in STEMS for m in hints_of(stem).mutants), one_in=8
)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps for each solver: what is not true is not proved in any number, and solvers rarely find that out. No
    look searches for models: z3 once took 80 s for that, which it does not count as steps. So a
    mutant that such a look alone proves is not seen here; ``make verify`` refutes each mutant by an example.
    """
    monkeypatch.setattr(asking, "LOOKS", tuple(look for look in asking.LOOKS if look.get("mbqi") is False))
    for looks in ("LIMITS", "GLANCE"):
        monkeypatch.setattr(prover, looks, prover.SolverLimits(z3=400_000, cvc5=60_000))


def preserved(hints: Hints, transition: Any, invariant: str) -> obligations.Formula:
    made = obligations.checked(hints.stem, obligations.call(hints, transition, World()))
    if invariant in hints.stem.changes:
        return obligations.changes_lawfully(hints, made, hints.stem.changes[invariant])
    return obligations.preserved(hints, made, hints.stem.invariants[invariant])


# What is true is proved.


@pytest.mark.soak
def test_the_allocator_is_proved() -> None:
    heard: list[prover.Verdict] = []
    verdicts = prover.prove(["allocator"], heard.extend)
    stem = hints_of("allocator").stem
    assert [v for v in verdicts if not v.proved] == []
    assert sorted(map(str, heard)) == sorted(map(str, verdicts))
    proved = {(v.transition, v.invariant) for v in verdicts if v.stem == "allocator"}
    laws = [*stem.invariants, obligations.ATOMIC]
    wanted = {(name, law) for name in stem.transitions for law in laws}
    wanted |= {(name, law.name) for name in stem.transitions for law in stem.changes.values() if law.binds(name)}
    wanted |= {(name, law) for name in hints_of("allocator").answers for law in (ANSWERED, FITS)}
    wanted -= {("free_group_begin", FITS)}  # a beginning always fits
    assert proved == wanted | {(obligations.START, law) for law in stem.invariants}


def test_the_lemmas_are_proved() -> None:
    verdicts = prover.prove_lemmas()
    assert {v.transition for v in verdicts} >= {"points_at_2", "additive", "complete", "none", "sequence"}
    assert [(v.transition, v.invariant) for v in verdicts if not v.proved] == []


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("stem", STEMS)
def test_every_transition_has_a_witness_and_what_can_run_out_of_memory_one_of_that(stem: str) -> None:
    hints = hints_of(stem)
    found = explore.witnesses(hints)
    assert set(found) == set(hints.stem.transitions)
    for name, outcomes in found.items():
        last = outcomes["granted"][-1]
        assert (last.transition, last.granted) == (name, True)
        assert explore.key(last.before) != explore.key(last.after)
        assert all(hints.stem.broken(move.after) == [] for move in outcomes["granted"])
    # what rows and states ask of the pools, as alloc… does
    asks = {
        "admit_tail",
        "extend",
        "extend_elsewhere",
        "decode",
        "reserve",
        "state_admit",
        "state_copy",
        "state_match",
        "state_second",
        "state_swap",
        "renew",
        "state_renew",
        "take",
    }
    pools = {"roll_back"} if stem in ("allocator", "swa_mapping") else set()  # there it asks as alloc_extend does
    assert hints.refusable == {name for name in hints.stem.transitions if "alloc" in name or name in asks | pools}
    assert all(not found[name]["refused"][-1].granted for name in hints.refusable)


@pytest.mark.parametrize("stem", STEMS)
def test_what_a_proof_is_told_first_are_laws(stem: str) -> None:
    hints = hints_of(stem)
    laws, transitions = set(hints.stem.invariants), {*hints.stem.transitions, obligations.START}
    calls = {obligations.CALLS + name for part in hints.stem.parts.values() for name in part.transitions}
    drained = {*claim_names(hints.drain)} if hints.drain else set()
    for proof, told in hints.relevant_laws.items():
        *transition, name = proof.split()
        proved = laws | calls | drained | set(hints.stem.changes)
        assert (set(transition) <= transitions, name in proved, set(told.split()) <= laws) == (True, True, True)


def test_what_does_not_follow_from_few_laws_is_proved_from_all() -> None:
    hints = replace(hints_of("allocator"), relevant_laws={})
    made = obligations.checked(hints.stem, obligations.call(hints, allocator.restore_state, World()))
    formula = obligations.preserved(hints, made, hints.stem.invariants["pending_in_group"])
    assert formula.core_facts is not None
    assert "unsat" not in prover.solve([*formula.core_facts, z3.Not(formula.goal)], prover.GLANCE)
    assert prover.prove_formula(formula) == ("unsat", "unsat")


# What is false is not.


@pytest.mark.parametrize("stem", STEMS)
def test_every_invariant_has_its_mutant(stem: str) -> None:
    """Also a law that follows from others has one: so its premise is true somewhere."""
    hints = hints_of(stem)
    own = {name for name, law in hints.stem.invariants.items() if not law.inherited}
    broken = {m.invariant for m in hints.mutants}
    assert broken >= own | set(hints.stem.changes)
    assert broken <= set(hints.stem.invariants) | set(hints.stem.changes), "laws of parts may have more mutants"
    assert {m.transition for m in hints.mutants} <= set(hints.stem.transitions)
    assert without_mutant(hints) == []


@pytest.mark.parametrize("law", ["full_pairs", "held_is_counted", "handle_keeps_its_node"])
def test_a_law_without_a_mutant_is_named(law: str) -> None:
    hints = hints_of("lock_ref")
    assert without_mutant(replace(hints, mutants=tuple(m for m in hints.mutants if m.invariant != law))) == [law]


@pytest.mark.soak
@pytest.mark.parametrize(("stem", "mutant"), MUTANTS)
def test_a_mutant_breaks_its_invariant_alone_or_first(stem: str, mutant: Mutant) -> None:
    hints = searched(hints_of(stem), mutant)
    laws = [*hints.stem.invariants, *hints.stem.changes]
    how = counterexample.killed_by(hints, mutant)
    kept = {
        counterexample.ALONE: [law for law in laws if law != mutant.invariant],
        counterexample.FIRST: laws[: laws.index(mutant.invariant)],
        counterexample.WITH: [],
    }
    assert how in kept
    found = counterexample.find(hints, mutant.transition, mutant.wrong, mutant.invariant, kept[how], smallest=False)
    assert found is not None
    broken = {law for law, _ in found.broken}
    assert mutant.invariant in broken
    assert how == counterexample.WITH or min(broken, key=laws.index) == mutant.invariant
    assert hints.stem.broken(found.before) == []
    right = hints.stem.transitions[mutant.transition](found.before, **found.arguments)
    assert right.broken() or hints.stem.broken(right.then) == [], "it keeps the law, or refuses the call"


@pytest.mark.soak
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("stem", "mutant"), MUTANTS)
def test_a_mutant_is_not_proved(stem: str, mutant: Mutant) -> None:
    """Of a law whose proof uses others of the state after the call, it or one of these is not proved."""
    hints = hints_of(stem)
    known = hints.stem.invariants.get(mutant.invariant)
    laws = (mutant.invariant, *(known.uses if known is not None else ()))
    assert any("unsat" not in prover.solve(preserved(hints, mutant.wrong, law).negated) for law in laws)


@pytest.mark.parametrize(("stem", "mutant"), MUTANTS)
def test_what_the_mutant_changed_was_right(stem: str, mutant: Mutant) -> None:
    hints = hints_of(stem)
    right = hints.stem.transitions[mutant.transition]
    known = hints.stem.invariants.get(mutant.invariant)
    if known is not None and known.theorem:
        formula = obligations.follows(hints, known)
    else:
        formula = preserved(hints, right, mutant.invariant)
    if SOAK:  # `make verify` proves it, too, as an obligation of the law
        assert prover.prove_formula(formula) == ("unsat", "unsat")
    assert counterexample.find(hints, mutant.transition, right, mutant.invariant, smallest=False) is None


def half_done(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """Out of memory opens a free group."""
    step = allocator.alloc_extend(st, row, to, chosen)
    return replace(step, otherwise=replace(st, group=st.group + 1))


@pytest.mark.usefixtures("brief")
def test_a_refused_call_that_changes_something_is_refuted() -> None:
    hints = hints_of("allocator")
    formula = obligations.atomic(hints, obligations.call(hints, half_done, World()))
    assert "unsat" not in prover.solve(formula.negated)
    found = counterexample.find(hints, "alloc_extend", half_done, obligations.ATOMIC)
    assert found is not None
    assert (obligations.ATOMIC, "") in found.broken


def test_a_counterexample_has_small_numbers() -> None:
    """Row 0 has nothing and wants one token. It is refused, since row 1 holds two pages, as many as its table has room
    for, and the third page waits for the end of a group.
    """
    found = counterexample.find(hints_of("allocator"), "alloc_extend", half_done, obligations.ATOMIC)
    assert found is not None
    assert str(found).startswith("alloc_extend(row=0, to=0p+1, chosen=[])")
    now = found.before.now
    assert [now.place(page) for page in now.pages.items()] == [HELD, HELD, PENDING]
    assert [now.owner(page) for page in (1, 2)] == [1, 1]
    assert [(now.whole(row), now.rest(row)) for row in (0, 1)] == [(0, 0), (1, 1)]
    assert (found.before.group, found.before.backed_up) == (1, False)


# A call that is made only where a condition holds, with the wrong condition.


def releases_always(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A row without a lock handle releases the null handle."""
    return _releases(st, row, old, True)


def releases_never(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """A row with a lock handle does not release it."""
    return _releases(st, row, old, False)


def releases_the_null_handle_alone(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """The condition is the opposite of the right one."""
    return _releases(st, row, old, old == 0)


def releases_one_handle_alone(st: CacheState, row: Number, old: Number) -> Step[CacheState]:
    """The condition holds too seldom."""
    return _releases(st, row, old, old == 1)


def _releases(st: CacheState, row: Number, old: Number, when: Truth) -> Step[CacheState]:
    step = cache.free_rest(st, row, old)
    let_go = call("tree", lock_ref.release, st.tree, old, when=when)
    return but(step, calls=(step.calls[0], let_go), then=but(step.then, tree=let_go.then))


def locks_for_no_session(
    st: CacheState,
    row: Number,
    session: Number,
    story: Number,
    handle: Number,
    node: Number,
    top: Number,
    counting: Truth,
    pages: Seq,
) -> Step[CacheState]:
    """The turn of a session gets a handle that locks nothing."""
    step = cache.admit(st, row, session, story, handle, node, top, counting, pages)
    locked = call("tree", lock_ref.acquire, st.tree, handle, node, top, counting, when=(handle != 0) & (session == 0))
    return but(step, calls=(locked, step.calls[1]), then=but(step.then, tree=locked.then))


def shares_a_partial_page(
    st: CacheState, row: Number, under: Number, leaf: Number, pages: Number, live: Truth
) -> Step[CacheState]:
    """A leaf takes the last page of a row, into which the row goes on writing."""
    step = cache.insert_leaf(st, row, under, leaf, pages, live)
    return unasked(step, "the leaf takes at least one page, and only whole committed pages")


WRONG_CONDITIONS = [
    ("free_rest", releases_always, "promises_of_release"),
    ("free_rest", releases_never, "request_holds_its_prefix"),
    ("free_rest", releases_the_null_handle_alone, "promises_of_release"),
    ("free_rest", releases_the_null_handle_alone, "request_holds_its_prefix"),
    ("free_rest", releases_one_handle_alone, "request_holds_its_prefix"),
    ("admit", locks_for_no_session, "request_holds_its_prefix"),
    ("insert_leaf", shares_a_partial_page, "promises_of_donate"),
]


@pytest.mark.soak(but=2)
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("name", "wrong", "law"), WRONG_CONDITIONS)
def test_a_call_under_a_wrong_condition_is_refuted(name: str, wrong: Any, law: str) -> None:
    """Neither a promise nor a law escapes through the condition of a call."""
    hints = hints_of("cache")
    formulas = {f.invariant: f for f in obligations.all_of(hints, name, wrong)}
    assert "unsat" not in prover.prove_formula(formulas[law])
    found = counterexample.find(hints, name, wrong, law)
    assert found is not None
    assert law in {broken for broken, _ in found.broken}
    assert counterexample.find(hints, name, hints.stem.transitions[name], law) is None


# How a call with the null handle comes about: what the transition would call on the tree is left out.
NULL_ROUTES = {
    "admit": "",
    "continue_prefill": "admit extend finish insert_leaf",
    "free_rest": "admit finish",
    "close": "admit save",
}


@pytest.mark.parametrize("name", NULL_ROUTES)
def test_a_conditional_call_has_a_witness_of_either_way(name: str) -> None:
    hints = hints_of("cache")

    def trees(route: str) -> set[bool]:
        """Whether the tree was changed where the call was granted."""
        ways = explore.along(hints, route, name, hints.stem.transitions)
        last = [way[-1] for way in ways if way[-1].transition == name and explore.changes(way[-1])]
        return {explore.key(move.before.tree) != explore.key(move.after.tree) for move in last}

    assert trees(NULL_ROUTES[name]) == {name == "continue_prefill"}  # which acquires its new handle either way
    assert True in trees(hints.routes[name])


def overlapping(part: Count, delta: Count, whole: Count) -> Any:
    """As ``additive``, of a union that need not be disjoint."""
    united = lift(part.domain.all(lambda k: whole.law(k) == (part.law(k) | delta.law(k))))
    return z3.Implies(united, part.term.z + delta.term.z == whole.term.z)


def one_too_many(one: Count) -> Any:
    """As ``complete``, off by one."""
    return z3.Implies(lift(one.domain.all(one.law)), one.term.z == lift(one.domain.size) + 1)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize(("wrong", "names", "case"), [(overlapping, "ABC", "step"), (one_too_many, "A", "base")])
def test_a_false_lemma_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any], names: str, case: str
) -> None:
    monkeypatch.setattr(lemmas, "all_lemmas", lambda: [lemmas._of_sums(wrong, names, weighted=False)])
    assert [v.invariant for v in prover.prove_lemmas() if "unsat" not in (v.z3, v.cvc5)] == [case]


def test_a_transition_may_not_replace_a_constant() -> None:
    def grows(st: AllocatorState) -> Step[AllocatorState]:
        return Step(then=replace(st, now=replace(st.now, page_size=st.now.page_size + 1)))

    with pytest.raises(TypeError, match=r"replaced the constant now\.page_size"):
        obligations.checked(hints_of("allocator").stem, obligations.call(hints_of("allocator"), grows, World()))


# The second solver.


def test_the_second_solver_answers_for_itself() -> None:
    assert second_solver.check("(declare-const x Int)(assert (> x 3))(check-sat)", 10_000) == "sat"
    assert second_solver.check("(declare-const x Int)(assert (and (> x 3) (< x 4)))(check-sat)", 10_000) == "unsat"


def test_unknown_is_not_proved() -> None:
    for answers in (("unsat", "unknown"), ("unknown", "unsat"), ("unsat", "sat"), ("unknown", "unknown")):
        assert not prover.Verdict("s", "t", "i", *answers, seconds=0.0).proved
    assert prover.Verdict("s", "t", "i", "unsat", "unsat", seconds=0.0).proved


# A failed obligation is a reachable bug, or not inductive.


@pytest.mark.soak(but=22)
@pytest.mark.parametrize(("stem", "mutant"), MUTANTS)
def test_a_mutant_is_a_reachable_bug(stem: str, mutant: Mutant) -> None:
    hints = hints_of(stem)
    word, path = counterexample.classify_mutant(hints, mutant)
    assert word == counterexample.REACHABLE
    assert path is not None
    assert path[-1].transition == mutant.transition
    if counterexample.killed_by(hints, mutant) == counterexample.ALONE:
        last = path[-1]
        broken = {law.name for law, _ in hints.stem.broken(last.after)}
        broken |= {law.name for law in counterexample.done_wrong(hints, last)}
        assert mutant.invariant in broken, broken
    assert all(hints.stem.broken(move.after) == [] for move in path[:-1])


def test_the_path_to_a_bug_is_a_shortest_one() -> None:
    hints = hints_of("allocator")
    (mutant,) = (m for m in hints.mutants if m.name == "never_settles")
    wrong = {**hints.stem.transitions, mutant.transition: mutant.wrong}
    _, path = counterexample.classify(hints, wrong)
    assert path is not None
    assert len(path) == 3
    shorter = itertools.takewhile(lambda p: len(p) < len(path), explore.paths(hints, wrong))
    assert not any(hints.stem.broken(p[-1].after) for p in shorter)


@dataclass(frozen=True)
class Toy:
    """A number."""

    value: Number = number()


def toy_hints(jump: Number) -> Hints:
    """A machine that starts at 0 and adds two, but ``jump`` from 3; it must never be at 7."""
    stem = Stem("toy", state=Toy, start=lambda st: replace(st, value=0))

    @stem.transition
    def add(st: Toy) -> Step[Toy]:
        """Adds two."""
        return Step(then=replace(st, value=ite(st.value == 3, jump, st.value + 2)))

    @stem.invariant()
    def never_seven(st: Toy) -> Truth:
        """The number is never 7."""
        return st.value != 7

    return Hints(
        stem=stem, over={}, sizes={"pages": 9}, small=lambda: (Toy(0),), moves={"add": lambda _: [()]}, mutants=()
    )


@pytest.mark.parametrize("jump", [5, 7])
def test_what_no_path_leads_to_is_not_inductive(jump: int) -> None:
    """Only even numbers are ever reached, but from the lawful state 5 (or 3) one call leads to 7."""
    hints = toy_hints(jump)
    add = hints.stem.transitions["add"]
    verdicts = {v.invariant: v for v in prover.prove_transition(hints, "add", add)}
    assert (verdicts["never_seven"].z3, verdicts["never_seven"].cvc5) == ("sat", "sat")
    assert verdicts[obligations.ATOMIC].proved
    found = counterexample.find(hints, "add", add, "never_seven")
    assert found is not None
    assert (found.before.value in {3, 5}, found.after.value) == (True, 7)
    assert counterexample.classify(hints, hints.stem.transitions) == (counterexample.NOT_INDUCTIVE, None)


def test_the_same_step_from_an_odd_start_is_a_reachable_bug() -> None:
    hints = replace(toy_hints(5), small=lambda: (Toy(1),))
    word, path = counterexample.classify(hints, hints.stem.transitions)
    assert word == counterexample.REACHABLE
    assert path is not None
    assert [move.after.value for move in path] == [3, 5, 7]


def test_the_two_words_differ() -> None:
    assert counterexample.REACHABLE != counterexample.NOT_INDUCTIVE
