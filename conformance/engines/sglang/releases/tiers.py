"""Which pages a tree has on the device, and which on the host: the texts of the pages by tier.

A page is on the device, or on the host, where its node has slots of the full KV cache there. Whether a window or a
state is there, too, does not count, as in the trees without host memory. What a copy to the host has not written yet
is left out by whoever knows of copies (``server.host_pages``).

A tree of Python objects shows each node with its tokens. The Rust core shows for each node the hashes of its pages, and
whether it is on the host; tokens it shows of no node, and ``RustNodes`` finds those of what is on the device. So the
text of a page is kept by its hash: when the page is on the device, or when it comes from a storage with its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from conformance.driver.protocol import EngineError, Key
from conformance.engines.sglang.releases import cores, marks
from conformance.engines.sglang.releases.nodes import TreeNode


class TierPages(NamedTuple):
    """The pages of a tree on the device and on the host: of each, the tokens from the start of its text to its end."""

    device: list[Key]
    host: list[Key]


class Tiers:
    """The pages of a unified tree with host memory. ``nodes``: reads the tree. ``page_size``: in tokens."""

    def __init__(self, tree: Any, nodes: Callable[[], Sequence[TreeNode]], page_size: int) -> None:
        self._core, self._nodes, self._size = tree.tree_core, nodes, page_size
        self._by_hash = cores.of(tree) == cores.RUST
        self._texts: dict[str, Key] = {}  # by the hash of a page
        if self._by_hash:
            self._watch_storage(tree.tree_core)

    def read(self) -> TierPages:
        """The pages now."""
        found = TierPages([], [])
        for node, pages in self._read():
            if node.parts["full"].slots is not None:
                found.device.extend(pages)
            if self._core.is_backuped(node.ident):
                found.host.extend(pages)
        return found

    def of(self, ident: int) -> list[Key]:
        """The pages of one node, which is on the device."""
        return next((pages for node, pages in self._read() if node.ident == ident), [])

    def _read(self) -> Iterator[tuple[TreeNode, list[Key]]]:
        """Each node but the root, with its pages."""
        nodes = self._nodes()
        texts: dict[int | None, Key] = {None: ()}
        for node in nodes:
            texts[node.ident] = (*texts[node.parent], *marks.unmarked(node.key))
        for node in nodes[1:]:
            yield node, self._pages(node, texts[node.ident])

    def _pages(self, node: TreeNode, text: Key) -> list[Key]:
        begin = len(text) - len(node.key)
        pages = [text[:end] for end in range(begin + self._size, len(text) + 1, self._size)]
        if not self._by_hash:
            return pages
        hashes = self._core.get_hash_values(node.ident)
        if node.parts["full"].slots is not None and node.key and node.key[-1] >= 0:
            self._texts.update(zip(hashes, pages, strict=True))
        return [self._text(each) for each in hashes]

    def _text(self, page: str) -> Key:
        if page not in self._texts:
            raise EngineError(f"the text of the page with the hash {page} is not known")
        return self._texts[page]

    def _watch_storage(self, core: Any) -> None:
        """Keeps the texts of what comes from a storage."""
        real = core.insert_host

        def insert_host(node_id: int, key: Any, host_value: Any, hash_value: list[str]) -> Any:
            before = () if core.is_root(node_id) else self._text(core.get_hash_values(node_id)[-1])
            text = (*before, *marks.unmarked(marks.marked(key)))
            ends = range(len(before) + self._size, len(text) + 1, self._size)
            self._texts.update(zip(hash_value, [text[:end] for end in ends], strict=False))
            return real(node_id, key, host_value, hash_value)

        core.insert_host = insert_host
