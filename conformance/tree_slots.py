"""Who owns which slot of a radix tree: each is free, or belongs to one node, and to the one that the law names."""

from __future__ import annotations

from collections import Counter

from conformance.machine import Finding
from conformance.subjects.treeview import Node, Seen

Key = tuple[int, ...]
OWNED = "every_slot_has_one_owner"
SENTENCE = "Every slot is free, or belongs to one node of the tree."


def paths(seen: Seen) -> dict[Key, Node]:
    """The nodes without the root, by the tokens from the root to their end (parents first)."""
    keys: dict[int, Key] = {}
    for node in seen.nodes:
        above = keys.get(node.parent, ()) if node.parent is not None else ()
        keys[node.id] = above + tuple(node.key)
    return {keys[node.id]: node for node in seen.nodes if node.parent is not None}


def judge_slots(seen: Seen, lawful: dict[Key, list[int]], whole: dict[str, set[int]], page_size: int) -> None:
    """Raises the first thing that is wrong with the slots; ``whole``: the pages that each pool has."""
    nodes = paths(seen)
    for key, node in nodes.items():
        if node.parts["full"].slots != lawful[key]:
            _wrong(f"node {list(key)} has the slots {node.parts['full'].slots}, not {lawful[key]}")
    for name, pages in whole.items():
        per_page = 1 if name == "mamba" else page_size
        _one_owner(name, nodes, seen.free[name], pages, per_page)


def _one_owner(name: str, nodes: dict[Key, Node], free: list[int], pages: set[int], page_size: int) -> None:
    owners: Counter[int] = Counter(free)
    for key, node in nodes.items():
        slots = node.parts[name].slots
        owned = {slot // page_size for slot in slots or ()}
        if slots is not None and len(slots) != (1 if name == "mamba" else len(node.key)):
            _wrong(f"node {list(key)} has {len(slots)} {name} slots")
        if owned & set(free):
            _wrong(f"{name} pages {sorted(owned & set(free))} of node {list(key)} are free")
        owners.update(owned)
    twice = sorted(page for page, n in owners.items() if n > 1)
    if twice:
        _wrong(f"{name} pages {twice} have two owners")
    if set(owners) != pages:
        _wrong(f"{name} pages {sorted(pages - set(owners))} have no owner, {sorted(set(owners) - pages)} are no pages")


def _wrong(what: str) -> None:
    raise Finding(OWNED, SENTENCE, what)
