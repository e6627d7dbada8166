"""What state slots contain, in runs of ``mamba_slots``.

A state is the state after a text. The run knows the input of a request, and not how many tokens the engine computes
after it. So each pass has a state of its own number until it goes to a node of the tree. From then on it is the state
after the node's key, and whoever gets a copy of it needs the state after the beginning of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from conformance.driver.protocol import Key
from conformance.driver.shadow import EMPTY, STATES, Shadow
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, SlotNames

OWN, FIRST_TRACK = 0, 1  # places among the slots that a request names
NOTHING = SlotNames()


@dataclass
class Chain:
    """What a request, or a session between its turns, has computed.

    ``own``: the state that its own slot should hold, ``EMPTY`` before the first pass. ``tracked``: all states that went
    to its track buffer. ``text``: its input; ``None`` where the run does not know it: for a later turn of a session
    (also where an abort has freed what the session saved, since an engine may keep the text of turns before), and for
    a request object that comes again.
    """

    own: int = EMPTY
    tracked: set[int] = field(default_factory=set)
    text: Sequence[int] | None = None

    def can_be(self, key: Key) -> bool:
        """The request's text may begin with the key, or the key with its text."""
        return self.text is None or all(one == other for one, other in zip(self.text, key, strict=False))


class StatePasses:
    """What requests compute and read. ``here``: by request; ``saved``: by session. ``begun``: the sessions that had a
    turn since they were opened.
    """

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self.here: dict[int, Chain] = {}
        self.saved: dict[int, Chain] = {}
        self.begun: set[int] = set()
        self._count = 0

    # A request comes and leaves.

    def begin(self, request: int, tokens: Sequence[int] | None, session: int) -> None:
        """A request comes. A later turn of a session goes on from what the session saved."""
        known = self.saved.pop(session, None)
        text = None if session in self.begun else tokens
        self.here[request] = Chain(known.own, known.tracked) if known else Chain(text=text)
        self.begun |= {session} if session else set()

    def copied(self, request: int, key: Key, seen: MambaSlotsSnapshot) -> None:
        """A request got a copy of the state of the node with this key, or gets it before its first pass.

        An engine that does not show its copies is taken to copy the state of this very node.
        """
        chain, texts = self.here[request], self.shadow.texts
        needs = texts.prefixes((key if chain.text is None else chain.text)[: len(key)])
        chain.own = needs[-1] if len(needs) == len(key) else self._fresh()
        own = self._named(request, seen).slots[OWN]
        if seen.copies is None:
            self.shadow.copy(STATES, seen.nodes.get(key, 0), own)
            self._read(request, own)

    def left(self, request: int, session: int) -> None:
        """A request has left. ``session``: the session that has its states now, 0 if they were freed."""
        chain = self.here.pop(request, Chain())
        if session:
            self.saved[session] = chain

    def closed(self, session: int) -> None:
        """A session has given back what it had."""
        self.saved.pop(session, None)
        self.begun.discard(session)

    def clear(self) -> None:
        """Nobody has anything."""
        self.here.clear()
        self.saved.clear()
        self.begun.clear()

    # Passes.

    def computed(self, requests: Iterable[int], seen: MambaSlotsSnapshot) -> None:
        """A pass reads the state of each request, and leaves in its place the state after the new tokens."""
        for request in requests:
            slot = seen.rows.get(request, NOTHING.slots)[OWN]
            if self.here[request].own != EMPTY:
                self._read(request, slot)
            self.here[request].own = number = self._fresh()
            self.shadow.write(STATES, [slot], [number], _name(request))

    def tracked(self, request: int, seen: MambaSlotsSnapshot) -> None:
        """The state of a request is written to the track that is written next."""
        named = self._named(request, seen)
        number = self._fresh()
        self.here[request].tracked.add(number)
        self.shadow.write(STATES, [named.slots[FIRST_TRACK + named.next]], [number], _name(request))

    def _fresh(self) -> int:
        """The number of a state that nobody has had before."""
        self._count += 1
        return self.shadow.texts.longer(EMPTY, -self._count)

    def _read(self, request: int, slot: int) -> None:
        wrong = self.shadow.read(STATES, [slot], [self.here[request].own], _name(request))
        self.shadow.note(wrong)

    @staticmethod
    def _named(request: int, seen: MambaSlotsSnapshot) -> SlotNames:
        return seen.requests.get(request, NOTHING)

    # The tree.

    def shown(self, seen: MambaSlotsSnapshot) -> None:
        """The engine shows the copies that it has made."""
        for source, target in seen.copies or ():
            self.shadow.copy(STATES, source, target)

    def given(self, request: int, keys: Iterable[Key], seen: MambaSlotsSnapshot, kept: int, buffered: bool) -> None:
        """A request gave its newest state to new nodes, or a copy of it.

        ``kept``: the slot of its newest state before. A state that is none of the request's own, and one whose key is
        not on the request's text, is not the state after the key. Whoever gets a copy of it will read that.
        """
        chain = self.here.get(request, Chain())
        lawful = chain.tracked if buffered else {chain.own}
        for key in keys:
            slot = seen.nodes[key]
            if seen.copies is None and slot != kept:
                self.shadow.copy(STATES, kept, slot)
            held = self.shadow.holds(STATES, slot)
            if held is not None and held.prefix in lawful and chain.can_be(key):
                self.shadow.write(STATES, [slot], self.shadow.texts.prefixes(key)[-1:], held.writer)


def _name(request: int) -> str:
    return f"request {request}"
