"""Text of an engine as it is safe to print: its messages may hold anything, such as the codes that steer a terminal."""

from __future__ import annotations

import re

LONGEST = 4_000  # characters of one text


def printable(text: object, longest: int | None = LONGEST) -> str:
    """The text with everything that is not printed as a character of its own shown as an escape, such as ``\\x1b``.
    Line ends stay, and a tab becomes four spaces. What is longer than ``longest`` characters is cut, and the cut is
    said; ``None`` cuts nothing.
    """
    said = str(text)
    left = 0 if longest is None else max(0, len(said) - longest)
    made = "".join(_shown(character) for character in said[: len(said) - left].replace("\r\n", "\n"))
    return f"{made}… ({left:,} more characters)" if left else made


def _shown(character: str) -> str:
    if character == "\t":
        return "    "
    if character == "\n" or character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def message_of(error: BaseException) -> str:
    """The message of an exception, without addresses. That of an engine's own exception may be impossible to make."""
    try:
        return without_addresses(str(error))
    except Exception as broken:
        return f"(its message cannot be made: {type(broken).__name__})"


def without_addresses(text: str) -> str:
    """The text without the places of objects in memory, such as ``at 0x7f18c0``: two equal runs say one thing."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def first_line(text: str) -> str:
    """The first line that is not empty; an empty string if there is none."""
    return next((line for line in text.splitlines() if line.strip()), "")
