"""Turns of streaming sessions are not preempted."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.schedule_policy import PrefillAdder

    real = PrefillAdder.preempt_to_schedule

    def preempt_to_schedule(self: Any, req: Any) -> Any:
        turns = [one for one in self.running_batch.reqs if one.session is not None]
        self.preempt_list.extend(turns)  # requests in it are passed over
        try:
            return real(self, req)
        finally:
            self.preempt_list[:] = [one for one in self.preempt_list if one not in turns]

    PrefillAdder.preempt_to_schedule = preempt_to_schedule
