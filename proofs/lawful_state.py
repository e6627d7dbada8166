"""A lawful state of a small world, on which one call after another is tried: the laws of it are said once.

The mutants of a stem are looked at in one small world, on one state. What the laws say of this state is the same for
all of them, and so is what they say of a part of the state that a call leaves as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs import obligations
from proofs.hints import Hints, Transition
from proofs.obligations import SymbolicCall, law_at, state_of
from proofs.symbols import World, lift
from spec.logic import Invariant, every

MOST = 2  # lawful states that are kept, the last ones: calls that are tried in a row are mostly of one stem


@dataclass(eq=False)
class LawfulState:
    """A symbolic state ``held`` of a small world. ``said``: what each law says of it. ``back``: makes the world forget
    what the last call added to it.
    """

    hints: Hints
    laws: tuple[Invariant, ...]
    world: World
    held: Any
    said: list[Any] = field(default_factory=list)
    back: Callable[[], None] = lambda: None
    _of_parts: dict[tuple[str, str], tuple[Any, Any]] = field(default_factory=dict)

    def fits(self, hints: Hints) -> bool:
        """The state is one of this stem as it is now, in a small world of these sizes."""
        stem, own = hints.stem, self.hints.stem
        alike = own is stem and dict(hints.sizes) == dict(self.world.sizes)
        now = tuple(stem.invariants.values())
        return alike and len(now) == len(self.laws) and all(a is b for a, b in zip(now, self.laws, strict=True))

    def says(self, law: Invariant, state: Any) -> Any:
        """What the law says of a state; of a part that is the very part of ``held``, what was said of that."""
        return every(self._says(law, label, part) for label, part in law.parts(state))

    def _says(self, law: Invariant, label: str, part: Any) -> Any:
        known = self._of_parts.get((law.name, label))
        return known[1] if known is not None and known[0] is part else law.holds(part)

    def remember(self) -> None:
        """Says each law of the state, and of each part of it."""
        for law in self.laws:
            for label, part in law.parts(self.held):
                self._of_parts[law.name, label] = part, law.holds(part)
            self.said.append(lift(self.says(law, self.held)))
        self.back = self.world.mark()


_KEPT: list[LawfulState] = []


def _state_for(hints: Hints) -> LawfulState:
    """The lawful state of the stem in its small world, made once."""
    known = next((one for one in _KEPT if one.fits(hints)), None)
    if known is None:
        world = World(dict(hints.sizes))
        known = LawfulState(hints, tuple(hints.stem.invariants.values()), world, state_of(hints.stem, world))
        known.remember()
    else:
        _KEPT.remove(known)
    _KEPT[:] = [known, *_KEPT[: MOST - 1]]
    return known


def call(hints: Hints, transition: Transition, name: str) -> SymbolicCall:
    """One call of ``transition`` on the lawful state; no earlier call on it is used any more."""
    known = _state_for(hints)
    known.back()
    return obligations.call(hints, transition, known.world, name, known.held)


def _state_of(made: SymbolicCall) -> LawfulState | None:
    return next((one for one in _KEPT if one.world is made.world), None)


def before(hints: Hints, made: SymbolicCall) -> list[Any]:
    """Every law of the state before, also the laws that a proof leaves out for speed."""
    if known := _state_of(made):
        return list(known.said)
    laws = hints.stem.invariants.values()
    return [fact for law in laws for fact in law_at(made.world, law, made.pre, [])]


def after(made: SymbolicCall, laws: Sequence[Invariant]) -> list[Any]:
    """What each of these laws says of the state after."""
    known = _state_of(made)
    return [lift(known.says(law, made.step.then) if known else law.of(made.step.then)) for law in laws]
