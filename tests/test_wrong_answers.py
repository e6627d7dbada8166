"""A wrong answer of an engine is a finding in plain words. A trace that names a row, a request or a session which does
not exist is misuse. Neither of the two ends in an exception of the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driven import Variant

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.engines import registry
from conformance.stems.cache.protocol import LockHold
from conformance.stems.mamba_slots.protocol import SlotNames
from conformance.stems.stem_registry import start

OURS = registry.load("ours").makers
POOLS: Json = {"page_size": 2, "size": 4, "size_swa": 4, "rows": 3, "need_sort": False}
ROWS: Json = {**POOLS, "rows": 2, "window": 4, "sessions": 1}
CACHE: Json = {
    **{**ROWS, "components": ["full", "swa", "mamba"], "size_mamba": 8},
    **{"buffered": True, "doubled": True, "lazy": False},
}
TREE: Json = {"page_size": 1, "size": 4, "size_swa": 4, "size_mamba": 2, "window": 2, "kind": "unified"}
CONFIGS: dict[str, Json] = {
    "block_pool": {"blocks": 4, "rows": 4, "indices": 3, "groups": 2, "caching": True},
    "allocator": POOLS,
    "swa_mapping": POOLS,
    "lock_ref": {**TREE, "components": ["full", "swa"]},
    "session_trim": ROWS,
    "cache": CACHE,
    "mamba_slots": {
        **{"size": 6, "requests": 2, "sessions": 1, "tree": "unified"},
        **{"buffered": True, "doubled": True, "lazy": False},
    },
}
BEGUN: dict[str, tuple[Json, ...]] = {
    "block_pool": ({"op": "admit", "row": 2, "text": [1, 2], "to": 2}, {"op": "compute", "row": 2, "to": 1}),
    "allocator": ({"op": "extend", "rows": [0], "more": [2]},),
    "swa_mapping": ({"op": "extend", "rows": [0], "more": [2]},),
    "lock_ref": ({"op": "insert", "tokens": [1, 2]},),
    "session_trim": ({"op": "admit", "request": 0, "more": 3, "session": 1},),
    "cache": ({"op": "admit", "request": 0, "more": 3},),
    "mamba_slots": ({"op": "match", "request": 0, "tokens": [1, 2]}, {"op": "admit", "requests": [0]}),
}


def begun(stem: str, change: Callable[[Any], Json] = lambda _: {}) -> LockStep:
    """A run after its first operations. ``change``: the calls of our engine that are replaced after them."""
    engines: list[Variant] = []

    def make(config: Json) -> Variant:
        engines.append(Variant(OURS[stem](config)))
        return engines[-1]

    lock = start(stem, make, CONFIGS[stem])
    for step in BEGUN[stem]:
        lock.do(**step)
    engines[-1].__dict__.update(change(engines[-1].engine))
    return lock


UNKNOWN: dict[str, list[Json]] = {
    "block_pool": [
        *({"op": "admit", "row": row, "text": [1]} for row in (0, 2, 5)),
        {"op": "admit", "row": 1, "text": [1], "hits": 2},
        {"op": "admit", "row": 1, "text": [1], "to": 4},
        *({"op": op, "row": row, "to": to} for op in ("grow", "compute") for row, to in ((7, 1), (2, 0), (2, 4))),
        *({"op": op, "row": 7, "to": 0} for op in ("slide", "cut")),
        *({"op": "cut", "row": 2, "to": to} for to in (0, 3)),
        {"op": "slide", "row": 2, "to": 2},
        {"op": "grow", "row": 2, "to": 3, "skip": 1},
        *({"op": "move", "row": row, "place": place, "to": to} for row, place, to in ((7, 1, 0), (2, 0, 1), (2, 1, 2))),
        {"op": "release", "row": 7},
        *({"op": "lend", "row": row, "other": other} for row, other in ((7, 1), (2, 2), (2, 1), (2, 0))),
        *({"op": "evict", "row": row, "first": first, "last": 9} for row, first in ((7, 0), (2, 2))),
    ],
    "allocator": [
        *({"op": op, "row": 7, **more} for op, more in (("alloc", {"pages": 1}), ("trim", {"tokens": 0}))),
        *({"op": "free", "row": row, "first": first, "last": 9} for row, first in ((7, 0), (0, 5), (1, 0))),
        {"op": "finish", "row": 7, "committed": 0},
        {"op": "finish", "row": 0, "committed": 9},
        *({"op": "extend", "rows": rows, "more": [1]} for rows in ([7], [0, 1], [])),
        {"op": "extend", "rows": [0, 0], "more": [1, 1]},
        {"op": "extend", "rows": [0], "more": [0]},
        *({"op": "decode", "rows": rows} for rows in ([7], [0, 0], [])),
        {"op": "alloc", "row": 0, "pages": 0},
    ],
    "swa_mapping": [
        *({"op": op, "row": 7, "first": 0, "last": 1} for op in ("evict", "free_full", "free_pages")),
        {"op": "tail", "row": 7, "tokens": 1, "tail": 1},
        {"op": "tail", "row": 1, "tokens": 1, "tail": 2},
        {"op": "slide", "row": 7, "to": 1},
        {"op": "adopt", "row": 7, "pages": 1},
        {"op": "hand_over", "row": 0, "to": 7, "first": 0, "last": 1},
    ],
    "lock_ref": [
        {"op": "release", "handle": 7},
        {"op": "release_swa", "handle": 7},
        {"op": "acquire", "handle": 7, "tokens": [1]},
        {"op": "insert", "tokens": [1], "protected": 5},
    ],
    "session_trim": [
        *({"op": op, "request": 7} for op in ("chunk", "finish", "abort", "retract", "cancel")),
        *({"op": op, "request": 1, "more": 1, "session": 7} for op in ("look", "admit")),
        *({"op": "decode", "requests": requests} for requests in ([7], [0, 0], [])),
        {"op": "reserve", "request": 0, "more": 100},
        {"op": "close", "session": 7},
        {"op": "close", "session": 0},
    ],
    "cache": [{"op": "admit", "request": 7, "more": 1}, *({"op": op, "request": 7} for op in ("track", "settle"))],
    "mamba_slots": [
        *({"op": op, "request": 7} for op in ("track", "cache", "finish", "withdraw")),
        {"op": "match", "request": 7, "tokens": [1]},
        {"op": "match", "request": 1, "tokens": [1], "session": 7},
        {"op": "admit", "requests": [7]},
        *({"op": "close", "session": session} for session in (0, 7)),
    ],
}


@pytest.mark.parametrize(("stem", "step"), [(stem, step) for stem, steps in UNKNOWN.items() for step in steps], ids=str)
def test_what_there_is_not_is_misuse(stem: str, step: Json) -> None:
    lock = begun(stem)
    if step["op"] in lock.run.lacks:
        pytest.skip("the engine lacks the operation, and says so first")
    with pytest.raises(Misuse):
        lock.do(**step)


def test_what_the_engine_lacks_is_no_misuse() -> None:
    with pytest.raises(Unsupported, match="has no overlapping_turn"):
        begun("session_trim").do("overlapping_turn", request=1, session=1)
    with pytest.raises(Unsupported, match="has no close_running"):
        begun("session_trim").do("close", session=1)


def test_everything_ends_once() -> None:
    lock = begun("session_trim")
    lock.do("quiesce")
    with pytest.raises(Misuse, match="ended already"):
        lock.do("quiesce")


def outside(_: Any) -> Json:
    """An engine that hands out slots of page 40."""
    return {"extend": lambda before, after, _: [80 + n for n in range(sum(after) - sum(before))]}


def without_records(engine: Any) -> Json:
    """A cache that shows no record of a request."""

    def shown() -> Any:
        seen = engine.cache_snapshot()
        return replace(seen, states=replace(seen.states, requests={}))

    return {"cache_snapshot": shown}


def without_states(engine: Any) -> Json:
    return {"snapshot": lambda: replace(engine.snapshot(), requests={})}


def invents_a_copy(engine: Any) -> Json:
    """A match that claims to have copied the state of a node that is not in the tree."""

    def match(*arguments: Any) -> Any:
        engine.match(*arguments)
        return (9, 9)

    return {"match": match}


def outside_the_pool(engine: Any) -> Json:
    """Rows that show slots of no page."""

    def shown() -> Any:
        seen = engine.snapshot()
        rows = {r: replace(row, slots=[900 + n for n in range(len(row.slots))]) for r, row in seen.requests.items()}
        return replace(seen, requests=rows)

    return {"snapshot": shown}


WRONG: list[tuple[str, Callable[[Any], Json], Json, str]] = [
    ("allocator", outside, {"op": "extend", "rows": [1], "more": [2]}, "alloc_extend"),
    ("swa_mapping", outside, {"op": "extend", "rows": [1], "more": [2]}, "alloc_extend"),
    ("session_trim", outside_the_pool, {"op": "decode", "requests": [0]}, ""),
    ("cache", without_records, {"op": "decode", "requests": [0]}, ""),
    ("mamba_slots", without_states, {"op": "cache", "request": 0}, "every_request_is_shown"),
    ("mamba_slots", without_states, {"op": "admit", "requests": [0]}, "every_request_is_shown"),
    ("mamba_slots", invents_a_copy, {"op": "match", "request": 1, "tokens": [5]}, "alloc_for_match"),
]


@pytest.mark.parametrize(("stem", "change", "step", "law"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_answer_is_a_finding(stem: str, change: Callable[[Any], Json], step: Json, law: str) -> None:
    with pytest.raises(Finding) as caught:
        begun(stem, change).do(**step)
    assert law in caught.value.law
    assert "Error" not in caught.value.detail, caught.value


def test_an_admission_without_an_idle_row_is_a_finding() -> None:
    lock = begun("session_trim", lambda engine: {"admit": lambda *_: type(engine.admit(1, 0, [7, 8], 2))(0, True)})
    run: Any = lock.run
    run.calls.limit = 1  # the only row is in use
    with pytest.raises(Finding, match="all 1 rows are in use"):
        lock.do("admit", request=1, more=2)


def test_a_row_that_holds_more_than_it_can_is_a_finding() -> None:
    lock = begun("cache")
    run: Any = lock.run
    run.seen.holds["request", 0] = LockHold(1, 1, [1, 2])
    tree = run.law.state.tree
    run.law.state = replace(run.law.state, tree=replace(tree, active=tree.active.all_to(1)))
    with pytest.raises(Finding, match="as many as they can have"):
        run._lock(0, 0, 1, "admit")


def test_states_of_nodes_that_are_not_in_the_tree_are_findings() -> None:
    run: Any = begun("cache").run
    for look in (run.states._number, run.states._slot):
        with pytest.raises(Finding, match=r"node \[9\] has a state"):
            look((9,))
    run.states.seen = replace(run.states.seen, requests={1: SlotNames()})
    with pytest.raises(Finding, match="the record of request 0 is not shown"):
        run.states.named(0)


def test_more_parts_and_states_than_there_can_be_are_findings() -> None:
    rows: Any = begun("session_trim").run
    rows.tree.owner = dict(enumerate(range(rows.rows.limit, 100)))
    with pytest.raises(Finding, match="more parts than the pool has pages"):
        rows.tree._spare()
    states: Any = begun("mamba_slots").run
    states.nodes = {(n,): n for n in range(100)}
    with pytest.raises(Finding, match="more nodes have a state"):
        states._new_number()
