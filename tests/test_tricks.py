"""Tricks by which a false law could look proved: each is refused, before or by the proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import z3

from proofs import obligations, prover, second_solver
from proofs.before import looks_ahead
from proofs.hints import Hints
from proofs.obligations import START
from proofs.registry import STEMS, hints_of
from slotproof.spec_lint import lint
from spec.logic import Domain, Map, Number, Requirement, Stem, Step, Truth, but, constant, number, requires, total


@dataclass(frozen=True)
class Boxes:
    """A number in each of some boxes, and how many calls there were."""

    boxes: Domain = constant("pages", shared="boxes")
    value: Map = total(1)
    calls: Number = number()


def start(st: Boxes) -> Boxes:
    return but(st, value=st.value.all_to(0), calls=0)


def hints(stem: Stem) -> Hints:
    return Hints(stem, {}, {"pages": 3}, tuple, {})


def stem() -> Stem:
    return Stem("boxes", state=Boxes, start=start)


def add(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more."""
    return Step(then=but(st, value=st.value.put(box, st.value(box) + 1), calls=st.calls + 1))


def below_two(st: Boxes) -> Truth:
    """No box has two: a false law."""
    return st.boxes.all(lambda b: st.value(b) < 2)


def proved(made: Stem, transition: str, law: str) -> bool:
    verdicts = prover.prove_transition(hints(made), transition, made.transitions[transition])
    return next(verdict for verdict in verdicts if verdict.invariant == law).proved


def test_a_false_law_is_not_proved() -> None:
    made = stem()
    made.transition(add)
    made.invariant()(below_two)
    assert not proved(made, "add", "below_two")


# A law that uses a theorem, which follows from all laws, and so from this one.


def test_a_law_may_not_use_a_theorem() -> None:
    made = stem()
    made.theorem(about=())(below_two)
    with pytest.raises(ValueError, match="no theorems, not below_two"):
        made.each(lambda st: st.boxes, uses=("below_two",))


def test_a_law_may_not_use_itself_or_a_later_law() -> None:
    with pytest.raises(ValueError, match="registered before it"):
        stem().each(lambda st: st.boxes, uses=("below_two",))


# A promise that speaks of the state after.


