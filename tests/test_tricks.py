"""Tricks by which a false law could look proved: each is refused, before or by the proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import z3

from proofs import constants, explore, obligations, prover, second_solver
from proofs.before import looks_ahead
from proofs.hints import Hints, without_mutant
from proofs.obligations import START
from proofs.registry import STEMS, hints_of
from proofs.symbols import World, state
from slotproof.proving.proving import parts_unknown
from slotproof.spec_lint import complaints, files, lint
from spec.logic import (
    Domain,
    Map,
    Number,
    Requirement,
    Set,
    Stem,
    Step,
    Truth,
    but,
    constant,
    implies,
    ite,
    no,
    number,
    requires,
    total,
    truth,
)


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
    function: Any = made.transitions.get(transition, made.start)
    verdicts = prover.prove_transition(hints(made), transition, function)
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


# Attacks of a second round, see docs/adr/0020. Each was once proved with a false law.


def of_local_map(st: Boxes, box: Number) -> Step[Boxes]:
    """The promise is about a map that is the state after, before any state has it."""
    more = st.value.put(box, st.value(box) + 1)
    return Step(promises=(requires(st.boxes.all(lambda b: more(b) < 2), "low"),), then=but(st, value=more))


def of_lambda(st: Boxes, box: Number) -> Step[Boxes]:
    """The state after has a lambda in the place of a map."""
    then = but(st, value=lambda b: st.value(b) + ite(b == box, 1, 0))
    return Step(promises=(requires(below_two(then), "low"),), then=then)


def of_new_state(st: Boxes, box: Number) -> Step[Boxes]:
    """The state after is not made from the state before."""
    then = Boxes(st.boxes, st.value.put(box, st.value(box) + 1), st.calls)
    return Step(promises=(requires(below_two(then), "low"),), then=then)


@pytest.mark.parametrize("trick", [of_local_map, of_lambda, of_new_state])
def test_a_later_state_is_seen_however_it_is_made(trick: Callable[..., Step[Boxes]]) -> None:
    assert looks_ahead(boxed(stem()), trick) == ["low"]


def boxed(made: Stem) -> Hints:
    return replace(hints(made), over={"gone": lambda st: st.boxes})


def all_proved(made: Stem) -> bool:
    names = (START, *made.transitions)
    found = [prover.prove_transition(boxed(made), name, made.transitions.get(name, made.start)) for name in names]  # type: ignore[arg-type]
    return all(verdict.proved for verdicts in found for verdict in verdicts)


def test_a_lambda_is_no_map() -> None:
    made = stem()
    made.transition(of_lambda)
    with pytest.raises(TypeError, match="by something that is no map"):
        obligations.checked(made, obligations.call(hints(made), of_lambda, World()))


def test_maps_are_not_compared_as_objects() -> None:
    """A law that says that each call changes the map: two maps that hold alike are two objects."""
    made = stem()

    @made.transition
    def again(st: Boxes, box: Number) -> Step[Boxes]:
        """A box gets what it has."""
        return Step(then=but(st, value=st.value.put(box, st.value(box))))

    @made.change()
    def changes(was: Boxes, now: Boxes) -> Truth:
        """Each call changes the boxes: a false law."""
        return no(was.value == now.value)

    with pytest.raises(TypeError, match="not compared as a whole"):
        all_proved(made)


@dataclass(frozen=True)
class Named:
    """A field has the name that an arbitrary member of a domain had, and another that of a constant."""

    boxes: Domain = constant("pages", shared="boxes")
    size: Number = constant("number", shared="limit")
    value: Map = total(1)
    one0: Number = number()
    limit: Number = number()


def test_a_field_does_not_share_a_symbol_with_the_arbitrary_member() -> None:
    made = Stem("named", state=Named, start=lambda st: but(st, value=st.value.all_to(0)))

    @made.transition
    def fill(st: Named) -> Step[Named]:
        """All boxes but one get two."""
        return Step(then=but(st, value=st.value.where(lambda b: b != st.one0, 2, tuple)))

    @made.each(lambda st: st.boxes)
    def low(st: Named, b: Number) -> Truth:
        """No box has two: a false law."""
        return st.value(b) < 2

    assert not all_proved(made)


def test_a_field_does_not_share_a_symbol_with_a_constant() -> None:
    made = Stem("named", state=Named, start=lambda st: st)

    @made.invariant()
    def alike(st: Named) -> Truth:
        """A number is a constant that has its name: a false law."""
        return st.limit == st.size

    assert not all_proved(made)


@dataclass(frozen=True)
class Side:
    """A part with a domain of its own and a number."""

    pages: Domain = constant("pages")
    count: Number = number()


@dataclass(frozen=True)
class Now:
    """A state with a part called ``now``."""

    now: Side


@dataclass(frozen=True)
class Sides:
    """A state with two parts of one type."""

    one: Now
    other: Now


def test_two_parts_do_not_share_their_constants() -> None:
    made = Stem("sides", state=Sides, start=lambda st: st)

    @made.invariant()
    def alike(st: Sides) -> Truth:
        """Both parts have as many pages: a false law."""
        return st.one.now.pages.size == st.other.now.pages.size

    assert not all_proved(made)


def test_a_sum_of_zeros_says_nothing_about_its_members() -> None:
    """The promise is true of every state: a sum of zeros is zero."""
    made = stem()

    @made.transition
    def add_to_empty(st: Boxes, box: Number) -> Step[Boxes]:
        """A box gets one more."""
        nothing = st.boxes.total(lambda b: st.value(b) != 0, lambda _: 0) == 0
        return but(add(st, box), promises=(requires(nothing, "a sum of zeros is zero"),))

    made.invariant()(below_two)
    assert not all_proved(made)


@dataclass(frozen=True)
class Rowed:
    """Some rows, and how many are used."""

    rows: Domain = constant("naturals", shared="rows")
    used: Number = number()


def room(st: Rowed) -> Truth:
    """There is a row beyond those that are used."""
    return st.rows.any(lambda r: r > st.used)


def in_the_table(st: Rowed) -> Truth:
    """The number of used rows is a row."""
    return implies(no(st.rows.has(st.used)), st.used < 0)


def goes_on(st: Rowed) -> Truth:
    """Rows do not end before the fifth, so that none is used."""
    return implies(st.rows.all(lambda r: r < 5), st.used == 0)


@pytest.mark.parametrize("law", [room, in_the_table, goes_on])
def test_a_table_has_an_end(law: Callable[[Rowed], Truth]) -> None:
    """The proofs know an end of each domain, though not where it is: each of these false laws was once proved."""
    made = Stem("rowed", state=Rowed, start=lambda st: but(st, used=0))
    made.invariant()(law)

    @made.transition
    def use(st: Rowed) -> Step[Rowed]:
        """One more row is used."""
        return Step(then=but(st, used=st.used + 1))

    assert not proved(made, "use", law.__name__)


def test_a_given_set_may_have_members_outside_of_its_domain() -> None:
    made = stem()

    @made.transition
    def fill(st: Boxes, gone: Set) -> Step[Boxes]:
        """Boxes that have nothing get one."""
        empty = requires(gone.all(lambda b: st.value(b) == 0), "they are empty")
        full = st.value.where(gone.has, 1, gone.items)
        return Step(promises=(empty,), then=but(st, value=full, calls=st.calls + gone.size))

    @made.invariant()
    def counted(st: Boxes) -> Truth:
        """As many calls as boxes that have one: a false law, since a number that is no box may be given."""
        return st.calls == st.boxes.count(lambda b: st.value(b) == 1)

    assert not all_proved(made)


def test_no_transition_is_taken_for_the_first_state() -> None:
    made = stem()
    trick = replace_name(add, START)
    with pytest.raises(ValueError, match="no transition is called start"):
        made.transition(trick)


def replace_name(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function under another name."""

    def renamed(st: Boxes, box: Number) -> Step[Boxes]:
        step: Step[Boxes] = function(st, box)
        return step

    renamed.__name__ = name
    return renamed


