"""Pictures of a whole cache: rows with what they read, the tree, and the state slots."""

from __future__ import annotations

from conformance.driver.diff import Names
from conformance.driver.protocol import Json
from conformance.stems.lock_ref import picture as tree
from conformance.stems.mamba_slots import picture as states
from conformance.stems.pools.picture import of_rows, read_pages, reading
from spec.cache_state import CacheState


def panels(st: CacheState, names: Names) -> list[Json]:
    """The panels of the parts; state slots only where the tree has states."""
    slots = states.panels(st.states, names) if st.tree.stateful else []
    return [*of_rows(st.rows, names, reading(st, names), read_pages(st)), *tree.panels(st.tree, names, "pages"), *slots]
