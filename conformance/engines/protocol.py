"""What an engine must implement to be driven beside the law: one Protocol for each stem. Those of pools of blocks that
requests share stand beside their runs, in ``conformance/block_pool/protocol.py``; the rest is here.

You implement only the Protocols of the stems that you want to check. ``toy.py`` is the smallest example. This file
says what each call must do. It has no code that drives an engine; that is ``conformance.lockstep``.

How an engine is driven: the driver makes a fresh engine for each run, from a configuration (a dict, see the docstring
of each Protocol), reads one snapshot, and sends one call after another. The caller decides what is done: which row
grows by how many tokens, which request ends. The engine decides how: which pages it hands out, what its tree keeps and
evicts. After each call the driver reads one snapshot again. It checks that the engine's choices were lawful, and
compares everything else with the law's state.

All arguments and answers are plain Python numbers, strings and lists:

- A page is a page number of one pool. Page 0 is padding and is never handed out.
- A slot is ``page * page_size + offset``, the place of one token's KV cache. A full slot is a slot of the full pool,
  an SWA slot one of the sliding-window pool.
- A request and a session are small numbers that the caller gives. Sessions count from 1; session 0 means "no session".
- A turn is a request of a streaming session. A session's slot keeps its row between two turns.
- Lengths count tokens, except where a docstring says pages or states. Token ids are positive integers.

An engine that does not have a call names it in ``lacks``; the operation of this name is then never sent. A call that
stands in ``OPTIONAL`` need not be named: an engine without a method of this name lacks it. No engine can
lack a call that other operations need too: ``free_swa`` of a pair of pools, and ``evict``, ``cancel``, ``abort`` and
``close`` of rows. A maker that gets a configuration which the engine does not support raises ``Unsupported``; the
driver then tries another configuration or skips the run.

An engine may refuse a call for lack of memory, and for nothing else. How it refuses (``None``, ``False`` or
``OutOfMemory``) stands at each call; a call without such an answer cannot be refused. A refused call must change
nothing, except that the engine may have evicted unlocked parts of its tree to make room. A call that is refused
although there is room is a finding. Any other exception is a finding too, except from ``bad``. An exception that the
code of Slotproof raised, such as that of an adapter, is no verdict (``conformance.origin``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Json = dict[str, Any]


class EngineError(Exception):
    """An engine cannot be found, downloaded or loaded. The message is one line that says why."""


class Unsupported(Exception):
    """The engine does not support this configuration, or has no such call in it. The message is one line that says
    why.
    """


class Misuse(Exception):
    """A call that no caller may send in this state. A run that contains it says nothing about the engine.

    ``by_engine``: what the engine has chosen rules it out, such as completing a step where it made none.
    On another engine the run may send it.
    """

    def __init__(self, message: str, by_engine: bool = False) -> None:
        super().__init__(message)
        self.by_engine = by_engine


class OutOfMemory(Exception):
    """A call was refused for lack of memory.

    An engine raises this where the answer of the call has no value for "refused".
    """


class TurnedAway(Exception):
    """The engine did not take a request that it must take. An adapter raises this, with what the engine said."""


OPTIONAL = frozenset({"free_segment", "free_swa_segment", "overwrite"})


class Engine(Protocol):
    """What every engine declares.

    ``lacks``: the names of the calls of the stem's Protocol that the engine does not have in this configuration. A
    lacking call is never sent, so the engine needs no method for it. An engine that does not promise to answer bad
    input with a clear error names ``bad`` here. ``snapshot`` cannot be lacking.

    ``fragile``: true if a call for which there is not enough memory may kill the process. The driver then tries such a
    call in a forked process first.

    An engine may have an attribute ``ran``, a dict from names to values, for what of it ran where that is not clear
    from the command line, for instance ``{"core": "rust"}``. The verdict of a stem shows it.
    """

    lacks: Collection[str]
    fragile: bool


def lacking(engine: Engine) -> frozenset[str]:
    """What the engine lacks: what its ``lacks`` names, and the calls in ``OPTIONAL`` for which it has no method."""
    return frozenset(engine.lacks) | {name for name in OPTIONAL if not callable(getattr(engine, name, None))}


# What an engine says of its cache, beside any stem.


@dataclass(frozen=True)
class Told:
    """The KV events that an engine has published since it was last asked, in order, and what it has cached now.

    ``events``: each as msgpack decodes it, see ``conformance.kv_events.wire``. ``pages``: of each cached page the token
    ids from the start of the text to the end of the page. ``keys``: of each cached block its medium, its group of
    layers and its hash, as events name them. An engine says one of the two; the other is ``None``.
    """

    events: Sequence[Any]
    pages: Collection[Key] | None = None
    keys: Collection[tuple[Any, int | None, int | bytes | str]] | None = None


class TellingEngine(Protocol):
    """An engine that publishes KV events. An engine of any stem may have this call; one without it is not asked."""

    def told(self) -> Told | None:
        """Takes the events since the last call, the first time since the engine was made. ``None``: in this
        configuration the engine publishes none. Sent once after each call, after the snapshot.
        """


# One pool of pages: the stem ``allocator``.


@dataclass(frozen=True)
class PoolSnapshot:
    """One pool as it is now.

    ``free``, ``released``: the page numbers on the free list and on the release list, in list order. ``released`` is
    empty in an engine without a release list. ``available``: the available size that the engine reports, in tokens.
    """

    free: list[int]
    released: list[int]
    available: int


class PoolEngine(Engine, Protocol):
    """One paged allocator.

    Configuration: ``page_size`` (tokens), ``size`` (pages, without the padding page), ``rows`` (how many rows the
    caller has; an allocator need not know), and ``need_sort`` (true: freed pages go to a release list, which the
    engine sorts into the free list when it likes).
    """

    def alloc(self, tokens: int) -> list[int] | None:
        """Hands out whole pages for ``tokens`` tokens, a multiple of the page size.

        Sent for a row whose last page is full. Returns the slots, one for each token, page after page, or ``None`` if
        there are too few pages.
        """

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out slots for a batch of rows that grow by any number of tokens, as a prefill does.

        ``before``, ``after``: the length of each row in tokens, before and after the call. ``last``: the slot of each
        row's last token, -1 if the row is empty or has freed this slot. A row must first fill the page of its last
        token, and then new pages, in order. Returns the new slots of all rows, row after row, ``sum(after) -
        sum(before)`` in all, or ``None`` if there are too few pages for the whole batch.
        """

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out one slot for each row of a batch, as a decode step does.

        ``after``: the length of each row after the call, in tokens. ``last``: the slot of each row's last token, -1 if
        the row has freed this slot. Returns one slot for each row, or ``None`` if there are too few pages for the
        whole batch.
        """

    def free(self, slots: Sequence[int]) -> None:
        """Frees every page in which one of these slots lies.

        The caller owns these pages and names each page in one call only. Between ``begin_group`` and ``end_group`` the
        pages become available only when the group ends. Cannot be refused.
        """

    def free_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the pages of a segment of a row, as ``free`` does.

        Optional. ``slots``: those of the row's tokens from ``start`` on, in order and without a gap. ``start`` is a
        multiple of the page size; the segment may end inside a page, and this page is freed, too.
        """

    def overwrite(self, slots: Sequence[int]) -> None:
        """The caller writes ``slots`` into its own table of rows, where the slots of earlier calls of ``free`` stood.

        Optional. A class that turns numbers into tensors writes them into each tensor that it has passed to a call
        that frees, again and again from the first of ``slots`` on. The allocator must not notice: it may keep no view
        of a tensor of its caller.
        """

    def begin_group(self) -> None:
        """Opens a free group: pages that are freed from now on wait until the outermost open group ends.

        Groups may nest. An engine whose groups do not nest raises an ``AssertionError``, ``RuntimeError``,
        ``ValueError`` or ``TypeError`` with a message where a group is open, and changes nothing.
        """

    def end_group(self) -> None:
        """Ends the innermost free group. The end of the outermost group makes the waiting pages available.

        Sent also where no group is open, as after ``clear``: then it changes nothing, or raises as ``begin_group``.
        """

    def backup(self) -> None:
        """Saves the state of the pool inside the engine. A later backup replaces it."""

    def restore(self) -> None:
        """Restores the last backup: every page that was handed out since is free again.

        Sent only if no page was freed since the backup. The same backup may be restored again.
        """

    def clear(self) -> None:
        """Frees every page, as when the cache is flushed. Afterwards the pool is as it was before the first call."""

    def bad(self, kind: str, row: int) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: ``free_again`` (a
        page that is free already), ``free_padding`` (slot 0), ``alloc_negative`` (a negative number of tokens),
        ``free_outside`` (a slot beyond the pool), ``end_group`` (no group is open). ``row`` is a small number that
        varies the input. See ``BAD`` in conformance/pool_rules.py.
        """

    def snapshot(self) -> PoolSnapshot:
        """Reads the pool as it is now, and changes nothing. Sent once after each call."""


# Two pools and the mapping between them: the stem ``swa_mapping``.


@dataclass(frozen=True)
class PairSnapshot:
    """Two pools and the mapping as they are now.

    ``mapping``: full_to_swa_index_mapping, the SWA slot of each full slot, by full slot number from 0 on; 0 where
    there is none.
    """

    full: PoolSnapshot
    swa: PoolSnapshot
    mapping: list[int]

    @classmethod
    def without_swa(cls, full: PoolSnapshot) -> PairSnapshot:
        """One pool, as the memory of a model without sliding-window layers: the SWA pool has no page, and no slot is
        mapped.
        """
        return cls(full, PoolSnapshot([], [], 0), [])


class PairEngine(Engine, Protocol):
    """One allocator of a full pool and a sliding-window (SWA) pool, and the mapping from full slots to SWA slots.

    Calls take and return full slots; the engine looks up the SWA slots in its mapping. Configuration: that of
    ``PoolEngine``, with ``size`` the pages of the full pool and ``size_swa`` the pages of the SWA pool.
    """

    def alloc(self, tokens: int) -> list[int] | None:
        """Hands out whole pages in both pools for ``tokens`` tokens, a multiple of the page size, and maps them.

        Each full page is mapped to one SWA page, each slot to the slot with its offset. Sent for a row whose last page
        is full. Returns the full slots, page after page, or ``None`` if either pool has too few pages.
        """

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out slots in both pools for a batch of rows that grow by any number of tokens, as a prefill does.

        Every new full slot is mapped to an SWA slot. ``before``, ``after``: the length of each row in tokens, before
        and after the call. ``last``: the full slot of each row's last token, -1 if the row is empty or does not own
        this slot. A row must first fill the full page and the SWA page of its last token, and then new pages. Returns
        the new full slots of all rows, row after row, or ``None`` if either pool has too few pages for the whole
        batch.
        """

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Hands out one slot in both pools for each row of a batch, and maps it.

        ``after``: the length of each row after the call, in tokens. ``last``: the full slot of each row's last token,
        -1 if the row does not own this slot. Returns one full slot for each row, or ``None`` if either pool has too
        few pages for the whole batch.
        """

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """Hands out slots for a new row of ``tokens`` tokens, of which only the last ``tail`` get SWA slots.

        Disaggregated decode does this: only the window of the prompt was transferred. The earlier tokens must map to
        nothing (0). ``tail`` is between 0 and ``tokens`` and may start inside a page; a mapped slot keeps its offset.
        Returns ``tokens`` full slots, or ``None`` if either pool has too few pages.
        """

    def free(self, slots: Sequence[int]) -> None:
        """Frees the full pages in which these full slots lie, and the SWA pages that they map to.

        Free full slots map to nothing. In a free group the pages become available only when the outermost group ends.
        The SWA page of a slot may be gone already. An engine whose contract excludes such slots has the word
        ``free_unmapped`` in ``lacks``: pages without an SWA page are then sent to ``free_full`` instead, and never to
        ``free_swa``.
        """

    def free_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the pages of a segment of a row in both pools, as ``free`` does.

        Optional. ``slots``: those of the row's tokens from ``start`` on, in order and without a gap. ``start`` is a
        multiple of the page size; the segment may end inside a page, and this page is freed, too. The first slot of
        each page is mapped.
        """

    def free_swa(self, slots: Sequence[int]) -> None:
        """Frees the SWA pages that these full slots map to.

        The full pages stay with their row. Sent when these tokens have left the window. The slots fill whole full
        pages. They may be unmapped already (but see ``free``), and then nothing happens. In a free group the engine
        chooses when the SWA pages become available, and when their full slots map to nothing: now, or when the
        outermost group ends. It frees the pages that the slots map to now, whatever is mapped until the end.
        """

    def free_swa_segment(self, slots: Sequence[int], start: int) -> None:
        """Frees the SWA pages of a segment of a row, as ``free_swa`` does.

        Optional. ``slots``, ``start``: as for ``free_segment``; the segment ends on a page boundary.
        """

    def free_full(self, slots: Sequence[int]) -> None:
        """Frees the full pages of these full slots, as a tree evicts a tombstone.

        Sent only for full pages whose SWA pages were freed before. In a free group the engine chooses when the pages
        become available: now, or when the outermost group ends.
        """

    def overwrite(self, slots: Sequence[int]) -> None:
        """The caller writes ``slots`` into its own table of rows, where the slots of earlier calls of ``free`` stood.

        Optional. A class that turns numbers into tensors writes them into each tensor that it has passed to a call
        that frees, again and again from the first of ``slots`` on. The allocator must not notice: it may keep no view
        of a tensor of its caller.
        """

    def begin_group(self) -> None:
        """Opens a free group: what ``free`` frees from now on waits until the outermost open group ends.

        Groups may nest. An engine whose groups do not nest raises an ``AssertionError``, ``RuntimeError``,
        ``ValueError`` or ``TypeError`` with a message where a group is open, and changes nothing.
        """

    def end_group(self) -> None:
        """Ends the innermost free group. The end of the outermost group makes the waiting pages of both pools
        available.

        Sent also where no group is open, as after ``clear``: then it changes nothing, or raises as ``begin_group``.
        """

    def backup(self) -> None:
        """Saves both pools and the mapping inside the engine. A later backup replaces it."""

    def restore(self) -> None:
        """Restores the last backup of both pools and of the mapping.

        Every page that was handed out since is free again and maps to nothing. Sent only if no page was freed since
        the backup. The same backup may be restored again.
        """

    def clear(self) -> None:
        """Frees every page of both pools, as when the cache is flushed. Afterwards nothing is mapped."""

    def bad(self, kind: str, row: int) -> None:
        """Makes one call of its own with bad input, of a kind and with the answer that ``PoolEngine.bad`` lists."""

    def snapshot(self) -> PairSnapshot:
        """Reads both pools and the mapping as they are now, and changes nothing. Sent once after each call."""


