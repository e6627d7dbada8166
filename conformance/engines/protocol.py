"""What an engine must answer so that it can be driven beside the law: one small Protocol a stem.

An engine is driven by plain numbers: rows, requests, sessions (from 1; 0 is no session), token ids and numbers of
tokens. It never chooses what is done, only how: which page it hands out, what its tree keeps. After each call the driver
takes one snapshot, asks the law whether what changed was lawful, and compares the rest.

What an engine does not have, it declares: ``lacks`` names the calls of its Protocol that it has no counterpart for, and
building an engine in a configuration that it does not support raises ``Unsupported``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Json = dict[str, Any]


class EngineError(Exception):
    """An engine cannot be found, downloaded or loaded; the message is one line that says why."""


class Unsupported(Exception):
    """The engine does not support this configuration; the message is one line that says why."""


class Misuse(Exception):
    """A call that no caller may send in this state; a run that contains it proves nothing."""


class OutOfMemory(Exception):
    """A call that answers with something else than slots was refused for want of memory; nothing has changed."""


class Engine(Protocol):
    """What every engine declares.

    ``lacks``: the names of the calls (of the stem's Protocol) that it does not have in this configuration; ``bad`` is
    among them where it does not promise to answer bad input with a clear error.
    ``fragile``: a call for which there is no room may kill the process, so it is tried in a forked process first.
    """

    lacks: Collection[str]
    fragile: bool


# One pool of pages: the stem ``allocator``.


@dataclass(frozen=True)
class PoolSnapshot:
    """A pool: the page numbers on its free list and on its release list, in list order; its available size in tokens."""

    free: list[int]
    released: list[int]
    available: int


class PoolEngine(Engine, Protocol):
    """One paged allocator. A slot is ``page * page_size + offset``; page 0 is padding and never handed out."""

    def alloc(self, tokens: int) -> list[int] | None:
        """Slots of whole pages for ``tokens`` tokens; ``None``: out of memory."""

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Slots for rows that grow from ``before`` to ``after`` tokens, row after row; ``None``: out of memory.

        ``last``: the slot of each row's last token, -1 for an empty row.
        """

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """One slot for each row, which has ``after`` tokens then; ``None``: out of memory."""

    def free(self, slots: Sequence[int]) -> None:
        """Gives back the pages of these slots."""

    def begin_group(self) -> None:
        """Opens a free group: what is freed waits for its end."""

    def end_group(self) -> None:
        """Ends the free group."""

    def backup(self) -> None:
        """Takes a backup, and keeps it."""

    def restore(self) -> None:
        """Restores the last backup."""

    def clear(self) -> None:
        """Every page is free again."""

    def bad(self, kind: str, row: int) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance/allocator/rules.py."""

    def snapshot(self) -> PoolSnapshot:
        """The pool as it is now."""


# Two pools and the mapping between them: the stem ``swa_mapping``.


@dataclass(frozen=True)
class PairSnapshot:
    """Both pools, and the SWA slot of each full slot, 0 where there is none."""

    full: PoolSnapshot
    swa: PoolSnapshot
    mapping: list[int]


class PairEngine(Protocol):
    """An allocator of a full and a sliding-window (SWA) pool; the calls of ``PoolEngine`` work on both."""

    lacks: Collection[str]
    fragile: bool

    def alloc(self, tokens: int) -> list[int] | None:
        """As ``PoolEngine.alloc``, in both pools."""

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """As ``PoolEngine.extend``, in both pools."""

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """As ``PoolEngine.decode``, in both pools."""

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """Slots for a new row of ``tokens`` tokens, of which only the last ``tail`` get SWA slots."""

    def free(self, slots: Sequence[int]) -> None:
        """Gives back the full pages of these slots, and the SWA pages that they map to."""

    def free_swa(self, slots: Sequence[int]) -> None:
        """Gives back the SWA side of these full slots, which have left the window."""

    def free_full(self, slots: Sequence[int]) -> None:
        """Gives back the full side alone of slots whose SWA side is gone, as a tree does with a tombstone."""

    def begin_group(self) -> None:
        """Opens a free group."""

    def end_group(self) -> None:
        """Ends the free group."""

    def backup(self) -> None:
        """Takes a backup, and keeps it."""

    def restore(self) -> None:
        """Restores the last backup."""

    def clear(self) -> None:
        """Every page is free again, and nothing is mapped."""

    def bad(self, kind: str, row: int) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance/allocator/rules.py."""

    def snapshot(self) -> PairSnapshot:
        """Both pools and the mapping as they are now."""


# A radix tree with lock counts: the stem ``lock_ref``.


@dataclass(frozen=True)
class NodePart:
    """What a component (``full``, ``swa``, ``mamba``) has on a node: its slots, ``None`` for a tombstone; its lock
    count; and the token that marks the end of a window there, where the engine uses one.
    """

    slots: list[int] | None
    lock: int
    token: int | None = None


@dataclass(frozen=True)
class NodeSnapshot:
    """A node: its key (token ids after its parent's) and its parts by component. The root is 0 and has no parent."""

    id: int
    parent: int | None
    key: list[int]
    parts: Mapping[str, NodePart]


@dataclass(frozen=True)
class TreeSnapshot:
    """The tree, parents first; its evictable and protected sizes; and the free pages (``mamba``: slots) of each pool."""

    nodes: list[NodeSnapshot]
    evictable: Mapping[str, int]
    protected: Mapping[str, int]
    free: Mapping[str, list[int]]


class Match(NamedTuple):
    """How many tokens match, at which node that ends, in which full slots."""

    length: int
    node: int
    slots: list[int]


class Inserted(NamedTuple):
    """How many tokens of the key the tree had already, and the full slots that the caller had allocated for the rest."""

    prefix: int
    fresh: list[int]


class TreeEngine(Engine, Protocol):
    """A radix tree over its pools, called by requests that hold lock handles."""

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """A request caches its row; ``None``: out of memory. The first ``protected`` slots are the tree's own, the others
        are allocated now; the SWA side of those below ``cursor`` was given back before.
        """

    def match(self, tokens: list[int]) -> Match:
        """The longest prefix in the tree that a request may use."""

    def copy_on_write(self, tokens: list[int]) -> Match:
        """Matches for a request that wants a copy of the mamba state; the tree may lock and evict for it."""

    def acquire(self, node: int) -> int:
        """Locks a node (its number in the snapshot); the number of the handle."""

    def release(self, handle: int, caller: str) -> None:
        """Gives a handle back with what its ``caller`` has kept of it: ``request``, ``session``, or ``temporary``."""

    def release_swa(self, handle: int) -> None:
        """Gives back the SWA part of a handle early, after a long decode."""

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Asks the tree to free at least so many tokens of each pool, and states."""

    def bad(self, kind: str) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance/lock_ref/rules.py."""

    def snapshot(self) -> TreeSnapshot:
        """The tree as it is now."""


# Request rows and streaming sessions: the stem ``session_trim``.


class Lengths(NamedTuple):
    """The lengths of a row, in tokens: the tree's part, the SWA cursor, what is computed, what has slots."""

    protected: int
    cursor: int
    committed: int
    allocated: int


@dataclass(frozen=True)
class RowSnapshot:
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
class RowsSnapshot:
    """Rows, session slots, pools, and the pages of the tree.

    ``requests``: those that run, from ``admit`` to the end (one that only looked, was retracted or cancelled is none).
    ``sessions``: those whose slot has a row, while no request of theirs runs. ``free_rows``: as the engine lists them,
    twice where it lists them twice. ``tree``: by full page; a cache run does not read it.
    """

    requests: Mapping[int, RowSnapshot]
    sessions: Mapping[int, RowSnapshot]
    free_rows: list[int]
    pools: PairSnapshot
    tree: Mapping[int, TreePage] = field(default_factory=dict)


class Admission(NamedTuple):
    """``prefix``: at how many tokens the request goes on; ``granted``: it has a row now, and slots for its chunk."""

    prefix: int
    granted: bool


class Arrival(NamedTuple):
    """What became of a second request of a session: a ``turn`` that waits with this text, or a ``stub``: the engine has
    turned the request away, and runs one token in its place that it aborts then.
    """

    kind: str
    text: list[int]


class RowEngine(Engine, Protocol):
    """An engine's rows, sessions, pools and tree, driven as its scheduler drives them. Everything that decides is the
    engine's own. A call that lacks the memory says so, and changes nothing but what a match changes. No call that
    allocates also caches, since the law is asked after each call.

    May be lacking beside the calls: ``abort_chunked`` (an abort between two chunks of a prompt), ``close_waiting`` and
    ``close_running`` (a close while a turn of the session waits or runs).
    """

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request that waits matches its input, up to the last token but one, and is not admitted; the prefix.

        A turn of a session that has a slot matches that slot, any other request the tree, and nothing stays locked. The
        request is remembered: it may look again, be admitted or be cancelled, always with this session and input.
        """

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """Matches as ``look`` does and, if there is room, admits the request: its prefix is locked, it gets a row (a turn
        goes on with its slot's), and slots for the rest of its input, but for ``most`` tokens at most (a chunk; whole
        pages). The engine may make room in its tree for them.
        """

    def chunk(self, request: int, most: int) -> bool:
        """The next chunk of a prefill gets its slots, ``most`` tokens at most; false: out of memory."""

    def cache(self, request: int, sampled: int | None) -> None:
        """After each prefill: the prompt goes to the tree as far as the engine does that (``cache_unfinished_req``).

        ``sampled`` is the first token of the answer; it is ``None`` after a chunk that is not the last.
        """

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One step of a batch: each row gets a slot for its last token, and a token is sampled; false: out of memory.

        The window moves in ``slide`` alone. Sent where nothing is allocated beyond what is computed.
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
        """The request is aborted while it runs, also between two chunks unless the engine lacks ``abort_chunked``."""

    def retract(self, request: int, sent: int) -> None:
        """The request gives its row up for lack of memory, and waits. Its input is now ``sent`` tokens longer: all that
        it sampled, or all but the last, which an overlapping scheduler did not know yet.
        """

    def cancel(self, request: int) -> None:
        """A request that waits is aborted."""

    def close(self, session: int) -> bool:
        """The session ends; false: the engine puts that off, and nothing changed."""

    def overlapping_turn(self, request: int, session: int, new: list[int], unsupported: bool) -> Arrival:
        """Another request of a session that has one, or one of a kind that streaming sessions do not serve."""

    def begin_group(self) -> None:
        """A free group opens, as while an engine goes through the results of a batch; requests end in it."""

    def end_group(self) -> None:
        """The free group ends."""

    def evict(self, full: int, swa: int) -> None:
        """The tree is asked to give back so many tokens of either side, as far as nobody reads them."""

    def bad(self, kind: str) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance/session_trim/rules.py."""

    def snapshot(self) -> RowsSnapshot:
        """Everything, as it is now, the pages of the tree too."""


# Mamba state slots: the stem ``mamba_slots``.

Key = tuple[int, ...]  # the tokens from the root to the end of a node
Three = tuple[int, int, int]  # slots of the own state, of the first and of the second track; 0: none
NO_SLOTS: Three = (0, 0, 0)


class SlotNames(NamedTuple):
    """The slots that a request's record or a session's slot names, and which of its two tracks is written next.

    An absent slot is 0, whatever an engine writes for it.
    """

    slots: Three = NO_SLOTS
    next: int = 0


@dataclass(frozen=True)
class StatesSnapshot:
    """The free list as it is, the available size, what waits in a group, and what everybody names.

    ``rows``: what the kernels read of each request's row. ``nodes``: the state of each node of the tree that has one.
    """

    free: list[int]
    available: int
    waiting: list[int] = field(default_factory=list)
    requests: Mapping[int, SlotNames] = field(default_factory=dict)
    rows: Mapping[int, Three] = field(default_factory=dict)
    sessions: Mapping[int, SlotNames] = field(default_factory=dict)
    nodes: Mapping[Key, int] = field(default_factory=dict)


class StateEngine(Engine, Protocol):
    """A pool of mamba state slots with requests, sessions and a tree over it. ``OutOfMemory``: no slot is free."""

    def match(self, request: int, tokens: list[int], session: int, again: bool) -> Key | None:
        """A request comes and matches its prefix (``again``: the request object that was there before); the node of whose
        state it was given a slot for a copy, ``None`` for none. ``OutOfMemory``: there is no slot for the copy.
        """

    def admit(self, requests: list[int]) -> None:
        """A batch gets its rows and slots. ``OutOfMemory``: they do not suffice."""

    def track(self, request: int) -> None:
        """A boundary: the state is written to the next track, and (unless the buffer is lazy) the other one is next."""

    def boundary(self, request: int) -> None:
        """Before a boundary a lazy buffer gets its second slot, if there is room."""

    def settle(self, request: int) -> None:
        """After a boundary a lazy buffer gives the other slot back."""

    def slide(self, request: int) -> None:
        """A long decode moves the window past what was tracked."""

    def cache(self, request: int) -> None:
        """A request that goes on puts its state into the tree. ``OutOfMemory``: there is no slot for a copy."""

    def finish(self, request: int) -> None:
        """A request ends well."""

    def abort(self, request: int) -> None:
        """A running request is aborted."""

    def retract(self, request: int) -> None:
        """A running request makes room for others, and will come again."""

    def withdraw(self, request: int) -> None:
        """A waiting request is aborted."""

    def close(self, session: int) -> None:
        """A session ends."""

    def evict(self, states: int) -> None:
        """The tree gives up states, as far as nobody holds them."""

    def begin_group(self, need: int) -> None:
        """A group sets slots aside."""

    def end_group(self) -> None:
        """The group ends: what is left of it is free."""

    def clear(self) -> None:
        """Everything starts anew between requests."""

    def bad(self, kind: str) -> None:
        """Sends bad input of one kind, see ``BAD`` in conformance/mamba_slots/rules.py."""

    def snapshot(self) -> StatesSnapshot:
        """Everything, as it is now."""


# The whole cache: the stem ``cache``.


class LockHold(NamedTuple):
    """What a request, or a session's slot, holds in the tree: a node and where its window ends (numbers as in the tree's
    snapshot), the tokens from the root to the node's end, and whether it holds the node's state. Of a node that has left
    the tree there is the number alone: ``top`` is -1 and ``text`` is empty.
    """

    node: int
    top: int
    text: list[int]
    state: bool = False


@dataclass(frozen=True)
class CacheSnapshot:
    """Rows and pools, the tree, who holds what of it, and the states, ``None`` in a cache without.

    ``holds``: by ("request", number) for those that run, and ("session", number) for slots that have a row.
    """

    rows: RowsSnapshot
    tree: TreeSnapshot
    holds: Mapping[tuple[str, int], LockHold]
    states: StatesSnapshot | None


class CacheEngine(RowEngine, Protocol):
    """A ``RowEngine`` whose tree, locks and states can be read too."""

    def track(self, request: int) -> None:
        """The state at the last page boundary was written to the request's track buffer."""

    def boundary(self, request: int) -> None:
        """Before a boundary a lazy buffer gets its second slot, if there is room."""

    def settle(self, request: int) -> None:
        """After a boundary a lazy buffer gives the older slot back."""

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """As ``RowEngine.evict``; and so many states."""

    def cache_snapshot(self) -> CacheSnapshot:
        """Everything, as it is now."""
