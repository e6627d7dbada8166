"""What a recording of a whole server says, record by record (room ``server``).

A record is one thing that the server did to its memory, packed by msgpack as a list; the first element is its code.
There is no token and no text in it. The token at a place of a text is named by a digest of the digest at the place
before and of the token, under a key that nobody keeps: equal beginnings have equal digests, and nothing else is told.
Requests are numbered from 1 on in the order in which they were first seen, nodes of the tree from 0 on (the root), and
anew with each start and after the cache was emptied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

SERVER_START, SERVER_EVENT = 16, 17  # other numbers than those of the records of block caches
DIGEST_BYTES = 8
INPUT, ANSWER = 0, 1  # the parts of a request's text
NO_NODE = -1  # a request holds what is no node of the tree
NOT_ENDED = -1  # in the place of the length of an answer
UNCHANGED = None
ARRIVED = "arrived"
STRAYED = "strayed"  # the kind of an event: pools or rows were changed by a call that nothing explains
RAISED = "raised"  # the kind of an event: a call has raised an exception, which may end the server
STANDS = "stands"  # the kind of an event: nothing was done, and all that the server has and shows is told


class PoolLists(NamedTuple):
    """The lists of a pool's allocator. ``available``: tokens that it says are free."""

    free: list[int]
    released: list[int]
    available: int


class ServerStart(NamedTuple):
    """A record from which a reader can begin.

    ``engine``, ``version``: what runs. ``config``: as of ``shape`` of ``ServerEngine``. ``unknown``: what of the engine
    no recording says, in words; then there is no verdict. ``overlaps``: the server begins a step before it knows the
    result of the last one. ``standing``: an event of the kind ``STANDS``, with each request that the server has, its
    text as far as it is known, and all that its memory shows, against a memory that shows nothing; ``None`` where there
    is no verdict.
    """

    at: int
    engine: str
    version: str
    config: dict[str, Any]
    unknown: list[str]
    overlaps: bool
    standing: RecordedEvent | None


class RecordedPart(NamedTuple):
    """A request of an event. ``prefix``: as many tokens of its text it has matched. ``sent``: as many tokens of its
    answer count, where it has ended, else ``NOT_ENDED``. ``input``: how many tokens its input has. ``turned_away``: the
    engine will abort it, and has replaced its input.
    """

    request: int
    prefix: int
    sent: int
    input: int
    turned_away: bool


class RecordedTokens(NamedTuple):
    """More tokens of a request's text. ``part``: ``INPUT`` or ``ANSWER``. ``digests``: those of the new tokens, one
    after the other.
    """

    request: int
    part: int
    digests: bytes


class RecordedPass(NamedTuple):
    """What a forward pass computes of a request, see ``ServerPass``. ``digests``: of the tokens from ``start`` on, as
    far as the recorder could name them.
    """

    request: int
    row: int
    start: int
    end: int
    digests: bytes
    slots: list[int]
    samples: bool


class RowChange(NamedTuple):
    """The row of a request that has one. ``slots``: those that the table has from the place ``first`` on; other places
    below ``allocated`` are as before.
    """

    request: int
    row: int
    protected: int
    cursor: int
    committed: int
    allocated: int
    first: int
    slots: list[int]


class PartChange(NamedTuple):
    """A part of a node, for one pool. ``slots``: an empty list where it has none, ``UNCHANGED`` where they are as
    before.
    """

    lock: int
    slots: list[int] | None


class NodeChange(NamedTuple):
    """A node that is new, or has changed. ``parent``: ``NO_NODE`` for the root. ``digests``: of the node's own tokens,
    ``UNCHANGED`` where they are as before. ``parts``: one for each pool.
    """

    node: int
    parent: int
    digests: bytes | None
    parts: list[PartChange]


class ListChange(NamedTuple):
    """A list that has changed: so many elements at its beginning and at its end are as before, and ``middle`` stands
    between them.
    """

    first: int
    last: int
    middle: list[int]

    def of(self, before: Sequence[int]) -> list[int]:
        """The list."""
        return [*before[: self.first], *self.middle, *before[len(before) - self.last :]]


class PoolChange(NamedTuple):
    """How the lists of a pool have changed, see ``PoolLists``; ``UNCHANGED`` where they are as before."""

    free: ListChange | None
    released: ListChange | None
    available: int


