"""What a prefill server has beside other servers: the queue of requests that no decode server has asked for, and the
requests whose prompts are being sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from conformance.engines.sglang.server.sending import DecodeServers
from conformance.stems.server.protocol import SendStep, Sent

ROLE = ("--disaggregation-mode", "prefill")  # the launch flag of a prefill server


def is_prefill_server(flags: Sequence[str]) -> bool:
    """Whether a server of these launch flags is a prefill server."""
    return ROLE in pairwise(flags)


class PrefillSide:
    """One prefill server. ``decode``: where its prompts go."""

    def __init__(self, scheduler: Any, decode: DecodeServers) -> None:
        self._scheduler, self.decode = scheduler, decode
        self._asked = scheduler.disagg_prefill_bootstrap_queue
        decode.kv, decode.window = self._asked.kv_manager, int(scheduler.sliding_window_size or 0)

    def without_row(self) -> list[Any]:
        """The requests that have no row, in the order in which they are served."""
        return [*self._scheduler.waiting_queue, *self._asked.queue]

    def does(self, room: int, step: SendStep, length: int) -> Sent:
        """A decode server, or the transfer worker, does this. What a decode server has got by it."""
        self.decode.does(room, step, length)
        sent = self.decode.got(room)
        if sent.buffer is None:
            return sent
        buffers = self._scheduler.disagg_metadata_buffers
        return sent._replace(first=int(buffers.output_ids[sent.buffer, 0]), request=self._request(sent.buffer))

    def _request(self, buffer: int) -> int:
        """The request of which a buffer says that it is. Its room has the next number."""
        return int(self._scheduler.disagg_metadata_buffers.bootstrap_room[buffer, 0]) - 1

    def kept_buffers(self) -> int:
        """How many of the buffers for first tokens are in use, or were given back twice."""
        allocator = self._scheduler.req_to_metadata_buffer_idx_allocator
        given, once = len(allocator.free_slots), len({*allocator.free_slots})
        return abs(int(allocator.size) - once) + given - once
