"""Two engines of one protocol side by side: they agree, or the first difference is a finding that shows both sides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from driven import Variant

from conformance.driver.lockstep import CONFORMS, VIOLATION, Finding
from conformance.driver.protocol import EngineError, Json, Misuse
from conformance.engines.ours.lock_ref import lock_ref
from conformance.engines.side_by_side import Agreement, EngineSide, SideBySide, differences
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.check import Search, check
from conformance.stems.lock_ref.protocol import Inserted, LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.vetting import calls

AGREE = Agreement("both_agree", "Both give one answer.", tuple(calls("lock_ref")))
CONFIG: Json = {
    "kind": "unified",
    "components": ["full", "swa"],
    "page_size": 1,
    "size": 8,
    "size_swa": 8,
    "size_mamba": 2,
    "window": 2,
}


def pair(first: Any, second: Any) -> SideBySide:
    return SideBySide(EngineSide("left", first), EngineSide("right", second), AGREE)


def ours(config: Json = CONFIG) -> Any:
    return lock_ref(config)


def test_two_engines_that_agree_are_one_engine() -> None:
    found = check("lock_ref", lambda config: pair(ours(config), ours(config)), Search(examples=30))
    assert (found.verdict, found.detail) == (CONFORMS, None)
    assert found.transitions["acquire done"] > 0


@pytest.mark.parametrize("name", ["split_forgets_counts", "restore_under_lock"])
def test_a_fault_on_the_second_side_is_found(name: str) -> None:
    found = check("lock_ref", lambda config: pair(ours(config), FAULTS[name].make(config)), Search())
    assert (found.verdict, found.law, found.sentence) == (VIOLATION, AGREE.law, AGREE.sentence)
    assert "left has" in str(found.detail)
    assert "right has" in str(found.detail)


def test_a_fault_on_the_first_side_is_judged_by_the_law_or_by_the_other() -> None:
    faulty = FAULTS["split_forgets_counts"].make
    found = check("lock_ref", lambda config: pair(faulty(config), ours(config)), Search())
    assert found.verdict == VIOLATION


def test_an_answer_that_differs_is_named_with_both_sides() -> None:
    lies = Variant(ours(), insert=lambda *_: Inserted(7, [1]))
    with pytest.raises(Finding) as caught:
        pair(ours(), lies).insert([1], 0, 0)
    assert caught.value.law == AGREE.law
    assert caught.value.detail == "insert: left has 0 0, right has 0 7"


def test_an_error_on_one_side_alone_is_a_finding() -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no core\nno tree")

    for one, other, said in (
        (ours(), Variant(ours(), insert=fails), "right has the error RuntimeError: no core"),
        (Variant(ours(), insert=fails), ours(), "left has the error RuntimeError: no core"),
    ):
        with pytest.raises(Finding, match="both_agree") as caught:
            pair(one, other).insert([1], 0, 0)
        assert said in caught.value.detail


def test_an_error_on_both_sides_is_the_error_of_the_first() -> None:
    def misused(*_: Any) -> Any:
        raise Misuse("left")

    def fails(*_: Any) -> Any:
        raise RuntimeError("right")

    with pytest.raises(Misuse, match="left"):
        pair(Variant(ours(), match=misused), Variant(ours(), match=fails)).match([1])


def test_an_engine_that_is_not_loaded_whole_is_no_disagreement() -> None:
    def not_whole(*_: Any) -> Any:
        raise EngineError("a stub was called")

    with pytest.raises(EngineError, match="a stub was called"):
        pair(ours(), Variant(ours(), match=not_whole)).match([1])


def test_both_sides_get_each_call_once() -> None:
    sent: list[str] = []
    sides = [Variant(ours(), evict=lambda *_, name=name: sent.append(name)) for name in ("left", "right")]
    pair(*sides).evict(1, 0, 0)
    assert sent == ["left", "right"]


def test_the_pair_lacks_what_either_lacks_and_says_what_ran() -> None:
    left = Variant(ours(), ran={"core": "rust"}, lacks=frozenset({"bad"}))
    right = Variant(ours(), ran={"core": "python"}, lacks=frozenset({"compact"}), fragile=True)
    both = pair(left, right)
    assert both.lacks == {"bad", "compact"}
    assert both.ran == {"core": "rust and python"}
    assert both.fragile


# What may differ.


def tree(part: NodePart, *, number: int = 1) -> LockRefSnapshot:
    nodes = [NodeSnapshot(0, None, [], {}), NodeSnapshot(number, 0, [1], {"swa": part})]
    return LockRefSnapshot(nodes, {"swa": 1}, {"swa": 0}, {"swa": [2, 3]})


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (NodePart([1], 2), NodePart([1], 2), False),
        (NodePart([1], 2), NodePart([1], 1), True),
        (NodePart([1], 2), NodePart([1], None, True), False),
        (NodePart([1], 2), NodePart([1], None, False), True),
        (NodePart([1], 0), NodePart([1], None, True), True),
        (NodePart([1], 5), NodePart([1], None), False),
        (NodePart([1], None, False), NodePart([1], None, True), True),
        (NodePart([1], 0), NodePart([2], 0), True),
        (NodePart([1], 0), NodePart(None, 0), True),
    ],
)
def test_a_lock_count_that_is_not_shown_agrees_with_any(one: NodePart, other: NodePart, differs: bool) -> None:
    assert bool(list(differences(tree(one), tree(other)))) is differs


def test_a_tree_differs_in_nodes_sizes_and_free_lists_but_not_in_the_order_of_its_nodes() -> None:
    part = NodePart([1], 0)
    same = tree(part)
    two = [NodeSnapshot(1, 0, [1], {}), NodeSnapshot(2, 0, [2], {})]
    assert not list(
        differences(replace(same, nodes=[same.nodes[0], *two]), replace(same, nodes=[same.nodes[0], *reversed(two)]))
    )
    for other in (
        tree(part, number=4),
        replace(same, nodes=same.nodes[:1]),
        replace(same, evictable={"swa": 2}),
        replace(same, protected={"swa": 2}),
        replace(same, free={"swa": [3, 2]}),
        replace(same, free={}),
    ):
        assert list(differences(same, other))
        assert list(differences(other, same))
