"""The reader of one engine's KV events: what it believes to be cached, and the first event that breaks the law.

This is ``spec.kv_events`` on real hashes, fast enough for every event of a server. A test holds it against the law,
event by event. A *key* is a medium, a group of layers and a hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from conformance.stems.kv_events.texts import EMPTY, NoTokens, extended
from conformance.stems.kv_events.wire import Cleared, Event, Hash, Malformed, Medium, Removed, Stored, shown
from spec.kv_events import stem

Key = tuple[Medium, int | None, Hash]
PARENT, TEXT, REMOVED = "parent_is_believed", "one_text_for_a_hash", "removes_what_is_believed"
NUMBERED, EXACT = "batches_are_numbered", "believes_what_is_held"
READABLE = "events_can_be_read"  # no law of the spec, which speaks of events that were read
READABLE_SENTENCE = "Each event can be published and read: it has the fields that its format names, in plain values."
AGREE = "readers_believe_one_thing"  # no law of the spec, which has one reader
AGREE_SENTENCE = (
    "Where an engine has each block once in a medium, a reader that counts believes what one believes that keeps a set."
)
UNSAID = 0  # the text of a block of which no event has said the text; no text has this number
NAMED = ((READABLE, READABLE_SENTENCE), (AGREE, AGREE_SENTENCE))
SENTENCES = dict(NAMED)
SHOWN = 4  # how many blocks a message names


class WrongEvent(NamedTuple):
    """An event, or the end of a batch, that breaks the law. ``law``: its name. ``detail``: what is wrong."""

    law: str
    detail: str

    @property
    def sentence(self) -> str:
        """The law in English, as the spec says it."""
        if self.law in SENTENCES:
            return SENTENCES[self.law]
        found = stem.invariants.get(self.law) or stem.changes[self.law]
        return found.sentence

    def __str__(self) -> str:
        return f"{self.law}: {self.sentence} ({self.detail})"


class Reader:
    """What a router believes of one engine (of one rank, where it has several).

    ``counting``: it counts the copies of a block, as routers do that read vLLM's events; else it keeps a set. ``late``:
    it did not read from the start, and so knows nothing of what was said before, until all blocks are cleared. After
    an event that breaks the law, the reader is of no more use.
    """

    def __init__(self, counting: bool = True, late: bool = False) -> None:
        self.counting, self.missed = counting, late
        self.next: int | None = None
        self._said: defaultdict[tuple[Medium, int | None], dict[Hash, int]] = defaultdict(dict)
        self._known: defaultdict[int | None, dict[Hash, list[int]]] = defaultdict(dict)  # in how many media, what text

    def event(self, event: Event) -> WrongEvent | None:
        """Reads one event. Raises ``Malformed`` where it has no tokens that could be read."""
        if type(event) is Stored:
            return self._stored(event)
        if type(event) is Removed:
            return self._removed(event)
        assert type(event) is Cleared
        self._said.clear()
        self._known.clear()
        self.missed = False
        return None

    def begins(self, number: int) -> WrongEvent | None:
        """A batch of this number begins. The first batch that is read may have any number."""
        if self.next is not None and number != self.next:
            return WrongEvent(NUMBERED, f"batch {number} follows batch {self.next - 1}: batch {self.next} is wanted")
        self.next = number + 1
        return None

    def differs(self, held: Collection[Key]) -> WrongEvent | None:
        """At the end of a batch: what the reader believes and what the pool holds are not one. ``held``: every key of
        which the pool holds a copy.
        """
        if self.missed:
            return None
        wanted, believed = set(held), set(self.believed())
        return difference(
            [f"{_named(key)}" for key in believed - wanted], [f"{_named(key)}" for key in wanted - believed]
        )

    def believed(self) -> Iterator[Key]:
        """The keys of all blocks that the reader believes to be cached."""
        for (medium, group), counts in self._said.items():
            yield from ((medium, group, block) for block in counts)

    def texts(self) -> Iterator[tuple[int, Hash]]:
        """The number of the text that each believed block ends, and the hash of the block."""
        for known in self._known.values():
            yield from ((text, block) for block, (_, text) in known.items())

    def tiers(self) -> Iterator[tuple[Medium, int, Hash]]:
        """Of each believed block its medium, the number of the text that it ends, and its hash."""
        for (medium, group), counts in self._said.items():
            yield from ((medium, self._known[group][block][1], block) for block in counts)

    def _stored(self, event: Stored) -> WrongEvent | None:
        hashes, parent, tokens, size, medium, group, _ = event
        known = self._known[group]
        said = self._said[medium, group]
        text = self._text_before(event, known)
        if text is None:
            return WrongEvent(PARENT, f"its parent {'' if parent is None else shown(parent)} is not believed")
        counting, end = self.counting, 0
        for block in hashes:
            if text != UNSAID:
                start, end = end, end + size
                try:
                    text = extended(text, tokens[start:end])
                except NoTokens as error:
                    raise Malformed(str(error)) from None
            count = said.get(block, 0)
            found = known.get(block)
            if found is None:
                known[block] = [1, text]
            else:
                if text != found[1] and text != UNSAID and found[1] != UNSAID:
                    return WrongEvent(TEXT, f"{shown(block)} stands for another text already")
                found[0] += not count
                found[1] = found[1] or text
            said[block] = count + 1 if counting else 1
        return None

    def _text_before(self, event: Stored, known: dict[Hash, list[int]]) -> int | None:
        """The text before the first block; ``UNSAID`` where it is not known, ``None`` where that breaks the law."""
        if event.parent is None:
            text = EMPTY
        elif (found := known.get(event.parent)) is not None:
            text = found[1]
        elif event.chained and event.hashes and not self.missed:
            return None
        else:
            return UNSAID
        # Where the tokens are not said, or blocks are left out, nobody can tell which tokens are whose.
        return text if event.size and len(event.tokens) == len(event.hashes) * event.size else UNSAID

    def _removed(self, event: Removed) -> WrongEvent | None:
        hashes, medium, group = event
        said = self._said[medium, group]
        for block in hashes:
            count = said.get(block, 0)
            if count > 1:
                said[block] = count - 1
            elif count:
                del said[block]
                known = self._known[group]
                if known[block][0] == 1:
                    del known[block]
                else:
                    known[block][0] -= 1
            elif not self.missed:
                return WrongEvent(REMOVED, f"{shown(block)} is not believed")
        return None


def difference(stale: Collection[str], missing: Collection[str]) -> WrongEvent | None:
    """What is believed and gone, and what is held and not believed, in words; ``None`` where both are empty."""
    gone = f"believed and gone: {_few(stale)}" if stale else ""
    unknown = f"held and not believed: {_few(missing)}" if missing else ""
    return WrongEvent(EXACT, "; ".join(filter(None, (gone, unknown)))) if stale or missing else None


def _few(names: Collection[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(sorted(names)[:SHOWN]) + more


def _named(key: Key) -> str:
    medium, group, block = key
    told = medium if isinstance(medium, tuple) else (medium, None if group is None else f"group {group}")
    where = ", ".join(str(part) for part in told if part is not None)
    return f"{shown(block)} ({where})" if where else shown(block)
