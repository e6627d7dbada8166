"""The policies of eviction: which of several nodes goes first."""

from __future__ import annotations

import random

import pytest
import torch

from impl.eviction import Usage, order_of
from impl.radix import Entry, RadixTree

# Three nodes under each policy, the one that goes first first. Of each: used, hits, born, priority, start, longest.
FIRST_TO_LAST = {
    "lru": [(1, 9, 9, 9, 0, 9), (2, 5, 5, 5, 0, 9), (3, 0, 0, 0, 0, 9)],
    "mru": [(3, 9, 9, 9, 0, 9), (2, 5, 5, 5, 0, 9), (1, 0, 0, 0, 0, 9)],
    "lfu": [(9, 1, 9, 9, 0, 9), (1, 2, 5, 5, 0, 9), (2, 2, 0, 0, 0, 9)],
    "fifo": [(9, 9, 1, 9, 0, 9), (5, 5, 2, 5, 0, 9), (0, 0, 3, 0, 0, 9)],
    "filo": [(9, 9, 3, 9, 0, 9), (5, 5, 2, 5, 0, 9), (0, 0, 1, 0, 0, 9)],
    "priority": [(9, 9, 9, 1, 0, 9), (1, 5, 5, 2, 0, 9), (2, 0, 0, 2, 0, 9)],
    "slru": [(8, 1, 9, 9, 0, 9), (9, 0, 9, 9, 0, 9), (1, 2, 0, 0, 0, 9)],
    "tlru": [(8, 0, 0, 0, 9, 9), (9, 0, 0, 0, 12, 12), (1, 9, 9, 9, 8, 9)],
}


@pytest.mark.parametrize("policy", FIRST_TO_LAST)
def test_a_policy_orders_nodes(policy: str) -> None:
    nodes = []
    for used, hits, born, priority, start, longest in FIRST_TO_LAST[policy]:
        usage = Usage(hits, born, priority, longest)
        nodes.append(Entry([0], torch.zeros(1, dtype=torch.int64), 0, start, used, usage=usage))
    shuffled = random.Random(0).sample(nodes, len(nodes))
    assert sorted(shuffled, key=order_of(policy.upper())) == nodes


def test_parameters_of_a_policy() -> None:
    node = Entry([0], torch.zeros(1, dtype=torch.int64), 0, 6, 3, usage=Usage(hits=3, longest=8))
    assert order_of("slru")(node) == (True, 3)
    assert order_of("slru", {"protected_threshold": 4})(node) == (False, 3)
    assert order_of("tlru", {"threshold": 2})(node) == (False, 3)
    assert order_of("tlru", {"threshold": 2, "next_prompt_estimate": 1})(node) == (True, 3)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"eviction_policy must be one of lru, lfu.*'oldest'"):
        order_of("oldest")
    with pytest.raises(ValueError, match="'lru' has no parameter 'threshold'"):
        order_of("lru", {"threshold": 1})


def test_two_nodes_that_become_one() -> None:
    assert Usage(3, 4, 1, 9).joined(Usage(2, 2, 5, 8)) == Usage(3, 2, 5, 9)


def test_a_tree_evicts_in_its_order_and_its_spaces_share_nothing() -> None:
    tree = RadixTree(8, 1, 0, "cpu", debug=True, order=order_of("mru"))
    slots = torch.arange(1, 4)
    leaves = [tree.add(0, [5], slots[at : at + 1], live=False, space=space) for at, space in enumerate("abc")]
    for leaf in leaves:
        tree.touch(leaf)
    assert [span.node for span in tree.walk([5, 6], "b")] == [leaves[1]]
    assert not tree.walk([5, 6])
    gone = tree.evict(2, 0)
    assert [int(dropped[0]) for dropped, _ in gone.dropped] == [3, 2]
    assert [*tree.entries] == [0, leaves[0]]