# A radix tree with lock counts: the stem ``lock_ref``.


@dataclass(frozen=True)
class NodePart:
    """One component (``full``, ``swa`` or ``mamba``) of a tree node.

    ``slots``: the slots of the component, one for each token of the node's key (``mamba``: one state slot), in its own
    pool. It is ``None`` for a tombstone (``swa``), and where the node has no state (``mamba``). ``lock``: the lock
    count of the component; ``None`` where the engine does not show it. ``held``: whether the lock count is above zero,
    for an engine that shows no more than that; ``None`` where it does not show that either.
    """

    slots: list[int] | None
    lock: int | None
    held: bool | None = None


@dataclass(frozen=True)
class NodeSnapshot:
    """One tree node: its number, its parent's number, its key, and its parts by component.

    ``id`` stays with the node; the root has the id 0 and the parent ``None``. ``key``: the node's own token ids, those
    of its ancestors not included.
    """

    id: int
    parent: int | None
    key: list[int]
    parts: Mapping[str, NodePart]


@dataclass(frozen=True)
class TreeSnapshot:
    """The tree as it is now.

    ``nodes``: all nodes with the root, each after its parent. ``evictable``, ``protected``: the sizes that the tree
    reports for each component, in tokens (``mamba``: states). ``free``: the numbers of the available pages of each
    component's pool (``mamba``: state slots).
    """

    nodes: list[NodeSnapshot]
    evictable: Mapping[str, int]
    protected: Mapping[str, int]
    free: Mapping[str, list[int]]


