"""How two states differ: every field that differs is found, and every field that can be seen has words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from driven import RIGHT
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.driver.diff import (
    FOLLOWS,
    SAID,
    TOGETHER,
    FieldDifference,
    Names,
    against_lines,
    changes,
    ranges,
    told_lines,
)
from conformance.stems.stem_registry import STEMS, start
from spec.finite import Map
from spec.logic import but

CONFIG = {
    **{"page_size": 2, "size": 4, "size_swa": 4, "size_mamba": 6, "rows": 2, "need_sort": True, "window": 2},
    **{"sessions": 1, "requests": 2, "kind": "unified", "components": ["full", "swa", "mamba"]},
    **{"buffered": True, "doubled": True, "lazy": False},
    **{"blocks": 4, "indices": 3, "groups": 1, "caching": True},
    **{"slots": 3, "keys": 4, "parts": 2},
    **{"block_size": 2, "layers": [{"kind": "full"}], "batch": 8, "drafts": 0, "eagle": False, "steps_in_flight": 1},
    **{"threshold": 0, "policy": "fcfs", "max_length": 8, "events": False},
}
FIRST = {stem: start(stem, RIGHT[stem], CONFIG).law.state for stem in STEMS}
SECOND = {(cls, second): first for (cls, first), second in TOGETHER.items()}


def parts(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The state and its parts, each with its path."""
    yield path, state
    for field in fields(state):
        if is_dataclass(value := getattr(state, field.name)):
            yield from parts(value, (*path, field.name))


def changing(state: Any) -> list[tuple[tuple[str, ...], str]]:
    """Every field of the state and its parts that a transition can change."""
    return [
        (path, field.name)
        for path, part in parts(state)
        for field in fields(part)
        if not field.metadata.get("constant") and not is_dataclass(getattr(part, field.name))
    ]


PLACES = [(stem, path, name) for stem in STEMS for path, name in changing(FIRST[stem])]


def at(state: Any, path: tuple[str, ...]) -> Any:
    """A part of the state."""
    for name in path:
        state = getattr(state, name)
    return state


def with_part(state: Any, path: tuple[str, ...], part: Any) -> Any:
    """The state with another part."""
    if not path:
        return part
    return but(state, **{path[0]: with_part(getattr(state, path[0]), path[1:], part)})


def changed(state: Any, path: tuple[str, ...], name: str, key: tuple[int, int], value: int) -> Any:
    """The state with another value in a field (of a map: at a key)."""
    part = at(state, path)
    known = getattr(part, name)
    if isinstance(known, Map):
        now: Any = known.put(key if known.arity == 2 else key[0], value)
    else:
        now = value
    return with_part(state, path, but(part, **{name: now}))


@pytest.mark.parametrize("stem", STEMS)
def test_equal_states_do_not_differ(stem: str) -> None:
    state = FIRST[stem]
    assert changes(state, state) == []
    again = start(stem, RIGHT[stem], CONFIG).law.state
    assert again is not state
    assert changes(state, again) == []


def test_a_value_that_is_written_again_is_no_change() -> None:
    state = FIRST["cache"]
    for path, name in changing(state):
        known = getattr(at(state, path), name)
        same = changed(state, path, name, (1, 1), known(*(1, 1)[: known.arity]) if isinstance(known, Map) else known)
        assert changes(state, same) == []


@given(
    place=st.sampled_from(PLACES),
    key=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    value=st.integers(1, 4),
)
@settings(max_examples=300)
def test_every_field_that_differs_is_found(place: Any, key: tuple[int, int], value: int) -> None:
    stem, path, name = place
    state = FIRST[stem]
    known = getattr(at(state, path), name)
    was = known(*key[: known.arity]) if isinstance(known, Map) else known
    value += value == was
    now = changed(state, path, name, key, value)
    (change,) = changes(state, now)
    cls = type(at(state, path))
    first = SECOND.get((cls, name), name)
    assert (change.path, change.field) == (path, first)
    assert (change.old, change.new) == (at(state, path), at(now, path))
    if isinstance(known, Map):
        assert change.key == (key if known.arity == 2 else key[0])
    if first == name and (cls, name) not in TOGETHER:
        assert (change.was, change.now) == (was, value)
    else:
        assert change.was != change.now
        assert value in change.now
    (back,) = changes(now, state)
    assert (back.was, back.now) == (change.now, change.was)
    assert against_lines([change], Names())


