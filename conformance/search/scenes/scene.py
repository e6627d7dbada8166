"""What a scene is: a predicate over one call of a transition of the law, in the finite reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any

from spec.logic import Call, Stem

LAWS = ("lock_ref", "session_trim", "mamba_slots", "cache", "block_cache", "host_tier")  # each has a module here


@dataclass(frozen=True)
class Scene:
    """A situation that a search should meet.

    ``law``: the stem of ``spec/`` whose calls are looked at, also where they are made as calls of a part. ``name``: one
    word or some words with underscores. ``transitions``: those of the law at whose calls the scene can be met.
    ``holds``: called with the state before a granted call of one of them, the state after it, and those arguments of
    the call that ``holds`` names; true where the scene is met.
    """

    law: str
    name: str
    transitions: frozenset[str]
    holds: Callable[..., bool]

    @property
    def sentence(self) -> str:
        """What happens in the scene, in English."""
        return " ".join((self.holds.__doc__ or "").split())

    @property
    def full_name(self) -> str:
        """The name beside the names of scenes of other laws."""
        return f"{self.law}.{self.name}"

    def is_met(self, was: Any, now: Any, arguments: dict[str, Any]) -> bool:
        """The scene is met at this call."""
        asked = list(signature(self.holds).parameters)[2:]
        return bool(self.holds(was, now, **{name: arguments[name] for name in asked}))


class Scenes:
    """The scenes of one law, in the order in which they are registered."""

    def __init__(self, law: str) -> None:
        self.law = law
        self.all: list[Scene] = []

    def at(self, *transitions: str) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
        """Registers a predicate as a scene of calls of these transitions. Its name is the name of the scene."""

        def register(holds: Callable[..., bool]) -> Callable[..., bool]:
            self.all.append(Scene(self.law, holds.__name__, frozenset(transitions), holds))
            return holds

        return register


@cache
def of_law(law: str) -> tuple[Scene, ...]:
    """The scenes of a law; none where it has no module here."""
    return tuple(import_module(f"{__package__}.{law}").scenes.all) if law in LAWS else ()


def of_stem(stem: Stem) -> tuple[Scene, ...]:
    """The scenes of a law and of all its parts."""
    found = dict.fromkeys(of_law(stem.name))
    for part in stem.parts.values():
        found |= dict.fromkeys(of_stem(part))
    return tuple(found)


def met(
    stem: Stem, name: str, was: Any, now: Any, arguments: tuple[Any, ...], calls: tuple[Call, ...]
) -> Iterator[Scene]:
    """The scenes that are met at a granted call: scenes of its transition, and of the calls of parts that it makes.

    ``stem``: the law, whose transition ``name`` led from ``was`` to ``now``.
    """
    for scene in of_law(stem.name):
        if name in scene.transitions:
            names = list(signature(stem.transitions[name]).parameters)[1:]
            if scene.is_met(was, now, dict(zip(names, arguments, strict=True))):
                yield scene
    for call in calls:
        if call.then is not call.before:
            part = stem.parts[call.part]
            made = (call.before, call.then, call.arguments, call.step.calls)
            yield from met(part, call.transition.__name__, *made)