class Match(NamedTuple):
    """What a match has found.

    ``length``: how many tokens. ``node``: the id of the node at which the matched prefix ends. ``slots``: its full
    slots.
    """

    length: int
    node: int
    slots: list[int]


class Inserted(NamedTuple):
    """What an insert has done.

    ``prefix``: how many tokens of the key the tree had already. ``fresh``: the full slots that the engine allocated
    for the row's tokens from ``protected`` on, in order. Slots of tokens after the last whole page may be left out.
    """

    prefix: int
    fresh: list[int]


class TreeEngine(Engine, Protocol):
    """A radix tree over its pools, called by requests that hold lock handles.

    Configuration: ``page_size`` (tokens), ``components`` (which of ``full``, ``swa`` and ``mamba`` the tree has),
    ``size``, ``size_swa`` (pages), ``size_mamba`` (states), ``window`` (tokens), and ``kind``, for an
    engine that has several trees: ``unified`` (any components), ``radix`` and ``pure_swa`` (``full`` alone; the latter
    over the one pool of a model whose layers all have a window), ``swa_radix`` (``full`` and ``swa``) or
    ``mamba_radix`` (``full`` and ``mamba``).

    Beside calls, ``lacks`` may name two abilities: ``state_goes_early`` (see ``release_swa``), and ``counts_missing``
    (see ``pin``).
    """

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """A request inserts its row into the tree.

        The engine first allocates the slots of the row that the tree does not own. ``tokens``: the key, token ids from
        the root on. ``protected``: the length of the cached prefix, in tokens; the tree owns its slots, and the
        request holds a handle on it. ``cursor``: before the insert the engine frees the SWA slots of the row's own
        tokens below it, since they have left the window. ``protected`` and ``cursor`` are multiples of the page size.

        Pages that the tree has already are freed as duplicates, or revive tombstones. A tombstone that no handle holds
        may take over the row's full slots with their SWA slots. A tombstone that a handle holds keeps its own full
        slots and takes over the SWA slots alone; the row's full slots are freed. With ``mamba`` the row brings a state
        for its last node; a node that has a state keeps its own. Tokens after the last whole page are not inserted.
        Returns ``None`` if there is not enough memory.
        """

    def match(self, tokens: list[int]) -> Match:
        """Finds the longest prefix of the token ids in the tree that a request may lock.

        The prefix must end at a node, no node of its window may be a tombstone, and with ``mamba`` the node must have
        a state. A match of length 0 ends at the root. The call may split nodes and change the order of use, and
        nothing else.
        """

    def copy_on_write(self, tokens: list[int]) -> Match:
        """Matches for a request that wants its own copy of the node's mamba state. Returns the match.

        The tree may evict an unlocked state for the copy, and may lock the matched node meanwhile. Sent only in a tree
        with ``mamba``, and only if a state is free or another node can give one up. The copy itself is freed before
        the call returns.
        """

    def acquire(self, node: int) -> int:
        """Locks a node (its ``id`` in the snapshot) that a match has just returned.

        Returns a new number for the lock handle. The handle locks the full part of the path up to the root, the SWA
        parts of the window that ends at the node, and the node's state.
        """

    def pin(self, node: int) -> int:
        """Locks a node (its ``id`` in the snapshot) for a caller that keeps it in the tree and goes on from nothing.

        Returns a new number for the lock handle, as ``acquire`` does. Nodes of the window may be tombstones, and the
        node may have no state. The engine either skips a missing part, or raises its lock count. In the second case
        the handle holds the part as soon as it comes to life. An engine that has the ability ``counts_missing`` raises
        it, also where its snapshot does not show the lock counts of missing parts. The window ends where its tokens
        fill the window, and the tokens of tombstones count or do not count.
        """

    def compact(self) -> None:
        """Merges nodes into their parents, where a node is the only child and all handles hold both nodes alike.

        The merged node may have the number of either. An engine that merges nodes in other calls lacks this one.
        """

    def release(self, handle: int, caller: str) -> None:
        """Releases a handle, which must give back exactly what it still holds.

        ``caller`` says what the caller has kept of the handle. ``request``: everything, also whether the SWA part was
        released early. ``session``: a streaming session has kept no note of an early release. ``temporary``: a lock
        around one call, never released early.
        """

    def release_swa(self, handle: int) -> None:
        """Releases the SWA part of a handle early; the handle keeps the rest.

        Sent at most once for a handle, after a long decode. The state stays locked, unless the engine has the ability
        ``state_goes_early``: then the state's lock is released too, and ``release`` does not release it again.
        """

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Evicts nodes and parts of nodes that no handle holds, until enough is freed or nothing more can be evicted.

        ``full``, ``swa``: how much to free of each pool, in tokens. ``mamba``: how many states to free.
        """

    def bad(self, kind: str) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: see ``BAD`` in
        conformance/lock_ref/rules.py.
        """

    def snapshot(self) -> TreeSnapshot:
        """Reads the tree and its pools as they are now, and changes nothing. Sent once after each call."""


