"""Reads a unified tree whose core is Rust.

The core has no node objects. What it shows, and how it is read here:

- which nodes there are, their parents, the lengths of their keys, and the lock counts of their full parts: the core
  prints them (``pretty_print``), to the standard output of the process;
- slots of every component: ``get_component_device_value``;
- sizes: ``component_evictable_size`` and ``component_protected_size``;
- whether the SWA part of a node is locked, unless it is a tombstone: ``walk_for_kv_canary`` lists the slots that are
  not;
- whether the state of a node is locked: ``adjust_component_size`` adds one to the size to which the state counts, and
  the size that grew tells; then the one is taken back. Releases without this call do not show it.

The tokens of a node are not shown. The reader notes the key of each insert, and asks the core
(``match_full_device_prefix``) to which node it leads. A node to which no key leads gets tokens that no caller sends.

Not shown at all: lock counts of SWA parts and of states (only whether they are above zero), locks of a tombstone's SWA
part, and the marks where the windows of locks end. A count that is wrong shows when the last lock is given back.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.releases import marks
from conformance.engines.sglang.releases.nodes import TreeNode, slots_of
from conformance.stems.lock_ref.protocol import NodePart

_LINE = re.compile(r"^( *)\[(\d+)\] (\d+) full_lock=(\d+)\b")
_NOT_SENT = -1  # a token that no caller sends


class _Line(NamedTuple):
    """What the core prints of a node: its number, its parent's, the length and the end of its key, its full locks."""

    ident: int
    parent: int | None
    length: int
    end: int
    locks: int


class RustNodes:
    """The nodes of a Rust core. ``keys``: the name that the core has for each component. ``radix_key``: makes the key
    of the release from tokens.
    """

    def __init__(self, core: Any, keys: Mapping[str, Any], radix_key: Callable[[Sequence[int]], Any]) -> None:
        self._core, self._keys, self._radix_key = core, keys, radix_key
        self._texts: set[tuple[int, ...]] = set()
        begin = core.begin_insert

        def noted(params: Any) -> Any:
            self._texts.add(tuple(marks.marked(params.key)))
            return begin(params)

        core.begin_insert = noted

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """See ``Nodes``; the mapping is not needed."""
        del mapping
        lines = self._lines()
        keys, unlocked = self._own_keys(lines), self._unlocked_slots()
        return [
            TreeNode(line.ident, line.parent, line.ident, keys.get(line.ident, []), self._parts(line, unlocked))
            for line in lines.values()
        ]

    def size(self, component: str, which: str) -> int:
        """See ``Nodes``."""
        return int(getattr(self._core, f"component_{which}_size")(self._keys[component]))

    # What the core prints.

    def _lines(self) -> dict[int, _Line]:
        """Every node that the core prints, parents first, and the children of a node by their numbers.

        The core prints the children of a node in the order of a hash table with a random key, so in another order in
        each run; and what the law explains first must not depend on that.
        """
        found: dict[int, _Line] = {}
        paths: dict[int, tuple[int, ...]] = {}
        above: list[_Line] = []  # the path to the node that was printed last
        for text in printed(self._core.pretty_print):
            if (shown := _LINE.match(text)) is None:
                continue
            ident, length, locks = (int(shown[n]) for n in (2, 3, 4))
            del above[len(shown[1]) // 2 :]
            parent = above[-1] if above else None
            line = _Line(ident, parent.ident if parent else None, length, length + (parent.end if parent else 0), locks)
            found[ident] = line
            paths[ident] = (*(one.ident for one in above), ident)
            above.append(line)
        if not found:
            raise EngineError("the Rust core of the tree prints no nodes that can be read")
        return {ident: found[ident] for ident in sorted(found, key=lambda ident: paths[ident])}

    # The keys of nodes.

    def _own_keys(self, lines: Mapping[int, _Line]) -> dict[int, list[int]]:
        """The tokens of each node, by its number."""
        keys = {line.ident: [_NOT_SENT] * line.length for line in lines.values()}
        longest: dict[int, tuple[int, ...]] = {}
        for text in self._texts:
            matched, ident, _ = self._core.match_full_device_prefix(self._radix_key(text))
            if ident in lines and matched > len(longest.get(ident, ())):
                longest[ident] = text[:matched]
        for ident, text in longest.items():
            at: int | None = ident
            while at is not None:
                line = lines[at]
                if line.end <= len(text):
                    keys[at] = list(text[line.end - line.length : line.end])
                at = line.parent
        shown = set(longest.values())
        # An insert that is under way comes to its text later.
        self._texts = self._texts | shown if self._core.has_ongoing_insert() else shown
        return keys

    # The parts of nodes.

    def _unlocked_slots(self) -> frozenset[int]:
        """The full slots of every node whose SWA part is there and not locked."""
        if "swa" not in self._keys:
            return frozenset()
        return frozenset(self._core.walk_for_kv_canary(True, True).slot_indices.tolist())

    def _parts(self, line: _Line, unlocked: frozenset[int]) -> dict[str, NodePart]:
        values = {
            name: slots_of(self._core.get_component_device_value(line.ident, key)) for name, key in self._keys.items()
        }
        full = values["full"] or []
        parts = {"full": NodePart(full if line.parent is None else values["full"], line.locks)}
        if "swa" in values:
            held = None if values["swa"] is None or not full else full[0] not in unlocked
            parts["swa"] = NodePart(values["swa"], None, held)
        if "mamba" in values:
            held = None if values["mamba"] is None else self._state_is_locked(line.ident)
            parts["mamba"] = NodePart(values["mamba"], None, held)
        return parts

    def _state_is_locked(self, ident: int) -> bool | None:
        """Whether a node's state counts to the protected size; ``None``: the release does not show it."""
        adjust = getattr(self._core, "adjust_component_size", None)
        if adjust is None:
            return None
        before = self.size("mamba", "protected")
        adjust(ident, self._keys["mamba"], 1)
        held = self.size("mamba", "protected") > before
        adjust(ident, self._keys["mamba"], -1)
        return held


def printed(function: Callable[[], None]) -> list[str]:
    """The lines that a function prints to the standard output of the process, which it may reach without Python."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            function()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        file.seek(0)
        return file.read().decode().splitlines()
