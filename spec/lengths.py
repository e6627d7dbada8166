"""The length of a row: its whole pages, and the tokens in the partial page after them.

A length of ``n`` tokens is kept as ``(n // page_size, n % page_size)``. So no law multiplies by the page size, and one
proof holds for every page size. The functions at the end compute with plain integers, at the border where lengths are
made from token counts and back; CrossHair checks their contracts.
"""

from __future__ import annotations

from typing import NamedTuple

from spec.logic import Number, Truth, ite


class Length(NamedTuple):
    """``pages`` whole pages and ``rest`` tokens after them, ``0 <= rest < page_size``."""

    pages: Number
    rest: Number


NOTHING = Length(0, 0)


def formed(length: Length, page_size: Number) -> Truth:
    """``length`` is well formed."""
    return (length.pages >= 0) & (length.rest >= 0) & (length.rest < page_size)


def at_most(shorter: Length, longer: Length) -> Truth:
    """``shorter`` has at most as many tokens as ``longer``."""
    return (shorter.pages < longer.pages) | ((shorter.pages == longer.pages) & (shorter.rest <= longer.rest))


def same(one: Length, other: Length) -> Truth:
    """Both lengths are equal."""
    return (one.pages == other.pages) & (one.rest == other.rest)


def shorter(one: Length, other: Length) -> Truth:
    """``one`` has fewer tokens than ``other``."""
    return (one.pages < other.pages) | ((one.pages == other.pages) & (one.rest < other.rest))


def pick(cond: Truth, one: Length, other: Length) -> Length:
    """``one`` where ``cond`` holds, else ``other``."""
    return Length(ite(cond, one.pages, other.pages), ite(cond, one.rest, other.rest))


def shortest(one: Length, other: Length) -> Length:
    """The shorter of two lengths."""
    return pick(at_most(one, other), one, other)


def touched(length: Length) -> Number:
    """How many pages have at least one token: the whole pages, and the partial page if there is one."""
    return length.pages + ite(length.rest > 0, 1, 0)


def covers(length: Length, index: Number, offset: Number) -> Truth:
    """The token at ``offset`` of the page at ``index`` of a row lies below ``length``."""
    return (index < length.pages) | ((index == length.pages) & (offset < length.rest))


def next_token(length: Length, page_size: Number) -> Length:
    """The length with one token more."""
    full = length.rest + 1 == page_size
    return Length(length.pages + ite(full, 1, 0), ite(full, 0, length.rest + 1))


# Plain integers at the border.


def in_pages(tokens: int, page_size: int) -> Length:
    """``tokens`` as a length.

    pre: tokens >= 0 and page_size >= 1
    post: __return__.pages * page_size + __return__.rest == tokens
    post: 0 <= __return__.rest < page_size and __return__.pages >= 0
    """
    return Length(tokens // page_size, tokens % page_size)


def in_tokens(length: Length, page_size: int) -> int:
    """``length`` as a number of tokens."""
    return int(length.pages * page_size + length.rest)


def positions(start: Length, stop: Length, page_size: int) -> list[tuple[int, int]]:
    """The (page index, offset) of each token from ``start`` to ``stop``, ``stop`` excluded."""
    return [divmod(token, page_size) for token in range(in_tokens(start, page_size), in_tokens(stop, page_size))]


def ceil_align(tokens: int, page_size: int) -> int:
    """The smallest multiple of the page size that is at least ``tokens``.

    pre: tokens >= 0 and page_size >= 1
    post: __return__ % page_size == 0
    post: tokens <= __return__ < tokens + page_size
    """
    return -(-tokens // page_size) * page_size


def pages_needed(before: int, after: int, page_size: int) -> int:
    """How many new pages a row needs that grows from ``before`` to ``after`` tokens.

    pre: 0 <= before <= after and page_size >= 1
    post: __return__ >= 0
    post: ceil_align(before, page_size) + __return__ * page_size == ceil_align(after, page_size)
    """
    return -(-after // page_size) - -(-before // page_size)
