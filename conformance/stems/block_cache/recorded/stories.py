"""The texts of the requests of a recording, which has digests of whole blocks in the place of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from conformance.driver.shadow import EMPTY
from conformance.recording.block_records import KINDS, RecordedCall, RecordedMove, RecordedStart
from conformance.stems.block_cache.protocol import sizes_of

GET, TOUCH, CACHE, PARTIAL, EVICT, RESET = map(
    KINDS.index, ("get", "touch", "cache", "cache_partial", "evict", "reset")
)


class BlockSizes:
    """What a hash covers in the blocks of each group. ``unit``: the tokens of a hash. ``of_groups``: by group, those of
    a block. A place of a text is counted in hashes, a place of a table in blocks.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.of_groups = sizes_of(config)
        self.unit = int(config.get("unit", config["block_size"]))
        self._each: list[int] = [size // self.unit for size in self.of_groups]

    def last(self, group: int, column: int) -> int:
        """The place in a text of the last hash in a block of a table."""
        return (column + 1) * self._each[group] - 1

    def column(self, group: int, place: int) -> int | None:
        """The place in a table of the block that ends with this hash of a text, ``None`` where none does."""
        blocks, rest = divmod(place + 1, self._each[group])
        return None if rest else blocks - 1

    def is_part(self, group: int, tokens: int) -> bool:
        """Text of so many tokens ends inside a block of the group."""
        return bool(tokens % self.of_groups[group])

    def place(self, tokens: int) -> int:
        """The place of the last hash in so many tokens."""
        return tokens // self.unit - 1


class NamedPlace(NamedTuple):
    """The text of a request up to the end of this place has this digest. ``block``: the block that says so, which
    stands at the place ``column`` of a table; 0 where the recording says it of the request itself.
    """

    request: int
    place: int
    digest: bytes
    block: int
    column: int


class Digests:
    """Which block has which digest now, and which places of texts a record names.

    A block gets a digest when the prefix cache gets the block, and loses it when the block is handed out anew, is
    evicted, or the prefix cache is reset. A place of a request has the digest of a block that the request caches there,
    or that it got there from the prefix cache, unless the recording says that the request's own text has another.
    """

    def __init__(self, sizes: BlockSizes) -> None:
        self._sizes = sizes
        self._of_block: dict[int, bytes] = {}

    def named(self, record: RecordedStart | RecordedCall) -> list[NamedPlace]:
        """What the next record of the recording names."""
        if isinstance(record, RecordedStart):
            return [*self._of_start(record)]
        own = {(request, place): digest for request, place, digest in record.own}
        found = [one for one in self._of_call(record) if own.get((one.request, one.place), one.digest) == one.digest]
        return [*found, *(NamedPlace(*key, digest, 0, 0) for key, digest in own.items())]

    def _of_call(self, call: RecordedCall) -> Iterator[NamedPlace]:
        touched: set[int] = set()
        for move in call.moves:
            if move.kind == CACHE:
                for column, (block, digest) in enumerate(zip(move.blocks, move.names, strict=True), start=move.first):
                    if digest:
                        self._of_block[block] = digest
                        yield NamedPlace(move.request, self._sizes.last(move.group, column), digest, block, column)
            elif move.kind == PARTIAL and move.names:
                yield self._partial(move)
            elif move.kind in (GET, EVICT):
                for block in move.blocks:
                    self._of_block.pop(block, None)
            elif move.kind == TOUCH:
                touched.update(move.blocks)
            elif move.kind == RESET:
                self._of_block.clear()
        for change in call.tables if touched else ():
            for column, block in enumerate(change.more, start=change.keep):
                if block in touched and (known := self._of_block.get(block)) is not None:
                    yield NamedPlace(change.request, self._sizes.last(change.group, column), known, block, column)

    def _partial(self, move: RecordedMove) -> NamedPlace:
        (block,), (digest, whole) = move.blocks, move.names
        if whole:
            self._of_block[block] = whole
        column = -(-move.first // self._sizes.of_groups[move.group]) - 1
        return NamedPlace(move.request, self._sizes.place(move.first), digest, block, column)

    def _of_start(self, start: RecordedStart) -> Iterator[NamedPlace]:
        self._of_block = {block: digest for block, _, digest in start.names}
        apart = {tuple(one[:3]): one[3] for one in start.places}
        for one in start.requests:
            for group, table in enumerate(one.tables):
                for at, block in enumerate(table):
                    if (digest := self._of_block.get(block)) is not None:
                        column = apart.get((one.request, group, block), at)
                        yield NamedPlace(one.request, self._sizes.last(group, column), digest, block, column)


class RecordedStories:
    """The law's map from a story and a place to a prefix. A text has a story for each size of a block.

    A place of a text that no digest has named is a prefix of its own: nobody else has it. When it is named, its number
    becomes that of the digest, unless the digest has a number already (``names``).
    """

    arity = 2

    def __init__(self, sizes: BlockSizes) -> None:
        self._sizes = sizes
        self._requests: list[int] = []  # by text
        self._at: dict[tuple[int, int], int] = {}  # by request and place in its text
        self._of_digest: dict[bytes, int] = {}
        self._taken: set[int] = set()  # the numbers of digests
        self._known: list[tuple[int, int]] = [(0, 0)]  # by number of a prefix, a request and a place with it

    def new(self, request: int, mark: int, text: Iterable[int]) -> int:
        """The number of a new text. The recording knows the text: ``mark`` and ``text`` are not asked."""
        del mark, text
        self._requests.append(request)
        return len(self._requests) - 1

    def cut(self, text: int, group: int) -> int:
        """The story of a text, cut into blocks of the size that this group has: groups of one size have one story."""
        sizes = self._sizes.of_groups
        return text * len(sizes) + sizes.index(sizes[group])

    def __call__(self, story: int, index: int) -> int:
        """The prefix of the story that ends with the block at this place."""
        text, group = divmod(story, len(self._sizes.of_groups))
        if not 0 <= text < len(self._requests) or index < 0:
            return EMPTY
        return self.at(self._requests[text], self._sizes.last(group, index))

    def at(self, request: int, place: int) -> int:
        """The prefix of a request that ends with this place of its text."""
        key = request, place
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
        request, place = self._known[prefix] if 0 < prefix < len(self._known) else (0, 0)
        tokens = (place + 1) * self._sizes.unit
        return f"the first {tokens} tokens of request {request}" if request else "a text that no request has"

    def items(self) -> list[tuple[tuple[int, int], int]]:
        """The places that are known, with their prefixes."""
        groups = {size: group for group, size in reversed([*enumerate(self._sizes.of_groups)])}
        return [
            ((self.cut(text, group), column), number)
            for text, request in enumerate(self._requests)
            for (other, place), number in self._at.items()
            if other == request
            for group in groups.values()
            if (column := self._sizes.column(group, place)) is not None
        ]
