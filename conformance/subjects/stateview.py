"""What can be seen of mamba state slots, as plain numbers: 0 for what is absent, whatever an engine writes for it."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[int, ...]
Three = tuple[int, int, int]  # the own state, the first and the second track
NONE: Three = (0, 0, 0)


class OutOfSlots(Exception):
    """A call was refused for want of slots: no answer, or the engine's own assertion of it."""


@dataclass(frozen=True)
class Named:
    """What a request, a row or a session names, and which of its tracks is next."""

    slots: Three = NONE
    next: int = 0


@dataclass(frozen=True)
class Seen:
    """The free list (as it is), what waits in a group, and what everybody names; nodes by their tokens."""

    free: list[int]
    available: int
    waiting: list[int] = field(default_factory=list)
    requests: dict[int, Named] = field(default_factory=dict)
    rows: dict[int, Three] = field(default_factory=dict)
    sessions: dict[int, Named] = field(default_factory=dict)
    nodes: dict[Key, int] = field(default_factory=dict)
