"""KV events: what a prefix cache says of its pages, so that a router knows which prefixes it has.

A page has a digest: SHA-256 of the digest of the page before it and of its own tokens. So it stands for all tokens up
to the end of the page. Its *hash* is the number by which events name it, made from the digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from impl import checks

__all__ = ["Block", "EventTypes", "Origin", "Publisher"]

WORD = (1 << 32) - 1  # the bits of a token that are hashed
SHOWN = 8  # bytes of a digest that are the hash

Token = int | tuple[int, int]


@dataclass(frozen=True)
class EventTypes:
    """The engine's types of events. Each is called with the names below that it knows; the others are left out.

    ``stored``: ``block_hashes``, ``parent_block_hash``, ``token_ids``, ``block_size``, ``lora_id``, ``medium``,
    ``cache_salt``, ``session_id``, ``lora_name``. ``removed``: ``block_hashes``, ``medium``. ``cleared``: nothing.
    ``medium``: the name of the memory in which the pages are. ``grouped``: all pages of a node are said in one event;
    without it each page in one of its own.

    ``salt``: the digests of a salted text begin with the digest of these bytes and the salt. ``apart``: the hash of a
    page in a space, made from the hash of the page, the ``extra_key`` and the ``cache_salt`` (None for a space without
    one); None where the engine has no such hashes.
    """

    stored: Callable[..., Any]
    removed: Callable[..., Any]
    cleared: Callable[..., Any]
    medium: Any
    grouped: bool = False
    salt: bytes = b""
    apart: Callable[[int, str | None, str | None], int] | None = None


class Origin(NamedTuple):
    """Where pages come from. ``extra_key``, ``salt``: the space of their text. ``session``: that of the request that
    has computed them.
    """

    extra_key: str | None = None
    salt: str | None = None
    session: str | None = None


class Block(NamedTuple):
    """What names a page: its digest, and the hash by which events name it."""

    digest: bytes
    hash: int


class Publisher:
    """The events of one cache, in a queue that ``take`` empties.

    ``named``: the public name of the adapter that an ``extra_key`` stands for, None if it has none; None where no
    adapter has a public name. ``apart``: every space has hashes of its own. Without it only salted texts and texts of
    an adapter with a public name have: in all other spaces equal texts have equal hashes, so that a hash is stored once
    and removed once for each space that has the page. ValueError if ``named`` or ``apart`` is given and
    ``types.apart`` is None.
    """

    def __init__(
        self, types: EventTypes, page_size: int, named: Callable[[str | None], str | None] | None = None, *,
        apart: bool = False,
    ) -> None:  # fmt: skip
        if types.apart is None and (apart or named is not None):
            raise ValueError("types.apart: expected a function that tells the hashes of spaces apart, got None")
        self._types, self._page_size, self._named, self._apart = types, page_size, named, apart
        self._new_stored, self._new_removed = checks.knowing(types.stored), checks.knowing(types.removed)
        self._queue: list[Any] = []

    def stored(self, tokens: Sequence[Token], after: Block | None, origin: Origin) -> list[Block]:
        """Say that the cache has the pages of these tokens now; returns what names each page.

        ``tokens``: whole pages of token ids, or of pairs of them. ``after``: the page before the first one, None where
        the text begins.
        """
        name = None if self._named is None else self._named(origin.extra_key)
        starts = range(0, len(tokens), self._page_size)
        pages = [list(tokens[start : start + self._page_size]) for start in starts]
        blocks = self._blocks(pages, after, origin, name)
        parents = [None if after is None else after.hash, *(block.hash for block in blocks)]
        step = max(len(pages), 1) if self._types.grouped else 1
        for at in range(0, len(pages), step):
            event = self._new_stored(
                block_hashes=[block.hash for block in blocks[at : at + step]],
                parent_block_hash=parents[at],
                token_ids=[token for page in pages[at : at + step] for token in page],
                block_size=self._page_size,
                lora_id=None,
                medium=self._types.medium,
                cache_salt=origin.salt,
                session_id=origin.session,
                lora_name=name,
            )
            self._queue.append(event)
        return blocks

    def removed(self, nodes: Iterable[Sequence[Block]]) -> None:
        """Say that the cache has these pages no more, node by node."""
        for blocks in nodes:
            hashes = [block.hash for block in blocks]
            for said in [hashes] if self._types.grouped else [[one] for one in hashes]:
                self._queue.append(self._new_removed(block_hashes=said, medium=self._types.medium))

    def cleared(self) -> None:
        """Say that the cache has no page."""
        self._queue.append(self._types.cleared())

    def take(self) -> list[Any]:
        """The events since the last time, oldest first."""
        taken, self._queue = self._queue, []
        return taken

    def _blocks(
        self, pages: Iterable[Sequence[Token]], after: Block | None, origin: Origin, name: str | None
    ) -> list[Block]:
        digest = self._begin(origin) if after is None else after.digest
        extra_key = origin.extra_key if self._apart or name is not None else None
        salt = origin.salt if self._apart else None
        apart = None if (extra_key, salt) == (None, None) else self._types.apart
        blocks = []
        for page in pages:
            digest = hashlib.sha256(digest + _bytes(page)).digest()
            own = int.from_bytes(digest[:SHOWN], "big", signed=True)
            blocks.append(Block(digest, own if apart is None else apart(own, extra_key, salt)))
        return blocks

    def _begin(self, origin: Origin) -> bytes:
        """What the digests of a text begin with."""
        return b"" if origin.salt is None else hashlib.sha256(self._types.salt + origin.salt.encode()).digest()


def _bytes(page: Sequence[Token]) -> bytes:
    """The tokens of a page as they are hashed: 32 bits each, the lowest byte first."""
    words = [part & WORD for token in page for part in (token if isinstance(token, tuple) else (token,))]
    return struct.pack(f"<{len(words)}I", *words)