def test_a_witness_begins_in_the_first_state() -> None:
    known = hints_of("allocator")
    (later, _) = (known.stem.transitions["free_group_begin"](first, True).then for first in known.small())
    with pytest.raises(ValueError, match="does not begin in its first state"):
        explore.witnesses(replace(known, small=lambda: (later,)))


def test_a_law_about_nothing_has_no_mutant() -> None:
    """A law that says something of no member, or of no part, is true whatever a transition does."""
    made = stem()
    made.transition(add)
    made.invariant(parts=lambda _: [])(below_two)
    assert all_proved(made)
    assert without_mutant(hints(made)) == ["below_two"]


def test_contradictory_laws_do_not_hold_in_the_first_state() -> None:
    made = stem()
    made.transition(add)
    made.invariant()(below_two)

    @made.invariant()
    def some_two(st: Boxes) -> Truth:
        """There is a box with two or no box: the opposite."""
        return no(below_two(st))

    assert proved(made, START, "some_two") is False


MORE_TRICKS = {
    "a text with a value": "def law(st, b):\n    return no(f'{st.value(b)}' == '2')\n",
    "a text with a value, as it is written": "def law(st, b):\n    return no('%r' % st.value(b) == '2')\n",
    "a list that is emptied": "SEEN = [True, False]\n\ndef law(st):\n    return SEEN.pop() & st.boxes.all(st.value)\n",
    "a look at the symbols": "def law(st):\n    return st.boxes.world.small | (st.calls < 2)\n",
    "a new axiom": "def law(st):\n    return st.boxes.world.axioms.append(st.calls == 0) is None\n",
    "what only a number has": "def law(st, b):\n    return st.value(b).real < 2\n",
    "what only a symbol has": "def law(st, b):\n    return st.value(b).ite(st.calls < 2, True)\n",
    "a law for plain values": '@stem.invariant()\ndef law(st):\n    """Low (finite reading)."""\n    return not st\n',
    "a law for plain values, called": 'def low(st):\n    """(finite reading)."""\n    return not st\n\ndef law(st):\n'
    "    return low(st)\n",
    "a law for plain values, registered later": 'def low(st):\n    """(finite reading)."""\n    return not st\n\n'
    "stem.invariant()(low)\n",
    "a call that is made by hand": "def t(st, f):\n    return Step(then=st, calls=(Call('rows', f, st, Step(st)),))\n",
    "a call under another name": "from spec.logic import Call as Made\n",
    "a call from the module": "from spec import logic\n\ndef t(st):\n    return logic.Call('rows', st, st, st)\n",
    "a word that means something else": "def implies(a, b):\n    return True\n",
    "a word that means something else, inside": "def law(st):\n    implies = st.value\n    return implies(st.calls)\n",
    "a word that is changed": "from spec import logic\nlogic.every = min\n",
    "a transition that is taken away": "stem.transitions.pop('add')\n",
    "a law that is taken away": "LOST = stem.invariants.pop('low')\n",
    "an operation that means something else": "class Yes:\n    def __and__(self, other):\n        return True\n",
    "a map that runs its listing": "class M:\n    def where(self, cond, value, among):\n        return among()\n",
    "a metaclass": "class Yes(metaclass=Other):\n    pass\n",
    "an attribute by its name": "LAW = setattr(stem, 'start', None)\n",
    "a private name": "from spec.logic import _itself\n",
    "all names": "from spec.logic import *\n",
    "a division": "def law(st):\n    return st.calls / 2 < 1\n",
}


