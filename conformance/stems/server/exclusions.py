"""What drawn runs of the room ``server`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from conformance.stems.server.run import ServerRun


class ServerExclusion(StrEnum):
    """What runs of ``server`` avoid."""

    TURN_BESIDE_TURN = "server.turn_beside_turn"  # a session's turn while another one of it is on the server
    PREEMPTED_TURN = "server.preempted_turn"  # priorities of requests, on a server with sessions
    RELEASE_AFTER_ANSWER = "server.release_after_answer"  # memory given back in the turn after the last answer
    DRAFTED_TURN = "server.drafted_turn"  # drafts, on a server with sessions: ``Launches.avoided``
    OVERLAPPED_STATE = "server.overlapped_state"  # turns of sessions where steps overlap and states are tracked
    UPDATE_WHILE_PAUSED = "server.update_while_paused"  # new weights for a paused server that has requests


EXCLUSIONS = ServerExclusion


def may_ask_for_turn(run: ServerRun, exclude: Collection[StrEnum], session: int) -> bool:
    """Whether a client may send a turn of this session now."""
    if ServerExclusion.OVERLAPPED_STATE in exclude and run.engine.overlaps and run.engine.shape.get("buffered"):
        return False
    return ServerExclusion.TURN_BESIDE_TURN not in exclude or session not in run.sessions_with_turns()


def may_say_priority(run: ServerRun, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may say how urgent its request is."""
    return ServerExclusion.PREEMPTED_TURN not in exclude or not run.config["sessions"]


def may_update_weights(run: ServerRun, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may load new weights now."""
    return run.quiet or (run.paused and ServerExclusion.UPDATE_WHILE_PAUSED not in exclude)


def turns_before_release(exclude: Collection[StrEnum]) -> int:
    """How many turns a server without requests makes before a client has it give its memory back."""
    return 2 if ServerExclusion.RELEASE_AFTER_ANSWER in exclude else 0
