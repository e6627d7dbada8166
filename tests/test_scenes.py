"""Scenes: each can happen by the law, each asks for arguments that its transitions have, and searches are watched."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from inspect import signature
from itertools import islice

import pytest
from driven import RIGHT

from benchmarks import scenes
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.search.scenes.scene import LAWS, Scene, met, of_law, of_stem
from proofs.registry import hints_of
from proofs.walks import calls

SCENES = [scene for law in LAWS for scene in of_law(law)]
CALLS = 8_000  # of random walks through the states of a law
# What no walk of so many calls meets, and why.
NOT_WALKED = {
    "lock_ref.held_and_skipped": "two locks with one window are seldom",
    "session_trim.gap_beside_other_rows": "the rows of two sessions are seldom saved",
    "cache.inserted_under_a_tombstone": "walks insert seldom",
    "session_trim.restored_within_a_page": "walks cut a saved row seldom, and then to its pages",
    "session_trim.closed_after_its_window_moved": "walks close a session seldom",
    "cache.state_in_flight_is_freed": "walks have a pass in flight seldom",
    "cache.slot_in_flight_is_handed_out": "walks have a pass in flight seldom",
    "cache.two_passes_of_a_row": "walks have a pass in flight seldom",
    "cache.admitted_beside_a_saved_row": "the worlds of walks have two rows",
    "cache.revived_by_a_saved_text": "walks save a turn seldom",
    "cache.tombstone_of_a_saved_row": "walks save a turn seldom",
    "host_tier.loaded_in_part": "walks load all parts",
    "host_tier.evicted_beside_a_promise": "walks promise seldom",
    "host_tier.evicted_after_a_look_up": "walks look up seldom",
}


@cache
def walked(law: str) -> Counter[str]:
    """How often random walks meet each scene of a law and of its parts."""
    stem, found = hints_of(law).stem, Counter[str]()
    for name, call, step in islice(calls(law), CALLS):
        if step.granted:
            seen = met(stem, name, call.state, step.then, call.arguments, step.calls)
            found.update(scene.full_name for scene in seen)
    return found


@pytest.mark.parametrize("law", LAWS)
def test_each_scene_can_happen(law: str) -> None:
    """Calls of the law lead to each of its scenes, but for those that are listed."""
    names = {scene.full_name for scene in of_law(law)}
    assert names - set(walked(law)) == {name for name in NOT_WALKED if name.startswith(f"{law}.")}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.full_name)
def test_a_scene_asks_for_what_its_transitions_have(scene: Scene) -> None:
    known = hints_of(scene.law).stem.transitions
    asked = {*list(signature(scene.holds).parameters)[2:]}
    for name in scene.transitions:
        assert asked <= {*signature(known[name]).parameters}, name
    assert scene.sentence.endswith(".")


def test_scenes_of_parts_are_scenes_of_the_whole() -> None:
    whole = of_stem(hints_of("cache").stem)
    assert {scene.law for scene in whole} == {"cache", "session_trim", "lock_ref", "mamba_slots"}
    assert walked("cache").keys() <= {scene.full_name for scene in whole}
    assert any(name.startswith("lock_ref.") for name in walked("cache")), "calls of a part are looked at"


def test_a_search_is_watched() -> None:
    """A witness sees the steps of each drawn run; here they meet scenes of the tree's locks."""
    watched = scenes.Watched("lock_ref", seconds=600)
    draw("lock_ref", RIGHT["lock_ref"], watched.sink, Search(examples=60, seed=1))
    assert {"lock_ref.end_of_a_window_is_split", "lock_ref.windows_differ"} <= watched.first.keys()
    assert watched.sink.runs >= 60


def test_the_page_of_scenes_is_that_of_the_measurement() -> None:
    kept = json.loads(scenes.KEPT.read_text("utf-8"))
    assert scenes.KEPT.with_suffix(".md").read_text("utf-8") == scenes.of_data(kept)
    rows = scenes.table(kept)
    assert {row["scene"].full_name for row in rows} == {scene.full_name for scene in SCENES}, "each scene has a row"
    assert {engine.name for engine in registry.released()} == {*kept}


def test_a_scene_is_shown_in_the_room_in_which_most_seeds_met_it() -> None:
    met_once, met_twice = {"lock_ref.windows_differ": 0.5}, {"lock_ref.windows_differ": 7.0}
    searches = [{"room": "lock_ref", "met": met_once}, {"room": "lock_ref", "met": {}}]
    searches += [{"room": "cache", "met": met_twice}, {"room": "cache", "met": met_twice}]
    (row,) = [row for row in scenes.table({"x": {"searches": searches}}) if row["scene"].name == "windows_differ"]
    assert (row["room"], row["times"]) == ("cache", [7.0, 7.0])
