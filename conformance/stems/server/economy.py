"""Economy of a server: what its scheduler may do otherwise, since it decides policy, but wastes time or memory with.
What it wastes is a latent finding, never a violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from math import inf

from conformance.driver.lockstep import CHOICE, Finding, Law
from conformance.driver.protocol import Json, Key
from conformance.stems.configs import is_windowed
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodeSnapshot
from conformance.stems.mamba_slots.protocol import SlotNames
from spec.mamba_slots_state import ABSENT, FIRST

HIT = "hit_is_as_long_as_what_is_cached"
HIT_SENTENCE = (
    "A request that is admitted goes on after the longest beginning of its text that the tree has on the device, with "
    "its window and its state, so that nothing is computed twice. Its last token is computed in any case; a turn goes "
    "on in the row of its session, whatever the tree has; and a server may be told to find nothing."
)
GIVES = "preemption_gives_something_back"
GIVES_SENTENCE = (
    "Where a server retracts requests, the pages that they alone have are free or can be evicted when it goes on, so "
    "that others get them. A turn of a session keeps its row."
)
STATES = "request_keeps_states_in_use"
STATES_SENTENCE = (
    "A request holds no state while it waits, and where its second track comes and goes, it holds that one only while "
    "a pass in flight writes a track of it. A turn of a session may hold what its session has."
)
AFTER_LEFT = frozenset({"left", "evicted"})  # what a server does while it retracts several requests


def longest(nodes: Mapping[Key, NodeSnapshot], text: Sequence[int], page_size: int, window: int | None) -> int:
    """How many tokens of a text the tree has on the device, so that a request could go on behind them: all but its last
    token at most, and whole pages. ``nodes``: by the tokens from the root to their ends, parents first. ``window``:
    ``None`` where the tree has no window.
    """
    best = at = 0
    live = inf  # so many tokens before ``at`` have a slot for the window
    for key, node in nodes.items():
        if len(key) - len(node.key) != at or key[:at] != tuple(text[:at]):
            continue
        fits = _shared(node.key, text[at:-1]) // page_size * page_size
        if not fits:
            continue
        if node.parts["full"].slots is None:
            break
        at += fits
        if window is not None:
            live = live + fits if node.parts["swa"].slots is not None else 0
        state = "mamba" not in node.parts or (fits == len(node.key) and node.parts["mamba"].slots is not None)
        if state and live >= (window or 0):
            best = at
        if fits < len(node.key):
            break
    return best


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens the two begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def room_of(tree: LockRefSnapshot, page_size: int) -> int:
    """How many tokens are free or can be evicted."""
    return len(tree.free["full"]) * page_size + tree.evictable["full"]


def window_of(shape: Json) -> int | None:
    """The window of a tree, in tokens; ``None`` where it has none."""
    return shape["window"] if is_windowed(shape) else None


def short_hit(request: int, start: int, had: int) -> Finding | None:
    """A request goes on after ``start`` tokens, and the tree has ``had`` for it."""
    if start >= had:
        return None
    detail = f"request {request} goes on after {start} tokens, and the tree has {had} for it"
    return Finding(HIT, HIT_SENTENCE, detail, latent=True, kind=CHOICE)


class ServerEconomy:
    """What the scheduler of a server wastes in a run. ``finds``: requests go on after what the tree has; it was not
    launched to find nothing. ``told``: what is wasted is a finding.
    """

    def __init__(self, law: Law, shape: Json, finds: bool, told: bool = True) -> None:
        self.law, self.page_size, self.finds, self.told = law, shape["page_size"], finds, told
        self.window = window_of(shape)
        self.lazy = bool(shape.get("lazy"))
        self.had: dict[int, int] = {}  # by request that was matched and has no row yet, in tokens
        self._tracked: deque[frozenset[int]] = deque()  # of each step in flight, the requests that it tracks
        self._last = self._room = 0  # before the event that is explained, and after it
        self._least: int | None = None  # the room that there must be after requests were retracted
        self._retracted: list[int] = []

    def _report(self, name: str, sentence: str, detail: str) -> None:
        if self.told:
            self.law.report(Finding(name, sentence, detail, latent=True, kind=CHOICE))

    # Requests come.

    def matched(self, request: int, text: Sequence[int], nodes: Mapping[Key, NodeSnapshot]) -> None:
        """A request that has no row yet was matched."""
        if self.finds:
            self.had[request] = longest(nodes, text, self.page_size, self.window)

    def begins(self, request: int, start: int) -> None:
        """A request got its row, and goes on after ``start`` tokens."""
        short = short_hit(request, start, self.had.pop(request, 0))
        if short is not None and self.told:
            self.law.report(short)

    def waits(self, waiting: Collection[int], named: Mapping[int, SlotNames]) -> None:
        """The server reads its messages next. ``waiting``: the requests that wait, and are no turns of sessions.
        ``named``: the state slots of requests.
        """
        for request in waiting:
            if held := [slot for slot in named.get(request, SlotNames()).slots if slot != ABSENT]:
                self._report(STATES, STATES_SENTENCE, f"request {request} waits, and holds the state slots {held}")

    # Requests run.

    def launched(self, tracked: Collection[int], running: Collection[int], named: Mapping[int, SlotNames]) -> None:
        """A forward pass was launched. ``tracked``: the requests of which it writes a track. ``running``: those that
        have a row, and are no turns of sessions. ``named``: the state slots of requests.
        """
        self._tracked.append(frozenset(tracked))
        written = frozenset[int]().union(*self._tracked)
        for request in running if self.lazy else ():
            tracks = named.get(request, SlotNames()).slots[FIRST:]
            if request not in written and ABSENT not in tracks:
                detail = f"request {request} holds the tracks {[*tracks]}, and no pass in flight writes one of them"
                self._report(STATES, STATES_SENTENCE, detail)

    def resulted(self) -> None:
        """The oldest step in flight is done."""
        if self._tracked:
            self._tracked.popleft()

    # Requests are retracted.

    def retracts(self, request: int, alone: int) -> None:
        """A request was retracted. ``alone``: how many pages it had that the tree has not."""
        self._least = (self._last if self._least is None else self._least) + alone * self.page_size
        self._retracted.append(request)

    def happens(self, kind: str, tree: LockRefSnapshot) -> None:
        """An event of this kind happens, and is not explained yet."""
        if self._least is not None and kind not in AFTER_LEFT:
            self._gives(self._least)
        self._last, self._room = self._room, room_of(tree, self.page_size)

    def _gives(self, least: int) -> None:
        if self._room < least:
            detail = f"requests {self._retracted} are retracted, and {least - self._room} of their slots are not free"
            self._report(GIVES, GIVES_SENTENCE, detail)
        self._least, self._retracted = None, []