# Request rows and streaming sessions: the stem ``session_trim``.


class Lengths(NamedTuple):
    """The lengths of a row, all in tokens.

    ``protected``: the cached prefix, whose slots the tree owns. ``cursor``: swa_evicted_seqlen, below which the row
    has freed the slots of its window. ``committed``: tokens that are computed. ``allocated``: tokens that have slots.
    """

    protected: int
    cursor: int
    committed: int
    allocated: int


@dataclass(frozen=True)
class RowSnapshot:
    """One row in use.

    ``row``: the engine's number for it. ``slots``: its first ``allocated`` full slots in ``req_to_token``. ``gap``:
    where every layer has a sliding window, the row gave back the slots of its tokens from ``gap`` up to the cursor;
    none where ``gap`` is not below the cursor.
    """

    row: int
    lengths: Lengths
    slots: list[int]
    gap: int = 0


@dataclass(frozen=True)
class TreePage:
    """One whole page that the tree owns.

    ``index``: which page of its text it is, from 0 on. ``swa``: its SWA slots are there.
    """

    index: int
    swa: bool


@dataclass(frozen=True)
class RowsSnapshot:
    """Rows, session slots, pools, and the pages of the tree as they are now.

    ``requests``: the row of each request that runs, from a granted ``admit`` until it ends, is aborted or is
    retracted. A request that waits is not here. ``sessions``: the row in each session's slot, while no request of this
    session runs. ``free_rows``: the engine's list of idle rows as it is; a row that is listed twice stands here twice.
    ``tree``: each page that the tree owns, by full page number; it may stay empty in ``CacheSnapshot``. ``copies``: the
    tokens whose KV cache the last ``admit`` has copied, in order, each as the full slot that was read and the one that
    was written; for an engine that lacks the ability ``share_prefix``.
    """

    requests: Mapping[int, RowSnapshot]
    sessions: Mapping[int, RowSnapshot]
    free_rows: list[int]
    pools: PairSnapshot
    tree: Mapping[int, TreePage] = field(default_factory=dict)
    copies: Sequence[tuple[int, int]] = ()


