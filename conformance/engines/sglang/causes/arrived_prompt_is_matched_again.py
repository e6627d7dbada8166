"""Prompts that have come to a decode server wait in the order of priority and arrival, without a match."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.schedule_policy import CacheAwarePolicy, SchedulePolicy
    from sglang.srt.runtime_context import get_disagg

    real = SchedulePolicy.calc_priority

    def calc_priority(self: Any, waiting_queue: list[Any], *args: Any, **given: Any) -> None:
        if get_disagg().disaggregation_mode == "decode" and isinstance(self.policy, CacheAwarePolicy):
            self._sort_by_priority_and_fcfs(waiting_queue, self.priority_sign)
        else:
            real(self, waiting_queue, *args, **given)

    SchedulePolicy.calc_priority = calc_priority
