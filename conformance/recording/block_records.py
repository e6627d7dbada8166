"""What a recording of a scheduler over a cache of blocks says, record by record (stem ``block_cache``).

A record is one call to the scheduler, packed by msgpack as a list. The first element is its code. There is no token
and no text in it: a text is named by digests of the engine's block hashes under a key that nobody keeps. Requests are
numbered from 1 on in the order in which they came, blocks as the engine numbers them (0: the null block).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from conformance.recording.segments import NotARecording

START, ADD, LAUNCH, DONE, ABORT, RESET, OUTSIDE = range(7)
CODES = {START: "start", ADD: "add", LAUNCH: "launch", DONE: "done", ABORT: "abort", RESET: "reset", OUTSIDE: "outside"}
KINDS = (
    *("get", "touch", "free", "cache", "cache_partial", "evict", "reset", "move_hashes", "unpin"),
    *("copy", "free_copies"),
)
NOBODY = -1  # in the place of a request or a group that is not known


class RecordedMove(NamedTuple):
    """One thing that was done to blocks, see ``Move`` of ``conformance.stems.block_cache.protocol``.

    ``kind``: its place in ``KINDS``; with ``copy`` the request goes on in a copy of the first block, the second one, at
    the place ``first`` of its table, and with ``free_copies`` copies that are made give back the blocks that they held.
    ``blocks``: 0 where a block is left out. ``refs``: the reference counts that the blocks have when the call is over,
    of moves that change them. ``names``: the digests of the hashes of whole blocks that the blocks have then, empty
    bytes for a block without one; given for ``cache``, and else only where a block has one that should have none. Of
    ``cache_partial``: the digest of the hash that the block has got, and that of the hash of the whole block.
    """

    kind: int
    request: int
    group: int
    first: int
    blocks: list[int]
    refs: list[int]
    names: list[bytes]


class TableChange(NamedTuple):
    """How the table of a request in a group of layers has changed: the first ``keep`` places stay, but for
    ``changed`` (place, block, place, block and so on), and ``more`` blocks follow.
    """

    request: int
    group: int
    keep: int
    changed: list[int]
    more: list[int]


class RecordedCall(NamedTuple):
    """One call.

    ``at``: microseconds since 1970 at its end. ``function``: the engine's function. ``moves``, ``tables``: in order.
    ``available``: free blocks afterwards. ``own``: request, place and digest, where the hash of a request's own text
    is another than that of the block that it got there, and where it goes on in a copy of a block; a place is that of
    a hash in the text. ``ended``, ``preempted``: requests. ``raised``: the
    name of the exception that the call raised, else empty. ``rest``: what only a call of this code says, see below.
    ``parts``: of the blocks whose hashes the call may have changed, those that are found for parts of them, and the
    digests of these.

    ``ADD``: request, tokens of its prompt, the engine's name of the request. ``LAUNCH``: ``RecordedLaunch``. ``DONE``:
    ``RecordedDone``. ``ABORT``: those that were aborted. ``RESET``: whether it was done. ``OUTSIDE``: blocks changed
    between two calls.
    """

    code: int
    at: int
    function: str
    moves: list[RecordedMove]
    tables: list[TableChange]
    available: int
    own: list[tuple[int, int, bytes]]
    ended: list[int]
    preempted: list[int]
    raised: str
    rest: list[Any]
    parts: Sequence[tuple[int, list[bytes]]] = ()


class RecordedLaunch(NamedTuple):
    """A step was launched: its number from 1 on; its requests in their order and how many tokens each computes; for
    those that did not run before, and for those for which it is not what was computed before, request and start; those
    of them that are new, and resumed; request and number of drafts, for those that have any; the blocks that the
    workers copy before it, each as source and target; and request, group, tokens and place of the table, where a pass
    leaves the state after so many tokens of the request, which are not its last, at this place.
    """

    step: int
    requests: list[int]
    counts: list[int]
    starts: list[tuple[int, int]]
    new: list[int]
    resumed: list[int]
    drafts: list[tuple[int, int]]
    copies: Sequence[tuple[int, int]] = ()
    states: Sequence[tuple[int, int, int, int]] = ()


class RecordedDone(NamedTuple):
    """A step is done: its number; how many tokens each of its requests has sampled, a byte each, in their order;
    request and number of computed tokens, where that has changed since the launch.
    """

    step: int
    sampled: bytes
    computed: list[tuple[int, int]]


class RecordedRequest(NamedTuple):
    """A request at a start. ``name``: the engine's name of it. ``status``: ``waiting``, ``running`` or ``preempted``.
    ``drafts``: of its passes in flight, the oldest first.
    """

    request: int
    name: str
    status: str
    computed: int
    tables: list[list[int]]
    drafts: list[int]


class RecordedStart(NamedTuple):
    """The whole state.

    ``engine``, ``version``: what runs. ``config``: as of ``BlockCacheEngine``, as far as the judge needs it; and
    ``unit``, the tokens that a hash covers. ``unknown``: what of the engine no recording says, in words; then there is
    no verdict. ``available``: free blocks. ``refs``: of blocks 1 and on. ``names``: block, group and digest of whole
    blocks. ``steps``: those in flight, as they were launched. ``parts``: as of ``RecordedCall``. ``places``: request,
    group, block and place, where a state stands at another place of a table than its own.
    """

    at: int
    engine: str
    version: str
    config: dict[str, Any]
    unknown: list[str]
    available: int
    refs: list[int]
    names: list[tuple[int, int, bytes]]
    requests: list[RecordedRequest]
    steps: list[RecordedLaunch]
    parts: Sequence[tuple[int, list[bytes]]] = ()
    places: Sequence[tuple[int, int, int, int]] = ()


def packed(record: list[Any]) -> bytes:
    """The bytes of a record."""
    found: bytes = msgpack.packb(record)
    return found


def unpacked(data: bytes) -> RecordedCall | RecordedStart:
    """The record that these bytes are. Raises ``NotARecording`` for one of another kind of server."""
    code, *rest = msgpack.unpackb(data, strict_map_key=False)
    if code not in CODES:
        raise NotARecording("it is of a whole server, not of a scheduler with its blocks")
    if code == START:
        start = RecordedStart(*rest)
        return start._replace(
            requests=[RecordedRequest(*one) for one in start.requests],
            steps=[RecordedLaunch(*one) for one in start.steps],
        )
    call = RecordedCall(code, *rest)
    return call._replace(
        moves=[RecordedMove(*move) for move in call.moves], tables=[TableChange(*table) for table in call.tables]
    )
