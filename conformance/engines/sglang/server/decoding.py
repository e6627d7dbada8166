"""What a decode server has beside other servers: the queues of requests whose prompts come from a prefill server, and
the copies of what a request had when it was taken off its row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from conformance.engines.sglang.releases.server_parts import calls
from conformance.engines.sglang.server.receiving import PrefillServer
from conformance.engines.sglang.server.streams import PassesInFlight
from conformance.stems.server.protocol import Destination, RowCopy, TransferStep

ROLE = ("--disaggregation-mode", "decode")  # the launch flag of a decode server
DECODES_CACHE = "--disaggregation-decode-enable-radix-cache"  # without it a decode server finds no prefix
SAVES, LOADS = "get_cpu_copy", "load_cpu_copy"


def is_decode_server(flags: Sequence[str]) -> bool:
    """Whether a server of these launch flags is a decode server."""
    return ROLE in pairwise(flags)


class DecodeSide:
    """One decode server. ``prefill``: where its prompts are computed. ``passes``: its forward passes."""

    def __init__(self, scheduler: Any, prefill: PrefillServer, passes: PassesInFlight) -> None:
        self._scheduler, self.prefill, self._passes = scheduler, prefill, passes
        self._arriving, self._receiving = scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue
        self._backups: list[RowCopy] = []
        self._copies: list[Any] = []  # each that was made, so that it is known again
        allocator = scheduler.token_to_kv_pool_allocator
        for name, real in calls(allocator, (SAVES, LOADS)).items():
            setattr(allocator, name, self._noted(name == SAVES, real))

    # Requests.

    def without_row(self) -> list[Any]:
        """The requests that have no row yet, or gave it up, in the order in which they are served."""
        queues = self._arriving
        return [*queues.retracted_queue, *queues.held_rebootstrap_reqs, *(one.req for one in queues.queue)]

    def grants(self, request: Any) -> bool:
        """Whether this request, alone in the queues, gets a row."""
        queues = self._arriving
        if request in queues.retracted_queue:
            queues.retracted_queue = [request]
            return bool(queues.resume_retracted_reqs())
        queues.queue = [one for one in queues.queue if one.req is request]
        return bool(queues.pop_preallocated()[0])

    @property
    def puts_off(self) -> bool:
        """Requests that have ended keep their rows, since the prefill server may still write into them. The release
        does not check its memory then.
        """
        return bool(self._receiving.has_pending_deferred_releases())

    # Transfers.

    def steps(self, room: int) -> list[TransferStep]:
        """What the prefill server can do next."""
        return self.prefill.steps(room)

    def does(self, room: int, step: TransferStep, first: int) -> None:
        """The prefill server does something. ``first``: the first token of the answer."""

        def write(buffer: int) -> None:
            buffers = self._scheduler.disagg_metadata_buffers
            buffers.output_ids[buffer, 0] = first
            buffers.cached_tokens[buffer] = 0
            buffers.bootstrap_room[buffer, 0] = room

        self.prefill.does(room, step, write)

    def destination(self, room: int, length: int) -> Destination:
        """Where the prefill server is to write a text of so many tokens."""
        kinds = [str(kind.value) for kind in self._arriving.kv_manager.kv_args.state_types]
        return self.prefill.destination(room, kinds, int(self._scheduler.page_size), length)

    # Copies.

    def backups(self) -> list[RowCopy]:
        """The copies that were made and loaded since the last call."""
        found, self._backups = self._backups, []
        return found

    def _noted(self, saves: bool, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            before = self._passes.current.last
            answer = real(*args, **kwargs)
            copy, slots = (answer, args[0]) if saves else args[:2]
            self._note(saves, copy, slots.tolist(), max(before, self._passes.ended))
            return answer

        return call

    def _note(self, saves: bool, copy: Any, slots: Sequence[int], behind: int) -> None:
        """``behind``: so many forward passes are done before it. Where the call waits for some, it waits first."""
        number = next((at for at, one in enumerate(self._copies) if one is copy), len(self._copies))
        if number == len(self._copies):
            self._copies.append(copy)
        self._backups.append(RowCopy(saves, number, list(slots), self._swa_slots(slots), 0, behind))

    def _swa_slots(self, slots: Sequence[int]) -> list[int]:
        """The slots to which these are mapped; none where there is no mapping."""
        if not self._scheduler.is_hybrid_swa:
            return []
        mapping = self._scheduler.token_to_kv_pool_allocator.full_to_swa_index_mapping
        return [int(mapping[slot]) for slot in slots]
