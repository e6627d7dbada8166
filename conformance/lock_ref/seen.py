"""A radix tree as an engine shows it, put in the place of what the law says of it."""

from __future__ import annotations

from conformance.engines.protocol import Key, NodeSnapshot, TreeSnapshot


def paths(tree: TreeSnapshot) -> dict[Key, NodeSnapshot]:
    """The nodes without the root, parents first, by the tokens from the root to the node's end."""
    keys: dict[int, Key] = {}
    found: dict[Key, NodeSnapshot] = {}
    for node in tree.nodes:
        if node.parent is None:
            keys[node.id] = ()
            continue
        key = (*keys[node.parent], *node.key)
        keys[node.id] = key
        found[key] = node
    return found
