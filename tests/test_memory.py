"""A proof is remembered by all that the solver gets, and by nothing else: what a memory could wrongly let through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import z3

from proofs import asking, obligations, prover, second_solver
from proofs.hints import idle
from proofs.memory import AnswerMemory, Question
from proofs.registry import hints_of
from slotproof.proving import proving

ASKED = Question("z3 5", [{"rlimit": 7, "mbqi": False}], "(assert false)")


@pytest.fixture
def memory(tmp_path: Path) -> AnswerMemory:
    return AnswerMemory(tmp_path / "proofs")


def entries(memory: AnswerMemory) -> list[Path]:
    assert memory.folder is not None
    return [path for path in memory.folder.glob("*/*") if path.is_file()]


def contradiction(low: int = 3) -> list[Any]:
    number = z3.Int("number")
    return [number > low, number < low + 1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which solvers were really asked."""
    heard: list[str] = []

    def listening(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def heard_and_asked(*given: Any) -> Any:
            heard.append(name)
            return real(*given)

        return heard_and_asked

    monkeypatch.setattr(asking, "first_solver", listening("z3", asking.first_solver))
    monkeypatch.setattr(second_solver, "check", listening("cvc5", second_solver.check))
    return heard


# What is remembered.


def test_what_both_proved_is_not_asked_again(memory: AnswerMemory, asked: list[str]) -> None:
    first = asking.ask(contradiction(), asking.GLANCE, memory)
    again = asking.ask(contradiction(), asking.GLANCE, memory)
    assert (first.proved, first.remembered) == (True, frozenset())
    assert (again.proved, again.remembered) == (True, frozenset({"z3", "cvc5"}))
    assert asked == ["z3", "cvc5"]


@pytest.mark.parametrize("answer", ["sat", "unknown", "", "unsat\n", "not asked"])
def test_no_other_answer_is_remembered(answer: str, memory: AnswerMemory) -> None:
    memory.keep(ASKED, answer)
    assert not memory.holds(ASKED)
    assert entries(memory) == []


def test_a_model_is_found_anew(memory: AnswerMemory, asked: list[str]) -> None:
    possible = contradiction()[:1]
    answers = [asking.ask(possible, asking.GLANCE, memory) for _ in range(2)]
    assert [one.z3 for one in answers] == ["sat", "sat"]
    assert asked == ["z3", "cvc5"] * 2


# What is another question.


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, solver="z3 6"),
        replace(ASKED, text="(assert true)"),
        replace(ASKED, text="(assert false) "),
        replace(ASKED, asked=[{"rlimit": 8, "mbqi": False}]),
        replace(ASKED, asked=[{"rlimit": 7, "mbqi": True}]),
        replace(ASKED, asked=[{"rlimit": 7}]),
        replace(ASKED, asked=[*ASKED.asked, *ASKED.asked]),
    ],
)
def test_another_question_is_not_answered(other: Question, memory: AnswerMemory) -> None:
    memory.keep(ASKED, "unsat")
    assert memory.holds(ASKED)
    assert not memory.holds(other)


def test_another_formula_is_asked(memory: AnswerMemory, asked: list[str]) -> None:
    for low in (3, 4):
        assert asking.ask(contradiction(low), asking.GLANCE, memory).proved
    assert asked == ["z3", "cvc5"] * 2


def test_other_limits_are_asked(memory: AnswerMemory, asked: list[str]) -> None:
    for limits in (asking.GLANCE, asking.LIMITS):
        assert asking.ask(contradiction(), limits, memory).remembered == frozenset()
    assert asked == ["z3", "cvc5"] * 2


