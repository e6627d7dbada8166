"""The edits that drop an effect or change what is asked, and the judges of what is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from proofs.mutation import asked, record
from proofs.mutation.effects import BOUND, DRAWN, IGNORED, NARROWER, STEP, WIDER
from proofs.mutation.operators import Edit, edited, edits
from proofs.mutation.right import SMALL, right
from proofs.registry import STEMS, hints_of
from slotproof.planted.kept_calls import granted_calls
from spec import cache
from spec.cache_state import CacheState
from spec.lengths import Length
from spec.logic import Number, Seq, Step, but, requires
from spec.session_trim_state import RUNNING

# A file as those of the spec, in which every operator has something to do.
BOXES = '''
def moved(st: State, box: Number) -> State:
    return but(st, at=box)

def move(st: State, box: Number, other: Number, to: Length, free: Truth) -> Step[State]:
    """A box moves."""
    return Step(
        promises=(requires((box < other) & at_most(st.length, to) & free, "they are in order"),),
        then=moved(st, box),
    )

def empty(st: State) -> Truth:
    return (st.count == 0) & (st.size > 0)

def move_twice(st: State, box: Number) -> Step[State]:
    return move(st, box, 2, st.length, st.count == 1)
'''


def callee(node: ast.expr) -> ast.FunctionDef | None:
    """The function of the boxes that a name stands for."""
    functions = [one for one in ast.parse(BOXES).body if isinstance(one, ast.FunctionDef)]
    return next((one for one in functions if one.name == ast.unparse(node)), None)


def made(operator: str, function: str) -> list[tuple[str, str]]:
    """The text before and after each edit of the operator in a function of the boxes."""
    return [(edit.was, edit.now) for edit in edits("boxes.py", BOXES, {function}, callee) if edit.operator == operator]


TWICE = "move(st, box, 2, st.length, st.count == 1)"
PROMISE = "(box < other) & at_most(st.length, to) & free"


@pytest.mark.parametrize(
    ("operator", "function", "wanted"),
    [
        (STEP, "moved", []),
        (STEP, "move", [("moved(st, box)", "st")]),
        (
            STEP,
            "move_twice",
            [(TWICE, f"but({TWICE}, then=st)")],
        ),
        (BOUND, "move", [("box < other", "box < other - 1"), ("at_most(st.length, to)", "no(at_most(to, st.length))")]),
        (BOUND, "move_twice", [("st.count == 1", "st.count <= 1"), ("st.count == 1", "st.count >= 1")]),
        (BOUND, "empty", [("st.count == 0", "st.count >= 0"), ("st.size > 0", "st.size > 1")]),
        (
            IGNORED,
            "move",
            [
                *(("box", "0"), ("box", "other"), ("other", "0"), ("other", "box")),
                *(("to", "to._replace(pages=0, rest=0)"), ("free", "True"), ("free", "False")),
            ],
        ),
        (
            NARROWER,
            "move",
            [
                (PROMISE, f"({PROMISE}) & ({more})")
                for more in ("box != 1", "other != 0", "other != 1", "to.pages != 1", "no(free)")
            ],
        ),
        (
            WIDER,
            "move",
            [
                (PROMISE, f"({PROMISE}) | ({less})")
                for less in ("box != 1", "other != 0", "other != 1", "to.pages != 1", "free")
            ],
        ),
    ],
)
def test_an_operator_edits_these_places(operator: str, function: str, wanted: list[tuple[str, str]]) -> None:
    assert made(operator, function) == wanted


def of(function: str, operator: str, was: str, now: str) -> Edit:
    """The edit of the boxes with these texts."""
    found = edits("boxes.py", BOXES, {function}, callee)
    return next(edit for edit in found if (edit.operator, edit.was, edit.now) == (operator, was, now))


def test_an_ignored_argument_is_another_one_from_the_beginning() -> None:
    text = ast.unparse(edited(BOXES, of("move", IGNORED, "box", "other"), callee))
    assert '"""A box moves."""\n    box = other\n    return Step' in text
    assert ast.unparse(ast.parse(text.replace("    box = other\n", ""))) == ast.unparse(ast.parse(BOXES))


def test_a_narrower_promise_keeps_its_sentence() -> None:
    text = ast.unparse(edited(BOXES, of("move", NARROWER, PROMISE, f"({PROMISE}) & (box != 1)"), callee))
    assert f"requires({PROMISE} & (box != 1), 'they are in order')" in text


def test_one_edit_is_drawn_of_each_argument_and_promise_and_one_seed_draws_the_same() -> None:
    every = record.every_edit()
    drawn = record.drawn(every, 7)
    assert drawn == record.drawn(every, 7) != record.drawn(every, 8)
    assert [edit for edit in every if edit.operator not in DRAWN] == [e for e in drawn if e.operator not in DRAWN]
    for operator in DRAWN:
        places = [(edit.file, edit.function, edit.place) for edit in drawn if edit.operator == operator]
        assert len(places) == len({*places})
        assert {*places} == {(e.file, e.function, e.place) for e in every if e.operator == operator}


def test_an_edit_elsewhere_changes_no_draw() -> None:
    every = record.every_edit()
    file = every[0].file
    kept = [edit for edit in record.drawn(every, 7) if edit.file != file]
    assert kept == record.drawn([edit for edit in every if edit.file != file], 7)


# What judges the requirements of a transition.


def ending(st: CacheState, row: Number, asks: object) -> Step[CacheState]:
    """The end of a request that also asks this of the call."""
    step = cache.finish(st, row)
    first, *others = step.promises
    return but(step, promises=(first._replace(holds=first.holds & asks), *others))


def test_a_drain_notices_that_its_call_is_not_granted() -> None:
    finish = right("cache", "finish", SMALL)
    assert asked.undrained(finish, cache.finish) == ""
    assert asked.undrained(finish, lambda st, row: ending(st, row, row != 0)) == "drain_finish_is_granted"


def test_a_drain_notices_that_its_call_brings_the_state_no_nearer_to_rest() -> None:
    finish = right("cache", "finish", SMALL)
    assert asked.undrained(finish, lambda st, row: but(cache.finish(st, row), then=st)) == "drain_finish_lowers"


def test_no_drain_calls_a_commit() -> None:
    commit = right("cache", "commit", SMALL)
    assert asked.undrained(commit, lambda st, row, to: but(cache.commit(st, row, to), then=st)) == ""


def committing(asks: object) -> tuple[object, Step[CacheState]]:
    """The right commit in a small world, and one that asks more of its caller in a promise, here its last one."""
    commit = right("cache", "commit", SMALL)
    *others, last = sorted(
        commit.step.promises, key=lambda one: one.sentence.startswith("in a model with mamba states")
    )
    wrong = asks(commit.pre, *commit.arguments.values())  # type: ignore[operator]
    return commit, but(commit.step, promises=(*others, last._replace(holds=last.holds & wrong)))


def test_an_exact_promise_that_asks_more_asks_for_nothing() -> None:
    commit, step = committing(lambda _, __, to: to.pages != 1)
    assert asked.idle(commit, step) == asked.FOR_NOTHING + step.promises[-1].sentence  # type: ignore[arg-type]
    assert asked.idle(commit, commit.step) == ""  # type: ignore[arg-type,attr-defined]


def test_a_promise_that_asks_what_the_others_ask_is_not_said_to_ask_for_nothing() -> None:
    """Harmless: in every lawful state the row of a running request is in this phase already."""
    commit, step = committing(lambda st, row, _: st.rows.phase(row) == RUNNING)
    assert asked.idle(commit, step) == ""  # type: ignore[arg-type]


def test_a_call_that_no_answer_makes_lawful_is_noticed() -> None:
    admit = right("cache", "admit", SMALL)
    promises = tuple(promise for promise in admit.step.promises if promise.sentence != "the handle is new")
    assert len(promises) < len(admit.step.promises)
    assert asked.unsettled(admit, but(admit.step, promises=promises)) == asked.NO_ANSWER + "the handle is new"
    assert asked.unsettled(admit, admit.step) == ""


def test_a_choice_that_an_answer_can_break_in_the_right_transition_is_not_settled() -> None:
    """The matched pages are the engine's answer: which promise is left out does not matter to them."""
    admit = right("cache", "admit", SMALL)
    promises = tuple(promise for promise in admit.step.promises if promise.sentence == "the handle is new")
    assert asked.unsettled(admit, but(admit.step, promises=promises)) == ""


