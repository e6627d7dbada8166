"""What of an engine ran: the values of the attribute ``ran`` of the engines that were built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from conformance.driver.protocol import Json


class Ran:
    """A maker of engines, which keeps what each of them says of itself in ``ran``."""

    def __init__(self, make: Callable[[Json], Any]) -> None:
        self.make = make
        self.values: dict[str, Counter[str]] = {}

    def __call__(self, config: Json) -> Any:
        """A fresh engine of this configuration."""
        engine = self.make(config)
        for name, value in dict(getattr(engine, "ran", {})).items():
            self.values.setdefault(str(name), Counter())[str(value)] += 1
        return engine

    def as_json(self) -> dict[str, list[str]]:
        """For each name the values, the most frequent first."""
        return {name: [value for value, _ in counts.most_common()] for name, counts in sorted(self.values.items())}


def in_words(ran: dict[str, list[str]]) -> str:
    """What ran, for the user: ``core: rust, python``. Empty if the engine says nothing."""
    return "; ".join(f"{name}: {', '.join(values)}" for name, values in ran.items())
