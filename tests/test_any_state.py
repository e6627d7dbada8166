"""Every state of a solver can be shown: the numbers in it are arbitrary, and which ones a solver picks differs from
machine to machine.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from conformance.driver.diff import Names, against_lines, changes, value_of
from conformance.telling.picture import frame
from conformance.telling.tell import changed
from proofs.registry import STEMS, hints_of
from slotproof.pages.marking import marked
from slotproof.pages.templating import environment
from spec.finite import Domain, Map
from spec.lock_ref_state import LockRefState, lives

DRAW: Any = environment(html=True).get_template("steps.html.j2").module
USUAL, FAR = (-2, 6), (-(10**9), 10**9)  # numbers around those that have a meaning, and numbers without any


def a_number(of: Random) -> int:
    return of.randint(*(FAR if of.random() < 0.1 else USUAL))


def a_map(of: Random, arity: int) -> Map:
    """A map with arbitrary values at some keys, of which a few lie outside each domain."""
    found = Map(arity)
    for _ in range(of.randint(0, 8 * arity)):
        key = tuple(of.randint(*USUAL) for _ in range(arity))
        found = found.put(key if arity > 1 else key[0], a_number(of))
    return found


def arbitrary(state: Any, of: Random) -> Any:
    """The state with an arbitrary value in each field. Domains and constant numbers keep theirs."""
    drawn: dict[str, Any] = {}
    for field in fields(state):
        value, kind = getattr(state, field.name), field.metadata.get("kind")
        if isinstance(value, Map):
            drawn[field.name] = a_map(of, value.arity)
        elif is_dataclass(value):
            drawn[field.name] = arbitrary(value, of)
        elif kind == "truth":
            drawn[field.name] = of.random() < 0.5
        elif not (isinstance(value, Domain) or field.metadata.get("constant")):
            drawn[field.name] = a_number(of)
    return replace(state, **drawn)


def first_state(stem: str, of: Random) -> Any:
    state: Any = of.choice(hints_of(stem).small())
    return state


def every_field(state: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """What can change of a state, by the fields that lead to it."""
    found: dict[str, Any] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            found |= every_field(value, (*path, field.name))
        elif not field.metadata.get("constant"):
            found[".".join((*path, field.name))] = dict(value.items()) if isinstance(value, Map) else value
    return found


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("stem", STEMS)
@given(seed=some.integers(0, 2**32))
def test_an_arbitrary_state_can_be_shown(stem: str, seed: int) -> None:
    of = Random(seed)
    first = first_state(stem, of)
    before, after = arbitrary(first, of), arbitrary(first, of)
    for state in (first, before, after):
        drawn = frame(state)
        assert drawn["panels"]
        assert DRAW.picture(marked(drawn["panels"], frame(first)["panels"], []))
        assert all(law.sentence for law, _ in hints_of(stem).stem.broken(state))
    for one, other in ((first, before), (before, after), (after, first)):
        differs = changes(one, other)
        assert all(" is " in line or " are " in line for line in against_lines(differs, Names()))
        assert changed(one, other)
    for name in ("node", "handle", "row", "source", "to", "no such"):
        assert value_of(name, a_number(of), Names())


@pytest.mark.parametrize("stem", STEMS)
def test_each_field_of_an_arbitrary_state_is_arbitrary(stem: str) -> None:
    first = first_state(stem, Random(0))
    known = every_field(first)
    met = {
        name
        for n in range(50)
        for name, value in every_field(arbitrary(first, Random(n))).items()
        if value != known[name]
    }
    assert met == set(known)


@given(seed=some.integers(0, 2**32))
def test_every_node_is_shown_once_wherever_it_hangs(seed: int) -> None:
    """Also a node that is its own parent, or that hangs on a node that is gone."""
    of = Random(seed)
    tree: Any = arbitrary(first_state("lock_ref", of), of)
    assert isinstance(tree, LockRefState)
    keys = [item["key"] for panel in frame(tree)["panels"] if panel["kind"] == "tree" for item in panel["items"]]
    shown = [int(key.split()[1]) for key in keys if key.startswith("node ")]
    assert sorted(shown) == [n for n in tree.nodes.items() if lives(tree, n)]