@given(
    st.lists(st.tuples(st.integers(0, len(PLACES) - 1), st.tuples(st.integers(0, 3), st.integers(0, 2))), max_size=6)
)
@settings(max_examples=100)
def test_several_changes_are_all_found(drawn: list[tuple[int, tuple[int, int]]]) -> None:
    for stem in STEMS:
        mine = [place for place in PLACES if place[0] == stem]
        now, expected = FIRST[stem], set()
        for number, key in drawn:
            _, path, name = mine[number % len(mine)]
            known = getattr(at(now, path), name)
            now = changed(now, path, name, key, 9)
            place: Any = None if not isinstance(known, Map) else key if known.arity == 2 else key[0]
            first = SECOND.get((type(at(now, path)), name), name)
            expected.add((path, first, place))
        assert {(c.path, c.field, c.key) for c in changes(FIRST[stem], now)} == expected


# Words.


@pytest.mark.parametrize(("cls", "field"), SAID, ids=lambda known: getattr(known, "__name__", known))
def test_what_is_said_is_a_field_that_there_is(cls: type, field: str) -> None:
    assert field in {f.name for f in fields(cls)}


def test_what_is_said_together_or_follows_is_a_field_that_there_is() -> None:
    for cls, field in (*TOGETHER, *FOLLOWS, *SECOND):
        assert field in {f.name for f in fields(cls)}, (cls, field)
    assert set(FOLLOWS) <= SAID.keys(), "what follows from the rest is told in findings"


def observable(stem: str) -> set[tuple[type, str]]:
    """The fields that a projection of a snapshot can change: for these a finding needs words."""
    return {
        (type(at(FIRST[stem], path)), name)
        for path, name in changing(FIRST[stem])
        if "saved" not in path and name not in SHOWN_BY_NOBODY
    }


# What the law alone knows: inverses, ghosts, and what no snapshot shows.
SHOWN_BY_NOBODY = {
    *("owner", "index", "anchor", "group", "backed_up", "role", "owed", "cover", "inserts"),
    *("parent", "above", "stop", "reads_of", "active", "holder", "mine", "carrier", "text", "text_rest", "session"),
}


@pytest.mark.parametrize("stem", STEMS)
def test_every_field_that_is_shown_has_words(stem: str) -> None:
    silent = {
        f"{cls.__name__}.{name}"
        for cls, name in observable(stem)
        if (cls, name) not in SAID and (cls, SECOND.get((cls, name))) not in SAID
    }
    assert silent - LAWS_OWN == set()


# The ghosts of who reads a node and of what slots hold; the phase of a request is the run's; a gap shows in the pages.
GHOSTS = {f"Contents.{name}" for name in ("story", "full", "swa", "state", "state_page", "state_offset")}
LAWS_OWN = {
    *("CacheState.awaits", "CacheState.sent_from", "CacheState.full_used", "CacheState.swa_used"),
    "LockRefState.reads",
    "SessionTrimState.gap",
    "MambaSlotsState.phase",
    "BlockPoolState.story",
    "BlockPoolState.home",
    *(f"HostTierState.{name}" for name in ("seen", "loads", "place", "source", "part", "lost")),
    *(f"InFlightState.{name}" for name in ("kind", "row", "uses")),
} | GHOSTS


@pytest.mark.parametrize("stem", STEMS)
def test_words_name_no_field_and_say_both_values(stem: str) -> None:
    state = FIRST[stem]
    for path, name in changing(state):
        cls = type(at(state, path))
        if (cls, SECOND.get((cls, name), name)) not in SAID:
            continue
        for change in changes(state, changed(state, path, name, (1, 1), 3)):
            (said,) = against_lines([change], Names())
            assert ", the law has " in said
            assert "_" not in said, said
            told = told_lines([change], Names())
            assert bool(told) == ((cls, change.field) not in FOLLOWS)
            assert all(" → " in line for line in told)


