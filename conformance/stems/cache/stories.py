"""The stories of a run of ``cache``: the law's number of the whole text of each request that comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from conformance.driver.shadow import PrefixNumbers
from conformance.stems.requests.request import RunRequest, Sampled, token
from spec import contents
from spec.contents import Contents

MOST = 1 << 31  # no run has so many requests


class Stories:
    """The whole texts of requests: what each asked, and the answer that it will have. A story gets a number, from 0.

    A run samples known tokens (``requests.token``), so that a text is known before it is computed. ``texts``: the
    numbers of prefixes; a text that is asked for a token gets as many numbers as it needs. ``sampled``: which token is
    sampled at a position of the text of a fork.
    """

    arity = 3

    def __init__(self, page_size: int, texts: PrefixNumbers, sampled: Sampled = token) -> None:
        self.page_size, self.texts, self._sampled = page_size, texts, sampled
        self._known: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self._asked: list[RunRequest] = []  # of each story, the request that told it first
        self._prefixes: list[list[int]] = []

    def of(self, request: RunRequest) -> int:
        """The number of a request's story. Equal stories have one number."""
        known = request.mark, request.fork, tuple(request.tokens)
        if known not in self._known:
            self._known[known] = len(self._asked)
            self._asked.append(replace(request, tokens=list(request.tokens), sampled=[]))
            self._prefixes.append([])
        return self._known[known]

    def __call__(self, story: int, index: int, offset: int) -> int:
        """The number of the prefix of the story that ends at this page index and offset, 0 where there is none."""
        at = index * self.page_size + offset
        if not 0 <= story < len(self._asked) or at < 0:
            return contents.UNWRITTEN
        known = self._prefixes[story]
        while len(known) <= at:
            known.append(self.texts.longer(known[-1] if known else 0, self._token(story, len(known))))
        return known[at]

    def _token(self, story: int, position: int) -> int:
        asked = self._asked[story]
        if position < len(asked.tokens):
            return asked.tokens[position]
        return self._sampled(position, asked.fork, asked.mark)

    def items(self) -> Iterator[tuple[Any, int]]:
        """The keys that were asked for, with their values."""
        for story, known in enumerate(self._prefixes):
            yield from (((story, *divmod(at, self.page_size)), prefix) for at, prefix in enumerate(known))

    def contents(self) -> Contents:
        """The law's contents of pages that nobody has written."""
        return contents.initial(MOST, self)
