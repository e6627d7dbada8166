"""The texts of a recording: numbers in the place of token ids.

A digest names a token together with all tokens before it. Here each digest gets a small number, which stands in the
place of a token id everywhere: equal beginnings of texts have equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from conformance.recording.server_records import INPUT, RecordedPass, RecordedTokens, digests_of


class RecordedTexts:
    """The texts of all requests, with the answers that they will have, as far as the recording tells them."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._of: dict[int, list[int]] = {}
        self._unknown: dict[tuple[int, int], int] = {}

    def numbered(self, packed: bytes) -> list[int]:
        """The numbers of digests that stand one after the other. They count from 1."""
        return [self._numbers.setdefault(one, len(self._numbers) + 1) for one in digests_of(packed)]

    def learns(self, more: Iterable[RecordedTokens]) -> None:
        """Tokens have become known."""
        for one in more:
            if one.part == INPUT:
                self._of[one.request] = []
            self._of.setdefault(one.request, []).extend(self.numbered(one.digests))

    def computes(self, one: RecordedPass) -> None:
        """A pass computes tokens. Where no text tells a token, as at the end of a recording, it is the one that its
        pass computes.
        """
        for position, number in enumerate(self.numbered(one.digests), start=one.start):
            self._unknown.setdefault((one.request, position), number)

    def token(self, position: int, request: int, mark: int = 0) -> int:
        """The number at a position of a request's text. A token that the recording never tells is nobody's: it has a
        negative number of its own, unless a pass computes it.
        """
        del mark
        text = self._of.get(request, ())
        if position < len(text):
            return text[position]
        return self._unknown.setdefault((request, position), -1 - len(self._unknown))
