"""A run of the stem ``tickets``: a desk beside the law."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import Calls, EngineCall, Ignores, Law, nothing
from conformance.driver.operations import operation, operations_of
from conformance.driver.protocol import Json, lacking
from conformance.driver.shadow import Shadow
from conformance.stems.tickets.protocol import TicketsEngine, TicketsSnapshot
from spec import tickets as law
from spec.logic import but


class TicketsRun:
    """Callers that take tickets."""

    def __init__(self, engine: TicketsEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine: TicketsEngine = engine
        self.lacks: Collection[str] = lacking(engine)
        self.shadow = Shadow()
        self.law = Law(law.stem, law.initial(config["size"]), strict, ignores)
        self.operations = operations_of(self)
        self.seen: TicketsSnapshot = engine.snapshot()

    @operation
    def take(self, count: int) -> Calls:
        """A caller takes tickets."""
        self.law.caller_step("take", count)
        yield EngineCall("take", lambda: self.engine.take(count))

    def snapshot(self) -> TicketsSnapshot:
        """How many tickets are out."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """The engine does nothing by itself."""

    def project(self) -> Any:
        """The desk as the engine shows it."""
        return but(self.law.state, out=self.seen.out)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """Nothing else is shown."""
        return []

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""
