"""The texts of a recording: numbers in the place of token ids.

A digest names a token together with all tokens before it. Here each digest gets a small number, which stands in the
place of a token id everywhere: equal beginnings of texts have equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from conformance.recording.server_records import INPUT, RecordedPass, RecordedTokens, digests_of


class RecordedTexts:
    """The texts of all requests, with the answers that they will have, as far as the recording tells them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._of: dict[int, list[int]] = {}
        self._place: dict[int, tuple[int, int]] = {}  # by number, the request that has it first, and where
        self._unknown: dict[tuple[int, int], int] = {}

    def numbered(self, packed: bytes) -> list[int]:
        """The numbers of digests that stand one after the other. They count from 1."""
        return [self._numbers.setdefault(one, len(self._numbers) + 1) for one in digests_of(packed)]

    def learns(self, more: Iterable[RecordedTokens]) -> None:
        """Tokens have become known."""
        for one in more:
            if one.part == INPUT:
                self._of[one.request] = []
            text = self._of.setdefault(one.request, [])
            for number in self.numbered(one.digests):
                self._place.setdefault(number, (one.request, len(text)))
                text.append(number)

    def length(self, request: int) -> int:
        """How many tokens of a request's text are told."""
        return len(self._of.get(request, ()))

    def computes(self, one: RecordedPass) -> None:
        """A pass computes tokens. Where no text tells a token, as at the end of a recording, it is the one that its
        pass computes.
        """
        for position, number in enumerate(self.numbered(one.digests), start=one.start):
            self._unknown.setdefault((one.request, position), number)

    def name(self, key: Sequence[int]) -> str:
        """The node of a tree with this key, in words."""
        request, at = self._place.get(key[-1], (0, 0)) if key else (0, 0)
        return f"the node of the first {at + 1} tokens of request {request}" if request else f"the node {[*key]}"

    def token(self, position: int, request: int, mark: int = 0) -> int:
        """The number at a position of a request's text. A token that the recording never tells is nobody's: it has a
        negative number of its own, unless a pass computes it.
        """
        del mark
        text = self._of.get(request, ())
        if position < len(text):
            return text[position]
        return self._unknown.setdefault((request, position), -1 - len(self._unknown))
