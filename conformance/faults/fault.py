"""What a fault is: a known bug as a wrong transition of the law, and as a variant of our implementation that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.engines import registry
from conformance.engines.protocol import Json
from proofs.hints import Transition


@dataclass(frozen=True)
class Fault:
    """A bug in ``stem``. ``spec`` replaces transitions of the law by name; ``parts`` are the faulty parts from which our
    implementation is made, as its maker for the stem takes them.

    ``search``: fields of ``proofs.hints.Hints`` by which a path to the bug is looked for, where the stem's own do not lead
    there.
    """

    name: str
    stem: str
    sentence: str
    spec: Mapping[str, Transition]
    parts: Mapping[str, Any]
    search: Mapping[str, Any] = field(default_factory=dict)

    def make(self, config: Json) -> Any:
        """Our implementation with the faulty parts; nobody asks it to answer bad input."""
        made = registry.own().load(None, None, "cpu").makers[self.stem]
        return made(config, lacks=("bad",), **self.parts)  # type: ignore[call-arg]

    def __reduce__(self) -> tuple[Callable[[str], Fault], tuple[str]]:
        """Between processes a fault goes by its name: its functions could not."""
        return _named, (self.name,)


def _named(name: str) -> Fault:
    from conformance.faults import FAULTS

    return FAULTS[name]
