"""What an engine must implement to be driven as the stem ``session_trim``: request rows and streaming sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from conformance.driver.protocol import Engine
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot


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
class SessionTrimSnapshot:
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
    pools: SwaMappingSnapshot
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


class SessionTrimEngine(Engine, Protocol):
    """Request rows, streaming sessions, two pools and a tree, driven as a scheduler drives them.

    The caller decides when a request comes, grows and leaves. The engine decides which prefix it matches, which pages
    it hands out, what it inserts into its tree, and how far a window moves. A call that allocates must not insert into
    the tree: ``cache`` does that, in a call of its own.

    Configuration: ``page_size``, ``window`` (tokens), ``size``, ``size_swa`` (pages), ``rows`` (how many requests can
    run), ``sessions`` (numbered from 1), ``need_sort`` (see ``AllocatorEngine``), and ``tree`` (for an engine that has
    several: one of those that it declares, ``conformance.stems.kinds``). ``components``, where there, has ``full`` and,
    for a model with sliding-window layers, ``swa``; without this key the model has such layers. Without them there is
    one pool, whose snapshot is ``SwaMappingSnapshot.without_swa``; ``size_swa`` and ``window`` mean nothing; no cursor
    moves in ``slide``; and ``lacks`` names ``admit_tail`` and ``release_swa``.

    Beside calls, ``lacks`` may name five abilities: ``abort_chunked`` (an abort between two chunks of a prompt),
    ``close_waiting`` and ``close_running`` (a close while a turn of the session waits or runs), ``long_cut`` (``sent``
    leaves more of an answer out than its last step, which no scheduler does, see ``RequestCalls.finish``), and
    ``share_prefix`` (a request reads the tree's pages of its prefix). An engine without ``share_prefix`` copies the
    prefix into pages of the row, whose ``protected`` is 0; it needs memory for them, and says in
    ``SessionTrimSnapshot.copies`` what it has copied. Such an engine is driven with models without sliding-window
    layers.
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

        Sent after each ``admit`` and ``chunk`` that was granted, unless the request leaves before the first token of
        its answer is known: then ``finish`` with no token of an answer, or ``retract``, comes next.

        ``sampled``: the first token of the answer after the last chunk, ``None`` after any other chunk. The engine may
        move the window of the row before it inserts.
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
        conformance/stems/requests/rules.py.
        """

    def snapshot(self) -> SessionTrimSnapshot:
        """Reads rows, sessions, pools and the pages of the tree as they are now, and changes nothing.

        Sent once after each call.
        """
