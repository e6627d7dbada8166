"""The reading of a tree whose core is Rust: the core prints the children of a node in any order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.releases.nodes import TreeNode
from conformance.engines.sglang.releases.rust_nodes import RustNodes

KEYS = {2: (1, 2), 5: (3,), 7: (4,)}  # the children of the root, by number; node 2 has the child 9
CHILD, BELOW = 9, (1, 2, 6)


class Core:
    """A core that prints the children of the root in the order that it is given."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order = order

    def begin_insert(self, _: Any) -> None:
        """Nothing is inserted: the reader notes the key."""

    def has_ongoing_insert(self) -> bool:
        """No insert is under way."""
        return False

    def match_full_device_prefix(self, key: tuple[int, ...]) -> tuple[int, int, None]:
        """How many tokens of a key are in the tree, and the node to which it leads."""
        return len(key), CHILD if key == BELOW else next(ident for ident, own in KEYS.items() if own == key), None

    def get_component_device_value(self, ident: int, _: str) -> list[int]:
        """The slots of a node."""
        return [ident * 10]

    def pretty_print(self) -> None:
        """Prints the tree as the core does, past Python's own output."""
        lines = ["[0] 0 full_lock=1"]
        for ident in self.order:
            lines.append(f"  [{ident}] {len(KEYS[ident])} full_lock=0")
            if ident == 2:
                lines.append(f"    [{CHILD}] 1 full_lock=0")
        os.write(1, ("\n".join(lines) + "\n").encode())


def read(order: Sequence[int]) -> list[TreeNode]:
    core = Core(order)
    nodes = RustNodes(core, {"full": "full"}, tuple)
    for key in (*KEYS.values(), BELOW):
        core.begin_insert(SimpleNamespace(key=key))
    return nodes.read(None)


def test_a_tree_is_read_alike_whatever_the_order_in_which_the_core_prints_it() -> None:
    found = [read(order) for order in permutations(KEYS)]
    assert all(one == found[0] for one in found)
    assert [(node.ident, node.parent, node.key) for node in found[0]] == [
        *((0, None, []), (2, 0, [1, 2]), (CHILD, 2, [6]), (5, 0, [3]), (7, 0, [4])),
    ]


def test_a_core_that_prints_no_node_is_an_error() -> None:
    core = Core(())
    core.pretty_print = lambda: None  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="prints no nodes"):
        RustNodes(core, {"full": "full"}, tuple).read(None)