class MemoryChange(NamedTuple):
    """What an event changed of what the server shows. Lists are ``UNCHANGED`` where they are as before.

    ``rows``: those that have changed. ``left``: the requests that have no row any more. ``sizes``: the evictable and
    the protected size of the tree, for each pool. ``gone``: nodes that have left. ``holds``: each request, the node
    that it holds, and the node at which its window ends, see ``LockHold``; ``NO_NODE`` for what is none of the tree. A
    request that holds nothing is left out.
    """

    pools: list[PoolChange]
    mapping: ListChange | None
    free_rows: ListChange | None
    rows: list[RowChange]
    left: list[int]
    nodes: list[NodeChange]
    gone: list[int]
    sizes: list[tuple[int, int]]
    holds: list[tuple[int, int, int | None]] | None


class RecordedEvent(NamedTuple):
    """What the server did, see ``ServerEvent``.

    ``kind``: as of ``ServerEvent``, or ``RAISED`` or ``STRAYED``. ``at``: microseconds since 1970. ``function``: the
    engine's function, with the name of the exception that it raised. ``names``: number and the engine's name of
    requests that are new. ``texts``: tokens that have become known since the last event. ``gone``: of ``poll``, the
    requests that have left without a call. ``change``: ``UNCHANGED`` where the server shows what it showed before.
    """

    kind: str
    at: int
    function: str
    names: list[tuple[int, str]]
    texts: list[RecordedTokens]
    requests: list[RecordedPart]
    passes: list[RecordedPass]
    gone: list[int]
    change: MemoryChange | None


def change_of(before: list[int], now: list[int]) -> ListChange | None:
    """How a list has changed: ``UNCHANGED`` if it has not."""
    if before == now:
        return UNCHANGED
    most = min(len(before), len(now))
    if before[len(before) - most :] == now[len(now) - most :]:
        return ListChange(0, most, now[: len(now) - most])
    first = 0
    while first < most and before[first] == now[first]:
        first += 1
    last = 0
    while last < most - first and before[-1 - last] == now[-1 - last]:
        last += 1
    return ListChange(first, last, now[first : len(now) - last])


def digests_of(packed: bytes) -> Iterator[bytes]:
    """The digests that stand one after the other."""
    for at in range(0, len(packed), DIGEST_BYTES):
        yield packed[at : at + DIGEST_BYTES]


def packed_start(start: ServerStart) -> bytes:
    """The bytes of a start."""
    found: bytes = msgpack.packb([SERVER_START, *start])
    return found


def packed_event(event: RecordedEvent) -> bytes:
    """The bytes of an event."""
    found: bytes = msgpack.packb([SERVER_EVENT, *event])
    return found


def is_of_server(data: bytes) -> bool:
    """A record is one of those of this module."""
    return msgpack.unpackb(data, strict_map_key=False)[0] in (SERVER_START, SERVER_EVENT)


def unpacked_server(data: bytes) -> ServerStart | RecordedEvent:
    """The record that these bytes are."""
    code, *rest = msgpack.unpackb(data, strict_map_key=False)
    if code != SERVER_START:
        return _event(rest)
    start = ServerStart(*rest)
    return start if start.standing is None else start._replace(standing=_event([*start.standing]))


def _event(fields: list[Any]) -> RecordedEvent:
    event = RecordedEvent(*fields)
    return event._replace(
        texts=[RecordedTokens(*one) for one in event.texts],
        requests=[RecordedPart(*one) for one in event.requests],
        passes=[RecordedPass(*one) for one in event.passes],
        change=UNCHANGED if event.change is None else _memory(MemoryChange(*event.change)),
    )


def _memory(change: MemoryChange) -> MemoryChange:
    return change._replace(
        pools=[PoolChange(_list(free), _list(released), now) for free, released, now in change.pools],
        mapping=_list(change.mapping),
        free_rows=_list(change.free_rows),
        rows=[RowChange(*one) for one in change.rows],
        nodes=[
            NodeChange(node, parent, digests, [PartChange(*part) for part in parts])
            for node, parent, digests, parts in change.nodes
        ],
    )


def _list(change: Any) -> ListChange | None:
    return UNCHANGED if change is None else ListChange(*change)
