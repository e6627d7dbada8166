"""How two states of the law differ, field by field, and how a field is put into words.

Findings use it for the engine against the law, stories for the state after an operation against the state before it.
``SAID`` has the words of each field, for both uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from spec.block_cache import KEPT, LOADS, RUNS, BlockCacheState
from spec.block_pool_state import NULL, BlockPoolState
from spec.cache_state import CacheState
from spec.finite import Map, Seq, Set
from spec.host_tier_state import ABSENT as ABSENT_KEY
from spec.host_tier_state import READY, WRITING, HostTierState
from spec.kv_events import KvEventsState
from spec.lengths import Length
from spec.lock_ref_state import LockRefState
from spec.mamba_slots_state import ABSENT, FIRST, GROUPED, NOWHERE, OWN, SECOND, MambaSlotsState
from spec.mamba_slots_state import FREE as FREE_STATE
from spec.mamba_slots_state import HELD as HELD_STATE
from spec.pair import Pair
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, Pool
from spec.session_trim_state import IDLE, LEAVING, RUNNING, SAVED, SessionTrimState

# Pairs of fields that make one value in words: pages with the tokens after them, a page with an offset.
TOGETHER: dict[tuple[type, str], str] = {
    (Pool, "whole"): "rest",
    (Pair, "to_page"): "to_offset",
    (SessionTrimState, "cursor"): "cursor_rest",
    (SessionTrimState, "committed"): "committed_rest",
    (SessionTrimState, "text"): "text_rest",
}
_FIRST = {(cls, second): first for (cls, first), second in TOGETHER.items()}
PLACES = {FREE: "free", RELEASED: "on the release list", HELD: "held", PENDING: "waiting for the end of a free group"}
STATE_PLACES = {NOWHERE: "nowhere", FREE_STATE: "free", GROUPED: "set aside in a group", HELD_STATE: "held"}
PHASES = {IDLE: "idle", RUNNING: "running", SAVED: "in its session's slot", LEAVING: "leaving"}
ROLES = {OWN: "state", FIRST: "first track", SECOND: "second track"}
HOST_PHASES = {ABSENT_KEY: "not on the host", WRITING: "being written", READY: "found"}


class FieldDifference(NamedTuple):
    """One place where two states differ.

    ``path``: the fields that lead to the part of the state. ``field``: the field of this part. ``key``: the key if the
    field is a map, else ``None``. ``was``, ``now``: the two values. ``old``, ``new``: the part in each of the two
    states (in a finding the law's and the engine's).
    """

    path: tuple[str, ...]
    field: str
    key: Any
    was: Any
    now: Any
    old: Any
    new: Any


def changes(old: Any, new: Any, path: tuple[str, ...] = ()) -> list[FieldDifference]:
    """Where two states of one type differ. Constants and domains are not compared."""
    if old is new:
        return []
    found: list[FieldDifference] = []
    for name in _names(type(old)):
        a, b = getattr(old, name), getattr(new, name)
        if a is b:
            continue
        if isinstance(a, Map):
            found += _of_map(old, new, path, name)
        elif is_dataclass(a):
            found += changes(a, b, (*path, name))
        elif a != b:
            found.append(FieldDifference(path, name, None, a, b, old, new))
    return found


_NAMES: dict[type, list[str]] = {}


def _names(cls: type) -> list[str]:
    """The fields of a state that can change, by name."""
    if cls not in _NAMES:
        _NAMES[cls] = [f.name for f in fields(cls) if not f.metadata.get("constant")]
    return _NAMES[cls]


def _of_map(old: Any, new: Any, path: tuple[str, ...], name: str) -> Iterator[FieldDifference]:
    cls, a, b = type(old), getattr(old, name), getattr(new, name)
    first = _FIRST.get((cls, name), name)
    second = TOGETHER.get((cls, first))
    for key in _keys(a, b):
        if second is None:
            yield FieldDifference(path, name, key, _at(a, key), _at(b, key), old, new)
            continue
        was, now = ((_at(getattr(s, first), key), _at(getattr(s, second), key)) for s in (old, new))
        if name == first or was[0] == now[0]:  # one change, also where both parts differ
            yield FieldDifference(path, first, key, was, now, old, new)


def _keys(a: Map, b: Map) -> list[Any]:
    """The keys at which two maps have different values."""
    keys = {key for key, _ in {*a.items()} ^ {*b.items()}}
    return sorted(key for key in keys if _at(a, key) != _at(b, key))


def _at(known: Map, key: Any) -> int:
    return known(*key) if isinstance(key, tuple) else known(key)


# Numbers and fields in words.


@dataclass
class Names:
    """How the law's numbers are named in messages. A run can set better names, as a node by its tokens."""

    node: Callable[[int], str] = "node {}".format
    row: Callable[[int], str] = "row {}".format
    owner: Callable[[int], str] = "owner {}".format
    handle: Callable[[int], str] = "handle {}".format
    source: Callable[[int], str] = "insert {}".format
    text: Callable[[int], str] = "text {}".format  # the prefix of a text by its number
    holders: Callable[[int], str] = lambda _: ""  # who holds a node, as "request 0 and request 1"


