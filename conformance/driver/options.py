"""Options of an engine, which the engine declares and the user sets with ``--option NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from conformance.driver.naming import UsageError, close

Given = tuple[tuple[str, str], ...]  # the options that a user has set: names and values, sorted by name


@dataclass(frozen=True)
class EngineOption:
    """One option of an engine.

    ``values``: all values that it can have. ``default``: the value where the user sets none. ``sentence``: what it
    does, for the user.
    """

    name: str
    values: tuple[str, ...]
    default: str
    sentence: str


def parsed(words: Iterable[str]) -> Given:
    """The options in words such as ``core=rust``. Raises ``UsageError`` for another word, and for a name that is given
    twice with two values.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--option {word}: expected NAME=VALUE, such as core=rust")
        if found.setdefault(name, value) != value:
            raise UsageError(f"--option {word}: {name} is {found[name]} already")
    return tuple(sorted(found.items()))


def chosen(engine: str, declared: Sequence[EngineOption], given: Given) -> dict[str, str]:
    """The value of each declared option. Raises ``UsageError`` if the engine has no such option, or no such value."""
    known = {option.name: option for option in declared}
    for name, value in given:
        what = f"--option {name}={value}"
        if name not in known:
            raise UsageError(f"{what}: the engine {engine} has no option {name!r}{_near(name, list(known), 'options')}")
        if value not in known[name].values:
            raise UsageError(f"{what}: {name} has no value {value!r}{_near(value, known[name].values, 'values')}")
    return {name: dict(given).get(name, option.default) for name, option in known.items()}


def known_to(declared: Sequence[EngineOption], given: Given) -> Given:
    """Those of the given options that an engine declares."""
    names = {option.name for option in declared}
    return tuple((name, value) for name, value in given if name in names)


def words(given: Given | Mapping[str, str]) -> str:
    """The options in words, such as ``core=both``; empty if none is set."""
    return ", ".join(f"{name}={value}" for name, value in dict(given).items())


def _near(name: str, known: Sequence[str], what: str) -> str:
    near = close(name, known)
    return f"; did you mean {near}?" * bool(near) + (f"; {what}: {', '.join(known)}" if known else "; it has none")
