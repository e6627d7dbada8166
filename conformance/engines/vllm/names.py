"""What a hash of vLLM's prefix cache is the hash of.

A hash is a digest, and says nothing. So whatever is hashed is written down: for each digest the text up to the end of
its block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

Text = tuple[int, ...]


class DigestTexts:
    """The text of each digest that was made in a run, with the mark of its request before it (0: no mark)."""

    def __init__(self) -> None:
        self._texts: dict[bytes, tuple[int, Text]] = {}
        self._digests: dict[tuple[int, Text], bytes] = {}

    def text(self, digest: bytes) -> tuple[int, Text] | None:
        """Mark and tokens; ``None`` if nobody has made this digest.

        In older releases the hash of a block that is larger than what is hashed at once is made of all the digests in
        it, one behind the other.
        """
        known = self._texts.get(digest)
        return self._joined(digest) if known is None else known

    def _joined(self, digests: bytes) -> tuple[int, Text] | None:
        """The text of the last of these digests, each of which is of a text that goes on from the one before."""
        each = len(next(iter(self._texts), digests))
        found = [self._texts.get(digests[at : at + each]) for at in range(0, len(digests), each)]
        for one, more in pairwise(found):
            if one is None or more is None or one[0] != more[0] or more[1][: len(one[1])] != one[1]:
                return None
        return found[-1] if len(found) > 1 else None

    def blocks_of(self, digest: bytes, count: int, size: int) -> list[bytes]:
        """The digests of the last ``count`` blocks of the text of a digest, each with ``size`` tokens."""
        known = self._texts.get(digest)
        assert known is not None, "a digest that no request has made"
        mark, text = known
        return [self._digests[mark, text[: len(text) - back * size]] for back in reversed(range(count))]

    def written_down(self, hasher: Callable[[Any], list[bytes]], size: int, mark: int) -> Callable[[Any], list[bytes]]:
        """The hasher of a request whose text has ``mark``, which writes down what it hashes. ``size``: the tokens of a
        block.
        """

        def hashed(request: Any) -> list[bytes]:
            made = hasher(request)
            if made:
                self._note(made, request.all_token_ids, len(request.block_hashes), size, mark)
            return made

        return hashed

    def _note(self, made: Sequence[bytes], tokens: Sequence[int], before: int, size: int, mark: int) -> None:
        whole = tuple(tokens[: (before + len(made)) * size])
        for at, digest in enumerate(made, start=before + 1):
            self._texts[digest] = known = (mark, whole[: at * size])
            self._digests[known] = digest