class FieldWords(NamedTuple):
    """The words of a field: what it is (at a key), and how a value of it reads."""

    what: Callable[[FieldDifference, Names], str]
    value: Callable[[FieldDifference, Any, Any, Names], str]  # the change, the part that has it, the value


def against_lines(differs: list[FieldDifference], names: Names) -> list[str]:
    """Differences between the law and the engine, one sentence each: what the engine shows, and what the law has.
    Neighbouring slots of the mapping, and pages in one place, share a sentence.
    """
    return [
        f"{what} {'are' if several else 'is'} {now}, the law has {was}"
        for what, was, now, several in (_words(group, names) for group in _groups(differs, names))
    ]


def told_lines(differs: list[FieldDifference], names: Names) -> list[str]:
    """What an operation has changed, one line for each change. Neighbouring slots of the mapping, and pages that went
    from one place to another, share a line.

    Left out are fields that follow from others (the tables of rows and nodes, sizes) and fields that only the law has.
    """
    shown = [c for c in differs if (type(c.new), c.field) in SAID and (type(c.new), c.field) not in FOLLOWS]
    return [f"{what}: {was} → {now}" for what, was, now, _ in (_words(group, names) for group in _groups(shown, names))]


def _groups(differs: list[FieldDifference], names: Names) -> list[list[FieldDifference]]:
    """The changes that are told together, in the order of the first of each group."""
    groups: list[list[FieldDifference]] = []
    place: dict[tuple[Any, ...], list[FieldDifference]] = {}
    for change in differs:
        known = type(change.new), change.field
        if known == (Pair, "to_page") and groups and _goes_on(groups[-1][-1], change):
            groups[-1].append(change)
            continue
        alike = place.get(key := (change.path, *_values(change, names))) if known == (Pool, "place") else None
        if alike is None:
            groups.append(alike := [])
        alike.append(change)
        if known == (Pool, "place"):
            place[key] = alike
    return groups


def _goes_on(last: FieldDifference, change: FieldDifference) -> bool:
    """The mapping of the next slot changed as the mapping of the last slot did: from nothing or from the next slot, to
    nothing or to the next slot.
    """
    if (type(last.new), last.field, last.path) != (type(change.new), change.field, change.path):
        return False
    size = change.new.full.page_size
    pairs = ((last.key, change.key), (last.was, change.was), (last.now, change.now))
    (key, *targets) = [(_slot_of(a, size), _slot_of(b, size)) for a, b in pairs]
    return key[1] == key[0] + 1 and all((a and b == a + 1) or not (a or b) for a, b in targets)


def _slot_of(place: tuple[int, int], size: int) -> int:
    return place[0] * size + place[1]


def _values(change: FieldDifference, names: Names) -> tuple[str, str]:
    value = _said(change).value
    return value(change, change.old, change.was, names), value(change, change.new, change.now, names)


def _words(group: list[FieldDifference], names: Names) -> tuple[str, str, str, bool]:
    """A group of changes in words: what changed, the two values, and whether "what" is a plural."""
    first, last = group[0], group[-1]
    was, now = _values(first, names)
    if (type(first.new), first.field) == (Pair, "to_page") and len(group) > 1:
        size = first.new.full.page_size
        slots, before, after = (
            _slots(_slot_of(a, size), _slot_of(b, size), size, pool)
            for a, b, pool in (
                (first.key, last.key, "full"),
                (first.was, last.was, "SWA"),
                (first.now, last.now, "SWA"),
            )
        )
        return f"the mapping of {slots}", before, after, False
    if (type(first.new), first.field) == (Pool, "place") and len(group) > 1:
        return f"{_side(first)}pages {ranges([c.key for c in group])}", was, now, True
    return _said(first).what(first, names), was, now, False


