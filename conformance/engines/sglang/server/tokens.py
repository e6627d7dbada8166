"""Long lists of token ids, written short: as Python, and for a reader of an HTTP call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

PYTHON, HTTP = 8, 64  # how many numbers, each one more than the one before, are written short


def as_python(tokens: Sequence[int]) -> str:
    """An expression of Python: ``[*range(1, 257), 7778]``."""
    return _written(tokens, PYTHON, lambda first, last: f"*range({first}, {last + 1})")


def as_json(tokens: Sequence[int]) -> str:
    """What stands in the body of a call: ``[1, 2, ..., 256, 7778]``."""
    return _written(tokens, HTTP, lambda first, last: f"{first}, {first + 1}, ..., {last}")


def _written(tokens: Sequence[int], most: int, short: Callable[[int, int], str]) -> str:
    parts = (short(run[0], run[-1]) if len(run) >= most else json.dumps(run)[1:-1] for run in _runs(tokens))
    return f"[{', '.join(parts)}]"


def _runs(tokens: Sequence[int]) -> Iterator[list[int]]:
    for _, run in groupby(enumerate(tokens), lambda one: one[1] - one[0]):
        yield [token for _, token in run]