@pytest.fixture
def known_calls() -> Iterator[None]:
    """The calls of the kept traces, while a test runs."""
    asked.learn(granted_calls())
    yield
    asked.learn({})


@pytest.mark.usefixtures("known_calls")
def test_a_promise_that_excludes_a_call_of_a_kept_trace_is_noticed() -> None:
    def one_page_at_most(st: CacheState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[CacheState]:
        step = cache.extend(st, row, to, full_pages, swa_pages)
        return but(step, promises=(*step.promises, requires(full_pages.length <= 1, "one page at most")))

    assert asked.refused("cache", "extend", cache.extend) == ""
    assert asked.refused("cache", "extend", one_page_at_most).startswith(f"{asked.OF_TRACE}extend(")


@pytest.mark.soak
@pytest.mark.usefixtures("known_calls")
def test_each_known_call_is_granted_by_the_right_transition() -> None:
    tried = [name for stem in STEMS for name in hints_of(stem).stem.transitions if (stem, name) in granted_calls()]
    assert len(tried) > 90
    for stem in STEMS:
        for name, transition in hints_of(stem).stem.transitions.items():
            assert asked.refused(stem, name, transition) == "", name


@pytest.mark.usefixtures("known_calls")
def test_a_transition_that_raises_on_plain_values_is_not_said_to_refuse_a_call() -> None:
    assert asked.refused("cache", "extend", lambda *_: cache.extend(None, 0, Length(0, 0), None, None)) == ""
