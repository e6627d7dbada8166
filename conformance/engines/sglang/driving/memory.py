"""The memory of one tiny SGLang server on CPU: its pools, the rows of its requests, and its radix tree.

All of them are the release's own objects. Stood in for are the arguments of the server (``Settings``) and the
content of a mamba state, which is one number (``Release.row_pool_with_states``).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec

from conformance.driver.protocol import PublishedEvents, Unsupported
from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.sglang.driving.reading import TreeReader, cached_pages
from conformance.engines.sglang.kinds import LOCKED
from conformance.engines.sglang.releases import cores, records
from conformance.engines.sglang.releases.records import STATE
from conformance.engines.sglang.releases.release import Release, TrackBuffers
from conformance.engines.sglang.releases.states import CopiesOfStates, MadeCopies


@dataclass
class SGLangMemory:
    """One tree with its pools and rows. Sizes and the window count tokens; ``states`` counts mamba states. ``core``:
    see ``cores``; older trees have none.
    """

    release: Release
    kind: str
    components: tuple[str, ...]
    page_size: int
    _: KW_ONLY
    size: int
    size_swa: int
    window: int
    row_count: int = 1
    states: int = 0
    buffers: TrackBuffers = TrackBuffers()
    need_sort: bool = False
    core: str = cores.DEFAULT

    def __post_init__(self) -> None:
        if (self.kind, self.components) not in LOCKED:
            raise Unsupported(f"SGLang has no tree of kind {self.kind} with the components {self.components}")
        if self.kind == "pure_swa" and self.page_size > 1:
            raise Unsupported("the pool of a model whose layers all have a window has pages of one token")
        self.release.check(self.kind, self.buffers)
        self.release.settings.set_for_server(self.page_size, self.buffers.buffered, self.buffers.lazy)
        self.pools = self._pools()
        self.rows = self._rows()
        self.state_slots: Any = self.release.state_slots(self.rows)
        self._copies = CopiesOfStates(None if self.state_slots is None else self.rows.mamba_pool)
        self.tree = self.release.tree(
            self.kind,
            self.components,
            self.rows,
            self.pools.engine,
            self.page_size,
            self.window,
            self.buffers,
            self.core,
        )
        nodes = self.release.nodes(self.tree, self.kind, self.components)
        self.reader = TreeReader(nodes, self.components, self.state_slots)

    @property
    def ran(self) -> dict[str, str]:
        """What runs, as the tree shows it: the core of a unified tree."""
        return cores.shown(self.tree)

    # KV events.

    @property
    def publishes(self) -> bool:
        """The tree publishes KV events."""
        return self.release.publishes(self.tree)

    def published(self) -> PublishedEvents | None:
        """The KV events since the last time that somebody asked, and the pages that the tree has cached now; ``None``
        where the tree publishes no events.
        """
        if not self.publishes:
            return None
        events = [msgspec.to_builtins(event, builtin_types=(bytes,)) for event in self.tree.take_events()]
        return PublishedEvents(events, pages=cached_pages(self.reader.walk(), self.page_size))

    # Copies of states.

    def copy_matched(self, request: Any) -> None:
        """The state of the node that the request has matched is copied to its own.

        Some releases put this copy off: a match only notes the slot of the node's state, and the forward pass of the
        batch that takes the request copies it. The scheduler makes this batch at once; in between it does nothing else.
        """
        if self.state_slots is None:
            return
        source = records.take_matched(request)
        if source is not None:
            with self._copies.in_order():
                self.rows.mamba_pool.copy_from(source, records.read(request, STATE).view(1))

    def copies(self) -> MadeCopies:
        """The copies of states since the last time that somebody asked."""
        return self._copies.taken()

    def _pools(self) -> PoolAdapter | PairAdapter:
        if "swa" in self.components:
            pair = self.release.swa_allocator(self.size, self.size_swa, self.page_size, self.need_sort)
            return PairAdapter(pair, self.page_size, released=self.release.release_list)
        if self.kind == "pure_swa":
            return PoolAdapter(self.release.one_pool(self.size, self.need_sort), 1, released=self.release.release_list)
        one = self.release.allocator(self.size, self.page_size, self.need_sort)
        return PoolAdapter(one, self.page_size, released=self.release.release_list)

    def _rows(self) -> Any:
        if "mamba" in self.components:
            return self.release.row_pool_with_states(self.row_count, self.size, self.states, self.buffers)
        return self.release.row_pool(self.row_count, self.size)
