"""Names that a user gives: a name that does not exist is answered with the names that are close to it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 8  # so many names are listed in an error message


class UsageError(ValueError):
    """A user asked for something that does not exist or cannot be done. The message is one line that says what."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """One line that says that there is no such name, with names that are close to it.

    Where no name is close, it lists the known names if they are few; if they are many, it names the command that lists
    them. ``what``: what is named, for example "stem" or "stem of this engine"; ``slotproof list`` has a list for its
    first word.
    """
    names = list(known)
    if near := close(name, names):
        return f"no {what} {name!r}: did you mean {near}?"
    if len(names) <= FEW:
        return f"no {what} {name!r}: there are {', '.join(names) or 'none'}"
    return f"no {what} {name!r}: `slotproof list {what.split()[0]}s` names all {len(names)}"


def close(name: str, known: Iterable[str]) -> str:
    """The known names that are close to ``name``, best first, joined by "or"; empty if there is none."""
    return " or ".join(get_close_matches(name, list(known), n=3, cutoff=0.7))
