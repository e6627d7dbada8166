"""A state as a picture: panels with items, as plain data that a template draws.

A *panel* is one kind of things, such as the pages of a pool or the nodes of the tree, with a ``kind``, a ``title`` and
``items``. An *item* is one of these things:

- ``key``: what it is, by the law's number; it stays with the thing from step to step.
- ``name``: what a finding calls it.
- ``look``: how it is drawn, such as ``free``, ``held`` or ``lost`` (held by nobody).
- ``depth``: in a tree, how many nodes are above it.
- ``facts``: what is so of it, each with its name; two pictures are compared fact by fact.
- ``wrong``: the names of the facts that no lawful state has, whatever the rest of the state is.
"""

from __future__ import annotations

from conformance.diff import Names
from conformance.engines.protocol import Json
from conformance.story import picture_blocks, picture_pools, picture_states, picture_tree
from spec.allocator import Allocator
from spec.block_cache import BlockCache
from spec.blocks import Blocks
from spec.cache_state import CacheState
from spec.kv_events import Events
from spec.rows import Rows
from spec.states import MambaSlots
from spec.swa_mapping import SwaMapping
from spec.tree import Tree

State = Allocator | SwaMapping | Rows | Tree | MambaSlots | CacheState | Blocks | BlockCache | Events


def frame(state: State, names: Names | None = None) -> Json:
    """A picture of a state: ``{"panels": [...]}``. ``names``: what the law's numbers are called."""
    called = names or Names()
    panels = _panels(state, called)
    return {"panels": [panel for panel in panels if panel["items"]]}


def _panels(state: State, names: Names) -> list[Json]:
    if isinstance(state, CacheState):
        tree = picture_tree.panels(state.tree, names, "pages")
        return [
            *picture_pools.of_rows(state.rows, names, picture_pools.reading(state, names)),
            *tree,
            *(picture_states.panels(state.states, names) if state.tree.stateful else []),
        ]
    if isinstance(state, Rows):
        return picture_pools.of_rows(state, names, {})
    if isinstance(state, Tree):
        return picture_tree.panels(state, names, "tokens")
    if isinstance(state, MambaSlots):
        return picture_states.panels(state, names)
    if isinstance(state, Blocks):
        return picture_blocks.of_pool(state, names)
    if isinstance(state, BlockCache):
        return picture_blocks.of_scheduler(state, names)
    if isinstance(state, Events):
        return picture_blocks.of_events(state, names)
    return picture_pools.of_pools(state, names)
