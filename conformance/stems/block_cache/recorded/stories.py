"""The texts of the requests of a recording, which has digests of whole blocks in the place of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conformance.driver.shadow import EMPTY
from conformance.recording.block_records import KINDS, RecordedCall, RecordedStart

GET, TOUCH, CACHE, EVICT, RESET = (KINDS.index(kind) for kind in ("get", "touch", "cache", "evict", "reset"))


class NamedPlace(NamedTuple):
    """The text of a request up to the end of this place has this digest. ``block``: the block that says so, 0 where the
    recording says it of the request itself.
    """

    request: int
    place: int
    digest: bytes
    block: int


class Digests:
    """Which block has which digest now, and which places of requests a record names.

    A block gets a digest when the prefix cache gets the block, and loses it when the block is handed out anew, is
    evicted, or the prefix cache is reset. A place of a request has the digest of a block that the request caches there,
    or that it got there from the prefix cache, unless the recording says that the request's own text has another.
    """

    def __init__(self) -> None:
        self._of_block: dict[int, bytes] = {}

    def named(self, record: RecordedStart | RecordedCall) -> list[NamedPlace]:
        """What the next record of the recording names."""
        if isinstance(record, RecordedStart):
            return [*self._of_start(record)]
        own = {(request, place): digest for request, place, digest in record.own}
        found = [one for one in self._of_call(record) if (one.request, one.place) not in own]
        return [*found, *(NamedPlace(*key, digest, 0) for key, digest in own.items())]

    def _of_call(self, call: RecordedCall) -> Iterator[NamedPlace]:
        touched: set[int] = set()
        for move in call.moves:
            if move.kind == CACHE:
                for place, (block, digest) in enumerate(zip(move.blocks, move.names, strict=True), start=move.first):
                    if digest:
                        self._of_block[block] = digest
                        yield NamedPlace(move.request, place, digest, block)
            elif move.kind in (GET, EVICT):
                for block in move.blocks:
                    self._of_block.pop(block, None)
            elif move.kind == TOUCH:
                touched.update(move.blocks)
            elif move.kind == RESET:
                self._of_block.clear()
        for change in call.tables if touched else ():
            for place, block in enumerate(change.more, start=change.keep):
                if block in touched and (known := self._of_block.get(block)) is not None:
                    yield NamedPlace(change.request, place, known, block)

    def _of_start(self, start: RecordedStart) -> Iterator[NamedPlace]:
        self._of_block = {block: digest for block, _, digest in start.names}
        for one in start.requests:
            for table in one.tables:
                for place, block in enumerate(table):
                    if (digest := self._of_block.get(block)) is not None:
                        yield NamedPlace(one.request, place, digest, block)


class RecordedStories:
    """The law's map from a story and a place to a prefix.

    A place that no digest has named is a prefix of its own: nobody else has it. When it is named, its number becomes
    that of the digest, unless the digest has a number already (``names``).
    """

    arity = 2

    def __init__(self) -> None:
        self._requests: list[int] = []  # by story
        self._at: dict[tuple[int, int], int] = {}  # by request and place
        self._of_digest: dict[bytes, int] = {}
        self._taken: set[int] = set()  # the numbers of digests
        self._known: list[tuple[int, int]] = [(0, 0)]  # by number of a prefix, a request and a place with it

    def new(self, request: int, mark: int, text: Iterable[int]) -> int:
        """The number of a new story. The recording knows the text: ``mark`` and ``text`` are not asked."""
        del mark, text
        self._requests.append(request)
        return len(self._requests) - 1

    def cut(self, text: int, group: int) -> int:
        """The story of a text: in a recording all groups of layers have blocks of one size."""
        del group
        return text

    def __call__(self, story: int, index: int) -> int:
        """The prefix of the story that ends with the block at this place."""
        if not 0 <= story < len(self._requests) or index < 0:
            return EMPTY
        key = self._requests[story], index
        if key not in self._at:
            self._at[key] = self._new(key)
        return self._at[key]

    def names(self, one: NamedPlace) -> tuple[int, int] | None:
        """The recording names a place. Returns the number that the place had and the one that it has now, where these
        differ: who has stored the old one has to change it.
        """
        key, known = (one.request, one.place), self._of_digest.get(one.digest)
        before = self._at.get(key)
        if known is None:
            known = self._new(key) if before is None or before in self._taken else before
            self._of_digest[one.digest] = known
            self._taken.add(known)
        elif not self._known[known][0]:
            self._known[known] = key
        self._at[key] = known
        return None if before in (None, known) else (before, known)

    def of_digest(self, digest: bytes) -> int:
        """The prefix with this digest."""
        if digest not in self._of_digest:
            self._of_digest[digest] = self._new((0, 0))
            self._taken.add(self._of_digest[digest])
        return self._of_digest[digest]

    def _new(self, key: tuple[int, int]) -> int:
        self._known.append(key)
        return len(self._known) - 1

    def name(self, prefix: int) -> str:
        """A prefix in words."""
        if prefix == EMPTY:
            return "nothing"
        request, index = self._known[prefix] if 0 < prefix < len(self._known) else (0, 0)
        return f"the text of request {request} up to its block {index}" if request else "a text that no request has"

    def items(self) -> list[tuple[tuple[int, int], int]]:
        """The places that are known, with their prefixes."""
        return [
            ((story, place), number)
            for story, request in enumerate(self._requests)
            for (other, place), number in self._at.items()
            if other == request
        ]
