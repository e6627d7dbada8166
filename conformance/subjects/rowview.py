"""What a run of ``session_trim`` asks of an engine, and what it reads off it: requests, sessions, and their rows.

A ``RowSubject`` is driven as a scheduler drives its engine: by request numbers, session numbers (from 1; 0 is no
session) and token ids, never by slots. Everything that decides is the engine's own; a call that lacks the memory
changes nothing but what a match changes, and says so. Between two calls the run reads ``observe()`` and asks the law
of each difference, so a call does one thing alone: no call that allocates also caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from conformance.subjects.adapter import Lists


class Lengths(NamedTuple):
    """The lengths of a row, in tokens: the tree's part, the SWA cursor, what is computed, what has slots."""

    protected: int
    cursor: int
    committed: int
    allocated: int


@dataclass(frozen=True)
class RowSeen:
    """A row that is in use: the engine's number for it, its lengths, and its first ``allocated`` slots."""

    row: int
    lengths: Lengths
    slots: list[int]


@dataclass(frozen=True)
class TreePage:
    """A whole page of the tree: which page of its text it is (from 0), and whether its SWA side is there."""

    index: int
    swa: bool


@dataclass(frozen=True)
class Seen:
    """Everything that can be read off the engine.

    ``requests``: those that run, from ``admit`` to the end (one that only looked, was retracted or cancelled is none).
    ``sessions``: those whose slot has a row, while no request of theirs runs. ``free_rows``: as the engine lists them,
    twice where it lists them twice. ``tree``: by full page. ``mapping``: the SWA slot of each full slot, 0 for none.
    """

    requests: dict[int, RowSeen]
    sessions: dict[int, RowSeen]
    free_rows: list[int]
    full: Lists
    swa: Lists
    mapping: list[int]
    tree: dict[int, TreePage]


class Admission(NamedTuple):
    """``prefix``: at how many tokens the request goes on; ``granted``: it has a row now, and slots for its chunk."""

    prefix: int
    granted: bool


class RowSubject(Protocol):
    """An engine's rows, sessions, pools and tree. ``bad`` is asked of those alone whose traits say ``rejects``."""

    traits: Any

    def offers(self, name: str) -> bool:
        """The engine has it: asked are ``reserve``, ``abort_chunked``, ``retract``, ``look``, ``close_waiting``.

        ``abort_chunked``: an abort between two chunks; ``close_waiting``: a close while a turn of the session waits.
        """

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request that waits matches its input (up to the last token but one) and is not admitted; the prefix.

        A turn of a session that has a slot matches that slot, any other request the tree, and nothing stays locked. The
        request is remembered: it may look again, be admitted or be cancelled, always with the same session and input.
        """

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """Matches as ``look`` does and, if there is room, admits the request: its prefix is locked, it gets a row (a
        turn goes on with its slot's), and slots for the rest of its input, but for ``most`` tokens at most (a chunk;
        whole pages). The engine may make room in its tree for them.
        """

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk of a prefill gets its slots, ``most`` tokens at most; false: out of memory."""

    def cache(self, request: int, sampled: int | None) -> None:
        """After each prefill: the prompt goes to the tree as far as the engine does that (``cache_unfinished``).

        ``sampled`` is the first token of the answer; it is ``None`` after a chunk that is not the last.
        """

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One step of a batch: each row gets a slot for its last token, and a token is sampled; false: out of memory.

        The window stays; it moves in ``slide`` alone. Sent where nothing is allocated beyond what is computed.
        """

    def reserve(self, request: int, more: int) -> bool:
        """Slots for ``more`` draft tokens behind the allocated ones, nothing of them computed; false: out of memory."""

    def commit(self, request: int, accepted: list[int]) -> None:
        """That many allocated tokens are computed now, and as many more are sampled (the ids given)."""

    def slide(self, request: int) -> None:
        """The engine moves the window of a request as far as its own reckoning says. Sent right before a ``decode`` or
        ``reserve`` of the request that fits.
        """

    def finish(self, request: int, sent: int) -> None:
        """The request ends. ``sent``: so many tokens of its answer reached the caller (``finished_len``); decoding may
        have run past that. A turn of a session leaves its row to the session's slot, any other to the tree and pools.
        """

    def abort(self, request: int) -> None:
        """The request is aborted while it runs, also between two chunks where the engine offers ``abort_chunked``."""

    def retract(self, request: int, sent: int) -> None:
        """The request gives its row up for lack of memory, and waits. Its input is now ``sent`` tokens longer: all that
        it sampled, or all but the last, which an overlapping scheduler did not know yet.
        """

    def cancel(self, request: int) -> None:
        """A request that waits is aborted."""

    def close(self, session: int) -> bool:
        """The session ends; false: the engine puts that off, and nothing changed."""

    def begin(self) -> None:
        """A free group opens, as while an engine goes through the results of a batch; requests end in it."""

    def end(self) -> None:
        """The free group ends."""

    def evict(self, full: int, swa: int) -> None:
        """The tree is asked to give back so many tokens of either side, as far as nobody reads them."""

    def observe(self) -> Seen:
        """Everything, as it is now."""

    def bad(self, kind: str) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance.session_rules."""
