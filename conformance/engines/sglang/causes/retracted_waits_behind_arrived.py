"""Prompts that have come are taken up, and their requests go on, while requests wait that gave their rows up."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.decode import SchedulerDisaggregationDecodeMixin

    real = SchedulerDisaggregationDecodeMixin.process_decode_queue

    def process_decode_queue(self: Any) -> None:
        real(self)
        if self.disagg_decode_prealloc_queue.retracted_queue:
            self.waiting_queue.extend(self.disagg_decode_transfer_queue.pop_transferred())

    SchedulerDisaggregationDecodeMixin.process_decode_queue = process_decode_queue