def test_pages_that_moved_alike_stand_on_one_line() -> None:
    state = FIRST["swa_mapping"]
    now = state
    for page in (1, 2, 4):
        now = changed(now, ("now", "full"), "place", (page, 0), 1)
    differs = changes(state, now)
    assert told_lines(differs, Names()) == ["full pages 1, 2, 4: free → on the release list"]
    assert against_lines(differs, Names()) == ["full pages 1, 2, 4 are on the release list, the law has free"]


def test_three_pages_that_follow_each_other_are_a_range() -> None:
    assert ranges([1, 2, 3, 4, 7, 8, 10]) == "1 to 4, 7, 8, 10"
    assert ranges([5]) == "5"


def mapped(entries: dict[int, int], size: int = 16) -> Any:
    """Two pools of pages of ``size`` tokens, with these entries of the mapping from full to SWA slots."""
    config = {**CONFIG, "page_size": size}
    state = start("swa_mapping", RIGHT["swa_mapping"], config).law.state
    for full, swa in entries.items():
        key = divmod(full, size)
        state = changed(state, ("now",), "to_page", key, swa // size)
        state = changed(state, ("now",), "to_offset", key, swa % size)
    return state


WHOLE = {16 + n: 48 + n for n in range(16)}  # full page 1 is mapped to SWA page 3
MAPPINGS: dict[str, tuple[dict[int, int], str]] = {
    "one page": (WHOLE, "the mapping of full page 1 (slots 16 to 31): nothing → SWA page 3 (slots 48 to 63)"),
    "two pages": (
        {16 + n: 32 + n for n in range(32)},
        "the mapping of full pages 1 to 2 (slots 16 to 47): nothing → SWA pages 2 to 3 (slots 32 to 63)",
    ),
    "part of a page": (
        {20 + n: 52 + n for n in range(12)},
        "the mapping of full slots 20 to 31: nothing → SWA slots 52 to 63",
    ),
    "one slot": ({20: 52}, "the mapping of full slot 20: nothing → SWA slot 52"),
    "to another place in the page": (
        {16 + n: 49 + n for n in range(15)},
        "the mapping of full slots 16 to 30: nothing → SWA slots 49 to 63",
    ),
}


@pytest.mark.parametrize(("entries", "line"), MAPPINGS.values(), ids=MAPPINGS)
def test_neighbouring_slots_that_are_mapped_alike_stand_on_one_line(entries: dict[int, int], line: str) -> None:
    before, after = mapped({}), mapped(entries)
    assert told_lines(changes(before, after), Names()) == [line]
    what, was, now = re.match(r"(.*): (.*) → (.*)", line).groups()  # type: ignore[union-attr]
    assert against_lines(changes(before, after), Names()) == [f"{what} is {now}, the law has {was}"]
    assert told_lines(changes(after, before), Names()) == [f"{what}: {now} → {was}"]


def test_slots_that_are_mapped_in_another_way_have_a_line_of_their_own() -> None:
    odd = {**WHOLE, 24: 32}
    assert told_lines(changes(mapped({}), mapped(odd)), Names()) == [
        "the mapping of full slots 16 to 23: nothing → SWA slots 48 to 55",
        "the mapping of full slot 24: nothing → SWA slot 32",
        "the mapping of full slots 25 to 31: nothing → SWA slots 57 to 63",
    ]
    assert told_lines(changes(mapped(WHOLE), mapped({**WHOLE, 24: 0})), Names()) == [
        "the mapping of full slot 24: SWA slot 56 → nothing"
    ]
    assert told_lines(changes(mapped({}, 1), mapped({2: 3, 3: 4}, 1)), Names()) == [
        "the mapping of full slots 2 to 3: nothing → SWA slots 3 to 4"
    ]


def test_a_field_without_words_is_said_by_its_path() -> None:
    state = FIRST["allocator"]
    (change,) = changes(state, changed(state, (), "group", (0, 0), 2))
    assert against_lines([change], Names()) == ["group is 2, the law has 0"]
    assert told_lines([change], Names()) == []


def test_a_length_is_said_in_tokens() -> None:
    state = FIRST["session_trim"]
    both = changed(changed(state, (), "committed", (1, 0), 1), (), "committed_rest", (1, 0), 1)
    (change,) = changes(state, both)
    assert isinstance(change, FieldDifference)
    assert against_lines([change], Names()) == ["the committed length of row 1 is 3 tokens, the law has 0 tokens"]
