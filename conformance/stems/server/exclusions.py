"""What drawn runs of the room ``server`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from conformance.stems.configs import is_windowed
from conformance.stems.server.protocol import FINDS, SENDS, TRANSFER, SendStep, TransferStep
from conformance.stems.server.served import ServedClients


class ServerExclusion(StrEnum):
    """What runs of ``server`` avoid."""

    # A session's turn while another one of it is on the server, or one that is too long: turns that are turned away.
    TURN_BESIDE_TURN = "server.turn_beside_turn"
    PREEMPTED_TURN = "server.preempted_turn"  # priorities of requests, on a server with sessions
    PREEMPTED_IS_FORGOTTEN = "server.preempted_is_forgotten"  # priorities of requests
    # Memory given back in the turn after the last answer, or by a server that was paused in that turn.
    RELEASE_AFTER_ANSWER = "server.release_after_answer"
    # Memory given back while something is copied to or from host memory, or the storage has not answered.
    RELEASE_BESIDE_COPY = "server.release_beside_copy"
    # Stop tokens where steps overlap and states are tracked; and, by ``Launches.avoided``, limits of time.
    OVERWRITTEN_TRACK = "server.overwritten_track"
    TRACKED_AHEAD = "server.tracked_ahead"  # steps that overlap, where states are tracked: ``Launches.avoided``
    # Prompts in chunks beside requests that decode, where states are tracked and a page has several tokens:
    # ``Launches.avoided``.
    CHUNK_INSIDE_PAGE = "server.chunk_inside_page"
    MIXED_TRACK = "server.mixed_track"  # prompts beside requests that decode, where states are tracked: likewise
    # An empty cache while a turn waits, where models have recurrent layers, and few state slots on a server with
    # sessions: ``Launches.avoided``.
    WAITING_COPY = "server.waiting_copy"
    # A turn of a session whose last turn was aborted while it waited, or after a retract.
    ABORTED_TURN = "server.aborted_turn"
    EMPTY_TURN = "server.empty_turn"  # turns without a new token, and turns for which no answer is asked
    DRAFTED_TURN = "server.drafted_turn"  # drafts, on a server with sessions: ``Launches.avoided``
    # The waiting queue in the order of the tree's nodes, on a server with sessions: ``Launches.avoided``.
    DFS_TURN = "server.dfs_turn"
    OVERLAPPED_STATE = "server.overlapped_state"  # turns of sessions where steps overlap and states are tracked
    # On a decode server: a request that gave its row up waits for a batch while a prompt has come for another one. The
    # client takes it back.
    RETRACTED_BEHIND_ARRIVED = "server.retracted_behind_arrived"
    # On a decode server with a cache and priorities: the waiting queue in an order that looks into the tree:
    # ``Launches.avoided``.
    ORDER_OF_ARRIVED = "server.order_of_arrived"
    # Decode servers whose steps overlap, but for those with a barrier that waits for the whole step:
    # ``Launches.avoided``. A request that has ended is computed once more, while a transfer may begin into its slots.
    TRANSFER_UNDER_PASS = "server.transfer_under_pass"
    # Decode servers that are told to free rows at once, though a prefill server may write: ``Launches.avoided``.
    ROWS_FREE_AT_ONCE = "server.rows_free_at_once"
    # Decode servers with windows and a cache: prompts whose row gets SWA slots that the prefill server does not write;
    # and, by ``Launches.avoided``, pages of one token.
    UNSENT_WINDOW = "server.unsent_window"
    WINDOW_IS_NO_ROOM = "server.window_is_no_room"  # the same servers with pages of one token: ``Launches.avoided``
    # To a prefill server: prompts that are longer than a third of the pool, and so may be longer than it takes.
    REJECTED_IS_SENT = "server.rejected_is_sent"
    # Where a model has windows: a prompt that begins as one does that is on the server.
    SHARED_WINDOW = "server.shared_window"
    # On a decode server: a prefill server that has failed, or was told to stop, goes on writing.
    LATE_WRITES = "server.late_writes"
    REBOOTSTRAPPED = "server.rebootstrapped"  # on a decode server: a pause that takes requests off their rows
    UPDATE_WHILE_PAUSED = "server.update_while_paused"  # new weights for a paused server that has requests
    # New weights in the turn after the last answer, for a server that was paused in that turn, or while something is
    # copied to or from host memory.
    UPDATE_AFTER_ANSWER = "server.update_after_answer"


EXCLUSIONS = ServerExclusion


def may_ask_for_turn(run: ServedClients, exclude: Collection[StrEnum], session: int, more: int = 0) -> bool:
    """Whether a client may send a turn of this session now, with ``more`` tokens of input and answer."""
    if ServerExclusion.OVERLAPPED_STATE in exclude and run.engine.overlaps and run.engine.shape.get("buffered"):
        return False
    if ServerExclusion.ABORTED_TURN in exclude and session in run.spoiled:
        return False
    if ServerExclusion.TURN_BESIDE_TURN not in exclude:
        return True
    text = len(run.text_of(session))
    return session not in run.sessions_with_turns() and text + more <= run.longest // 2


def may_send_empty_turn(_: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may send a session's turn without a new token, or one for which it wants no answer."""
    return ServerExclusion.EMPTY_TURN not in exclude


