"""The texts of the requests of a recording, which has digests of whole blocks in the place of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conformance.driver.shadow import EMPTY
from conformance.recording.block_records import KINDS, RecordedCall, RecordedStart

GET, TOUCH, CACHE, EVICT, RESET = (KINDS.index(kind) for kind in ("get", "touch", "cache", "evict", "reset"))
Places = dict[int, dict[int, bytes]]  # by request and place, the digest of the request's text up to this place's end


class Digests:
    """Collects the digests of a recording: which text each request has at each place, as far as it is ever named.

    A block gets a digest when the prefix cache gets the block, and loses it when the block is handed out anew, is
    evicted, or the prefix cache is reset. A request has the digest of a block that it caches or that it got from the
    prefix cache, unless the recording says that the request's own text has another.
    """

    def __init__(self) -> None:
        self.places: Places = {}
        self._of_block: dict[int, bytes] = {}

    def add(self, record: RecordedStart | RecordedCall) -> None:
        """Reads one record, in the order of the recording."""
        if isinstance(record, RecordedStart):
            self._starts(record)
            return
        touched: set[int] = set()
        for move in record.moves:
            if move.kind == CACHE:
                self._caches(move.request, move.first, move.blocks, move.names)
            elif move.kind in (GET, EVICT):
                for block in move.blocks:
                    self._of_block.pop(block, None)
            elif move.kind == TOUCH:
                touched.update(move.blocks)
            elif move.kind == RESET:
                self._of_block.clear()
        for change in record.tables if touched else ():
            for place, block in enumerate(change.more, start=change.keep):
                if block in touched and (digest := self._of_block.get(block)) is not None:
                    self.places.setdefault(change.request, {}).setdefault(place, digest)
        for request, place, digest in record.own:
            self.places.setdefault(request, {})[place] = digest

    def _caches(self, request: int, first: int, blocks: list[int], names: list[bytes]) -> None:
        for place, (block, digest) in enumerate(zip(blocks, names, strict=True), start=first):
            if digest:
                self._of_block[block] = digest
                self.places.setdefault(request, {})[place] = digest

    def _starts(self, start: RecordedStart) -> None:
        self._of_block = {block: digest for block, _, digest in start.names}
        for one in start.requests:
            for table in one.tables:
                for place, block in enumerate(table):
                    if (digest := self._of_block.get(block)) is not None:
                        self.places.setdefault(one.request, {}).setdefault(place, digest)


class RecordedStories:
    """The law's map from a story and a place to a prefix. A place that no digest names is a prefix of its own: nobody
    else has it.
    """

    arity = 2

    def __init__(self, places: Places) -> None:
        self._places = places
        self._requests: list[int] = []  # by story
        self._numbers: dict[bytes | tuple[int, int], int] = {}
        self._named: list[tuple[int, int]] = [(0, 0)]  # by number of a prefix, a request and a place with it

    def new(self, request: int, mark: int, text: Iterable[int]) -> int:
        """The number of a new story. The recording knows the text: ``mark`` and ``text`` are not asked."""
        del mark, text
        self._requests.append(request)
        return len(self._requests) - 1

    def __call__(self, story: int, index: int) -> int:
        """The prefix of the story that ends with the block at this place."""
        if not 0 <= story < len(self._requests) or index < 0:
            return EMPTY
        request = self._requests[story]
        digest = self._places.get(request, {}).get(index)
        return self._number((story, index) if digest is None else digest, request, index)

    def of_digest(self, digest: bytes) -> int:
        """The prefix with this digest."""
        return self._number(digest, 0, 0)

    def place_of(self) -> Mapping[bytes, int]:
        """By digest, the place at which some request has it."""
        return {digest: place for places in self._places.values() for place, digest in places.items()}

    def _number(self, key: bytes | tuple[int, int], request: int, index: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._named)
            self._named.append((request, index))
        elif request and not self._named[self._numbers[key]][0]:
            self._named[self._numbers[key]] = request, index
        return self._numbers[key]

    def name(self, prefix: int) -> str:
        """A prefix in words."""
        if prefix == EMPTY:
            return "nothing"
        request, index = self._named[prefix] if 0 < prefix < len(self._named) else (0, 0)
        return f"the text of request {request} up to its block {index}" if request else "a text that no request has"

    def items(self) -> list[tuple[tuple[int, int], int]]:
        """The places that digests name, with their prefixes."""
        return [
            ((story, index), self(story, index))
            for story, request in enumerate(self._requests)
            for index in self._places.get(request, {})
        ]