@pytest.mark.parametrize("text", MORE_TRICKS.values(), ids=MORE_TRICKS.keys())
def test_the_lint_refuses_what_an_attack_found(text: str) -> None:
    assert lint("from spec.logic import Call, Step, but, no, requires\n" + text)


HEAD = "from dataclasses import dataclass\nfrom spec.logic import Number, Stem, but, ite, number, requires\n"
# Each trick of a third attack, and the honest text beside it.
PAIRS = {
    "a builtin under another name": (
        "def law(st, b):\n    look = isinstance\n    return look(st.value(b), int)\n",
        "def law(st, b):\n    look = st.value\n    return look(b) < 2\n",
    ),
    "a builtin under another name, outside": (
        "LOOK = isinstance\ndef law(st):\n    return LOOK(st.calls, bool)\n",
        "MOST = 2\ndef law(st):\n    return st.calls < MOST\n",
    ),
    "a builtin that is given": (
        "def made(f):\n    def law(st):\n        return f(st.calls)\n    return law\nLAW = made(callable)\n",
        "def made(f):\n    def law(st):\n        return f(st.calls)\n    return law\nLAW = made(lambda k: k < 2)\n",
    ),
    "an argument that is called like a builtin": (
        "def law(st, b):\n    none = lambda isinstance: b\n    return isinstance(b, int) | none(b)\n",
        "def law(st, b):\n    none = lambda k: k == b\n    return none(b)\n",
    ),
    "a word that another module imports": (
        "from spec.logic import is_dataclass\ndef law(st):\n    return is_dataclass(st.calls)\n",
        "from spec.logic import every\ndef law(st):\n    return every((st.calls < 2, st.calls > 0))\n",
    ),
    "a class that is a text": (
        "class Text(str):\n    pass\n\ndef law(st):\n    return Text(st.calls) == '3'\n",
        "def law(st):\n    return st.calls == 3\n",
    ),
    "a class with a domain of its own": (
        "@dataclass(frozen=True)\nclass Most:\n    of: Number = number()\n"
        "    def all(self, law):\n        return self.of.all(law)\n",
        "@dataclass(frozen=True)\nclass Most:\n    of: Number = number()\n",
    ),
    "a class whose fields are made by another class": (
        "from spec.logic import Step\nclass Most(Step):\n    more: Number = 0\n",
        "from typing import NamedTuple\nclass Most(NamedTuple):\n    more: Number = 0\n",
    ),
    "a class that a function replaces": (
        "def other(cls):\n    return Stem\n\n@other\nclass Most:\n    more: Number = 0\n",
        "@dataclass(frozen=True)\nclass Most:\n    more: Number = 0\n",
    ),
    "a method for plain values": (
        'class T:\n    def low(self):\n        """Low (finite reading)."""\n        return not self\n',
        "def low(st):\n    return st.calls < 2\n",
    ),
    "a listing that changes a list": (
        "SEEN = [1]\ndef t(st, b):\n    return st.value.where(lambda k: k == b, 1, lambda: SEEN.append(1) or [b])\n",
        "SEEN = (1,)\ndef t(st, b):\n    return st.value.where(lambda k: k == b, 1, lambda: [b, *SEEN])\n",
    ),
    "a listing that changes a list of the function": (
        "def t(st, b):\n    seen = [1]\n    return st.value.where(lambda k: k == b, seen[0], lambda: seen.append(b))\n",
        "def t(st, b):\n    seen = (1, 2)\n    return st.value.where(lambda k: k == b, seen[0], lambda: [b])\n",
    ),
    "a listing that changes a list under another name": (
        "def t(st, b, seen):\n    def keys():\n        mine = seen\n        mine.append(b)\n        return mine\n"
        "    return st.value.where(lambda k: k == b, 1, keys)\n",
        "def t(st, b, seen):\n    def keys():\n        mine = []\n        mine.append(b)\n        return mine\n"
        "    return st.value.where(lambda k: k == b, 1, keys)\n",
    ),
    "a listing that registers": (
        "stem = Stem('boxes')\ndef t(st, b):\n"
        "    return st.value.where(lambda k: k == b, 1, lambda: stem.invariants and [b])\n",
        "stem = Stem('boxes')\ndef t(st, b):\n"
        "    return st.value.where(lambda k: k == b, 1, lambda: st.calls and [b])\n",
    ),
    "a plain function that changes what others see": (
        'def keys(st):\n    """Keys (finite reading)."""\n    keys.seen = 1\n    return [1]\n',
        'def keys(st):\n    """Keys (finite reading)."""\n    seen = {}\n    seen[1] = 1\n    return [*seen]\n',
    ),
    "a plain function with a memory": (
        'def keys(st, seen=[]):\n    """Keys (finite reading)."""\n    seen.append(1)\n    return seen\n',
        'def keys(st, seen=()):\n    """Keys (finite reading)."""\n    return [1, *seen]\n',
    ),
    "an iterator that is empty the second time": (
        "LAWS = (law for law in (1, 2))\n",
        "LAWS = (*(law for law in (1, 2)),)\n",
    ),
    "a map's method that is compared": (
        "def law(st, b):\n    return st.value.put == st.value.put\n",
        "def law(st, b):\n    return st.value(b) == st.value(b)\n",
    ),
    "a step that is compared": (
        "from spec.logic import Step, call\ndef law(st, f):\n    return call('x', f, st).step == Step(then=st)\n",
        "from spec.logic import call\ndef law(st, f):\n    return call('x', f, st).step.kept\n",
    ),
    "a tuple that is compared": (
        "def law(st):\n    return (st.value,) == (st.value,)\n",
        "def law(st):\n    return st.calls == st.calls\n",
    ),
    "nothing in a field": (
        "def t(st):\n    return but(st, calls=None)\n",
        "def t(st):\n    return but(st, calls=0)\n",
    ),
    "a field that opens an attribute of domains": (
        "@dataclass(frozen=True)\nclass Mark:\n    high: Number = number()\n",
        "@dataclass(frozen=True)\nclass Mark:\n    top: Number = number()\n",
    ),
    "a field that is an operation": (
        "@dataclass(frozen=True)\nclass Mark:\n    __eq__: Number = lambda self, other: True\n",
        "@dataclass(frozen=True)\nclass Mark:\n    same: Number = number()\n",
    ),
    "a name that is handed on and that nobody gave": (
        "__all__ = ('isinstance', 'int')\ndef law(st):\n    return isinstance(st.calls, int)\n",
        "__all__ = ('law',)\ndef law(st):\n    return st.calls < 2\n",
    ),
    "a name that is taken away": (
        "from spec.logic import ite as look\ndel look\n",
        "from spec.logic import ite as look\n",
    ),
    "a plain function under a condition": (
        "told = 0\nif True:\n\n    def told(st):\n"
        '        """Tells (finite reading)."""\n        return isinstance(st, int)\n',
        'def told(st):\n    """Tells (finite reading)."""\n    return len(st)\n',
    ),
    "a module that is a value": (
        "from spec import pool\nMODULES = (pool,)\ndef law(st):\n    return MODULES[0].length(st, 1)\n",
        "from spec import pool\ndef law(st):\n    return pool.length(st, 1)\n",
    ),
    "what a module imports": (
        "from spec import pool\ndef law(st):\n    return pool.FiniteMap(1)\n",
        "from spec import pool\ndef law(st):\n    return pool.open_to(st, 1)\n",
    ),
    "a module whose name ends alike": (
        "from inspect import signature\ndef law(st):\n    return signature(st)\n",
        "from spec.pool import length\ndef law(st):\n    return length(st, 1)\n",
    ),
    "a type that runs": (
        "def law(st: (seen := isinstance(0, int))) -> bool:\n    return st.calls < 2\n",
        "def law(st: Stem) -> bool:\n    return st.calls < 2\n",
    ),
    "an operation of the module that is called like a map's": (
        "where = lambda one, two, listing: listing()\n",
        "found = lambda one, two, other: other\n",
    ),
    "arguments of any name": (
        "def t(st, **more):\n    return ite(more == 0, st, st)\n",
        "def t(st, more):\n    return ite(more == 0, st, st)\n",
    ),
    "a second meaning of a name": (
        "def law(st):\n    return st.calls < 2\n\ndef law(st):\n    return st.calls < 3\n",
        "def law(st):\n    return st.calls < 2\n\ndef other(st):\n    return st.calls < 3\n",
    ),
    "a stem under another name": ("stem = Stem('boxes')\nother = stem\n", "stem = Stem('boxes')\n"),
}


