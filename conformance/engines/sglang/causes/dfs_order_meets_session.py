"""Turns of streaming sessions, whose node is none of the tree, stand before the requests that the tree sorts."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.schedule_policy import SchedulePolicy
    from sglang.srt.session.streaming_session import _VirtualNode

    real = SchedulePolicy._sort_by_dfs_weight

    def _sort_by_dfs_weight(waiting_queue: list[Any], tree_cache: Any) -> None:
        turns = [one for one in waiting_queue if isinstance(one.last_node, _VirtualNode)]
        others = [one for one in waiting_queue if not isinstance(one.last_node, _VirtualNode)]
        real(others, tree_cache)
        waiting_queue[:] = [*turns, *others]

    SchedulePolicy._sort_by_dfs_weight = staticmethod(_sort_by_dfs_weight)
