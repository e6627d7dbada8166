"""What the nodes of a tree contain, in runs of ``lock_ref``.

An insert brings a row that a request has computed for the tokens of its key. Who matches a key reads the full slots of
its path, the SWA slots in the window before its end, and the state of its last node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from conformance.driver.protocol import Key
from conformance.driver.shadow import FULL, STATES, SWA, Shadow
from conformance.stems.lock_ref.projection import common_length
from conformance.stems.lock_ref.protocol import NodeSnapshot, PrefixMatch

POOL = {"full": FULL, "swa": SWA, "mamba": STATES}  # the pool of each part of a node
Nodes = Mapping[Key, NodeSnapshot]


class NodeContents:
    """What is written by inserts, and read by those who match or hold a node. ``window``, ``page_size``: in
    tokens."""

    def __init__(self, shadow: Shadow, window: int, page_size: int) -> None:
        self.shadow, self.window, self.page_size = shadow, window, page_size
        # What holders found when they took hold: by holder, and then by the part and the position of the token.
        self.found: dict[str, dict[tuple[str, int], int]] = {}

    def inserted(
        self, who: str, tokens: Sequence[int], protected: int, fresh: Sequence[int], before: Nodes, now: Nodes
    ) -> None:
        """An insert has brought a row with the full slots ``fresh`` from ``protected`` on.

        ``before``, ``now``: the nodes before and after it, with what the tree has evicted to make room. The SWA slots
        of the row show only where they are a node's now, and so does its state. So a slot where the path of ``tokens``
        had none is the row's, and so is one where the path has the row's full slot now: the node was evicted, and
        inserted anew. Where the path had another slot, the part was evicted and came to life: its slot is the row's if
        no node had it before, or if the node that had it has lost it and the row has a slot here.
        """
        texts = self.shadow.texts.prefixes(tokens)
        self.shadow.write(FULL, fresh, texts[protected : protected + len(fresh)], who)
        row = dict(enumerate(fresh, start=protected))
        anew = {at for at, slot in along(now, tokens, "full", self.page_size).items() if row.get(at) == slot}
        for part in ("swa", "mamba"):
            had, has = (along(nodes, tokens, part, self.page_size) for nodes in (before, now))
            owned = _places(before, part)
            stay = {slot for slot, place in _places(now, part).items() if owned.get(slot) == place}
            moved = {at for at in row if has.get(at) != had.get(at) and has.get(at) not in stay}
            brought = anew | moved
            new = {at: slot for at, slot in has.items() if at not in had or at in brought or slot not in owned}
            self.shadow.write(POOL[part], new.values(), [texts[at] for at in new], who)

    def matched(self, who: str, found: PrefixMatch, tokens: Sequence[int], nodes: Nodes) -> None:
        """Somebody who matched ``tokens`` reads what was found."""
        key = tokens[: found.length]
        texts = self.shadow.texts.prefixes(key)
        slots = [*found.slots[: len(key)], *[0] * (len(key) - len(found.slots))]
        self.shadow.note(self.shadow.read(FULL, slots, texts, who))
        first = max(0, len(key) - self.window)
        self._read(who, "swa", key, texts, [(first, len(key))], nodes)
        if key:
            self._read(who, "mamba", key, texts, [(len(key) - 1, len(key))], nodes)

    def released(self, holders: Collection[str]) -> None:
        """Only ``holders`` hold a node now."""
        self.found = {who: slots for who, slots in self.found.items() if who in holders}

    def held(self, who: str, key: Key, window: Sequence[tuple[int, int]], state: bool, nodes: Nodes) -> None:
        """Somebody who holds a node reads its path. ``window``: where he holds SWA parts too, as ranges of tokens.
        ``state``: he holds the node's state.
        """
        texts = self.shadow.texts.prefixes(key)
        self._read(who, "full", key, texts, [(0, len(key))], nodes)
        self._read(who, "swa", key, texts, window, nodes)
        last = [(len(key) - 1, len(key))] if state else []
        self._read(who, "mamba", key, texts, last, nodes)
        reads = {"full": [(0, len(key))], "swa": window, "mamba": last}
        self.found[who] = {  # without the parts that were released early
            (part, at): slot
            for (part, at), slot in self.found.get(who, {}).items()
            if any(first <= at < end for first, end in reads[part])
        }

    def _read(
        self,
        who: str,
        part: str,
        key: Sequence[int],
        texts: Sequence[int],
        ranges: Sequence[tuple[int, int]],
        nodes: Nodes,
    ) -> None:
        """Reads the slots of a part in ranges of tokens. A part that a node lacks is not read: the laws of locks say
        which parts must be there.
        """
        there = along(nodes, key, part, self.page_size) if ranges else {}
        for first, last in ranges:
            for at in range(first, last):
                if at in there:
                    self.found.setdefault(who, {}).setdefault((part, at), there[at])
                    self.shadow.note(self.shadow.read(POOL[part], [there[at]], [texts[at]], who, at))


def _places(nodes: Nodes, part: str) -> dict[int, tuple[int, ...]]:
    """By the slots of a part: the token ids from the root up to the token of the slot, itself included."""
    places: dict[int, tuple[int, ...]] = {}
    for key, node in nodes.items():
        shown = node.parts.get(part)
        first = len(key) - (1 if part == "mamba" else len(node.key))
        for at, slot in enumerate(shown.slots or () if shown else (), start=first):
            places[slot] = tuple(key[: at + 1])
    return places


def along(nodes: Nodes, tokens: Sequence[int], part: str, page_size: int) -> dict[int, int]:
    """The slots of a part of the nodes on the path of ``tokens``, by the position of the token. A state stands at the
    position of the last token of its node. A page in which the path leaves a node is not on the path.
    """
    found: dict[int, int] = {}
    text = tuple(tokens)
    for key, node in nodes.items():
        shown = node.parts.get(part)
        if shown is None or shown.slots is None:
            continue
        shared = common_length(key, text)
        shared -= 0 if shared == len(text) else shared % page_size
        start = len(key) - len(node.key)
        if part != "mamba":
            found.update(zip(range(start, shared), shown.slots, strict=False))
        elif shared == len(key):
            found[len(key) - 1] = shown.slots[0]
    return found