class Admission(NamedTuple):
    """The answer of ``admit``.

    ``prefix``: the number of tokens at which the request goes on, since they are cached. ``granted``: the request has
    a row now, and slots for its first chunk; false if there is not enough memory.
    """

    prefix: int
    granted: bool


class Arrival(NamedTuple):
    """The answer of ``overlapping_turn``: what became of the new request.

    ``kind`` is ``turn`` if the request waits, with ``text`` as its input. It is ``stub`` if the engine turned the
    request away by giving it an input of one token (``text``) in its place. The driver admits the stub as any request
    that waits, and then aborts it.
    """

    kind: str
    text: list[int]


class RowEngine(Engine, Protocol):
    """Request rows, streaming sessions, two pools and a tree, driven as a scheduler drives them.

    The caller decides when a request comes, grows and leaves. The engine decides which prefix it matches, which pages
    it hands out, what it inserts into its tree, and how far a window moves. A call that allocates must not insert into
    the tree: ``cache`` does that, in a call of its own.

    Configuration: ``page_size``, ``window`` (tokens), ``size``, ``size_swa`` (pages), ``rows`` (how many requests can
    run), ``sessions`` (numbered from 1), ``need_sort`` (see ``PoolEngine``), and ``tree`` (``unified`` or another
    name: which of several trees, for an engine that has them). ``components``, where there, has ``full`` and, for a
    model with sliding-window layers, ``swa``; without this key the model has such layers. Without them there is one
    pool, whose snapshot is ``PairSnapshot.without_swa``; ``size_swa`` and ``window`` mean nothing; no cursor moves in
    ``slide``; and ``lacks`` names ``admit_tail`` and ``release_swa``.

    Beside calls, ``lacks`` may name four abilities: ``abort_chunked`` (an abort between two chunks of a prompt),
    ``close_waiting`` and ``close_running`` (a close while a turn of the session waits or runs), and ``share_prefix`` (a
    request reads the tree's pages of its prefix). An engine without ``share_prefix`` copies the prefix into pages of
    the row, whose ``protected`` is 0; it needs memory for them, and says in ``RowsSnapshot.copies`` what it has copied.
    Such an engine is driven with models without sliding-window layers.
    """

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """A request that waits matches its input and is not admitted.

        Returns the number of tokens at which it would go on. ``tokens``: its whole input. At most all tokens but the
        last are matched, since one must be computed. A turn of a session whose slot has a row matches that slot, and
        the row may be cut to the returned length. Any other request matches the tree. Nothing stays locked. Afterwards
        the request may look again, be admitted or be cancelled, always with this session and input.
        """

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """Matches as ``look`` does and admits the request if there is room.

        An admitted request has a lock on its prefix, a row (a session's later turn has the row of its slot), and slots
        for the next ``most`` tokens of its input, or for the rest if that is shorter. The engine may evict from its
        tree to make room. Without enough memory ``granted`` is false, the call has changed only what ``look`` may
        change, and the request waits.
        """

    def admit_tail(self, request: int, session: int, tokens: list[int]) -> Admission:
        """Admits a request whose input is computed elsewhere, as where a prefill server sends the KV of a prompt.

        Matches the tree, not a session's slot: a session with a row is not sent this. The request gets a lock on its
        prefix, a row, and slots for the whole input, which counts as computed when the call returns. Only a tail of the
        input, which holds the window before the next token, needs SWA slots. The engine chooses where the tail starts,
        which is then the request's cursor, and how long the prefix is; the prefix ends where the tail starts or before.
        The lock need not hold SWA slots that no later token reads. Without enough memory ``granted`` is false, and
        nothing has changed. After a granted call ``cache`` is sent with the first token of the answer.
        """

    def interrupted_admit(self, request: int, session: int, tokens: list[int], most: int) -> int:
        """As ``admit``, with an exception between the allocation of slots and their use.

        The engine raises the exception itself, as late as it can, and answers it as it does for any exception. The
        request waits again, and has neither row, slots, lock nor states. The call has changed only what ``look`` may
        change, also where there is not enough memory. Returns the prefix.
        """

    def interrupted_chunk(self, request: int, most: int) -> None:
        """As ``chunk``, with an exception between the allocation of slots and their use; nothing may have changed."""

    def interrupted_decode(self, requests: list[int]) -> None:
        """As ``decode``, with an exception between the allocation of slots and their use; nothing may have changed."""

    def chunk(self, request: int, most: int) -> bool:
        """Allocates slots for the next ``most`` tokens of the prompt, or for the rest if that is shorter.

        False if there is not enough memory. Sent while the prompt is not computed to its end.
        """

    def cache(self, request: int, sampled: int | None) -> None:
        """Inserts the computed part of the prompt into the tree, as far as the engine does that
        (``cache_unfinished_req``).

        Sent after each ``admit`` and ``chunk`` that was granted. ``sampled``: the first token of the answer after the
        last chunk, ``None`` after any other chunk. The engine may move the window of the row before it inserts.
        """

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One decode step of a batch: each row gets a slot for its last token, which is computed.

        Then the next token of each request is sampled; ``sampled`` has their ids. False if there is not enough memory
        for the whole batch. The window must not move here, but in ``slide``. Sent only for requests whose allocated
        tokens are all computed.
        """

    def reserve(self, request: int, more: int) -> bool:
        """Allocates slots for ``more`` draft tokens after the allocated ones; none of them is computed yet.

        False if there is not enough memory.
        """

    def roll_back(self, request: int, count: int) -> None:
        """The last ``count`` allocated tokens are given back: the draft is not accepted, or its step failed.

        None of them is computed. A page that has other tokens of the row stays.
        """

    def checkpoint(self, request: int, upto: int) -> None:
        """A request that runs puts its first ``upto`` tokens into the tree, as far as the engine does that.

        The request goes on. The tree owns what it took; the request reads it there and holds a lock on it. ``upto``: at
        most what is computed, and for a turn of a session at most its input. A draft may be allocated beyond it.
        """

    def commit(self, request: int, accepted: list[int]) -> None:
        """A draft is verified: the next ``len(accepted)`` allocated tokens are computed.

        ``accepted``: the token ids that are sampled by this and join the answer.
        """

    def slide(self, request: int) -> None:
        """Moves the request's window as far as the engine itself would, and frees the SWA slots before the new cursor.

        Sent right before a ``decode`` or ``reserve`` of the request for which there is room.
        """

    def finish(self, request: int, sent: int) -> None:
        """The request ends.

        A session's turn saves its row in the session's slot; any other request gives its row to tree and pools.
        ``sent``: how many tokens of the answer reached the caller (``finished_len``). Decoding may have run past them.
        """

    def abort(self, request: int) -> None:
        """A request that runs is aborted.

        It may be between two chunks of its prompt, unless the engine lacks ``abort_chunked``.
        """

    def retract(self, request: int, sent: int) -> None:
        """The request gives up its row for lack of memory, and waits to be admitted again.

        Its input is then its old input and the first ``sent`` tokens of its answer. ``sent`` is all of the answer, or
        all but the last token where an overlapping scheduler does not know that token yet.
        """

    def cancel(self, request: int) -> None:
        """A request that waits is aborted. It must keep nothing."""

    def close(self, session: int) -> bool:
        """The session ends.

        True: its slot has given everything back. False: the engine puts the close off because a turn of the session
        waits or runs, and nothing has changed.
        """

    def overlapping_turn(self, request: int, session: int, new: list[int], unsupported: bool) -> Arrival:
        """A client sends a request of a session while another one of this session waits or runs.

        ``new``: the token ids that it adds to the text. ``unsupported``: it is a kind of request that streaming
        sessions do not serve; then the session may have no other request.
        """

    def begin_group(self) -> None:
        """Opens a free group, as while an engine processes the results of a batch.

        Requests may end in it; pages that they free become available when the outermost group ends.
        """

    def end_group(self) -> None:
        """Ends the free group."""

    def evict(self, full: int, swa: int) -> None:
        """Asks the tree to free so many tokens of the full and of the SWA pool.

        It frees only what no request and no slot has locked.
        """

    def bad(self, kind: str) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: see ``BAD`` in
        conformance/request_rules.py.
        """

    def snapshot(self) -> RowsSnapshot:
        """Reads rows, sessions, pools and the pages of the tree as they are now, and changes nothing.

        Sent once after each call.
        """


