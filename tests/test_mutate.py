"""``slotproof mutate spec``: edits that laws refute, edits that change nothing, and edits that survive.

Not all edits are tried here, since that takes half an hour: see ``make mutate``.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import z3
from driven import sampled

from proofs.fitting import ANSWERED, FITS
from proofs.mutation import record, seen
from proofs.mutation.asked import FOR_NOTHING, noticed
from proofs.mutation.beside import stems_with
from proofs.mutation.operators import OPERATORS, Edit, edited, edits
from proofs.mutation.reach import callee, is_direct, made_of, reached, text_of
from proofs.mutation.right import SMALL, Right, right, said, same
from proofs.mutation.trial import EQUIVALENT, INVALID, REFUTED, STRICTER, SURVIVES, tried
from proofs.obligations import START
from proofs.registry import STEMS, hints_of
from proofs.symbols import lift
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.planted import mutating
from slotproof.planted.mutating import SpecMutationOptions
from spec import host_tier
from spec.logic import Step, but

TRANSITIONS = [(stem, name) for stem in STEMS for name in hints_of(stem).stem.transitions]


@dataclass(frozen=True)
class One:
    """An edit, found by what it does: the first one, or the one of this ``number``.

    ``was``: a part of the text before. ``now``: the text after.
    """

    operator: str
    function: str
    was: str
    now: str
    number: int = 0

    def find(self) -> Edit:
        """The edit."""
        found = [
            edit
            for edit in record.every_edit()
            if (edit.operator, edit.function) == (self.operator, self.function)
            and self.was in edit.was
            and edit.now == self.now
        ]
        return found[self.number]


# Edits that die, one for each operator.
DIE = (
    One("drop conjunct", "free", "st.backed_up & (gone.size == 0)", "st.backed_up"),
    One("drop field", "merged", "place=listed", "nothing"),
    One("drop requirement", "finish", "at_work(st, row)", "nothing"),
    One("drop call", "freed", "swa_mapping.free", "nothing"),
    One("off by one", "free", "st.group > 0", "st.group >= 0"),
    One("one branch", "group_after_end", "ite(group > 0, group - 1, 0)", "group - 1"),
    One(
        "drop update",
        "split",
        "st.parent.put(new, st.parent(child)).put(child, new)",
        "st.parent.put(new, st.parent(child))",
    ),
    One("other pool", "give", "pair.swa", "pair.full"),
    One("other component", "shift", "st.full_ref", "st.swa_ref"),
    One("now and then", "restore_state", "st.saved", "st.now"),
    One("other constant", "drop", "PADDING", "HELD"),
    One("other argument", "in_range", "first", "last"),
    One("drop step", "shorten", "cut(st.now, row, to)", "st.now"),
    One("move bound", "alloc_extend", "need <= st.now.available", "need <= st.now.available + 1"),
    One("ignore argument", "commit", "to", "to._replace(pages=0, rest=0)"),
    One("narrow promise", "commit", "at_most", "(at_most(to, allocated(st, row))) & (to.pages != 1)"),
    One("waive promise", "commit", "at_most", "(at_most(to, allocated(st, row))) | (to.pages != 1)"),
)
# Edits that change nothing that anybody can read, one for each operator that makes any.
SAME = (
    One("drop conjunct", "set_mamba", "st.handles.has(h) & (st.active(h) == 1)", "st.active(h) == 1"),
    One("drop field", "start", "holder=st.holder.all_to(0)", "nothing"),
    One("drop requirement", "split", "place", "nothing"),
    One("off by one", "shifted", "by > 0", "by >= 0"),
    One("other pool", "adopt", "pair.full", "pair.swa"),
    One("other component", "resume", "committed", "allocated", 1),
    One("now and then", "alloc_decode", "st.now", "st.saved", 1),
)


@pytest.mark.parametrize("one", DIE, ids=lambda one: one.operator)
def test_a_law_refutes_an_edit_of_each_operator(one: One) -> None:
    found = tried(one.find())
    assert found.fate == REFUTED
    assert found.by


def test_each_operator_has_an_edit_that_dies() -> None:
    assert [one.operator for one in DIE] == [*OPERATORS]


@pytest.mark.parametrize("one", SAME, ids=lambda one: one.operator)
def test_an_edit_that_changes_nothing_is_proved_equivalent(one: One) -> None:
    assert tried(one.find()).fate == EQUIVALENT


# What a call answers, such as which pages it hands out, is an argument of its transition; what it may answer is the
# transition's choice, and whether it is refused is its fit. Each of these edits changes nothing else.
ANSWERS = (
    (One("drop requirement", "lawful_choice", "chosen.distinct()", "nothing"), "one_owner"),
    (One("move bound", "lawful_choice", "chosen.length == need", "chosen.length <= need"), "new_token_has_a_slot"),
    (One("drop conjunct", "open_to", "== RELEASED)", "pool.place(page) == FREE"), ANSWERED),
    (One("off by one", "alloc_extend", "need <= st.now.available", "need < st.now.available"), FITS),
    (One("drop requirement", "find", "found", "nothing"), "seen_is_there"),
    (One("off by one", "must_open", "group > 0", "group >= 0"), "a_group_is_open"),
    (
        One("drop conjunct", "must_open", "opens | (group > 0)", "opens"),
        f"{FOR_NOTHING}a free group opens where none is open",
    ),
)


def changed_by(edit: Edit) -> set[str]:
    """The names of what the first transition that is made of the edited function asks or does otherwise."""
    stem, name = reached()[edit.module, edit.function][0]
    of = right(stem, name, SMALL)
    now = said(of.read(stems_with(edit)[stem].transitions[name]))
    return {what for what, (value, _) in of.said.items() if not now[what][0].eq(value)}


@pytest.mark.parametrize(("one", "by"), ANSWERS, ids=lambda case: case.function if isinstance(case, One) else "")
def test_an_edit_that_changes_only_what_a_call_may_answer_is_refuted(one: One, by: str) -> None:
    edit = one.find()
    assert changed_by(edit) in ({"choice"}, {"fits"})
    found = tried(edit)
    assert (found.fate, found.by) == (REFUTED, by)


def symbols(term: z3.ExprRef) -> set[str]:
    """The names in a formula."""
    found, seen_before, todo = set(), set(), [term]
    while todo:
        one = todo.pop()
        if one.get_id() not in seen_before:
            seen_before.add(one.get_id())
            found |= {one.decl().name()} if z3.is_app(one) else set()
            todo += one.children()
    return found


def left_out(of: Right, step: Step[Any]) -> list[str]:
    """The arguments of a call of which the step asks nothing, and which change nothing."""
    named = set().union(*(symbols(value) for value, _ in said(step).values()))
    return [argument for argument in of.arguments if not any(re.match(rf"the {argument}\b", one) for one in named)]


@pytest.mark.soak(but=2)
@pytest.mark.parametrize("stem", STEMS)
def test_each_argument_of_a_call_is_asked_about_or_changes_something(stem: str) -> None:
    """No law could notice a wrong answer of which a transition asks nothing, and which changes nothing."""
    for name in hints_of(stem).stem.transitions:
        of = right(stem, name, SMALL)
        assert left_out(of, of.step) == [], name


def test_an_argument_that_a_call_ignores_is_named() -> None:
    of = right("host_tier", "write", SMALL)
    assert left_out(of, of.step) == []
    assert left_out(of, of.read(lambda st, block, what: but(host_tier.write(st, block, what), then=st))) == ["what"]


def survivor() -> Edit:
    """The number from which inserts are counted: no law says it, and no law needs it."""
    return next(edit for edit in record.every_edit() if str(edit).endswith("0 → 1") and edit.file == "cache_state.py")


def test_an_edit_that_no_law_refutes_survives() -> None:
    found = tried(survivor())
    assert (found.fate, found.stem, found.transition, found.by) == (SURVIVES, "cache", START, "inserts")


def test_an_edit_that_asks_more_is_refuted_where_no_call_is_refused_for_nothing() -> None:
    assert tried(One("off by one", "begin_group", "need >= 0", "need > 0").find()).fate in (REFUTED, STRICTER)
    found = tried(One("off by one", "slide", "st.protected(row) <= to", "st.protected(row) < to").find())
    assert (found.fate, found.transition) == (REFUTED, "slide")
    assert found.by.startswith(FOR_NOTHING)


def test_an_edit_that_asks_more_where_calls_are_refused_for_nothing_already_is_stricter() -> None:
    """A request that leaves may give pages to the tree, and so may one that runs."""
    found = tried(One("other constant", "passing", "RUNNING", "LEAVING").find())
    assert (found.fate, found.by) == (STRICTER, "promises")


def test_what_python_cannot_read_is_no_edit() -> None:
    found = tried(One("other pool", "shift", "st.swa", "st.full").find())
    assert (found.fate, found.by) == (INVALID, "AttributeError")
    assert record.counted([found]) == {}


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("stem", sampled(STEMS, 2))
def test_no_right_transition_is_refuted(stem: str) -> None:
    laws = hints_of(stem).stem
    for name in (START, *laws.transitions):
        of, function = right(stem, name, SMALL), laws.transitions.get(name, laws.start)
        assert of.refutes(function) == "", name  # type: ignore[arg-type]
        assert noticed(of, function) == "", name  # type: ignore[arg-type]


@pytest.mark.parametrize("stem", STEMS)
def test_no_law_reads_what_nobody_reads(stem: str) -> None:
    """Of two states that differ only in what ``seen`` leaves out, both or none keep a law."""
    laws = hints_of(stem).stem
    small = right(stem, next(iter(laws.transitions)), SMALL)
    other = seen.blurred(small.world, small.pre)
    for law in laws.invariants.values():
        if not law.theorem:
            assert small.ask(lift(law.of(small.pre)) != lift(law.of(other)))[0] == "unsat", law.name


@pytest.mark.soak(but=20)
@pytest.mark.parametrize(("stem", "transition"), sampled(TRANSITIONS, 3))
def test_no_call_reads_what_nobody_reads(stem: str, transition: str) -> None:
    """Calls ask and do the same in two states that differ only in what ``seen`` leaves out.

    What they promise and whether they fit is compared where the choice is lawful: else the call is wrong anyway.
    """
    small = right(stem, transition, SMALL)
    other = seen.blurred(small.world, small.pre)
    step = hints_of(stem).stem.transitions[transition](other, **small.arguments)
    chosen = small.said["choice"][0]
    for what, goal in same(small.said, said(step)).items():
        assert small.ask(chosen if what in ("promises", "fits") else z3.BoolVal(True), z3.Not(goal))[0] == "unsat", what


# The text of an edit.


def test_an_edit_changes_one_place() -> None:
    for edit in sampled([*record.every_edit()][::97], 4):
        was, now = (
            ast.unparse(ast.parse(text_of(edit.module))),
            ast.unparse(edited(text_of(edit.module), edit, callee(edit.module))),
        )
        assert was != now, edit
        functions = [f.name for f in ast.parse(was).body if isinstance(f, ast.FunctionDef)]
        bodies = [
            {f.name: ast.unparse(f) for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}
            for text in (was, now)
        ]
        assert [name for name in functions if bodies[0][name] != bodies[1][name]] == [edit.function]


def test_every_edit_has_a_name_of_its_own() -> None:
    keys = [edit.key for edit in record.every_edit()]
    assert len(keys) == len({*keys})


def test_laws_sentences_and_listings_are_not_edited() -> None:
    text = '''
def law(st: State) -> Truth:
    """No box has two: 1 < 2."""
    return st.value < 2

def move(st: State, box: Number) -> Step[State]:
    """A box moves by 1."""
    return Step(promises=(requires(st.free, "box 1 is free"),), then=but(st, at=st.at.where(st.has, box, lambda: [1])))
'''
    made = [*edits("boxes.py", text, {"move"}, lambda _: None)]
    assert {edit.function for edit in made} == {"move"}
    assert sorted((edit.operator, edit.was) for edit in made) == [
        ("drop field", "at=st.at.where(st.has, box, lambda: [1])"),
        ("drop requirement", "requires(st.free, 'box 1 is free')"),
        ("ignore argument", "box"),
    ]


def test_a_helper_reaches_the_transitions_that_call_it() -> None:
    users = reached()["pool", "handed_back"]
    assert ("allocator", "roll_back") in users
    assert ("allocator", "free") not in users
    assert ("pool", "handed_back") in made_of("swa_mapping", "roll_back")
    assert is_direct(("pool", "handed_back"), "swa_mapping", "roll_back")
    assert not is_direct(("pool", "drop"), "cache", "evict_leaf")
    assert ("cache", "evict_leaf") in reached()["pool", "drop"]


# The command and its table.


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refuted edit, and a survivor where the stem is the cache."""
    dead = One("other constant", "drop", "PADDING", "HELD").find()
    monkeypatch.setattr(record, "edits_of", lambda stems, _: [dead, *([survivor()] if "cache" in stems else [])])


