"""What a fault is: a known bug as a wrong transition of the law, and as a faulty part of our implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.stems.found import with_file
from proofs.hints import Transition


@dataclass(frozen=True)
class Fault:
    """A known bug, which shows in the stem ``stem``.

    ``spec``: the wrong transitions, each in the place of the law's transition of this name. ``parts``: the faulty
    parts of our implementation, as its maker for the stem takes them. ``search``: fields of ``proofs.hints.Hints`` for
    the search of a path to the bug, where the stem's own hints do not lead there. ``base``: the maker that takes the
    faulty parts where our implementation does not have the stem.
    """

    name: str
    stem: str
    sentence: str
    spec: Mapping[str, Transition]
    parts: Mapping[str, Any]
    search: Mapping[str, Any] = field(default_factory=dict)
    base: Callable[..., Any] | None = None

    @property
    def right(self) -> Callable[..., Any]:
        """The maker of the implementation without the faulty parts."""
        return self.base or registry.own().load(None, None, "cpu").makers[self.stem]

    def make(self, config: Json) -> Any:
        """The implementation with the faulty parts. It lacks ``bad``, since only the bug itself should be found."""
        return self.right(config, lacks=("bad",), **self.parts)

    def __reduce__(self) -> tuple[Callable[[str], Fault], tuple[str]]:
        """A fault is pickled by its name, since its functions cannot be pickled."""
        return _named, (self.name,)


@cache
def known_bugs() -> dict[str, Fault]:
    """The known bugs of all stems, by name."""
    return {fault.name: fault for module in with_file("faults").values() for fault in module.FAULTS}


def _named(name: str) -> Fault:
    return known_bugs()[name]