@pytest.mark.parametrize(("trick", "honest"), PAIRS.values(), ids=PAIRS.keys())
def test_the_lint_refuses_the_trick_and_not_the_honest_text(trick: str, honest: str) -> None:
    assert lint(HEAD + trick)
    assert lint(HEAD + honest) == []


class Forgets:
    """A domain of a user: ``all`` speaks of every box, and ``has`` forgets the last one."""

    def __init__(self, boxes: Domain) -> None:
        self.boxes, self.all = boxes, boxes.all

    def has(self, box: Number) -> Truth:
        """It is a box, and not the last one."""
        return self.boxes.has(box) & (box < self.boxes.size)


def test_a_law_is_about_a_domain_of_the_state_alone() -> None:
    """The goal of a proof was made by ``has``, and its hypotheses by ``all``."""

    def filled(made: Stem) -> Stem:
        @made.transition
        def fill_last(st: Boxes) -> Step[Boxes]:
            """The last box gets two."""
            return Step(then=but(st, value=st.value.put(st.boxes.size, 2), calls=st.calls + 1))

        return made

    trick, false, true = filled(stem()), filled(stem()), filled(stem())
    trick.each(lambda st: Forgets(st.boxes))(low)
    with pytest.raises(TypeError, match="about a domain of the state, not about a Forgets"):
        all_proved(trick)
    false.each(lambda st: st.boxes)(low)
    assert not all_proved(false)
    true.each(lambda st: st.boxes.such(lambda b: b < st.boxes.size, tuple))(low)
    assert all_proved(true)