# Mamba state slots: the stem ``mamba_slots``.

Key = tuple[int, ...]  # the token ids from the root to the end of a node
Three = tuple[int, int, int]  # the state slots of the own state, of the first and of the second track; 0: absent
NO_SLOTS: Three = (0, 0, 0)


class SlotNames(NamedTuple):
    """The state slots that a request's record or a session's slot names.

    ``next``: which track is written next, 0 or 1. The snapshot has 0 for an absent slot, whatever the engine itself
    writes.
    """

    slots: Three = NO_SLOTS
    next: int = 0


@dataclass(frozen=True)
class StatesSnapshot:
    """The mamba state slots as they are now.

    ``free``: the free list. ``available``: the available size that the engine reports, in state slots. ``waiting``:
    slots that an open group has set aside and nobody has taken yet. ``requests``: what the record of each request
    names, also of requests that are gone if the engine keeps the record. ``rows``: what the kernels read for each
    request's row. ``sessions``: what each session's slot names. ``nodes``: the state slot of each tree node that has
    one, by ``Key``. ``copies``: the states that were copied since the snapshot before, in order, each as the slot that
    was read and the slot that was written; ``None`` in an engine that does not show this.
    """

    free: list[int]
    available: int
    waiting: list[int] = field(default_factory=list)
    requests: Mapping[int, SlotNames] = field(default_factory=dict)
    rows: Mapping[int, Three] = field(default_factory=dict)
    sessions: Mapping[int, SlotNames] = field(default_factory=dict)
    nodes: Mapping[Key, int] = field(default_factory=dict)
    copies: Sequence[tuple[int, int]] | None = None


