"""Marks of texts, and the ``extra_key`` and ``cache_salt`` of SGLang's requests and keys.

A mark says what else the KV cache of a text depends on, such as a LoRA adapter or a salt. A run puts it into the high
part of each token id (``requests.MARK``). SGLang has it beside the token ids, and texts of two ``extra_key`` or of two
``cache_salt`` share nothing. The mark ``SALTED`` is a salt of the same name that the mark 1 has as ``extra_key``: a
release that takes the one for the other gives a request the KV cache of another text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conformance.stems.requests.request import MARK

SALTED = 2  # the mark that is a salt, where the release has salts
NAME = "1"  # of the salt, and of the ``extra_key`` for the mark 1


def unmarked(tokens: Iterable[int]) -> list[int]:
    """The token ids without their mark."""
    return [token % MARK for token in tokens]


def space(tokens: Sequence[int], salts: bool) -> dict[str, str]:
    """The ``extra_key`` or ``cache_salt`` of a text, whose token ids all have one mark; empty for a text without one.
    ``salts``: the release has ``cache_salt``.
    """
    mark = tokens[0] // MARK if len(tokens) else 0
    if mark == SALTED and salts:
        return {"cache_salt": NAME}
    return {"extra_key": str(mark)} if mark else {}


def marked(key: Any) -> list[int]:
    """The token ids of a ``RadixKey`` with their mark."""
    high = MARK * mark_of(getattr(key, "extra_key", None), getattr(key, "cache_salt", None))
    return [high + int(token) for token in key]


def mark_of(extra_key: str | None, cache_salt: str | None) -> int:
    """The mark of a key with this ``extra_key`` and ``cache_salt``. A key that has both has a mark that no run sends; a
    salt of another name than ``NAME`` has no mark.
    """
    return int(extra_key or 0) + SALTED * (cache_salt == NAME)
