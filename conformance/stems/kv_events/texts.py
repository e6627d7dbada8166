"""Numbers of texts: what a block's hash stands for, without the hash function of any engine.

The number of a text is that of a shorter one, extended by tokens. How the tokens are divided does not matter: a text
that two events say in pieces of different length has one number. Two different texts have one number with a chance of
about 2 to the power of -125.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
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
    pack, shift = _of_length(len(tokens))
    try:
        words = pack(*tokens)
    except struct.error:
        return extended(text, _of_pairs(tokens))
    return (text * shift + int.from_bytes(words, "big")) % PRIME


def _of_pairs(tokens: Sequence[Any]) -> array[int]:
    """The integers of pairs of integers, one after the other. Raises ``NoTokens`` where that is not what they are."""
    try:
        array("q", tokens)
    except TypeError:
        pass
    except OverflowError:
        raise NoTokens("a token id has more than 64 bits") from None
    try:
        return array("q", chain.from_iterable(tokens))
    except (TypeError, OverflowError):
        raise NoTokens("token ids are integers, or pairs of integers") from None


@lru_cache(maxsize=1 << 10)
def _of_length(tokens: int) -> tuple[Callable[..., bytes], int]:
    """What makes bytes of so many tokens, the first of which counts most, and the factor of a text before them."""
    return struct.Struct(f">{tokens}q").pack, pow(2, WORD * tokens, PRIME)