def low(st: Boxes, b: Number) -> Truth:
    """The box has less than two."""
    return st.value(b) < 2


def test_a_symbol_has_no_text() -> None:
    """A text with a value in it says the value on plain values, and would say a name on symbols."""
    made, honest = stem(), stem()

    @made.invariant()
    def written(st: Boxes) -> Truth:
        """No number of calls is written as 2: a false law, and true of every name of a symbol."""
        what = st.calls
        return f"{what}" != "2"

    @honest.invariant()
    def counted(st: Boxes) -> Truth:
        """No number of calls is 2, or it is."""
        return no(st.calls == 2) | (st.calls == 2)

    honest.transition(add)
    made.transition(add)
    with pytest.raises(TypeError, match="a Term has no text"):
        all_proved(made)
    assert all_proved(honest)


def test_a_sum_under_a_quantifier_is_refused() -> None:
    """It would be one number for all members: here, "some number of boxes has each value"."""
    made = stem()
    made.transition(add)

    @made.invariant()
    def alike(st: Boxes) -> Truth:
        """As many boxes have the number of one box as have that of any other: a false law."""
        return st.boxes.all(lambda b: st.boxes.count(lambda c: st.value(c) == st.value(b)) == st.boxes.size)

    with pytest.raises(TypeError, match="a count under a quantifier would be one number for all"):
        all_proved(made)


