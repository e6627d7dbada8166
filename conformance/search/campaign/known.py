"""What a run can reach in the law of a stem: each transition, its promises, and whether a lawful call may find no room.

It is read off the law itself, without a solver, so that a campaign needs none: a transition is called once on a state
and arguments of which nothing is known (``Unknown``). The spec has no control flow of Python that depends on a value
(``slotproof.spec_lint``), so the call goes its only way, and names every promise. A test compares this with what the
proofs read off symbolic states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NoReturn, get_type_hints

from conformance.search.campaign.coverage import KnownTransition
from conformance.stems.found import law_of
from spec.lengths import Length


class Unknown:
    """A value of which nothing is known: what is made of it is unknown, too. It has no truth value."""

    def __call__(self, *_: Any, **__: Any) -> Unknown:
        return self

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> NoReturn:
        raise TypeError("a spec may not branch on a value")

    __hash__ = object.__hash__

    def _unknown(self, *_: Any) -> Any:
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _unknown
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unknown
    __and__ = __rand__ = __or__ = __ror__ = _unknown


@cache
def transitions(room: str) -> dict[str, KnownTransition]:
    """The transitions of a stem's law, by name, or of the law that a room for whole servers follows."""
    return {name: _read(transition) for name, transition in law_of(room).transitions.items()}


def _read(transition: Callable[..., Any]) -> KnownTransition:
    first, *others = inspect.signature(transition).parameters.values()
    hints = get_type_hints(transition)
    step = transition(_state(hints[first.name]), **{one.name: _argument(str(one.annotation)) for one in others})
    promises = tuple(dict.fromkeys(promise.sentence for promise in step.promises))
    return KnownTransition(promises, step.fits is not True)


def _state(kind: Any) -> Any:
    hints = get_type_hints(kind)
    values = {field.name: hints[field.name] for field in fields(kind)}
    return kind(**{name: _state(hint) if is_dataclass(hint) else Unknown() for name, hint in values.items()})


def _argument(kind: str) -> Any:
    return Length(Unknown(), Unknown()) if kind == "Length" else Unknown()
