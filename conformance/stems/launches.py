"""The servers of an engine, as it declares them: from which models and launch flags a run of the room ``server`` draws.

A server is chosen option by option. What a choice means, such as its launch flags, an engine says; here stands how
choices make a configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from conformance.driver.protocol import Json

MODEL, SESSIONS = "model", "sessions"


class LaunchChoice(NamedTuple):
    """One choice of an option. ``flags``: what it adds to the launch flags. ``environment``: the variables that it
    sets. ``sessions``: how many streaming sessions clients open at a time. ``model``: of a choice of a model, the
    model's own name where it is not the choice's.
    """

    name: str
    flags: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    sessions: int = 0
    model: str = ""


Together = frozenset[tuple[str, str]]  # options, each with the name of one of its choices


def pair(option: str, choice: str, other: str, its_choice: str) -> Together:
    """A choice of one option and a choice of another one."""
    return frozenset({(option, choice), (other, its_choice)})


class Launches(NamedTuple):
    """The servers of an engine.

    ``models``: names of its models; a choice's flags are what a server needs for this one. ``sessions``: whether and
    how many sessions it has. ``options``: what is chosen beside these. The first choice of each option is the plain
    one. ``never``: choices that the engine refuses together at launch; one of each is not the plain one.
    ``avoided``: by the name of an exclusion, the choices that must come together for runs to meet the known difference
    that it avoids.
    """

    models: tuple[LaunchChoice, ...] = ()
    sessions: tuple[LaunchChoice, ...] = ()
    options: tuple[tuple[str, tuple[LaunchChoice, ...]], ...] = ()
    never: frozenset[Together] = frozenset()
    avoided: Mapping[str, frozenset[Together]] = {}

    @property
    def every(self) -> dict[str, tuple[LaunchChoice, ...]]:
        """All options, with their choices."""
        return {MODEL: self.models, SESSIONS: self.sessions, **dict(self.options)} if self.models else {}

    def chosen(self, numbers: Mapping[str, int], exclude: Collection[str] = ()) -> dict[str, LaunchChoice]:
        """The choice of each option by its number; 0 where none is given. Of choices that the engine refuses together,
        or that one of these exclusions avoids, the option that stands last becomes plain.
        """
        found: dict[str, LaunchChoice] = {}
        never = self.never.union(*(self.avoided.get(name, ()) for name in exclude))
        for option, choices in self.every.items():
            choice = choices[numbers.get(option, 0)]
            had = {(option, choice.name), *((other, taken.name) for other, taken in found.items())}
            refused = any((option, choice.name) in each and each <= had for each in never)
            found[option] = choices[0] if refused else choice
        return found

    def changed_by(self, numbers: Mapping[str, int], exclude: Collection[str]) -> list[str]:
        """Those of these exclusions for each of which alone another server is chosen than without any."""
        drawn = self.chosen(numbers)
        return [str(name) for name in exclude if self.chosen(numbers, [name]) != drawn]

    def probes(self) -> Iterator[dict[str, LaunchChoice]]:
        """A server of each model, with each choice of sessions that it may have."""
        for model, sessions in product(range(len(self.models)), range(len(self.sessions))):
            found = self.chosen({MODEL: model, SESSIONS: sessions})
            if found[SESSIONS] is self.sessions[sessions]:
                yield found


def configuration(chosen: Mapping[str, LaunchChoice]) -> Json:
    """The configuration of a server with these choices."""
    environment = dict(variable for choice in chosen.values() for variable in choice.environment)
    found: Json = {
        "model": chosen[MODEL].model or chosen[MODEL].name,
        "flags": [flag for choice in chosen.values() for flag in choice.flags],
        "sessions": chosen[SESSIONS].sessions,
    }
    return found | ({"environment": environment} if environment else {})
