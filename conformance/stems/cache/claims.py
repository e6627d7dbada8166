"""Which operations take the transitions of ``cache``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import SESSIONS, SESSIONS_WITH_STATES, STATES, Claim, Where, own_way, taken_by
from conformance.stems.configs import WINDOWED
from conformance.stems.kinds import Kinds
from conformance.stems.mamba_slots.rules import LAZY, NO_BUFFER, ONE, TWO
from conformance.stems.session_trim import claims as rows

TRACKED = Where(
    "mamba states and a track buffer of two slots, not lazy",
    lambda config: STATES.holds(config) and bool(config["doubled"]) and not config["lazy"],
)
LAZY_STATES = Where("mamba states and a lazy track buffer", lambda c: STATES.holds(c) and bool(c["lazy"]))
BUFFERED = Where("mamba states and a track buffer", lambda c: STATES.holds(c) and bool(c["buffered"]))
OF_ROWS = ("admit", "admit_tail", "extend", "decode", "reserve", "commit", "slide", "leave_window", "roll_back")
OF_GROUPS = ("settle_swa", "free_group_begin", "free_group_end")
TOMBSTONES = "A tree may evict leaves alone, and an insert may leave a tombstone as it is."
EARLY = "An engine may hold the whole lock of a request until the request ends."
GIVEN_LATER = "An engine may give a state to the tree only when its request ends."
CLAIMS: dict[str, Claim] = {
    **{name: rows.CLAIMS[name] for name in (*OF_ROWS, *OF_GROUPS)},
    "release_swa": own_way(EARLY),
    "release_state": own_way(EARLY),
    "finish": taken_by("finish", "abort"),
    "continue_prefill": own_way("An engine may put a prompt into its tree only when the request ends."),
    "insert_leaf": taken_by("finish"),
    "drop_duplicates": own_way("An engine may match again before it inserts, and so have no duplicates."),
    "revive_tombstone": own_way(TOMBSTONES),
    "revive_in_place": own_way(TOMBSTONES),
    "free_rest": taken_by("finish", "abort"),
    "save": taken_by("finish", where=SESSIONS),
    "restore": own_way("An engine may keep the row of a session as it was, and cut nothing off when it goes on."),
    "resume": taken_by("admit", where=SESSIONS),
    "close": taken_by("close", where=SESSIONS),
    "split": own_way("A tree with a node for each page never splits one."),
    "merge": taken_by("compact"),
    "evict_leaf": taken_by("evict", where=Where("no mamba states", lambda config: not STATES.holds(config))),
    "evict_swa": own_way(TOMBSTONES),
    "state_group_begin": taken_by("admit", where=STATES),
    "state_group_end": taken_by("admit", where=STATES),
    "state_match": taken_by("admit", where=STATES),
    "state_match_again": own_way("An engine may match a request once, and not again while it waits."),
    "state_admit": taken_by("admit", where=STATES),
    "state_write": taken_by("track", where=BUFFERED),
    "state_track": taken_by("track", where=TRACKED),
    "state_second": taken_by("boundary", where=LAZY_STATES),
    "state_give_second": taken_by("settle", where=LAZY_STATES),
    "state_turn_lazy": own_way("A tree may take the newest state of a lazy buffer alone, and never the one before."),
    "state_release": taken_by("finish", "abort", where=STATES),
    "state_copy": own_way(GIVEN_LATER),
    "state_swap": own_way(GIVEN_LATER),
    "state_renew": own_way(GIVEN_LATER),
    "state_donate": taken_by("finish", where=STATES),
    "state_evict": own_way("A tree may evict leaves alone, and with them their states."),
    "evict_leaf_and_state": taken_by("evict", where=STATES),
    "state_save": taken_by("finish", where=SESSIONS_WITH_STATES),
    "state_take_back": own_way("An engine may keep the row of a session as it was, and take no earlier state back."),
    "state_restore": taken_by("admit", where=SESSIONS_WITH_STATES),
    "state_close": taken_by("close", where=SESSIONS_WITH_STATES),
    "launch": taken_by("admit", "decode", where=STATES),
    "end_pass": taken_by("admit", "decode", "land", where=STATES),
    **dict.fromkeys(("receive", "arrive"), rows.CLAIMS["admit_tail"]),
    "extend_elsewhere": own_way("An engine may compute all tokens itself."),
    "fall_short": own_way("Where one server computes all tokens of a request, no transfer fails."),
}


def probes(kinds: Kinds) -> list[Json]:
    """One configuration for each kind of rows; with states for each tree, kind of track buffer and page size."""
    without = [{"components": WINDOWED, **probe} for probe in rows.probes(kinds)]
    stateful = [(kind, parts) for kind, parts in dict.fromkeys(kinds.locked) if "mamba" in parts]
    with_states = [
        {"components": [*parts], "tree": kind, "buffered": buffered, "doubled": doubled, "lazy": lazy}
        for (kind, parts), (buffered, doubled, lazy) in product(stateful, (TWO, LAZY, ONE, NO_BUFFER))
    ]
    sized = [{**rows.SIZES, **kind, "page_size": size, "size_mamba": 10} for kind in with_states for size in (1, 4)]
    return [*without, *sized]