@pytest.mark.parametrize("solver", ["z3", "cvc5"])
def test_another_version_of_a_solver_proves_anew(
    solver: str, memory: AnswerMemory, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking.ask(contradiction(), asking.GLANCE, memory)
    if solver == "z3":
        monkeypatch.setattr(z3, "get_full_version", lambda: "another")
    else:
        monkeypatch.setattr(second_solver, "version", lambda: "cvc5 another")
    again = asking.ask(contradiction(), asking.GLANCE, memory)
    assert again.remembered == {"z3", "cvc5"} - {solver}
    assert asked == ["z3", "cvc5", solver]


def test_other_looks_of_z3_prove_anew(memory: AnswerMemory, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asking.ask(contradiction(), asking.GLANCE, memory)
    monkeypatch.setattr(asking, "LOOKS", ({"random_seed": 8},))
    assert asking.ask(contradiction(), asking.GLANCE, memory).remembered == {"cvc5"}
    assert asked == ["z3", "cvc5", "z3"]


def test_the_text_of_a_formula_does_not_depend_on_what_was_done_before() -> None:
    def made() -> list[list[Any]]:
        law = hints_of("allocator")
        formulas = obligations.all_of(law, "free", law.stem.transitions["free"])
        return [formula.negated for formula in formulas if formula.kind == obligations.PROOF]

    def texts(formulas: list[list[Any]]) -> list[tuple[str, str]]:
        return [(second_solver.script(asking.alone(one)), second_solver.script(one)) for one in formulas]

    first = texts(made())
    others = [z3.Int(f"other {number}") + number for number in range(5000)]  # they take the numbers that became free
    second = texts(made())
    assert [copied for copied, _ in first] == [copied for copied, _ in second]
    assert [here for _, here in first] != [here for _, here in second], "or no copy would be needed"
    assert len(first) > 5
    assert len(others) == 5000


def test_the_copy_says_what_the_formula_says() -> None:
    law = hints_of("allocator")
    formulas = obligations.all_of(law, "free", law.stem.transitions["free"])
    assertions = next(formula for formula in formulas if formula.kind == obligations.PROOF).negated
    copied = asking.alone(assertions)
    assert [one.ctx is copied[0].ctx for one in copied] == [True] * len(assertions)
    assert copied[0].ctx is not z3.main_ctx()
    assert all(one.translate(z3.main_ctx()).eq(was) for one, was in zip(copied, assertions, strict=True))


def test_a_name_that_is_free_and_bound_has_no_text() -> None:
    """z3 writes "each number is itself" and "each number is x" as one text where its variable is called x, too."""
    x, y, context = z3.Int("x"), z3.Int("y"), z3.main_ctx()
    body = z3.Var(0, z3.IntSort()) == x
    sorts, names = (z3.Sort * 1)(z3.IntSort().ast), (z3.Symbol * 1)(z3.to_symbol("x", context))
    each_is_x = z3.QuantifierRef(z3.Z3_mk_forall(context.ref(), 0, 0, None, 1, sorts, names, body.ast), context)
    assert second_solver.script([z3.ForAll([y], y == x)])
    with pytest.raises(TypeError, match="x is both declared and bound"):
        second_solver.script([each_is_x])
    with pytest.raises(TypeError, match=r"the x\W is both"):
        second_solver.script([z3.ForAll([y, z3.Int("the x")], y == y), z3.Int("the x") > 0])


# An entry that is not whole, or not of this question.


def damaged(memory: AnswerMemory, change: Callable[[str], str]) -> None:
    memory.keep(ASKED, "unsat")
    (place,) = entries(memory)
    changed = change(place.read_text(encoding="utf-8"))
    place.write_text(changed, encoding="utf-8")


def relabelled(text: str) -> str:
    """The entry with another solver, and a sum that was made for this."""
    said = json.loads(text)
    del said["sum"]
    said["solver"] = "z3 6"
    return json.dumps({**said, "sum": "0" * 64}, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "",
        lambda text: text[:-1],
        lambda text: text[: len(text) // 2],
        lambda text: text + text,
        lambda text: text.replace("unsat", "sat"),
        lambda text: text.replace('"rlimit": 7', '"rlimit": 8'),
        lambda text: text.replace("a", "b", 1),
        lambda _: "{}",
        relabelled,
    ],
)
def test_a_damaged_entry_does_not_count(change: Callable[[str], str], memory: AnswerMemory) -> None:
    damaged(memory, change)
    assert not memory.holds(ASKED)
    memory.keep(ASKED, "unsat")
    assert memory.holds(ASKED), "it is written anew"


def test_an_entry_under_the_name_of_another_question_does_not_count(memory: AnswerMemory) -> None:
    memory.keep(ASKED, "unsat")
    (place,) = entries(memory)
    other = replace(ASKED, text="(assert true)")
    assert memory.folder is not None
    target = memory.folder / other.digest[:2] / other.digest[2:]
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(place.read_bytes())
    assert not memory.holds(other)


def test_an_entry_that_is_no_text_or_no_file_does_not_count(memory: AnswerMemory) -> None:
    memory.keep(ASKED, "unsat")
    (place,) = entries(memory)
    place.write_bytes(b"\xff\xfe")
    assert not memory.holds(ASKED)
    place.unlink()
    place.mkdir()
    assert not memory.holds(ASKED)
    memory.keep(ASKED, "unsat")  # cannot be written: no failure
    assert list(place.parent.iterdir()) == [place], "and nothing half-written stays"


def test_processes_may_keep_one_entry_at_a_time(memory: AnswerMemory) -> None:
    def kept_and_held(_: int) -> bool:
        memory.keep(ASKED, "unsat")
        return memory.holds(ASKED)

    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(kept_and_held, range(200)))
    assert all(held)
    assert len(entries(memory)) == 1


def test_what_no_proof_uses_is_removed(memory: AnswerMemory) -> None:
    other = replace(ASKED, text="(assert true)")
    for question in (ASKED, other):
        memory.keep(question, "unsat")
    (old,) = (path for path in entries(memory) if path.name == ASKED.digest[2:])
    os.utime(old, (0, 0))
    memory.forget_unused()
    assert (memory.holds(ASKED), memory.holds(other)) == (False, True)


# The command.


def test_fresh_believes_nothing_and_keeps_what_it_proves(memory: AnswerMemory, asked: list[str]) -> None:
    asking.ask(contradiction(), asking.GLANCE, memory)
    fresh = replace(memory, believed=False)
    assert asking.ask(contradiction(), asking.GLANCE, fresh).remembered == frozenset()
    assert asked == ["z3", "cvc5"] * 2
    asking.ask(contradiction(5), asking.GLANCE, fresh)
    assert asking.ask(contradiction(5), asking.GLANCE, memory).remembered == {"z3", "cvc5"}


def test_where_the_memory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    assert proving.memory_of(fresh=False) == AnswerMemory(tmp_path / "proofs")
    assert proving.memory_of(fresh=True) == AnswerMemory(tmp_path / "proofs", believed=False)
    monkeypatch.setenv("CI", "true")
    assert proving.memory_of(fresh=False) == AnswerMemory(None), "in continuous integration nothing is remembered"


def test_an_edit_of_one_transition_proves_only_its_obligations(
    memory: AnswerMemory, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    law = hints_of("allocator")
    units = [("allocator", name) for name in ("clear", "shorten", obligations.START)]
    for unit in units:
        prover.look_briefly(*unit, memory=memory)
    asked.clear()
    changed = {**law.stem.transitions, "clear": idle(law.stem.transitions["clear"])}
    monkeypatch.setattr(prover, "hints_of", lambda _: replace(law, stem=replace(law.stem, transitions=changed)))
    cleared, shortened, start = (prover.look_briefly(*unit, memory=memory) for unit in units)
    assert all(verdict.remembered for verdict in [*shortened, *start])
    new = [verdict for verdict in cleared if not verdict.remembered]
    assert new
    assert len(asked) <= 4 * len(new), "no solver was asked for the two others"
    assert all(verdict.proved or verdict.invariant in law.stem.changes for verdict in new)