def test_sums_of_other_weights_are_other_numbers() -> None:
    world = World()
    held = state(world, Boxes)
    with world.sharing():
        once, again = (held.boxes.total(lambda b: held.value(b) > 0, held.value) for _ in range(2))
        other = held.boxes.total(lambda b: held.value(b) > 0, lambda _: 1)
    assert once.z.eq(again.z)
    assert not once.z.eq(other.z)


def test_a_file_does_not_say_how_it_is_read() -> None:
    assert lint("# -*- coding: utf-7 -*-\ndef law(st):\n    return st.calls < 2\n")
    assert lint("# The code of the law.\ndef law(st):\n    return st.calls < 2\n") == []


@dataclass(frozen=True)
class Flagged:
    """A truth and a number."""

    boxes: Domain = constant("pages", shared="boxes")
    flag: Truth = truth()
    count: Number = number()


def of_flagged(step: Callable[[Flagged], Step[Flagged]], first: Callable[[Flagged], Flagged] | None = None) -> Stem:
    """A stem with one transition."""
    made = Stem("flagged", state=Flagged, start=first or (lambda st: but(st, flag=False, count=0)))

    def go(st: Flagged) -> Step[Flagged]:
        """The transition."""
        return step(st)

    made.transition(go)

    @made.invariant()
    def none_counted(st: Flagged) -> Truth:
        """Nothing is counted."""
        return st.count == 0

    return made


