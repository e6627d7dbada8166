"""Our prefix cache in the place of a release's own tree, so that the release's scheduler and policies run on it.

``with_our_tree(release)`` has servers whose tree is ``impl.prefix_cache.PrefixCache``, as a class with two parents:
ours first, the release's interface (``BasePrefixCache``) second. What ours does not have is then what the interface
does by itself. The cache gets the release's own types of results, and its own keeper of streaming sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

from conformance.driver.protocol import EngineError, Unsupported
from conformance.engines.sglang.releases import marks
from conformance.engines.sglang.releases.cores import DEFAULT
from conformance.engines.sglang.releases.locking import Locks
from conformance.engines.sglang.releases.nodes import Nodes, TreeNode
from conformance.engines.sglang.releases.release import Release, TrackBuffers
from conformance.stems.lock_ref.protocol import NodePart
from conformance.stems.requests.request import MARK
from impl.prefix_cache import CacheNode, PrefixCache, Types


def with_our_tree(release: Release, *, debug: bool = True) -> Release:
    """The release, with our cache in its servers. ``debug``: the cache checks itself after each call."""
    return cast(Release, WithOurTree(release, debug))


class WithOurTree:
    """A release whose servers have our cache. All else is the release's."""

    def __init__(self, release: Release, debug: bool) -> None:
        self._release, self._debug = release, debug

    def __getattr__(self, name: str) -> Any:
        return getattr(self._release, name)

    def tree(
        self,
        kind: str,
        components: Sequence[str],
        rows: Any,
        allocator: Any,
        page_size: int,
        window: int,
        buffers: TrackBuffers,
        core: str = DEFAULT,
    ) -> Any:
        """Our cache. Arguments as for ``Release.tree``; our cache has no core to choose."""
        if core != DEFAULT:
            raise EngineError(
                f"core {core} was asked for, and our cache has no cores: leave out one of the two options"
            )
        if "mamba" in components or kind == "pure_swa":
            raise Unsupported(f"our cache behind SGLang's interface has no parts of {components} ({kind})")
        params = self._release.tree_params(rows, allocator, page_size, window, buffers)
        params.enable_kv_cache_events &= self._release.event_types is not None
        tokens = self._release.kept_window(params, window) if "swa" in components else 0
        return self._class(params, self._types, self._sessions, window=tokens, debug=self._debug)

    @staticmethod
    def insert_frees(kind: str) -> bool:
        """An insert into our cache frees what the cache has already."""
        del kind
        return True

    def nodes(self, tree: Any, kind: str, components: tuple[str, ...]) -> Nodes:
        """The nodes of our cache, to read them."""
        del kind
        return OurNodes(tree, components)

    def locks(self, tree: Any) -> Locks:
        """Locks on our cache, taken and given back as the release's callers do."""
        return self._release.locks_over(tree, whole=self._types.held is not None)

    def session_cache(self, tree: Any, kind: str) -> Any:
        """The cache through which requests reach the tree: older releases wrap a tree for that."""
        del kind
        return self._release.session_keeper(tree) if self._release.wraps_trees else tree

    def session_slots(self, session_cache: Any, kind: str) -> dict[Any, Any]:
        """The slot of each session."""
        del kind
        found: dict[Any, Any] = (session_cache if self._release.wraps_trees else session_cache.session).slots
        return found

    @cached_property
    def _class(self) -> Any:
        interface = self._release.tree_interface
        return type(PrefixCache.__name__, (PrefixCache, interface), {"__doc__": PrefixCache.__doc__})

    @cached_property
    def _types(self) -> Types:
        return Types(
            **self._release.tree_results, window_part=self._release.component("swa"), events=self._release.event_types
        )

    @property
    def _sessions(self) -> Any:
        """The class of what our cache keeps for sessions; ``None`` where a cache of sessions wraps the tree."""
        return None if self._release.wraps_trees else self._release.session_keeper


class OurNodes:
    """The nodes of our cache as plain records."""

    def __init__(self, tree: Any, components: tuple[str, ...]) -> None:
        self._tree: PrefixCache = tree
        self._windowed = "swa" in components

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """See ``Nodes``."""
        found, waiting = [], [self._tree.root_node]
        while waiting:
            node = waiting.pop()
            found.append(self._node(node, mapping))
            waiting.extend(reversed(list(node.children.values())))
        return found

    def _node(self, node: CacheNode, mapping: list[int] | None) -> TreeNode:
        slots: list[int] = node.value.tolist()
        parts = {"full": NodePart(slots, node.lock_ref)}
        if self._windowed:
            # The cache keeps no SWA slots: the mapping of its allocator has them.
            live = None if node.swa_tombstone or node.parent is None else mapping
            parts["swa"] = NodePart(None if live is None else [live[slot] for slot in slots], node.swa_lock_ref)
        parent = None if node.parent is None else node.parent.id
        return TreeNode(node.id, parent, node, self._key(node), parts, node.swa_uuid)

    @staticmethod
    def _key(node: CacheNode) -> list[int]:
        """The tokens of a node with the mark of their text, see ``marks``."""
        space = node.space
        mark = marks.mark_of(*space) if isinstance(space, tuple) else 0
        return [MARK * mark + token for token in node.key]

    def size(self, component: str, which: str) -> int:
        """See ``Nodes``."""
        return int(getattr(self._tree, f"{component}_{which}_size")())
