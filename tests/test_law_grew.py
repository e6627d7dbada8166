"""The five places at which the law once forbade what an engine may lawfully do. For each place: a run of an engine that
is lawful, which the law of today accepts; the old sentence, with which the law refuses this run; and the known bug
beside it, which the law of today still finds on the run.

The old law is the law of today with the old sentence put back into one transition.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from driven import NEWEST, driven
from test_free_groups import Defers, DefersAndKeepsMapping, engine
from test_rows_undone import Paired

from conformance.driver.lockstep import CHOICE, CONFORMS, INVARIANT, PROMISE, VIOLATION
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.ours.lock_ref import lock_ref
from conformance.planted.faults.known_bugs import FAULTS
from conformance.stems.stem_registry import STEMS
from conformance.traces.outcome import Outcome, outcome
from proofs.registry import hints_of
from spec import cache, swa_mapping
from spec import lock_ref as locks
from spec.lock_ref_state import ROOT, between, lives
from spec.logic import Step, but, implies, requires

MISUSE = "misuse"  # the kind of a refusal: no caller may send the call
Make = Callable[[Json], Any]
TREE: Json = {"page_size": 1, "size": 12, "size_swa": 12, "size_mamba": 3, "window": 2, "kind": "unified"}
WINDOWED, STATEFUL = {**TREE, "components": ["full", "swa"]}, {**TREE, "components": ["full", "swa", "mamba"]}
POOLS: Json = {"page_size": 2, "size": 3, "size_swa": 3, "rows": 3, "need_sort": False}
ROWS: Json = {
    **{"page_size": 2, "size": 12, "size_swa": 12, "window": 3, "need_sort": False, "rows": 3, "sessions": 2},
    **{"tree": "unified", "components": ["full", "swa"]},
}
TEXT = [1, 2, 3, 4, 5, 6]


@dataclass(frozen=True)
class Place:
    """A place at which the law grew.

    ``steps``: what ``lawful`` engines do. ``transition``: where the old law was stricter, and ``old`` what it was like.
    ``refused``: the law and the kind of the old law's answer to ``steps``, and ``sentence`` a part of its words.
    ``fault``: the known bug beside it, which breaks ``broken``; ``near``: the steps that show it if not ``steps``.
    ``mutant``: a wrong version of a transition, which the proofs refute. ``released``: SGLang does what is lawful.
    """

    stem: str
    config: Json
    steps: list[Json]
    lawful: Mapping[str, Make]
    transition: str
    old: Callable[..., Step[Any]]
    refused: tuple[str, str]
    sentence: str
    fault: str
    broken: str
    mutant: str
    near: tuple[Json, ...] = ()
    released: bool = True


def asks(today: Callable[..., Step[Any]], sentence: str, holds: Callable[..., Any]) -> Callable[..., Step[Any]]:
    """The transition with one promise more."""

    @functools.wraps(today)
    def old(state: Any, *given: Any) -> Step[Any]:
        step = today(state, *given)
        return but(step, promises=(*step.promises, requires(holds(state, *given), sentence)))

    return old


@functools.wraps(swa_mapping.free_swa)
def frees_at_once(state: Any, *given: Any) -> Step[Any]:
    """SWA pages that are given back alone are free at once, in a free group too."""
    step = swa_mapping.free_swa(but(state, group=0), *given)
    return but(step, then=but(step.then, group=state.group))


@functools.wraps(locks.release_state)
def keeps_the_state(state: Any, handle: Any) -> Step[Any]:
    """There is no such step: a handle gives its mamba state back with its release alone."""
    del handle
    return Step(then=state)


def skips_or_counts(**more: Any) -> dict[str, Make]:
    return {name: functools.partial(lock_ref, counting=counts, **more) for name, counts in STYLES.items()}


STYLES = {"skips": False, "counts": True}
REVIVED: list[Json] = [
    {"op": "insert", "tokens": TEXT, "cursor": 3},
    {"op": "pin", "handle": 1, "tokens": TEXT[:3]},
    {"op": "insert", "tokens": TEXT[:3]},
    {"op": "release", "handle": 1},
]
LOCKED: list[Json] = [
    *REVIVED[:3],
    {"op": "acquire", "handle": 2, "tokens": TEXT[:3]},
    {"op": "release", "handle": 1},
    {"op": "release", "handle": 2},
]
DEFERRED: list[Json] = [
    {"op": "extend", "rows": [0], "more": [2]},
    {"op": "begin_group"},
    {"op": "evict", "row": 0, "first": 0, "last": 1},
    {"op": "free_full", "row": 0, "first": 0, "last": 1},
    {"op": "extend", "rows": [1], "more": [2]},
    {"op": "end_group"},
]
EARLY: list[Json] = [
    {"op": "insert", "tokens": TEXT[:5]},
    {"op": "acquire", "handle": 1, "tokens": TEXT[:5]},
    {"op": "release_swa", "handle": 1},
    {"op": "release", "handle": 1},
]
WINDOW_LEFT: list[Json] = [
    *({"op": "admit", "request": request, "more": 5} for request in (0, 1)),
    {"op": "finish", "request": 0},
    *({"op": "decode", "requests": [1], "slide": True} for _ in range(4)),
    {"op": "release_swa", "request": 1},
    {"op": "quiesce"},
]
MERGED: list[Json] = [
    {"op": "insert", "tokens": TEXT},
    {"op": "match", "tokens": TEXT[:2]},
    {"op": "match", "tokens": TEXT[:4]},
    {"op": "acquire", "handle": 1, "tokens": TEXT},
    {"op": "compact"},
    {"op": "release", "handle": 1},
    {"op": "compact"},
]


def no_tombstone_in_window(st: Any, handle: Any, node: Any, top: Any, counting: Any) -> Any:
    del handle, counting
    return st.nodes.all(lambda n: implies(between(st, top, n, node), st.swa(n) == 1))


PLACES = {
    "1. a tombstone that is held comes to life": Place(
        *("lock_ref", WINDOWED, REVIVED, skips_or_counts()),
        transition="restore_swa",
        old=asks(
            locks.restore_swa,
            "nobody holds the node whose full slots are replaced",
            lambda st, node: st.full_ref(node) == 0,
        ),
        refused=("restore_swa", PROMISE),
        sentence='"nobody holds the node whose full slots are replaced" is false',
        fault="revived_is_evictable",
        broken="swa_evictable_is_sum",
        mutant="revives_as_evictable",
    ),
    "2. a group defers free_swa": Place(
        *("swa_mapping", POOLS, DEFERRED),
        {kind.__name__: engine(kind) for kind in (Defers, DefersAndKeepsMapping)},
        transition="free_swa",
        old=frees_at_once,
        refused=("no_leak", INVARIANT),
        sentence="SWA page 1 is held by nobody, the law has free",
        fault="looks_up_at_end",
        broken="one_owner",
        mutant="gives_back_what_stands_there",
    ),
    "3. a lock over tombstones": Place(
        *("lock_ref", WINDOWED, LOCKED, skips_or_counts()),
        transition="acquire",
        old=asks(locks.acquire, "every node of the window has its SWA part", no_tombstone_in_window),
        refused=("acquire", MISUSE),
        sentence="'every node of the window has its SWA part' is false",
        fault="release_forgets_skips",
        broken="swa_pairs",
        mutant="releases_skipped",
    ),
    "4. an early release pairs the state": Place(
        *("lock_ref", STATEFUL, EARLY),
        {"pairs": functools.partial(lock_ref, locks=Paired, state_goes_early=True)},
        transition="release_state",
        old=keeps_the_state,
        refused=("mamba_pairs", INVARIANT),
        sentence="the state lock count of node [1, 2, 3, 4, 5] is 0, the law has 1",
        fault="early_release_takes_state",
        broken="mamba_pairs",
        mutant="keeps_state_flag",
    ),
    "4. a request keeps its lock without the window": Place(
        *("cache", ROWS, WINDOW_LEFT, {"own": registry.load("ours").makers["cache"]}),
        transition="release_swa",
        old=asks(
            cache.release_swa,
            "a request that reads pages of the tree has a lock handle with its window",
            lambda st, row, old: cache.release_swa(st, row, old).then.tree.top(old) != ROOT,
        ),
        refused=("release_swa", PROMISE),
        sentence='"a request that reads pages of the tree has a lock handle with its window" is false',
        fault="early_release_under_window",
        broken="release_swa",
        mutant="releases_window",
        near=({"op": "admit", "request": 0, "more": 5}, {"op": "release_swa", "request": 0}),
        released=False,
    ),
    "5. a chain of nodes becomes one": Place(
        *("lock_ref", WINDOWED, MERGED, skips_or_counts()),
        transition="merge",
        old=asks(
            locks.merge,
            "the node is a leaf",
            lambda st, _, above: st.nodes.all(lambda n: implies(lives(st, n), st.parent(n) != above)),
        ),
        refused=("merge", PROMISE),
        sentence='"the node is a leaf" is false',
        fault="merge_half_held",
        broken="merge",
        mutant="merges_half_held",
        released=False,
    ),
}


def shown(place: Place, make: Make) -> Outcome:
    return outcome(Trace(place.stem, place.config, [dict(step) for step in place.steps]), make)


def with_the_old_law(place: Place, make: Make) -> Outcome:
    """What the run shows beside the old law."""
    stem: Any = STEMS[place.stem].run(make(place.config), place.config).law.stem
    today = stem.transitions[place.transition]
    stem.transitions[place.transition] = place.old
    try:
        return shown(place, make)
    finally:
        stem.transitions[place.transition] = today


def answer(found: Outcome, transition: str) -> tuple[tuple[str, str] | None, str]:
    """The law and the kind of what an outcome shows first, and its words."""
    if found.misused:
        return (transition, MISUSE), found.stopped
    return (None, found.stopped) if found.first is None else ((found.first.law, found.first.kind), found.first.detail)


CASES = [(name, style) for name, place in PLACES.items() for style in place.lawful]


@pytest.mark.parametrize(("name", "style"), CASES)
def test_the_law_of_today_accepts_what_the_old_law_refused(name: str, style: str) -> None:
    place = PLACES[name]
    today = shown(place, place.lawful[style])
    assert (today.verdict, today.breaks, today.stopped) == (CONFORMS, (), "")
    refused, words = answer(with_the_old_law(place, place.lawful[style]), place.transition)
    assert refused == place.refused, words
    assert place.sentence in words
    assert shown(place, place.lawful[style]).verdict == CONFORMS, "the old law is gone again"


@pytest.mark.parametrize("name", PLACES)
def test_the_bug_beside_it_is_found(name: str) -> None:
    place = PLACES[name]
    steps = [*place.near] or place.steps
    found = outcome(Trace(place.stem, place.config, [dict(step) for step in steps]), FAULTS[place.fault].make)
    assert found.verdict == VIOLATION
    assert found.first is not None
    assert found.first.law == place.broken, found.first
    assert found.first.kind in (PROMISE, CHOICE, INVARIANT)
    assert place.mutant in [mutant.name for mutant in hints_of(place.stem).mutants]


SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_law_grew
test_law_grew.on_a_release(sys.argv[1])
"""
OFFERED = {"2. a group defers free_swa": [*DEFERRED[:3], DEFERRED[-1]]}  # the part of the steps that a release has


def on_a_release(release: str) -> None:
    """Prints what a release shows at each place beside the law of today and beside the old law."""
    makers = registry.load("sglang", release=release).makers
    answers = []
    for name, place in PLACES.items():
        if place.released:
            asked = Place(**{**vars(place), "steps": OFFERED.get(name, place.steps)})
            refused, words = answer(with_the_old_law(asked, makers[place.stem]), place.transition)
            today = shown(asked, makers[place.stem])
            row = {"name": name, "verdict": today.verdict, "stopped": today.stopped, "words": words}
            answers.append({**row, "refused": None if refused is None else list(refused)})
    print(json.dumps(answers))


@pytest.mark.soak
def test_the_old_law_refused_a_release_that_is_lawful() -> None:
    found = {row["name"]: row for row in driven(NEWEST, SCRIPT)}
    assert list(found) == [name for name, place in PLACES.items() if place.released]
    for name, row in found.items():
        assert (row["verdict"], row["stopped"]) == (CONFORMS, ""), row
        assert tuple(row["refused"]) == PLACES[name].refused, row
        assert PLACES[name].sentence in row["words"], row