class StateEngine(Engine, Protocol):
    """A pool of mamba state slots, with requests, sessions and a tree that own them.

    Configuration: ``size`` (state slots), ``requests``, ``sessions`` (how many), ``tree`` (which tree, for an engine
    that has several: ``mamba_radix``, ``unified`` or ``unified_swa``). The track buffer of a request: ``buffered`` (it
    has one), ``doubled`` (of two slots), ``lazy`` (the second slot exists only around a tracking boundary).
    """

    def match(self, request: int, tokens: list[int], session: int, again: bool) -> Key | None:
        """A request comes and matches its prefix.

        Returns the tree node of whose state it got a copy, ``None`` if it got none. ``tokens``: its input; for a
        session's later turn the tokens after the session's text. Such a turn takes over the states of the session's
        slot and gets no copy. ``again``: the request object that was here before comes again. Raises ``OutOfMemory``
        if there is no slot for the copy; the request is then gone.
        """

    def admit(self, requests: list[int]) -> None:
        """A batch of requests gets its rows, and the state slots and track buffers that the requests lack.

        The tree may evict states for it. Raises ``OutOfMemory`` if there are too few slots for the whole batch. A
        request that runs already keeps what it has.
        """

    def track(self, request: int) -> None:
        """A tracking boundary: the state is written to the next slot of the track buffer.

        Then the other slot is next, unless the buffer is lazy.
        """

    def boundary(self, request: int) -> None:
        """Before a tracking boundary a lazy track buffer gets its second slot.

        If none is free, it stays without; that is no error.
        """

    def settle(self, request: int) -> None:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""

    def slide(self, request: int) -> None:
        """The request decodes so long that its window moves past the tokens after which its state was tracked."""

    def cache(self, request: int) -> None:
        """A request that runs puts its newest state into the tree (``cache_unfinished_req``).

        Raises ``OutOfMemory`` if there is no slot for a copy.
        """

    def finish(self, request: int) -> None:
        """A request ends.

        A session's turn saves its slots in the session's slot. Any other request may give its newest state to the
        tree, and frees the rest.
        """

    def abort(self, request: int) -> None:
        """A request that runs is aborted."""

    def retract(self, request: int) -> None:
        """A request that runs gives up its row for lack of memory, and may come again."""

    def withdraw(self, request: int) -> None:
        """A request that waits is aborted. It may have a copy of a state, or the states of its session."""

    def close(self, session: int) -> None:
        """A session ends while no request of it is here. Its slot frees its states."""

    def evict(self, states: int) -> None:
        """Asks the tree to free so many states. It frees only states that no request has locked."""

    def begin_group(self, need: int) -> None:
        """Opens a group, which sets ``need`` state slots aside for a batch, or none if fewer are free.

        Groups may nest.
        """

    def end_group(self) -> None:
        """Ends the innermost group. The end of the outermost group frees the slots that nobody took."""

    def clear(self) -> None:
        """Frees every slot, as when the cache is flushed.

        Sent while no request is here. Afterwards tree and sessions are empty, and no group is open.
        """

    def bad(self, kind: str) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: see ``BAD`` in
        conformance/mamba_slots/rules.py.
        """

    def snapshot(self) -> StatesSnapshot:
        """Reads lists, records, rows, sessions and tree states as they are now, and changes nothing.

        Sent once after each call.
        """


# The whole cache: the stem ``cache``.


class LockHold(NamedTuple):
    """What a request or a session's slot holds in the tree.

    ``node``, ``top``: the ids of the locked node and of the node at which its window ends. ``top`` is ``None`` where
    the lock has no SWA part, since it was given back early. ``text``: the token ids from the root to the end of the
    node. ``state``: it holds the node's mamba state too. For a node that has left the tree only its id is known: then
    ``top`` is -1 and ``text`` is empty.
    """

    node: int
    top: int | None
    text: list[int]
    state: bool = False


@dataclass(frozen=True)
class CacheSnapshot:
    """Rows and pools, the tree, the locks, and the mamba states as they are now.

    ``holds``: by ``("request", number)`` for each request that runs and ``("session", number)`` for each slot that has
    a row, where it holds something. ``states``: ``None`` in a cache without mamba states.
    """

    rows: RowsSnapshot
    tree: TreeSnapshot
    holds: Mapping[tuple[str, int], LockHold]
    states: StatesSnapshot | None


class CacheEngine(RowEngine, Protocol):
    """A whole cache: a ``RowEngine`` whose tree, locks and mamba states can be read too.

    Configuration: that of ``RowEngine``; ``components`` (``full``, ``swa``, and ``mamba`` in a cache with states);
    with states also ``size_mamba`` (state slots) and ``buffered``, ``doubled``, ``lazy`` (see ``StateEngine``). An
    engine without states lacks ``track``, ``boundary`` and ``settle``.
    """

    def track(self, request: int) -> None:
        """The state at the last page boundary is written to the request's track buffer.

        Sent after tokens up to there are computed.
        """

    def release_swa(self, request: int) -> None:
        """A request that decodes gives back the SWA part of its lock early, where the engine would do so now.

        It may do so once no later token reads SWA slots of the tree, and with the same call give back the lock on the
        node's state. An engine may also do so in any other call on the request; the snapshot shows it (``LockHold``).
        """

    def boundary(self, request: int) -> None:
        """Before a tracking boundary a lazy track buffer gets its second slot.

        If none is free, it stays without; that is no error.
        """

    def settle(self, request: int) -> None:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """Asks the tree to free so many tokens of the full and of the SWA pool, and so many mamba states.

        It frees only what nobody has locked.
        """

    def compact(self) -> None:
        """The tree merges nodes into their parents, as ``TreeEngine.compact`` does."""

    def cache_snapshot(self) -> CacheSnapshot:
        """Reads everything as it is now, and changes nothing. Sent once after each call, in place of ``snapshot``."""
