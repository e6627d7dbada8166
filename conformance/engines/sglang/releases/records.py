"""What a request of SGLang and the slot of a session record: a row, lengths, the lock on the tree, state slots.

Requests and slots name these by fields of the same names. Since 0.5.16 a part of the fields is in a record of its own
(``kv``), which a request borrows from its session's slot. Every function here takes either of the two as its holder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

# The fields of a record for its own state slot, for its track buffer, and for the track that is written next.
STATE, TRACKS, NEXT_TRACK = "mamba_pool_idx", "mamba_ping_pong_track_buffer", "mamba_next_track_idx"
TRACKED = "mamba_last_track_seqlen"  # the field for the length of the text whose state was tracked last
MATCHED = "mamba_cow_src_index"  # the field for the state of the matched node, until a batch copies it
WINDOW = "SWA"  # the name of the component whose slots before a cursor are freed
CURSORS = "component_evicted_seqlens"  # the field for the cursor of each component
RECURRENT = "MAMBA"  # the name of the component that has the states of recurrent layers


class RowLengths(NamedTuple):
    """Lengths of a row, in tokens."""

    protected: int
    cursor: int
    committed: int
    allocated: int


def read(holder: Any, name: str) -> Any:
    """The field of this name, of the holder itself or of its record."""
    kv = getattr(holder, "kv", None)
    return getattr(kv if hasattr(kv, name) else holder, name)


def _has(holder: Any, name: str) -> bool:
    """Whether the release keeps such a field."""
    return hasattr(holder, name) or hasattr(getattr(holder, "kv", None), name)


def write(holder: Any, **fields: Any) -> None:
    """Sets fields, each where the release has it."""
    kv = getattr(holder, "kv", None)
    for name, value in fields.items():
        setattr(kv if hasattr(kv, name) else holder, name, value)


def write_known(holder: Any, **fields: Any) -> None:
    """Sets those of the fields that the release keeps."""
    write(holder, **{name: value for name, value in fields.items() if _has(holder, name)})


def take_matched(request: Any) -> Any:
    """The state of the node that a request has matched, which nobody has copied yet, and it is forgotten; ``None``:
    there is none, as in a release that copies at once.
    """
    source = read(request, MATCHED) if _has(request, MATCHED) else None
    write_known(request, **{MATCHED: None})
    return source


def shared(request: Any, slot: Any) -> bool:
    """Whether a request runs on the very record of a session's slot."""
    kv = getattr(request, "kv", None)
    return kv is not None and kv is getattr(slot, "kv", None)


def row(holder: Any) -> int | None:
    """The row of a request or slot; ``None``: it has none."""
    found = read(holder, "req_pool_idx")
    return None if found is None else int(found)


def committed(holder: Any) -> int:
    """How many tokens are computed."""
    return int(read(holder, "kv_committed_len"))


def allocated(holder: Any) -> int:
    """How many tokens have slots."""
    return int(read(holder, "kv_allocated_len"))


def lengths(holder: Any) -> RowLengths:
    """The lengths of the holder's row."""
    return RowLengths(int(read(holder, "cache_protected_len")), cursor(holder), committed(holder), allocated(holder))


def quick_lengths(holder: Any) -> Callable[[Any], tuple[Any, RowLengths]]:
    """A function that reads the row and the lengths of a holder, as ``row`` and ``lengths`` do, and faster. It raises
    ``AttributeError`` for a holder that does not keep them where this one does.
    """
    kv = getattr(holder, "kv", None)
    names = ("req_pool_idx", "cache_protected_len", "kv_committed_len", "kv_allocated_len", CURSORS)
    if not _has(holder, CURSORS):
        names = (*names[:-1], "swa_evicted_seqlen")
    fields = attrgetter(*(f"kv.{name}" if hasattr(kv, name) else name for name in names))
    by_part = names[-1] == CURSORS

    def quick(holder: Any) -> tuple[Any, RowLengths]:
        row, protected, computed, slots, before = fields(holder)
        at = int(before) if not by_part else _of_window(before) if before else 0
        return row, RowLengths(int(protected), at, int(computed), int(slots))

    return quick


def cursor(holder: Any) -> int:
    """The token before which the slots of the window were freed."""
    if not _has(holder, CURSORS):
        return int(read(holder, "swa_evicted_seqlen"))
    return _of_window(read(holder, CURSORS))


def _of_window(cursors: Mapping[Any, int]) -> int:
    return next((int(to) for part, to in cursors.items() if part.name == WINDOW), 0)


def gap(holder: Any) -> int:
    """Where every layer has a sliding window: the token from which on the slots before the cursor were freed."""
    return max(int(read(holder, "cache_protected_len")), int(read(holder, "swa_evict_floor")))


def prefix(request: Any) -> int:
    """How many tokens of its input a request has matched."""
    slots = prefix_slots(request)
    return int(request.prefix_len) if slots is None else len(slots)


def prefix_slots(request: Any) -> Any:
    """The slots of the prefix that a request has matched; ``None``: the release keeps only how many they are."""
    return getattr(request, "prefix_indices", None)


def limit_input(request: Any, upto: int) -> None:
    """The next prefill of the request computes its input up to so many tokens."""
    if hasattr(request, "set_extend_range"):
        request.set_extend_range(prefix(request), upto)
    elif hasattr(request, "extend_end"):
        request.extend_end = upto
    elif hasattr(request, "fill_len"):
        request.fill_len = upto
    else:
        request.fill_ids = request.fill_ids[:upto]


def refresh_input(request: Any) -> None:
    """The tokens of the answer join the tokens that the tree is asked about."""
    name = next(n for n in ("refresh_fill_ids", "_refresh_fill_ids") if hasattr(request, n))
    getattr(request, name)()


# The lock of a holder.


def locked_node(holder: Any) -> Any:
    """The node on which the holder has a lock, as the release names nodes; ``None``: it has no lock."""
    if hasattr(holder, "lock"):
        return None if holder.lock is None else holder.lock.node
    return holder.last_node


def window_token(holder: Any) -> Any:
    """The mark of the node where the window of the holder's lock ends; ``None``: it reaches up to the root."""
    kept = receipt(holder)
    if hasattr(kept, "swa_uuid_for_lock"):
        return kept.swa_uuid_for_lock
    return next((token for part, token in kept.component_lock_uuids.items() if part.name == WINDOW), None)


def receipt(holder: Any) -> Any:
    """What the holder keeps to give its lock back: an object of its own, or fields of the holder itself."""
    if hasattr(holder, "lock"):
        return None if holder.lock is None else holder.lock.receipt
    return getattr(holder, "lock_receipt", holder)


def leaves_state(holder: Any) -> bool:
    """The holder has locked its node without the node's state, as the receipt says. Receipts say so from 0.5.20 on, the
    first release whose servers are driven with models that have states.
    """
    return any(part.name == RECURRENT for part in getattr(receipt(holder), "skipped_lock_components", ()))


def window_released(holder: Any) -> bool:
    """The holder has noted that it gave the SWA part of its lock back early."""
    if hasattr(holder, "lock"):
        return holder.lock is not None and bool(getattr(holder.lock, "swa_released", False))
    return bool(getattr(holder, "swa_prefix_lock_released", False))
