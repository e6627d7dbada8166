"""Which operations take the transitions of ``allocator``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import Claim, own_way, taken_by

CLAIMS: dict[str, Claim] = {
    "alloc": taken_by("alloc"),
    "alloc_extend": taken_by("extend"),
    "alloc_decode": taken_by("decode"),
    "free": taken_by("free", "free_segment"),
    "shorten": taken_by("trim", "finish"),
    "roll_back": taken_by("roll_back"),
    "free_group_begin": taken_by("begin_group"),
    "free_group_end": taken_by("end_group"),
    "backup_state": taken_by("backup"),
    "restore_state": taken_by("restore"),
    "merge_and_sort_free": own_way("An engine may put freed pages on its free list at once."),
    "clear": taken_by("clear"),
}
SIZES = {"size": 6, "size_swa": 4, "rows": 3}
PROBES: tuple[Json, ...] = tuple(
    {**SIZES, "page_size": page_size, "need_sort": sorts} for page_size, sorts in product((1, 2, 4), (False, True))
)
