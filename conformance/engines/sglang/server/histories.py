"""What happened to each KV slot, SWA slot and mamba state of a server, told to one who reads how a script ends."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from conformance.driver.shadow import FULL, STATES, SWA
from conformance.stems.cache.protocol import CacheSnapshot
from conformance.stems.server.protocol import ServerEvent

LINES = 6  # of one place, the newest
NAMES = {FULL: "KV slot", SWA: "SWA slot", STATES: "mamba state"}
FREE, CACHED = "is free", "belongs to the radix cache"
EVENTS = {  # of ``ServerEvent``; what is not here is no news
    "arrived": "arrival",
    "matched": "match_prefix",
    "admitted": "admission",
    "extended": "slots for a prefill",
    "decoded": "slots for a decode step",
    "passed": "forward pass",
    "verified": "drafts verified",
    "cached": "cache_unfinished_req",
    "left": "row given up",
    "closed": "session closed",
    "flushed": "cache flushed",
    "states_begun": "states for a batch",
    "loaded_back": "load from host memory",
    "tracks": "track buffers",
    "preallocated": "slots for a transfer",
    "transfer_begun": "send_metadata",
    "transfer_ended": "end of the transfer",
}
Owners = Mapping[int, str]


class Histories:
    """Notes, for each place of a pool, who owns it and what is written to it, and when."""

    def __init__(self) -> None:
        self.step = 0
        self._when = ""
        self._did: deque[str] = deque(maxlen=LINES)
        self._owners: dict[str, dict[int, str]] = {pool: {} for pool in NAMES}
        self._lines: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._source: dict[int, list[str]] = {}  # of a state that was copied: what had happened to the one it is from

    def at(self, event: ServerEvent) -> None:
        """The server did something: lines that are added from now on begin with it."""
        self._when = f"step {self.step}"
        if what := EVENTS.get(event.kind):
            requests = [*map(str, event.requests)]
            whom = f" of request{'s' * (len(requests) > 1)} {', '.join(requests)}" if requests else ""
            self._when += f", {what}{whom}"
            self._did.append(f"  {self._when}")

    def owned(self, seen: CacheSnapshot, page_size: int) -> None:
        """Adds a line for each slot that has another owner than at the last snapshot."""
        pools = seen.rows.pools
        owners = _kv_owners(seen)
        mapped = {pools.mapping[slot]: owner for slot, owner in owners.items()} if pools.mapping else {}
        mapped.pop(0, None)  # the slots that are mapped to none
        for pool, owned, has in ((FULL, owners, pools.full), (SWA, mapped, pools.swa)):
            free = {page * page_size + at for page in (*has.free, *has.released) for at in range(page_size)}
            self._changed(pool, owned, free)
        if seen.states is not None:
            self._changed(STATES, _state_owners(seen), {*seen.states.free, *seen.states.waiting})

    def _changed(self, pool: str, owners: Owners, free: Iterable[int]) -> None:
        now, before = {**dict.fromkeys(free, FREE), **owners}, self._owners[pool]
        for place in now.keys() | before.keys():
            owner = now.get(place, CACHED)  # it was seen before, and neither a list nor a request has it
            if before.get(place) != owner:
                before[place] = owner
                self.note(pool, place, owner)

    def note(self, pool: str, place: int, what: str) -> None:
        """Adds a line to the history of one slot of a pool."""
        self._lines[pool, place].append(f"  {self._when}: {what}")

    def copied(self, source: int, target: int, length: int) -> None:
        """The state in the slot ``source``, which is after ``length`` tokens, was copied into the slot ``target``."""
        self._source[target] = self._told(STATES, source)
        self.note(STATES, target, f"state {source}, after {length} tokens, is copied to it")

    def of(self, pool: str, place: int) -> str:
        """The newest lines of one slot. Before them stand those of the state from which it was copied."""
        before = self._source.get(place, []) if pool == STATES else []
        return "\n".join([*before, *self._told(pool, place)])

    def _told(self, pool: str, place: int) -> list[str]:
        return [f"What happened to {NAMES[pool]} {place}:", *self._lines[pool, place][-LINES:]]

    def did(self) -> str:
        """What the server did last."""
        return "\n".join(["What the server did last:", *self._did])


def _kv_owners(seen: CacheSnapshot) -> Owners:
    """The slots of rows beyond the prefixes that the tree owns, without those that a window has left and that were
    given back, where every layer has a window.
    """
    owners: dict[int, str] = {}
    all_sliding = not seen.rows.pools.mapping
    for kind, rows in (("request", seen.rows.requests), ("session", seen.rows.sessions)):
        for number, row in rows.items():
            given_back = range(row.gap, row.lengths.cursor if all_sliding else 0)
            for at, slot in enumerate(row.slots):
                if at >= row.lengths.protected and at not in given_back:
                    owners[slot] = _and(owners.get(slot), f"is for token {at} of {kind} {number}")
    return owners


def _state_owners(seen: CacheSnapshot) -> Owners:
    owners: dict[int, str] = {}
    assert seen.states is not None
    for kind, known in (("request", seen.states.requests), ("session", seen.states.sessions)):
        for number, names in known.items():
            for slot in {*names.slots} - {0}:
                owners[slot] = _and(owners.get(slot), f"belongs to {kind} {number}")
    for slot in seen.states.nodes.values():
        owners[slot] = _and(owners.get(slot), CACHED)
    return owners


def _and(before: str | None, owner: str) -> str:
    return owner if before is None else f"{before}, and {owner}"