OTHER_KINDS: dict[str, Callable[[Flagged], Step[Flagged]]] = {
    "a number for a truth": lambda st: Step(then=but(st, flag=2)),
    "nothing for a number": lambda st: Step(then=but(st, count=None)),
    "a part of a number": lambda st: Step(then=but(st, count=0.5)),
    "another domain": lambda st: Step(then=but(st, boxes=None)),
    "another domain where it is refused": lambda st: Step(then=st, fits=st.flag, otherwise=but(st, boxes=None)),
}


@pytest.mark.parametrize("step", OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_a_field_keeps_its_kind(step: Callable[[Flagged], Step[Flagged]]) -> None:
    made = of_flagged(step)
    with pytest.raises(TypeError, match="a transition replaced the"):
        all_proved(made)
    assert all_proved(of_flagged(lambda st: Step(then=but(st, flag=no(st.flag)))))


def test_the_first_state_has_the_constants_that_it_is_given() -> None:
    made = of_flagged(lambda st: Step(then=st), lambda st: but(st, boxes=None, flag=False, count=0))
    with pytest.raises(TypeError, match="replaced the constant boxes"):
        all_proved(made)


def test_an_argument_that_can_be_left_out_is_refused() -> None:
    def add_some(st: Boxes, box: Number = 0) -> Step[Boxes]:
        """A box gets one more."""
        return add(st, box)

    made = stem()
    made.transition(add_some)
    with pytest.raises(TypeError, match="the argument box can be left out"):
        all_proved(made)


@pytest.mark.parametrize("wrong", [lambda st: st.value(1, 2) == 0, lambda st: st.value.put((1,), 2)(1) == 0])
def test_a_map_has_its_number_of_keys(wrong: Callable[[Boxes], Truth]) -> None:
    made = stem()
    made.transition(add)
    made.invariant()(named_law(wrong))
    with pytest.raises(TypeError, match="at a number for each of its keys"):
        all_proved(made)


def named_law(law: Callable[[Boxes], Truth]) -> Callable[[Boxes], Truth]:
    """The law under a name."""

    def keys(st: Boxes) -> Truth:
        """About the keys of a map."""
        return law(st)

    return keys


def test_a_member_is_not_named_for_each_member() -> None:
    """The inner ``greatest`` depends on the member of the outer one. It was taken for ``own``, which does not."""
    made = stem()

    @made.invariant()
    def linked(st: Boxes) -> Truth:
        """Two members that are named in different words are one: a false law."""
        own = st.boxes.greatest(lambda c: st.value(c) == c, lambda _: 0)
        plain = st.boxes.greatest(lambda b: st.value(b) == own, lambda _: 0)

        def inner(b: Number) -> Number:
            return st.boxes.greatest(lambda c: st.value(c) == b, lambda _: 0)

        return plain == st.boxes.greatest(lambda b: st.value(b) == inner(b), lambda _: 0)

    made.transition(add)
    with pytest.raises(TypeError, match="named under a quantifier"):
        all_proved(made)


def test_nothing_is_registered_into_a_part() -> None:
    part, whole = stem(), Stem("whole")
    whole.part("boxes", part)
    with pytest.raises(ValueError, match="comes too late"):
        part.invariant()(below_two)
    with pytest.raises(ValueError, match="comes too late"):
        part.transition(add)


@pytest.mark.parametrize(
    "way", ["{}.invariant()(law)", "@{}.invariant()\ndef law_of_all(st):\n    return st.group == 0"]
)
def test_a_module_registers_laws_of_its_own_stem_alone(way: str) -> None:
    """A law that another module adds to a stem would be proved or not by which modules were imported before."""

    def said(name: str) -> set[str]:
        head = "from spec import allocator\nfrom spec.logic import Stem\nfrom spec.lock_ref import stem as other\n"
        return {c.message for c in lint(f'{head}stem = Stem("own")\n{way.format(name)}\n', "own.py")}

    alone = "a module registers laws of its own stem alone"
    assert alone in said("allocator.stem")
    assert alone in said("other")
    assert alone not in said("stem")


@pytest.mark.parametrize("name", ["allocator/__init__.py", "allocator.abi3.so", "allocator.pyc"])
def test_nothing_takes_the_place_of_a_file_that_is_read(tmp_path: Path, name: str) -> None:
    """Python imports a folder or a compiled module before the file of this name."""
    (tmp_path / "allocator.py").write_text('"""A module."""\n')
    assert complaints([str(tmp_path)], tmp_path) == []
    shadow = tmp_path / name
    shadow.parent.mkdir(exist_ok=True)
    shadow.write_text("")
    assert "in place of a file of its name" in str(complaints([str(tmp_path)], tmp_path)[0])


def test_a_part_is_the_stem_that_is_proved() -> None:
    whole = Stem("whole")
    whole.part("allocator", Stem("allocator"))
    assert parts_unknown(whole) == ["allocator"]
    assert all(parts_unknown(hints_of(name).stem) == [] for name in STEMS)


@dataclass(frozen=True)
class Twice:
    """A field beside a part called ``now`` that has a constant of this name."""

    now: Side
    pages: Domain = constant("pages")


def test_fields_that_nobody_shares_are_two_constants() -> None:
    with pytest.raises(TypeError, match="would be one constant that nobody shares"):
        state(World(), Twice)


def test_a_theorem_is_not_proved_from_itself() -> None:
    made = stem()
    made.transition(add)
    made.theorem(about=())(below_two)
    assert not proved(made, START, "below_two")


@dataclass(frozen=True)
class Whole:
    """A state with one part."""

    part: Boxes


def test_a_part_is_changed_by_calls_alone() -> None:
    part, whole = stem(), Stem("whole", state=Whole, start=lambda st: but(st, part=start(st.part)))
    part.transition(add)
    whole.part("part", part)

    @whole.transition
    def forget(st: Whole) -> Step[Whole]:
        """The part is emptied, and none of its transitions is called."""
        return Step(then=but(st, part=start(st.part)))

    with pytest.raises(TypeError, match="replaced part without calling a transition"):
        all_proved(whole)


def test_only_two_files_of_the_spec_are_left_out(tmp_path: Path) -> None:
    """A folder in the spec cannot hide a file behind the name of one that the lint leaves out."""
    (tmp_path / "more").mkdir()
    for place in (tmp_path, tmp_path / "more"):
        (place / "logic.py").write_text("def law(a):\n    return not a\n", encoding="utf-8")
    assert [path.parent.name for path in files([str(tmp_path)])] == ["more"]


@dataclass(frozen=True)
class Shared:
    """Two domains that are declared one, and a constant that is at least 1."""

    boxes: Domain = constant("pages", shared="boxes")
    lids: Domain = constant("pages", shared="boxes")
    limit: Number = constant("number")


def test_what_is_declared_one_constant_is_an_assumption_that_is_listed() -> None:
    said = {a.name: a.reason for a in constants.assumptions(Stem("boxes", state=Shared))}
    assert said == {
        "shared_in_boxes": "These fields are one constant, never two: `boxes` and `lids`.",
        "positive_in_boxes": "At least 1: `limit`.",
    }
    assert constants.assumptions(Stem("boxes", state=Boxes)) == []


@dataclass(frozen=True)
class Mixed:
    """A domain and a number that are declared one."""

    boxes: Domain = constant("pages", shared="boxes")
    limit: Number = constant("number", shared="boxes")


def test_two_kinds_of_constants_are_never_one() -> None:
    with pytest.raises(TypeError, match="boxes is shared by fields of two kinds, pages and number"):
        state(World(), Mixed)
