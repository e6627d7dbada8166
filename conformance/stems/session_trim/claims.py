"""Which operations take the transitions of ``session_trim``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import SLIDING, WINDOWED, Claim, own_way, taken_by
from conformance.stems.configs import FULL
from conformance.stems.configs import SLIDING as ALL_SLIDING
from conformance.stems.configs import WINDOWED as WINDOWED_PARTS
from conformance.stems.kinds import Kinds

NO_TREE = "An engine without a prefix cache keeps nothing of a row that leaves."
NO_SESSIONS = "To an engine without streaming sessions each turn is a new request."
CLAIMS: dict[str, Claim] = {
    "admit": taken_by("admit"),
    "admit_tail": taken_by("admit_tail"),
    "reserve": taken_by("reserve"),
    "extend": taken_by("admit"),
    "decode": taken_by("decode"),
    "commit": taken_by("commit"),
    "roll_back": taken_by("roll_back"),
    "slide": taken_by("decode", where=WINDOWED),
    "leave_window": taken_by("decode", where=SLIDING),
    "finish": taken_by("finish", "abort"),
    "come_back": own_way(NO_TREE),
    "donate": own_way(NO_TREE),
    "dedupe": own_way(NO_TREE),
    "donate_swa": own_way(NO_TREE),
    "release": taken_by("finish", "abort"),
    "save": own_way(NO_SESSIONS),
    "restore": own_way(NO_SESSIONS),
    "resume": own_way(NO_SESSIONS),
    "close": own_way(NO_SESSIONS),
    "pass_on": own_way(NO_TREE),
    "drop": own_way(NO_TREE),
    "drop_swa": own_way(NO_TREE),
    "settle_swa": own_way("An engine may free SWA pages at once, also inside a free group."),
    "free_group_begin": taken_by("begin_group"),
    "free_group_end": taken_by("end_group"),
}
SIZES: Json = {"size": 8, "size_swa": 8, "rows": 3, "sessions": 2, "window": 2, "need_sort": False}
SLIDING_KINDS: tuple[Json, ...] = tuple(
    {"components": ALL_SLIDING, "sessions": 0, "prefill_aware": aware} for aware in (False, True)
)


def probes(kinds: Kinds) -> list[Json]:
    """One configuration for each page size and kind of model, over each tree that a server may have for it."""
    windowed = [{"tree": kind} for kind, parts in kinds.served if parts == tuple(WINDOWED_PARTS)]
    full = [{"tree": kind, "components": FULL} for kind, parts in kinds.served if parts == tuple(FULL)]
    every: list[Json] = [*windowed, *full, *SLIDING_KINDS]
    return [{**SIZES, **kind, "page_size": page_size} for page_size, kind in product((1, 4), every)]
