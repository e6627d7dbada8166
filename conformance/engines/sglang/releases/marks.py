"""Marks of texts, and the ``extra_key`` of SGLang's requests and keys.

A mark says what else the KV cache of a text depends on, such as a LoRA adapter or a salt. A run puts it into the high
part of each token id (``requests.MARK``). SGLang has it beside the token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from conformance.stems.requests.request import MARK


def unmarked(tokens: Iterable[int]) -> list[int]:
    """The token ids without their mark."""
    return [token % MARK for token in tokens]


def extra_key(tokens: Sequence[int]) -> str | None:
    """The ``extra_key`` of a text; ``None`` for a text without a mark. All its token ids have one mark."""
    mark = tokens[0] // MARK if len(tokens) else 0
    return str(mark) if mark else None


def marked(key: Any) -> list[int]:
    """The token ids of a ``RadixKey`` with their mark."""
    high = MARK * int(getattr(key, "extra_key", None) or 0)
    return [high + int(token) for token in key]