def may_say_priority(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may say how urgent its request is."""
    if ServerExclusion.PREEMPTED_IS_FORGOTTEN in exclude:
        return False
    return ServerExclusion.PREEMPTED_TURN not in exclude or not run.config["sessions"]


def may_update_weights(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may load new weights now."""
    if not may_flush(run, exclude):
        return False
    if ServerExclusion.UPDATE_AFTER_ANSWER in exclude and (run.paused or not run.settled):
        return False
    return run.quiet or (run.paused and ServerExclusion.UPDATE_WHILE_PAUSED not in exclude)


def may_stop(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may name a token that ends the answer."""
    tracks = run.engine.overlaps and bool(run.engine.shape.get("buffered"))
    return not (ServerExclusion.OVERWRITTEN_TRACK in exclude and tracks)


def may_flush(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may have the cache emptied now."""
    stateful = "size_mamba" in run.engine.shape
    return not (ServerExclusion.WAITING_COPY in exclude and stateful and run.sessions_with_turns())


def may_release_memory(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may have the memory given back now."""
    after_answer = ServerExclusion.RELEASE_AFTER_ANSWER in exclude and run.paused
    beside_copy = ServerExclusion.RELEASE_BESIDE_COPY in exclude and not run.settled
    return run.quiet and not after_answer and not beside_copy


def may_retract(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether a client may have a paused server take requests off their rows."""
    return ServerExclusion.REBOOTSTRAPPED not in exclude or TRANSFER in run.lacks


def may_take_back(run: ServedClients, exclude: Collection[StrEnum]) -> bool:
    """Whether clients take back what waits after it gave its row up, while nothing is computed."""
    return ServerExclusion.RETRACTED_BEHIND_ARRIVED in exclude and TRANSFER not in run.lacks


def may_ask_for(run: ServedClients, exclude: Collection[StrEnum], length: int) -> bool:
    """Whether a client may send a prompt of so many tokens. A prefill server may reject a long one. A decode server
    with windows and a cache gives a prompt SWA slots for a window before its last token, from the beginning of a page
    on; and hears of those of the window behind that token.
    """
    shape, lacks = run.engine.shape, run.lacks
    if ServerExclusion.REJECTED_IS_SENT in exclude and SENDS not in lacks and length > run.longest // 3:
        return False
    if ServerExclusion.UNSENT_WINDOW not in exclude or {TRANSFER, FINDS} & {*lacks} or not is_windowed(shape):
        return True
    page, window = int(shape["page_size"]), int(shape["window"])
    return max(0, length - 1 - max(window, page)) // page == max(0, length - window) // page


def may_share_prompt(run: ServedClients, exclude: Collection[StrEnum], first: int) -> bool:
    """Whether a client may send a prompt that begins with the token ``first`` now."""
    if ServerExclusion.SHARED_WINDOW not in exclude or not is_windowed(run.engine.shape):
        return True
    return all(run.begins_with(request) != first for request in run.here | run.coming)


def lawful_steps(
    steps: Sequence[TransferStep | SendStep], exclude: Collection[StrEnum]
) -> Sequence[TransferStep | SendStep]:
    """Of what a prefill server can do next, what it does."""
    if ServerExclusion.LATE_WRITES not in exclude:
        return steps
    return ["stops"] if "stops" in steps else [step for step in steps if step != "breaks"]


def turns_before_release(exclude: Collection[StrEnum]) -> int:
    """How many turns a server without requests makes before a client has it give its memory back."""
    return 2 if ServerExclusion.RELEASE_AFTER_ANSWER in exclude else 0


def turns_before_update(exclude: Collection[StrEnum]) -> int:
    """How many turns a server makes before a client loads new weights."""
    return 2 if ServerExclusion.UPDATE_AFTER_ANSWER in exclude else 0