@pytest.mark.usefixtures("three")
def test_the_exit_code_says_whether_enough_are_refuted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mutation.json"
    assert mutating.run(SpecMutationOptions(["allocator"], jobs=1)) == HOLDS
    assert mutating.run(SpecMutationOptions(["cache"], jobs=1, json=out)) == BROKEN
    printed = " ".join(capsys.readouterr().out.split())
    assert f"cache_state.py:{survivor().line}" in printed
    assert "50.0% of the wrong ones are refuted" in printed
    said_of = json.loads(out.read_text())
    assert [row["key"] for row in said_of["survives"]] == [survivor().key]
    assert [row["fate"] for row in said_of["edits_tried"]] == [REFUTED, SURVIVES]


def test_only_edits_that_change_nothing_are_not_counted_as_wrong() -> None:
    rows = [{REFUTED: 97, EQUIVALENT: 50, STRICTER: 2, SURVIVES: 1}]
    assert record.share(rows) == 0.97
    assert record.share([{REFUTED: 97, EQUIVALENT: 50, STRICTER: 3, SURVIVES: 1}]) < record.LEAST


@pytest.mark.soak
def test_the_table_says_where_it_is_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "mutation.json"
    monkeypatch.setattr(mutating, "_kept_at", lambda: kept)
    now = record.fingerprint(record.SEED)
    kept.write_text(json.dumps(now))
    assert mutating.out_of_date() == ""
    kept.write_text(json.dumps({**now, "spec": {**now["spec"], "pool.py": "another"}}))
    assert "older spec (pool.py): run make mutate" in mutating.out_of_date()
    kept.write_text(json.dumps({**now, "edits": {}}))
    assert "other edits: run make mutate" in mutating.out_of_date()


def test_a_clearer_sentence_leaves_the_table_as_it_is() -> None:
    text = '"""A pool."""\n\ndef law(st):\n    """Old\n\n    words."""\n    return 1\n'
    clearer = text.replace("Old\n\n    words", "New words")
    assert record.without_sentences(text) == record.without_sentences(clearer)
    assert record.without_sentences(text) != record.without_sentences(text.replace("return 1", "return 2"))


def test_the_kept_result_is_of_this_spec_and_is_enough() -> None:
    assert mutating.out_of_date() == ""
    page = mutating.page()
    assert record.share(page["total"]) >= record.LEAST
    alive = sum(row[SURVIVES] for row in page["total"])
    assert alive == len(page["kept"]["survives"])
    assert all(isinstance(row["line"], int) for row in page["kept"]["survives"])