def _slots(first: int, last: int, size: int, pool: str) -> str:
    """Slots that follow each other, in words: as pages where they fill pages. Slot 0 is nothing."""
    if not first:
        return "nothing"
    slots = f"slots {first} to {last}"
    if size == 1 or first % size or (last + 1) % size:
        return f"{pool} {slots}"
    pages = first // size, last // size
    return f"{pool} {f'page {pages[0]}' if pages[0] == pages[1] else f'pages {pages[0]} to {pages[1]}'} ({slots})"


def ranges(numbers: list[int]) -> str:
    """Ascending numbers in words, where three or more that follow each other are a range: ``1 to 4, 7, 8``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


FOLLOWS = {
    *((Pool, name) for name in ("table", "whole", "available")),
    *((LockRefState, name) for name in ("source", "node", "top", "state", "grip")),
    *((LockRefState, f"{part}_{which}") for part in ("full", "swa", "mamba") for which in ("evictable", "protected")),
    *((CacheState, name) for name in ("reads", "handle")),
    (MambaSlotsState, "available"),
    *((BlockPoolState, name) for name in ("length", "available")),
    *((HostTierState, name) for name in ("key", "available")),
}


def _said(change: FieldDifference) -> FieldWords:
    plain = FieldWords(lambda c, _: ".".join((*c.path, c.field)) + ("" if c.key is None else f" of {c.key}"), _number)
    return SAID.get((type(change.new), change.field), plain)


def value_of(parameter: str, value: Any, names: Names) -> str:
    """An argument of a transition in words."""
    known: Mapping[str, Callable[[int], str]] = {
        **dict.fromkeys(("node", "child", "leaf", "under", "top", "new"), names.node),
        **dict.fromkeys(("handle", "old"), names.handle),
        **dict.fromkeys(("row", "other"), names.row),
    }
    if parameter == "source":
        return names.source(value)
    if isinstance(value, Length):
        return f"{parameter} {value.pages} pages and {value.rest} tokens"
    if isinstance(value, Seq):
        return f"{parameter} {list(value.items())}"
    if isinstance(value, Set):
        return f"{parameter} {sorted(value.items())}"
    if parameter in known and isinstance(value, int):
        said = known[parameter](value)
        held = names.holders(value) if known[parameter] == names.node else ""
        said = f"{said} (held by {held})" if held else said
        return said if said.startswith(parameter) else f"{parameter} {said}"
    return f"{parameter} {value}"


def _number(_: FieldDifference, __: Any, value: Any, ___: Names) -> str:
    return str(value)


def _side(change: FieldDifference) -> str:
    """The pool in words, with a space after it: ``full``, ``SWA``, or nothing where there is only one pool."""
    return {"full": "full ", "swa": "SWA "}.get(change.path[-1] if change.path else "", "")


def _page_place(change: FieldDifference, pool: Pool, value: int, names: Names) -> str:
    if value != HELD:
        return PLACES.get(value, "in no place")
    row, index = pool.owner(change.key), pool.index(change.key)
    if pool.table(row, index) == change.key:
        return f"held by {names.row(row)}"
    return "held by nobody"


def _tokens(_: FieldDifference, pool: Pool, value: tuple[int, int], __: Names) -> str:
    return f"{value[0] * pool.page_size + value[1]} tokens"


def _row_tokens(_: FieldDifference, rows: SessionTrimState, value: tuple[int, int], __: Names) -> str:
    return f"{value[0] * rows.pools.now.full.page_size + value[1]} tokens"


def _pages_as_tokens(_: FieldDifference, rows: SessionTrimState, value: int, __: Names) -> str:
    return f"{value * rows.pools.now.full.page_size} tokens"


def _page_or_none(change: FieldDifference, _: Any, value: int, __: Names) -> str:
    return f"{_side(change)}page {value}" if value != PADDING else "no page"


def _target(_: FieldDifference, pair: Pair, value: tuple[int, int], __: Names) -> str:
    slot = value[0] * pair.full.page_size + value[1]
    return f"SWA slot {slot}" if slot else "nothing"


def _row_of(names: Names, change: FieldDifference) -> str:
    return names.row(change.key[0] if isinstance(change.key, tuple) else change.key)


def _slot(_: FieldDifference, __: Any, value: int, names: Names) -> str:
    return names.row(value - 1) if value else "empty"


def _count(what: str) -> FieldWords:
    return FieldWords(lambda c, names: f"{what} of {names.node(c.key)}", _number)


def _part(what: str) -> FieldWords:
    return FieldWords(
        lambda c, names: f"{what} of {names.node(c.key)}", lambda _, __, v, ___: "there" if v else "absent"
    )


def _size(what: str) -> FieldWords:
    return FieldWords(lambda _, __: what, _number)


def _state_place(change: FieldDifference, states: MambaSlotsState, value: int, names: Names) -> str:
    if value != HELD_STATE:
        return STATE_PLACES.get(value, "in no place")
    owner, role = states.owner(change.key), states.role(change.key)
    return f"held by {names.owner(owner)}" if states.table(owner, role) == change.key else "held by nobody"


def _state_slot(_: FieldDifference, __: Any, value: int, ___: Names) -> str:
    return f"slot {value}" if value != ABSENT else "absent"


def _role(how: str) -> FieldWords:
    return FieldWords(lambda c, names: how.format(ROLES.get(c.key[1], c.key[1]), names.owner(c.key[0])), _state_slot)


def _handle(_: FieldDifference, __: Any, value: int, names: Names) -> str:
    return names.handle(value) if value else "none"


def _text(_: FieldDifference, __: Any, value: int, names: Names) -> str:
    return names.text(value) if value else "nothing"


def _of_row(what: str) -> FieldWords:
    return FieldWords(lambda c, names: f"{what} of {_row_of(names, c)}", _number)


SCHEDULED = {0: "idle", RUNS: "running", LOADS: "loading", KEPT: "kept for a transfer"}  # of a row of block_cache
SAID: dict[tuple[type, str], FieldWords] = {
    (Pool, "place"): FieldWords(lambda c, _: f"{_side(c)}page {c.key}", _page_place),
    (Pool, "table"): FieldWords(
        lambda c, names: f"the {_side(c)}page of {_row_of(names, c)} at index {c.key[1]}", _page_or_none
    ),
    (Pool, "whole"): FieldWords(lambda c, names: f"the allocated {_side(c)}length of {_row_of(names, c)}", _tokens),
    (Pool, "available"): FieldWords(
        lambda c, _: f"the available {_side(c)}size", lambda _, pool, v, __: f"{v * pool.page_size} tokens"
    ),
    (Pair, "to_page"): FieldWords(
        lambda c, _: f"the mapping of full slot {c.key[0] * c.new.full.page_size + c.key[1]}", _target
    ),
    (SessionTrimState, "protected"): FieldWords(
        lambda c, names: f"the tree's part of {names.row(c.key)}", _pages_as_tokens
    ),
    (SessionTrimState, "cursor"): FieldWords(lambda c, names: f"the SWA cursor of {names.row(c.key)}", _row_tokens),
    (SessionTrimState, "committed"): FieldWords(
        lambda c, names: f"the committed length of {names.row(c.key)}", _row_tokens
    ),
    (SessionTrimState, "phase"): FieldWords(
        lambda c, names: names.row(c.key), lambda _, __, v, ___: PHASES.get(v, str(v))
    ),
    (SessionTrimState, "slot"): FieldWords(lambda c, _: f"the slot of session {c.key}", _slot),
    (LockRefState, "full_ref"): _count("the full lock count"),
    (LockRefState, "swa_ref"): _count("the SWA lock count"),
    (LockRefState, "mamba_ref"): _count("the state lock count"),
    (LockRefState, "alive"): FieldWords(
        lambda c, names: names.node(c.key), lambda _, __, v, ___: "in the tree" if v else "not in the tree"
    ),
    (LockRefState, "swa"): _part("the SWA part"),
    (LockRefState, "mamba"): _part("the state"),
    (LockRefState, "source"): FieldWords(
        lambda c, names: f"the insert that gave {names.node(c.key)} its slots", _number
    ),
    (LockRefState, "node"): FieldWords(
        lambda c, names: f"the node that {names.handle(c.key)} holds", lambda _, __, v, n: n.node(v)
    ),
    (LockRefState, "top"): FieldWords(
        lambda c, names: f"the end of the window that {names.handle(c.key)} holds",
        lambda _, __, v, n: n.node(v) if v else "none",
    ),
    (LockRefState, "grip"): FieldWords(
        lambda c, names: f"how {names.handle(c.key[0])} holds the SWA part of {names.node(c.key[1])}",
        lambda _, __, v, ___: {0: "skipped", 1: "held", 2: "counted"}.get(v, str(v)),
    ),
    (LockRefState, "state"): FieldWords(
        lambda c, names: f"the state lock of {names.handle(c.key)}", lambda _, __, v, ___: "held" if v else "not held"
    ),
    **{
        (LockRefState, f"{part}_{which}"): _size(f"the {which} {said} size")
        for part, said in (("full", "full"), ("swa", "SWA"), ("mamba", "state"))
        for which in ("evictable", "protected")
    },
    (MambaSlotsState, "place"): FieldWords(lambda c, _: f"state slot {c.key}", _state_place),
    (MambaSlotsState, "table"): _role("the {} of {}"),
    (MambaSlotsState, "names"): _role("the {} that the record of {} names"),
    (MambaSlotsState, "row"): _role("the {} that the row of {} shows"),
    (MambaSlotsState, "next"): FieldWords(
        lambda c, names: f"the next track of {names.owner(c.key)}", lambda _, __, v, ___: "second" if v else "first"
    ),
    (MambaSlotsState, "available"): FieldWords(lambda _, __: "the number of available state slots", _number),
    (CacheState, "reads"): FieldWords(
        lambda c, names: f"the page that {_row_of(names, c)} reads at index {c.key[1]}",
        lambda _, __, v, ___: f"page {v}" if v else "none",
    ),
    (CacheState, "handle"): FieldWords(lambda c, names: f"the lock handle of {names.row(c.key)}", _handle),
    (BlockPoolState, "active"): FieldWords(
        lambda c, names: f"the block table of {names.row(c.key)}", lambda _, __, v, ___: "in use" if v else "not in use"
    ),
    (BlockPoolState, "length"): _of_row("the number of places"),
    (BlockPoolState, "filled"): _of_row("the number of computed places"),
    (BlockPoolState, "table"): FieldWords(
        lambda c, names: f"place {c.key[1]} of {names.row(c.key[0])}",
        lambda _, __, v, ___: f"block {v}" if v != NULL else "no block",
    ),
    (BlockPoolState, "refs"): FieldWords(lambda c, _: f"the number of holders of block {c.key}", _number),
    (BlockPoolState, "hash"): FieldWords(lambda c, _: f"what the prefix cache finds block {c.key} for", _text),
    (BlockPoolState, "content"): FieldWords(lambda c, _: f"what block {c.key} was computed for", _text),
    (BlockPoolState, "available"): _size("the number of free blocks"),
    (BlockCacheState, "whole"): _of_row("the number of blocks that are computed whole"),
    (BlockCacheState, "rest"): _of_row("the number of computed tokens in the block after them"),
    (BlockCacheState, "ahead_whole"): _of_row("the number of whole blocks that tokens have slots in"),
    (BlockCacheState, "ahead_rest"): _of_row("the number of slots in the block after them"),
    (BlockCacheState, "first"): _of_row("the first place that is read"),
    (BlockCacheState, "phase"): FieldWords(
        lambda c, names: f"the scheduler's phase of {names.row(c.key)}", lambda _, __, v, ___: SCHEDULED.get(v, str(v))
    ),
    (HostTierState, "phase"): FieldWords(
        lambda c, _: f"key {c.key}", lambda _, __, v, ___: HOST_PHASES.get(v, f"in phase {v}")
    ),
    (HostTierState, "slot"): FieldWords(
        lambda c, _: f"the slot of key {c.key}", lambda _, __, v, ___: f"slot {v}" if v else "none"
    ),
    (HostTierState, "refs"): FieldWords(lambda c, _: f"the number of promises of key {c.key}", _number),
    (HostTierState, "key"): FieldWords(
        lambda c, _: f"the key of slot {c.key}", lambda _, __, v, ___: f"key {v}" if v else "none"
    ),
    (HostTierState, "text"): FieldWords(lambda c, _: f"what part {c.key[1]} of slot {c.key[0]} holds", _text),
    (HostTierState, "block_text"): FieldWords(lambda c, _: f"what device block {c.key} holds", _text),
    (HostTierState, "available"): _size("the number of free slots"),
    (KvEventsState, "copies"): FieldWords(
        lambda c, _: f"the number of copies of block {c.key[0]} in medium {c.key[1]}", _number
    ),
    (KvEventsState, "said"): FieldWords(
        lambda c, _: f"the reader's count of block {c.key[0]} in medium {c.key[1]}", _number
    ),
    (KvEventsState, "text"): FieldWords(lambda c, _: f"the text of block {c.key}", _text),
    (KvEventsState, "missed"): FieldWords(lambda _, __: "whether the reader has missed events", _number),
    (KvEventsState, "ended"): FieldWords(lambda _, __: "whether a batch has just ended", _number),
    (KvEventsState, "next"): FieldWords(lambda _, __: "the number of the next batch", _number),
}
