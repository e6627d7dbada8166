"""The transfers by which a decode server gets its prompts from a prefill server, beside the law.

A transfer is in flight from the moment at which the prefill server knows where to write until it writes no more. That
may be later than the decode server believes: a prefill server that was told to stop, or has failed, may go on writing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from conformance.driver.lockstep import Calls, EngineCall
from conformance.driver.operations import operation
from conformance.driver.protocol import Misuse, Unsupported
from conformance.driver.shadow import Shadow
from conformance.stems.cache.run import CacheRun
from conformance.stems.requests.calls import RequestCalls
from conformance.stems.server.arrivals import Arrivals
from conformance.stems.server.protocol import TRANSFER, RowCopy, ServerEvent, TransferStep
from spec.cache_state import UNFILLED
from spec.pool import held
from spec.session_trim_state import full_pool

PATIENCE = 100  # so many turns after it was told to stop, or has failed, a prefill server writes no more


class Receiving(Protocol):
    """What transfers ask of the run of a server."""

    engine: Any
    shadow: Shadow
    calls: RequestCalls
    cache: CacheRun
    lacks: Collection[str]
    batches: int
    here: set[int]
    coming: set[int]


class TransferCalls:
    """What the prefill server of a run does. ``arrivals``: what it writes."""

    def __init__(self, run: Receiving) -> None:
        self._run = run
        self.arrivals = Arrivals(run.shadow)
        self._sent: dict[int, int] = {}  # by copy, the page index from which the SWA pages of its row were sent

    # What the law hears.

    def begun(self, request: int, first: int) -> None:
        """From now on the prefill server may write into the row of a request, of the SWA pool from the page index
        ``first`` on.
        """
        self._run.cache.flights.receives(self._run.calls.row_of[request], first)

    def ended(self, request: int, done: bool) -> None:
        """The prefill server writes no more for a request, whose row may be gone. ``done``: all of the prompt is there,
        and the decode server hears so.
        """
        if request in self._run.calls.row_of:
            self._run.cache.flights.received(self._run.calls.row_of[request], done)

    # What the run says.

    @operation
    def transfer(self, request: int, step: TransferStep) -> Calls:
        """The prefill server does something for a request: see ``ServerEngine.transfer``."""
        if TRANSFER in self._run.lacks:
            raise Unsupported("the server computes its prompts itself")
        if step not in self._run.engine.transfer_steps(request):
            raise Misuse(f"the prefill server cannot do this now for request {request}")
        yield EngineCall("transfer", lambda: self._does(request, step))

    def _does(self, request: int, step: TransferStep) -> None:
        self._run.engine.transfer(request, step)
        if self.arrivals.does(request, step):
            self.ended(request, step == "completes")

    def steps(self) -> dict[int, Sequence[TransferStep]]:
        """What the prefill server can do next, by request; those for which it can do nothing are left out."""
        if TRANSFER in self._run.lacks:
            return {}
        requests = sorted(self._run.here | self._run.coming | self.arrivals.open.keys())
        known = {request: self._run.engine.transfer_steps(request) for request in requests}
        return {request: steps for request, steps in known.items() if steps}

    def turn(self) -> None:
        """A turn of the loop comes next. A prefill server that was told to stop long ago writes for the last time."""
        for request, transfer in [*self.arrivals.open.items()]:
            transfer.late += "stops" in self._run.engine.transfer_steps(request)
            if transfer.late > PATIENCE:
                self._does(request, "writes")

    # What the server tells.

    def waited(self, done: int) -> None:
        """A decode server has waited for so many of its steps: their passes write no more."""
        if TRANSFER not in self._run.lacks:
            self._run.cache.flights.ended_but(self._run.batches - done)

    def copied(self, backups: Sequence[RowCopy]) -> None:
        """What requests had was copied, or came back into their rows."""
        self.arrivals.copied(backups)
        for one in backups:
            if one.saved:
                self._sent[one.copy] = max(map(self._sent_behind_prefix, self._rows(one)), default=0)
            else:
                self._came_back(one)

    def _sent_behind_prefix(self, row: int) -> int:
        """The page index from which the SWA pages were sent that a row shows. Those of its cached prefix are right."""
        state = self._run.cache.law.state
        sent: int = state.sent_from(row)
        return sent if sent > state.rows.protected(row) else 0

    def _rows(self, copy: RowCopy) -> set[int]:
        """The rows that own what was copied from, or to."""
        pool = full_pool(self._run.cache.rows)
        pages = {slot // self._run.calls.page_size for slot in copy.slots if slot}
        return {pool.owner(page) for page in pages if held(pool, page)}

    def _came_back(self, copy: RowCopy) -> None:
        """A row has what its request had before it gave a row up. The copy is loaded in the order of the passes. Of the
        SWA pool comes back what the copy has; where it was not sent to the old row, it is not there now.
        """
        cache, first = self._run.cache, max(self._loaded_from(copy), self._sent[copy.copy])
        for row in self._rows(copy):
            if cache.law.state.awaits(row) == UNFILLED:
                self.waited(copy.behind)
                cache.has_come(row, first)

    def _loaded_from(self, copy: RowCopy) -> int:
        """The page index from which a copy that was loaded has brought SWA pages."""
        if not self._run.cache.law.state.tree.windowed:
            return 0
        missing = [i for i in range(len(copy.slots)) if not any(copy.swa_slots[i : i + 1])]
        return -(-(missing[-1] + 1) // self._run.calls.page_size) if missing else 0

    def asked(self, event: ServerEvent) -> None:
        """The prefill server has heard where to write."""
        assert event.destination is not None
        for request, known in event.requests.items():
            self.arrivals.begins(request, known, event.destination, self._run.calls.passes.name(request))
            windowed = self._run.cache.law.state.tree.windowed
            first = event.destination.swa_start // self._run.calls.page_size if windowed else 0
            self.begun(request, first)