def harmless(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more, and the caller promises that the law holds then."""
    then = but(st, value=st.value.put(box, st.value(box) + 1), calls=st.calls + 1)
    return Step(promises=(requires(below_two(then), "the call does no harm"),), then=then)


def harmless_choice(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more, and the implementation chooses a box for which the law holds then."""
    made = add(st, box)
    return but(made, choice=(requires(below_two(made.then), "the choice does no harm"),))


def harmless_fit(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more, if the law holds then."""
    made = add(st, box)
    return but(made, fits=below_two(made.then))


def harmless_number(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more; the promise is about a number of the state after."""
    made = add(st, box)
    return but(made, promises=(requires(made.then.calls < 2, "there are few calls"),))


def harmless_copy(st: Boxes, box: Number) -> Step[Boxes]:
    """A box gets one more; the promise is about a state that is made of the state after."""
    later = replace(add(st, box).then, calls=0)
    return but(add(st, box), promises=(Requirement("the boxes are low", below_two(later)),))


@pytest.mark.parametrize("trick", [harmless, harmless_choice, harmless_fit, harmless_number, harmless_copy])
def test_a_requirement_may_not_speak_of_the_state_after(trick: Callable[..., Step[Boxes]]) -> None:
    made = stem()
    made.transition(trick)
    made.invariant()(below_two)
    assert len(looks_ahead(hints(made), trick)) == 1
    with pytest.raises(TypeError, match="the state after"):
        proved(made, trick.__name__, "below_two")


def test_a_requirement_may_speak_of_what_did_not_change() -> None:
    def counted(st: Boxes, box: Number) -> Step[Boxes]:
        """The promise is about the boxes, and the call changes the number of calls alone."""
        then = but(st, calls=st.calls + 1)
        return Step(promises=(requires(then.value(box) == 0, "the box is empty"),), then=then)

    made = stem()
    made.transition(counted)
    assert looks_ahead(hints(made), counted) == []


@pytest.mark.parametrize("name", STEMS)
def test_no_transition_of_the_law_looks_ahead(name: str) -> None:
    for transition in hints_of(name).stem.transitions.values():
        assert looks_ahead(hints_of(name), transition) == []


# A field that the state does not have, and a second law or transition of one name.


def test_a_change_of_an_unknown_field_is_an_error() -> None:
    before = Boxes(None, None, 0)
    with pytest.raises(TypeError, match="Boxes has no field valeu"):
        but(before, valeu=1)
    assert but(before, calls=1).calls == 1


def test_a_second_transition_of_one_name_is_an_error() -> None:
    made = stem()
    made.transition(add)
    with pytest.raises(ValueError, match="boxes has a transition add already"):
        made.transition(add)


@pytest.mark.parametrize("how", ["invariant", "theorem", "each"])
def test_a_second_law_of_one_name_is_an_error(how: str) -> None:
    made = stem()
    made.invariant()(below_two)
    register: Any = {
        "invariant": made.invariant(),
        "theorem": made.theorem(about=()),
        "each": made.each(lambda st: st.boxes),
    }[how]
    with pytest.raises(ValueError, match="boxes has a law below_two already"):
        register(below_two)


def test_a_law_may_not_take_the_place_of_a_law_of_a_part() -> None:
    part, whole = stem(), Stem("whole")
    part.invariant()(below_two)
    whole.part("boxes", part)
    with pytest.raises(ValueError, match="whole has a law below_two already"):
        whole.invariant()(below_two)
    with pytest.raises(ValueError, match="whole has a part boxes already"):
        whole.part("boxes", part)


# Python that reads differently on symbols: the lint refuses it. Each text was once proved with a false law.


TRICKS = {
    "a reassigned name": """
def add(st, box):
    more = st.value(box)
    then = but(st, value=st.value.where(lambda b: b == box, lambda b: more + 1, lambda: [box]))
    more = 0
    return Step(then=then)
""",
    "a look-up by a value": """
def below_two(st):
    return st.boxes.all(lambda b: {3: 7}.get(getattr(st.value(b), "real", 0), 0) < 2)
""",
    "a look-up in a table": """
TABLE = {3: 7}
def below_two(st):
    return st.boxes.all(lambda b: TABLE[st.value(b)] < 2)
""",
    "an exception": """
def below_two(st):
    try:
        return int(st.value(1)) < 2
    except TypeError:
        return True
""",
    "a walrus": """
def add(st, box):
    return Step(then=but(st, value=st.value.put(box, (more := 1) + (more := 2))))
""",
}


@pytest.mark.parametrize("text", TRICKS.values(), ids=TRICKS.keys())
def test_the_lint_refuses_python_that_reads_differently(text: str) -> None:
    assert lint("from spec.logic import Step, but\n" + text)


# The second solver gets what the spec says, not what the first solver made of it.


@pytest.mark.parametrize("name", STEMS)
def test_the_second_solver_gets_the_raw_formulas(name: str) -> None:
    known = hints_of(name)
    transition = next(iter(known.stem.transitions))
    for formula in obligations.all_of(known, transition, known.stem.transitions[transition]):
        text = second_solver.script(formula.negated)
        assert "(assert\n false)" not in text
        assert text.count("(assert") == len(formula.negated)
        assert all(f"(declare-fun {sort}" not in text for sort in ("k!", "elem!"))


def test_what_z3_rewrites_reaches_the_second_solver_as_it_was() -> None:
    x = z3.Int("x")
    contradiction = [x != x]
    assert "(assert false)" in prover.looking([*contradiction], prover.LOOKS[0], 1000).to_smt2().replace("\n", "")
    text = second_solver.script(contradiction)
    assert "false" not in text
    assert second_solver.check(text, 1000) == "unsat"


def test_the_first_state_is_no_way_around() -> None:
    """A law that does not hold at the start is not proved either."""
    made = stem()
    made.start = lambda st: but(st, value=st.value.all_to(5), calls=0)
    made.invariant()(below_two)
    formula = next(iter(obligations.all_of(hints(made), START, made.start)))
    assert "unsat" not in prover.prove_formula(formula)
