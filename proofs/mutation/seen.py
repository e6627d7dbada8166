"""Which values of a state anybody can read: two states that agree on these are equal for every law and every call.

The other values are left over: the owner of a free page, the node of a lock handle that was released. An edit that
leaves another one of these behind changes nothing. That no law and no transition reads them is checked in the small
worlds by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from proofs.symbols import SymMap, Term, World
from spec.block_pool_state import NO_HASH
from spec.in_flight import flies, uses
from spec.kv_events import somewhere
from spec.lengths import touched
from spec.lock_ref_state import ROOT, lives, over
from spec.logic import Truth, but, no
from spec.mamba_slots_state import OWN, RUNNING, SECOND, has_buffer, is_held, is_request
from spec.pool import held
from spec.session_trim_state import IDLE as NOT_IN_USE
from spec.session_trim_state import SAVED, allocated, full_pool, has_gaps, in_gap, is_row, swa_pool

Read = Callable[..., Truth]


def _active(st: Any, h: Any) -> Truth:
    return st.handles.has(h) & (st.active(h) == 1)


def _on_its_path(st: Any, h: Any, n: Any) -> Truth:
    return _active(st, h) & st.nodes.has(n) & over(st, n, st.node(h))


def _in_use(st: Any, r: Any) -> Truth:
    return is_row(st, r) & (st.phase(r) != NOT_IN_USE)


def _role(k: Any) -> Truth:
    return (k >= OWN) & (k <= SECOND)


def _shown(st: Any, r: Any, i: Any) -> Truth:
    there = (i >= 0) & (i < touched(allocated(st.rows, r)))
    return _in_use(st.rows, r) & there & no(in_gap(st.rows, r, i))


def _placed(st: Any, b: Any) -> Truth:
    """A block has a place where it is held, and where the prefix cache finds it."""
    return st.blocks.has(b) & ((st.refs(b) > 0) | (st.hash(b) != NO_HASH))


def _of_a_copy(st: Any, j: Any, b: Any) -> Truth:
    """A copy in flight uses the block."""
    return flies(st.flight, j) & st.flight.blocks.has(b) & uses(st.flight, j, b)


_TABLE: Read = lambda st, r: st.rows.has(r)  # noqa: E731
_PAGE: Read = lambda st, p: st.pages.has(p)  # noqa: E731
_NODE: Read = lives
_OWNER_ROLE: Read = lambda st, o, k: st.owners.has(o) & _role(k)  # noqa: E731

# For each map of a state, by the class of the state: where the map is read.
WHERE: Mapping[str, Mapping[str, Read]] = {
    "Pool": {
        **dict.fromkeys(("place", "owed"), _PAGE),
        **dict.fromkeys(("owner", "index"), held),
        "table": lambda st, r, i: st.rows.has(r) & st.indices.has(i),
        **dict.fromkeys(("whole", "rest"), lambda st, r: st.rows.has(r)),
    },
    "Pair": {
        **dict.fromkeys(("to_page", "to_offset"), lambda st, p, o: st.full.pages.has(p) & st.full.offsets.has(o)),
        "anchor": lambda st, s: held(st.swa, s),
    },
    "LockRefState": {
        "alive": lambda st, n: st.nodes.has(n),
        **dict.fromkeys(("parent", "stop", "source", "swa", "mamba", "full_ref", "swa_ref", "mamba_ref"), _NODE),
        "above": lambda st, a, n: st.nodes.has(a) & (st.nodes.has(n) | (n == ROOT)),
        "active": lambda st, h: st.handles.has(h),
        **dict.fromkeys(("node", "top", "state"), _active),
        **dict.fromkeys(("grip", "reads"), _on_its_path),
    },
    "SessionTrimState": {
        **dict.fromkeys(("phase", "protected"), is_row),
        **dict.fromkeys(("cursor", "cursor_rest", "committed", "committed_rest", "session"), _in_use),
        "gap": lambda st, r: _in_use(st, r) & has_gaps(st),
        **dict.fromkeys(("text", "text_rest"), lambda st, r: is_row(st, r) & (st.phase(r) == SAVED)),
        "slot": lambda st, s: st.sessions.has(s),
    },
    "MambaSlotsState": {
        "place": lambda st, s: st.slots.has(s) | (s == 0),
        "owed": lambda st, s: st.slots.has(s),
        **dict.fromkeys(("owner", "role"), is_held),
        "table": _OWNER_ROLE,
        "names": lambda st, o, k: is_request(st, o) & _role(k),
        "row": lambda st, o, k: is_request(st, o) & (st.phase(o) == RUNNING) & _role(k),
        "next": lambda st, o: st.owners.has(o) & has_buffer(st, o),
        "phase": is_request,
    },
    "CacheState": {
        "handle": lambda st, r: is_row(st.rows, r),
        "holder": lambda st, h: _active(st.tree, h),
        "reads": _shown,
        "cover": lambda st, n, i: lives(st.tree, n) & (i >= 0) & (i < st.tree.stop(n)),
        "mine": lambda st, r: is_row(st.rows, r),
        "carrier": lambda st, o: is_request(st.states, o),
        "full_used": lambda st, j, p: st.flight.jobs.has(j) & full_pool(st.rows).pages.has(p),
        "swa_used": lambda st, j, p: st.flight.jobs.has(j) & swa_pool(st.rows).pages.has(p),
        **dict.fromkeys(("awaits", "sent_from"), lambda st, r: is_row(st.rows, r)),
    },
    "BlockPoolState": {
        "tells": lambda *_: True,
        **dict.fromkeys(("group", "active", "length", "filled"), _TABLE),
        "story": lambda st, r: _TABLE(st, r) & (st.active(r) == 1),
        "table": lambda st, r, i: _TABLE(st, r) & st.indices.has(i),
        **dict.fromkeys(("refs", "hash", "content"), lambda st, b: st.blocks.has(b)),
        **dict.fromkeys(("index", "home"), _placed),
    },
    "BlockCacheState": dict.fromkeys(
        (
            *("block_size", "windowed", "window", "window_rest", "stateful"),
            *("whole", "rest", "ahead_whole", "ahead_rest", "first", "phase"),
        ),
        lambda st, r: st.pool.rows.has(r),
    ),
    "HostTierState": {
        "tells": lambda st, k, o: st.every_key.has(k) & st.parts.has(o),
        **dict.fromkeys(("phase", "slot", "seen", "refs", "loads"), lambda st, k: st.every_key.has(k)),
        "key": lambda st, s: st.slots.has(s),
        "text": lambda st, s, o: st.slots.has(s) & st.parts.has(o),
        "block_text": lambda st, b: st.flight.blocks.has(b),
        **dict.fromkeys(("place", "lost"), lambda st, j: flies(st.flight, j)),
        "source": lambda st, j, o: _of_a_copy(st, j, st.source(j, o)) & st.parts.has(o),
        "part": _of_a_copy,
    },
    "InFlightState": {
        "kind": lambda st, j: st.jobs.has(j),
        "row": flies,
        "uses": lambda st, j, b: st.jobs.has(j) & st.blocks.has(b),
    },
    "Contents": dict.fromkeys(
        ("tells", "story", "full", "swa", "state", "state_page", "state_offset"), lambda *_: True
    ),
    "KvEventsState": {
        "chained": lambda st, b, m: st.blocks.has(b) & st.media.has(m),
        **dict.fromkeys(("copies", "said"), lambda st, b, m: st.blocks.has(b) & st.media.has(m)),
        "text": somewhere,
    },
}

# The names of these classes in older revisions of the spec.
WERE = {
    **{"Tree": "LockRefState", "Rows": "SessionTrimState", "MambaSlots": "MambaSlotsState"},
    **{"Blocks": "BlockPoolState", "BlockCache": "BlockCacheState", "Events": "KvEventsState"},
}

FLAGS = ("alive", "above", "active", "uses")  # maps of which only 1 has a meaning


def where_read(one: Any) -> Mapping[str, Read]:
    """Where each map of the state is read."""
    name = type(one).__name__
    return WHERE.get(WERE.get(name, name), {})


def values(one: Any, keys: list[Term], path: str = "") -> Iterator[tuple[str, Any, Truth]]:
    """Each value of a state: its name, the value, and where it is read; of a map the value at ``keys``."""
    for f in fields(one):
        value = getattr(one, f.name)
        if is_dataclass(value):
            yield from values(value, keys, f"{path}{f.name}.")
        elif isinstance(value, SymMap):
            used = keys[: value.arity]
            read = value(*used) == 1 if f.name in FLAGS else value(*used)
            yield path + f.name, read, where_read(one)[f.name](one, *used)
        elif isinstance(value, Term | int):
            yield path + f.name, value, True


def blurred(world: World, one: Any, path: str = "") -> Any:
    """A copy of the state in which the values that nobody reads are others."""
    changes: dict[str, Any] = {}
    for f in fields(one):
        value = getattr(one, f.name)
        if is_dataclass(value):
            changes[f.name] = blurred(world, value, f"{path}{f.name}.")
        elif isinstance(value, SymMap):
            other = world.map(f"other {path}{f.name}", value.arity)
            read = where_read(one)[f.name]
            changes[f.name] = _mixed(one, value, other, read)
    return but(one, **changes)


def _mixed(one: Any, value: SymMap, other: SymMap, read: Read) -> SymMap:
    return other.where(lambda *k: read(one, *k), value)
