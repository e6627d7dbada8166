"""Projects the snapshot of a radix tree onto the law's state of the tree, and judges which node owns which slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Key
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.pools.calls import whole_pages
from spec.lock_ref_state import LockRefState
from spec.logic import but

LOCK_COUNTS = {"full": "full_ref", "swa": "swa_ref", "mamba": "mamba_ref"}  # the law's field for each component
PAGES = {"full": "full pages", "swa": "SWA pages", "mamba": "state slots"}
OWNED = "every_slot_has_one_owner"
OWNED_SENTENCE = "Every slot is free, or belongs to one node of the tree."


TREE = "every_node_has_its_parent"
TREE_SENTENCE = "Every node of the tree but the root hangs below a node of the tree."


class KeyedTree(NamedTuple):
    """A snapshot of a tree, and its nodes by their keys (see ``paths``)."""

    tree: LockRefSnapshot
    nodes: Mapping[Key, NodeSnapshot]


def paths(tree: LockRefSnapshot) -> dict[Key, NodeSnapshot]:
    """The nodes without the root, parents first, each by the token ids from the root to the node's end.

    Raises ``Finding`` if a node has a parent that the tree does not have.
    """
    keys: dict[int, Key] = {}
    found: dict[Key, NodeSnapshot] = {}
    for node in tree.nodes:
        if node.parent is None:
            keys[node.id] = ()
            continue
        if node.parent not in keys:
            raise Finding(
                TREE, TREE_SENTENCE, f"node {node.id} has the parent {node.parent}, which is not shown before it"
            )
        key = (*keys[node.parent], *node.key)
        keys[node.id] = key
        found[key] = node
    return found


def has_part(node: NodeSnapshot, component: str) -> bool:
    """The node has slots of the component: it is no tombstone (``swa``), or it has a state (``mamba``)."""
    part = node.parts.get(component)
    return part is not None and part.slots is not None


def project_tree(law_state: LockRefState, seen: KeyedTree, numbers: Mapping[Key, int]) -> LockRefState:
    """The law's tree with the lock counts and sizes that the engine shows; ``law_state`` itself if nothing differs.

    ``numbers``: the law's number of each node, by its key.
    """
    shown = shown_locks(law_state, seen.nodes, numbers)
    for component in LOCK_COUNTS:
        for which, sizes in (("evictable", seen.tree.evictable), ("protected", seen.tree.protected)):
            size = sizes.get(component, 0)
            if size != getattr(law_state, f"{component}_{which}"):
                shown[f"{component}_{which}"] = size
    return but(law_state, **shown) if shown else law_state


def shown_locks(tree: LockRefState, nodes: Mapping[Key, NodeSnapshot], numbers: Mapping[Key, int]) -> dict[str, Any]:
    """The fields of the law's tree with lock counts that differ from those that the engine shows, as it shows them."""
    shown: dict[str, Any] = {}
    for component, field in LOCK_COUNTS.items():
        known = counts = getattr(tree, field)
        for key, number in numbers.items():
            part = nodes[key].parts.get(component) if key in nodes else None
            count = counts(number) if part is None else shown_count(part, counts(number))
            if count != counts(number):
                counts = counts.put(number, count)
        if counts is not known:
            shown[field] = counts
    return shown


def shown_count(part: NodePart, lawful: int) -> int:
    """The lock count that the engine shows. Where it shows only whether a part is locked, or nothing, it is
    ``lawful``, unless what it shows contradicts that.
    """
    if part.lock is not None:
        return part.lock
    return lawful if part.held in (None, lawful > 0) else int(part.held or 0)


def common_length(key: Sequence[int], tokens: Sequence[int]) -> int:
    """The length of the common prefix of two keys, in tokens."""
    pairs = enumerate(zip(key, tokens, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(key), len(tokens)))


def judge_slots(
    seen: KeyedTree, lawful: Mapping[Key, list[int]], pages: Mapping[str, frozenset[int]], page_size: int
) -> None:
    """Raises ``Finding`` for the first thing that is wrong with the owners of slots.

    ``lawful``: the full slots that each node must have. ``pages``: all pages of each component's pool (``mamba``:
    state slots).
    """
    for key, node in seen.nodes.items():
        slots = node.parts["full"].slots
        if key not in lawful:
            raise _wrong(f"node {list(key)} is in the tree, and no call has put it there")
        if slots != lawful[key]:
            raise _wrong(f"node {list(key)} has the full slots {slots}, the law has {lawful[key]}")
    for component, known in pages.items():
        per_page = 1 if component == "mamba" else page_size
        _judge_owners(component, seen, known, per_page)


def _judge_owners(component: str, seen: KeyedTree, pages: frozenset[int], page_size: int) -> None:
    """Raises ``Finding`` unless each page of the component's pool is free or belongs to one node."""
    free = seen.tree.free[component]
    owners = list(free)
    for key, node in seen.nodes.items():
        slots = node.parts[component].slots
        if slots is None:
            continue
        if len(slots) != (1 if component == "mamba" else len(node.key)):
            raise _wrong(f"node {list(key)} of {len(node.key)} tokens has {len(slots)} slots of its {component} part")
        if component != "mamba":
            whole_pages(slots, page_size, f"the {component} part of node {list(key)}")
        owned = {slot // page_size for slot in slots}
        if not owned.isdisjoint(free):
            raise _wrong(f"{PAGES[component]} {sorted(owned & set(free))} of node {list(key)} are free")
        owners += owned
    if len(owners) != len(pages) or pages != set(owners):
        raise _wrong(_owners_in_words(component, owners, pages))


def _owners_in_words(component: str, owners: Iterable[int], pages: frozenset[int]) -> str:
    count = Counter(owners)
    twice = sorted(page for page, n in count.items() if n > 1)
    if twice:
        return f"{PAGES[component]} {twice} have two owners"
    missing, unknown = sorted(pages - set(count)), sorted(set(count) - pages)
    told = [f"{PAGES[component]} {missing} have no owner"] if missing else []
    told += [f"{PAGES[component]} {unknown} do not exist"] if unknown else []
    return ", ".join(told)


def _wrong(what: str) -> Finding:
    return Finding(OWNED, OWNED_SENTENCE, what)
