"""A trace: the configuration and the operations of one run, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.driver.protocol import Json


@dataclass
class Trace:
    """A configuration and the operations that were done, in order, each as ``{"op": name, argument: value, ...}``."""

    stem: str
    config: Json
    steps: list[Json] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The operations as calls, one a line."""
        return [f"{s['op']}({', '.join(f'{k}={v}' for k, v in s.items() if k != 'op')})" for s in self.steps]

    def as_json(self) -> Json:
        """The trace as it is written to a file."""
        return {"stem": self.stem, "config": self.config, "steps": self.steps}
