"""Names of the tokens of texts: digests in a chain, under a key that nobody keeps.

The digest at a place of a text is a keyed hash of the digest at the place before and of the token. So two texts have
equal digests as far as they are equal, and who has the file and not the key can try out no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from conformance.recording.server_records import DIGEST_BYTES

TOKEN_BYTES = 8


class TokenDigests:
    """The digests under one key."""

    def __init__(self, key: bytes) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES, key=key)

    def of(self, tokens: Iterable[int], before: bytes) -> bytes:
        """The digests of tokens that follow the place with the digest ``before``, one after the other."""
        found, copy = bytearray(), self._hash.copy
        for token in tokens:
            one = copy()
            one.update(before)
            one.update(token.to_bytes(TOKEN_BYTES, "little", signed=True))
            before = one.digest()
            found += before
        return bytes(found)

    def root(self, named: Any) -> bytes:
        """The digest before the first token of a text. ``named``: what the KV cache of its tokens depends on beside the
        tokens, such as an adapter or a salt.
        """
        one = self._hash.copy()
        one.update(repr(named).encode())
        return one.digest()


class TextOfRequest:
    """The digests of a request's text as far as it is known: the input, and the answer so far.

    ``input``: those of the input. ``answered``: how many tokens of the answer are known.
    """

    def __init__(self, digests: TokenDigests, named: Any, tokens: Iterable[int]) -> None:
        self._digests, self._root = digests, digests.root(named)
        self._packed = bytearray(digests.of(tokens, self._root))
        self.input = bytes(self._packed)
        self.answered = 0

    @property
    def answer(self) -> bytes:
        """The digests of the answer so far."""
        return bytes(self._packed[len(self.input) :])

    def answers(self, tokens: Iterable[int]) -> bytes:
        """The answer goes on with these tokens. Returns their digests."""
        more = self._digests.of(tokens, self.before(len(self._packed) // DIGEST_BYTES))
        self._packed += more
        self.answered += len(more) // DIGEST_BYTES
        return more

    def before(self, place: int) -> bytes:
        """The digest before the token at a place; empty bytes where the text is not known so far."""
        if place == 0:
            return self._root
        return bytes(self._packed[(place - 1) * DIGEST_BYTES : place * DIGEST_BYTES])

    def named(self, place: int, tokens: Iterable[int]) -> bytes:
        """The digests of tokens that a pass computes from a place of this text on; empty bytes where it is not known so
        far.
        """
        before = self.before(place)
        return self._digests.of(tokens, before) if before else b""
