"""Numbers of texts: what a block's hash stands for, without the hash function of any engine.

The number of a text is that of a shorter one, extended by tokens. How the tokens are divided does not matter: a text
that two events say in pieces of different length has one number. Two different texts have one number with a chance of
about 2 to the power of -125.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

PRIME = 79051351301347067292271916393588981119
WORD = 64  # bits of a token id
EMPTY = 1  # the number of the empty text, so that a text of tokens 0 has another one


class NoTokens(ValueError):
    """Something that stands where token ids are wanted."""


def extended(text: int, tokens: Sequence[Any]) -> int:
    """The number of ``text`` and these tokens: integers of 64 bits, or pairs of them. Raises ``NoTokens``."""
    try:
        words = array("q", tokens)
    except TypeError:
        words = _of_pairs(tokens)
    except OverflowError:
        raise NoTokens("a token id has more than 64 bits") from None
    if sys.byteorder == "little":
        words.byteswap()  # the first token counts most
    return (text * _shift(len(words)) + int.from_bytes(words.tobytes(), "big")) % PRIME


def _of_pairs(tokens: Sequence[Any]) -> array[int]:
    try:
        return array("q", chain.from_iterable(tokens))
    except (TypeError, OverflowError):
        raise NoTokens("token ids are integers, or pairs of integers") from None


@lru_cache(maxsize=1 << 10)
def _shift(tokens: int) -> int:
    return pow(2, WORD * tokens, PRIME)
