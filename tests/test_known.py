"""What runs leave out is read by a rule, is listed under one name, and points at nothing that is not there."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import cache, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from driven import RIGHT, Variant, sampled
from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test

from conformance.driver.lockstep import ENOUGH, Finding, LockStep
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search import check
from conformance.stems import exclusions
from conformance.stems.allocator.exclusions import AllocatorExclusion
from conformance.stems.block_cache.economy import STATES as STATES_IN_USE
from conformance.stems.block_cache.exclusions import BlockCacheExclusion
from conformance.stems.block_cache.protocol import RUNNING, Launched, RequestPass
from conformance.stems.block_cache.rules import ATTENTION, CHECKPOINTS, DESCRIBED, STATES, WINDOWED, BlockCacheMachine
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.block_pool.exclusions import BlockPoolExclusion
from conformance.stems.cache.exclusions import CacheExclusion
from conformance.stems.exclusions import known as known_exclusions
from conformance.stems.exclusions import looks_past
from conformance.stems.found import with_file
from conformance.stems.host_server.exclusions import HostServerExclusion
from conformance.stems.host_tier.exclusions import HostTierExclusion
from conformance.stems.lock_ref.exclusions import LockRefExclusion
from conformance.stems.machine import Sink
from conformance.stems.mamba_slots.exclusions import MambaSlotsExclusion
from conformance.stems.server.exclusions import ServerExclusion
from conformance.stems.session_trim.exclusions import SessionTrimExclusion
from conformance.stems.stem_registry import ROOMS, STEMS
from conformance.stems.swa_mapping.exclusions import SwaMappingExclusion
from conformance.traces import known

OURS = registry.load("ours").makers
# What clients send to an engine's front door. Ours has none, so that nothing is done with it here.
CLIENTS = ("overlapping_turn", "close_running")
PAST: dict[StrEnum, str] = {
    SessionTrimExclusion.SHORT: ENOUGH,
    SessionTrimExclusion.STALE: "free_maps_to_nothing",
    SessionTrimExclusion.INHERITED: "mapping_is_live",
    MambaSlotsExclusion.STALE_NAMES: "gone_names_nothing",
    BlockCacheExclusion.IDLE_STATES: STATES_IN_USE,
}
# The exclusions of ``lock_ref`` that runs of ``cache`` read, too.
IN_CACHE = (
    LockRefExclusion.RESTORE_HELD,
    LockRefExclusion.SESSION_AFTER_EARLY,
    LockRefExclusion.EARLY_RELEASE,
    LockRefExclusion.EARLY_RELEASE_STATE,
)
READ: list[tuple[str, StrEnum]] = [
    *(("allocator", member) for member in AllocatorExclusion),
    *(("swa_mapping", member) for member in (*AllocatorExclusion, *SwaMappingExclusion)),
    *(("session_trim", member) for member in SessionTrimExclusion if member not in PAST),
    *(("cache", member) for member in CacheExclusion),
    ("mamba_slots", LockRefExclusion.COPY_ON_WRITE),
    ("cache", MambaSlotsExclusion.CLOSE),
    *(("cache", member) for member in IN_CACHE),
    ("cache", MambaSlotsExclusion.LAZY_SESSION),
    ("cache", MambaSlotsExclusion.SESSION_ABORT),
    ("block_pool", BlockPoolExclusion.NULL_HASH),
    ("block_cache", BlockCacheExclusion.ABORTED_LOADS),
    ("block_cache", BlockCacheExclusion.RESET_IN_FLIGHT),
    ("block_cache", BlockCacheExclusion.SALTS),
    ("block_cache", BlockCacheExclusion.WINDOW_BEFORE_LOADS),
    ("block_cache", BlockCacheExclusion.FAILED_LOADS),
    *(("host_tier", member) for member in HostTierExclusion),
]
# Seeds with which few runs have something rare to leave out; with others a test would have to draw hundreds.
SEEDS: dict[StrEnum, int] = {
    SessionTrimExclusion.RETRACT_ABORT: 10,
    SessionTrimExclusion.CLOSE_RUNNING: 4,
    SessionTrimExclusion.RETRACT_TWICE: 7,
    SessionTrimExclusion.ONE_TOKEN: 3,
    BlockCacheExclusion.RESET_IN_FLIGHT: 11,
}


def engine(stem: str, config: Json) -> Any:
    """Ours, as if it had a front door for clients."""
    made = RIGHT[stem](config)
    if stem not in ("session_trim", "cache"):
        return made
    return Variant(made, lacks=frozenset(made.lacks) - set(CLIENTS))


def enumerations() -> list[type[StrEnum]]:
    return [module.EXCLUSIONS for module in with_file("exclusions").values()]


class Enough(KeyboardInterrupt):
    """No more runs are needed. Hypothesis lets a ``KeyboardInterrupt`` through, and nothing else."""


def draw(stem: str, examples: int, left_out: StrEnum | None, first: int, seen: Callable[[Trace], None]) -> None:
    """Draws so many runs, alike whatever is left out. ``first``: the seed. ``seen`` gets what is sent in each run."""
    rules, run_class = STEMS[stem].machine, STEMS[stem].run

    def do(machine: Any, op: str, **arguments: Any) -> None:
        busy = op == "close" and set(machine.calls.turns(arguments["session"])) & set(machine.calls.row_of)
        if op == "overlapping_turn" or (op == "close" and stem != "mamba_slots" and busy):
            machine.lock.trace.steps.append({"op": op, **arguments})
        else:
            rules.do(machine, op, **arguments)

    def teardown(machine: Any) -> None:
        if machine.run is not None:
            seen(machine.lock.trace)

    fixed: dict[str, Any] = {"make": staticmethod(lambda config: engine(stem, config)), "sink": Sink()}
    fixed |= {"run_class": staticmethod(run_class), "teardown": teardown, "exclude": {left_out} - {None}}
    fixed |= {"do": do} if stem in ("session_trim", "cache") else {}
    fixed |= {"kinds": registry.every_kind()}
    machine: Any = type(rules.__name__, (rules,), fixed)
    search = check.Search(examples=examples)
    with suppress(Enough):
        run_state_machine_as_test(seed(first)(machine), settings=check._settings(search))


@cache
def everything(stem: str, examples: int, first: int) -> list[Trace]:
    """The runs in which nothing is left out."""
    found: list[Trace] = []
    draw(stem, examples, None, first, found.append)
    return found


def left_out(stem: str, member: StrEnum, examples: int, first: int) -> Json | None:
    """The first operation that is sent, and is not where the member is left out; or the configuration of its run."""
    found: list[Json] = []
    whole = iter(everything(stem, examples, first))

    def compare(part: Trace) -> None:
        full = next(whole, part)
        different = (step for n, step in enumerate(full.steps) if step not in part.steps[n : n + 1])
        if full.config != part.config:
            found.append(full.config)
        else:
            found.extend(islice(different, 1))
        if found:
            raise Enough

    draw(stem, examples, member, first, compare)
    return found[0] if found else None


@pytest.mark.soak
@pytest.mark.parametrize(("stem", "member"), sampled(READ, 10), ids=str)
def test_each_exclusion_leaves_something_out(stem: str, member: StrEnum) -> None:
    searches = ((10, 1), (40, SEEDS.get(member, 2)), (160, 8), (400, 9), (400, 10))
    assert any(left_out(stem, member, examples, first) for examples, first in searches), f"no rule reads {member}"


def test_every_exclusion_is_looked_for_above() -> None:
    """Those of ``lock_ref`` and ``mamba_slots`` have a situation each beside the other tests of these stems; most
    of ``block_cache`` change its configuration, see the next test; those of ``server`` and ``host_server`` are in
    ``test_server_laws.py`` and ``test_host_server.py``.
    """
    elsewhere = {
        *LockRefExclusion,
        *MambaSlotsExclusion,
        *ServerExclusion,
        *HostServerExclusion,
        *AVOIDED,
        *OF_HOST_MEMORY,
        *OF_RESETS,
        *OF_ANSWERS,
        BlockCacheExclusion.LIMITS_OF_TAILS,  # below
        BlockCacheExclusion.CUT_PROMPTS,  # our scheduler has no transfers of states
    }
    assert {member for _, member in READ} | PAST.keys() | elsewhere == set(known_exclusions().values())


# Our scheduler has no host memory: runs on vLLM's are in tests/test_vllm_host_memory.py and test_vllm_host_pool.py.
BESIDE_HOST: Json = {"host": {"slots": 2}, "servers": True}
OF_HOST_MEMORY = {
    BlockCacheExclusion.HOST_RESET_AGAIN,
    BlockCacheExclusion.HOST_RESET_UNDER_LOAD,
    BlockCacheExclusion.HOST_RESET_OF_WINDOWS,
    BlockCacheExclusion.HOST_RELOAD,
    BlockCacheExclusion.IDLE_COPIES,
    BlockCacheExclusion.RESET_OF_STORES,
}
# Resets of a server with host memory that publishes KV events: see the test of resets below.
OF_RESETS = {
    BlockCacheExclusion.EVENTS_OF_DEVICE_RESETS,
    BlockCacheExclusion.EVENTS_OF_REFUSED_RESETS,
    BlockCacheExclusion.EVENTS_OF_POOL_RESETS,
}
# How answers end that other servers read. Our scheduler has no states: see the test of accepted drafts below.
OF_ANSWERS = {
    BlockCacheExclusion.STATES_AFTER_DRAFTS,
    BlockCacheExclusion.ANSWERS_IN_FLIGHT,
    BlockCacheExclusion.ANSWERS_CUT_OFF,
}
PARTS: Json = {"layers": [STATES], "tuning": {"match": 2, "retention": 8}}
READ_BACK: Json = {"layers": [ATTENTION, STATES], "transfers": True, "both_ways": True, "drafts": 1}
SERVERS: Json = {"servers": True, "both_ways": True}
AVOIDED: dict[BlockCacheExclusion, tuple[Json, Json]] = {
    BlockCacheExclusion.HOST_ANSWERS: (
        {"host": {"slots": 2, "prompt_only": False}},
        {"host": {"slots": 2, "prompt_only": True}},
    ),
    BlockCacheExclusion.HOST_BESIDE_SERVERS: (
        {"transfers": True, "host": {"slots": 2}, "events": False, "reoffers": False, "failure": "fail", **SERVERS},
        {"transfers": True, "host": {"slots": 2}, "events": False, "reoffers": False, "failure": "recompute"},
    ),
    BlockCacheExclusion.PRIORITY: ({"policy": "priority"}, {"policy": "fcfs"}),
    BlockCacheExclusion.TWO_STEPS: ({"steps_in_flight": 2}, {"steps_in_flight": 1}),
    BlockCacheExclusion.DRAFTS_IN_FLIGHT: ({"steps_in_flight": 2, "drafts": 2}, {"steps_in_flight": 2, "drafts": 0}),
    BlockCacheExclusion.TRANSFERS_IN_FLIGHT: (
        {"steps_in_flight": 2, "transfers": True},
        {"steps_in_flight": 2, "transfers": False},
    ),
    BlockCacheExclusion.STALLED_LOADS: (
        {"transfers": True, "reoffers": True, "failure": "recompute"},
        {"transfers": True, "reoffers": False, "failure": "recompute"},
    ),
    BlockCacheExclusion.EVENTS_OF_WINDOWS: (
        {"layers": [WINDOWED], "drafts": 2, "events": True},
        {"layers": [WINDOWED], "drafts": 2, "events": False},
    ),
    BlockCacheExclusion.EVENTS_OF_HOST_POOLS: (
        {"transfers": True, "host": {"slots": 2, "pool": "lazy"}, "events": True},
        {"transfers": True, "host": {"slots": 2, "pool": "lazy"}, "events": False},
    ),
    BlockCacheExclusion.EVENTS_OF_POOLED_WINDOWS: (
        {"layers": [ATTENTION, WINDOWED], "transfers": True, "host": {"slots": 2, "pool": "eager"}, "events": True},
        {"layers": [ATTENTION, WINDOWED], "transfers": True, "host": {"slots": 2, "pool": "eager"}, "events": False},
    ),
    BlockCacheExclusion.BOTH_WAYS: (
        {"layers": [WINDOWED], "transfers": True, "both_ways": True},
        {"layers": [WINDOWED], "transfers": True, "both_ways": False},
    ),
    BlockCacheExclusion.TABLES_AHEAD: (
        {**READ_BACK, "steps_in_flight": 2},
        {**READ_BACK, "steps_in_flight": 1},
    ),
    BlockCacheExclusion.LISTS_WITH_LOOKAHEAD: (
        {"layers": [WINDOWED], "transfers": True, "drafts": 1, "eagle": True},
        {"layers": [WINDOWED], "transfers": True, "drafts": 1, "eagle": False},
    ),
    BlockCacheExclusion.CROWDED_LOADS: ({"transfers": True}, {"transfers": True, "blocks": 80}),
    BlockCacheExclusion.LARGE_STATES: (
        {"layers": [ATTENTION, {**STATES, "block_size": 8}]},
        {"layers": [ATTENTION, STATES]},
    ),
    BlockCacheExclusion.STATES_WITHIN_STEP: (
        {"layers": [ATTENTION, STATES], "transfers": True, "host": {"slots": 2, "within_step": 8}},
        {"layers": [ATTENTION, STATES], "transfers": True, "host": {"slots": 2}},
    ),
    BlockCacheExclusion.EAGLE_OF_SIZES: (
        {"layers": [{**ATTENTION, "block_size": 8}, WINDOWED], "drafts": 1, "eagle": True},
        {"layers": [{**ATTENTION, "block_size": 8}, WINDOWED], "drafts": 1, "eagle": False},
    ),
    BlockCacheExclusion.STATES_WITH_DRAFTS: ({"layers": [STATES], "drafts": 2}, {"layers": [STATES], "drafts": 0}),
    BlockCacheExclusion.PADDED_DRAFTS: (
        {"layers": [ATTENTION, STATES], "transfers": True, "drafts": 2, **BESIDE_HOST},
        {"layers": [ATTENTION, STATES], "transfers": True, "drafts": 0, **BESIDE_HOST},
    ),
    BlockCacheExclusion.STATES_WITH_TRANSFERS: (
        {"layers": [ATTENTION, STATES], "transfers": True},
        {"layers": [ATTENTION], "transfers": True},
    ),
    BlockCacheExclusion.STATES_IN_ONE_STEP: ({"layers": [STATES]}, {"layers": [STATES], "requests": 1}),
    BlockCacheExclusion.EVENTS_OF_PARTS: ({**PARTS, "events": True}, {**PARTS, "events": False}),
    BlockCacheExclusion.EVENTS_OF_FULL_HOSTS: (
        {"transfers": True, "host": DESCRIBED[1]},
        {"transfers": True, "host": {**DESCRIBED[1], "slots": 64}},
    ),
    BlockCacheExclusion.PARTS_IN_ONE_STEP: (PARTS, {**PARTS, "requests": 1}),
    BlockCacheExclusion.LOADED_PARTS: (
        {"layers": [ATTENTION, STATES], "tuning": {"match": 2}, "transfers": True},
        {"layers": [ATTENTION, STATES], "tuning": {}, "transfers": True},
    ),
    BlockCacheExclusion.MOVED_HASHES: ({**PARTS, "steps_in_flight": 2}, {**PARTS, "steps_in_flight": 1}),
    BlockCacheExclusion.CHECKPOINTS_AFTER_PARTS: (
        {"layers": [CHECKPOINTS], "tuning": {"match": 2, "retention": 0}},
        {"layers": [STATES], "tuning": {"match": 2, "retention": 0}},
    ),
}


@pytest.mark.parametrize("member", AVOIDED)
def test_a_scheduler_is_drawn_without_what_a_known_difference_needs(member: BlockCacheExclusion) -> None:
    plain = {
        "policy": "fcfs",
        "caching": True,
        "steps_in_flight": 1,
        "layers": [ATTENTION],
        "drafts": 0,
        "eagle": False,
    }
    plain |= {"transfers": False, "blocks": 10, "block_size": 4, "requests": 3}
    drawn, avoided = ({**plain, **change} for change in AVOIDED[member])
    for exclude, expected in (({member}, avoided), (set(), drawn)):
        machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": exclude})()
        assert machine.avoiding(drawn) == expected


@pytest.mark.parametrize("member", [each for each in AVOIDED if "PARTS" in each.name or "MOVED" in each.name])
@pytest.mark.parametrize(
    "neighbour",
    [
        {"layers": [STATES, STATES], "tuning": {"match": 4}, "events": True},  # as many tokens as a block has
        {"layers": [CHECKPOINTS], "tuning": {"retention": 8}, "events": True},
        {"layers": [STATES], "tuning": {"match": 2}, "events": False},  # each block is kept
    ],
)
def test_servers_that_a_known_difference_of_parts_leaves_alone_are_drawn(
    member: BlockCacheExclusion, neighbour: Json
) -> None:
    plain = {"policy": "fcfs", "caching": True, "steps_in_flight": 1, "drafts": 0, "eagle": False}
    drawn = {**plain, "transfers": False, "blocks": 10, "block_size": 4, "requests": 3, **neighbour}
    machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": {member}})()
    assert machine.avoiding(drawn) == drawn


@pytest.mark.parametrize(
    ("member", "config"),
    [
        (BlockCacheExclusion.HOST_BESIDE_SERVERS, {"transfers": True, "host": {"slots": 2}, "servers": False}),
        (BlockCacheExclusion.HOST_BESIDE_SERVERS, {"transfers": True, "host": {"slots": 2}}),
        (
            BlockCacheExclusion.HOST_BESIDE_SERVERS,
            {"transfers": True, "host": {"slots": 2, "pool": "eager"}, **SERVERS},
        ),
        (BlockCacheExclusion.HOST_BESIDE_SERVERS, {"transfers": True, "layers": [WINDOWED], "both_ways": True}),
        (BlockCacheExclusion.EVENTS_OF_HOST_POOLS, {"transfers": True, "host": {"slots": 2}, "events": True}),
        (BlockCacheExclusion.EVENTS_OF_HOST_POOLS, {"transfers": True, "events": True}),
        *(
            (
                BlockCacheExclusion.EVENTS_OF_POOLED_WINDOWS,
                {"layers": layers, "transfers": True, "host": host, "events": True},
            )
            for layers, host in (
                ([ATTENTION, WINDOWED], {"slots": 2, "pool": "lazy"}),
                ([ATTENTION, WINDOWED], {"slots": 2}),
                ([ATTENTION], {"slots": 2, "pool": "eager"}),
            )
        ),
        (BlockCacheExclusion.PRIORITY, {"policy": "priority", "caching": False}),
        (BlockCacheExclusion.STATES_WITH_TRANSFERS, {"layers": [ATTENTION, STATES]}),
        (BlockCacheExclusion.STATES_WITH_TRANSFERS, {"layers": [ATTENTION, WINDOWED], "transfers": True}),
        (BlockCacheExclusion.PADDED_DRAFTS, {"layers": [ATTENTION, STATES], "drafts": 2}),
        (
            BlockCacheExclusion.PADDED_DRAFTS,
            {"layers": [ATTENTION, STATES], "drafts": 2, "transfers": True, "host": {"slots": 2}},
        ),
        (BlockCacheExclusion.PADDED_DRAFTS, {"layers": [ATTENTION, WINDOWED], "drafts": 2, "transfers": True}),
        (BlockCacheExclusion.STALLED_LOADS, {"transfers": True, "reoffers": True, "failure": "fail"}),
        (BlockCacheExclusion.TABLES_AHEAD, {**READ_BACK, "drafts": 0, "steps_in_flight": 2}),
        (BlockCacheExclusion.TABLES_AHEAD, {**READ_BACK, "both_ways": False, "steps_in_flight": 2}),
        (BlockCacheExclusion.TABLES_AHEAD, {**READ_BACK, "layers": [ATTENTION, WINDOWED], "steps_in_flight": 2}),
        (BlockCacheExclusion.EAGLE_OF_SIZES, {"layers": [ATTENTION, {**WINDOWED, "block_size": 8}], "eagle": True}),
        (BlockCacheExclusion.EAGLE_OF_SIZES, {"layers": [{**ATTENTION, "block_size": 8}, STATES], "eagle": True}),
        (
            BlockCacheExclusion.STATES_WITHIN_STEP,
            {"layers": [ATTENTION, WINDOWED], "transfers": True, "host": {"slots": 2, "within_step": 8}},
        ),
        (BlockCacheExclusion.LARGE_STATES, {"layers": [{**ATTENTION, "block_size": 8}, STATES]}),
        (BlockCacheExclusion.LARGE_STATES, {"layers": [ATTENTION, {**STATES, "block_size": 8}], "caching": False}),
    ],
)
def test_an_exclusion_leaves_what_it_does_not_need(member: BlockCacheExclusion, config: Json) -> None:
    drawn = {"policy": "fcfs", "caching": True, "steps_in_flight": 1, "layers": [ATTENTION], "drafts": 0}
    drawn |= {"transfers": False, "block_size": 4, **config}
    machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": {member}})()
    assert machine.avoiding(drawn) == drawn


ENDING: Json = {"layers": [ATTENTION, STATES], "both_ways": True, "elsewhere": 4, "lacks": 3, "later": False}
WINDOWS: Json = {"layers": [ATTENTION, WINDOWED]}


@pytest.mark.parametrize(
    ("member", "change", "accepted"),
    [
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {}, 0),
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"lacks": 1}, 0),
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"lacks": 4}, 2),  # it goes on
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"elsewhere": 0}, 2),  # nobody reads it
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"both_ways": False}, 2),
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"placeholders": True}, 2),  # none is accepted
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {"gone": True}, 2),
        (BlockCacheExclusion.STATES_AFTER_DRAFTS, {**WINDOWS, "later": True}, 2),
        (BlockCacheExclusion.ANSWERS_IN_FLIGHT, {**WINDOWS, "later": True}, 0),
        (BlockCacheExclusion.ANSWERS_IN_FLIGHT, {**WINDOWS, "later": True, "elsewhere": 3}, 2),
        (BlockCacheExclusion.ANSWERS_IN_FLIGHT, WINDOWS, 2),
        (BlockCacheExclusion.ANSWERS_IN_FLIGHT, {}, 2),
        (BlockCacheExclusion.ANSWERS_CUT_OFF, {**WINDOWS, "lacks": 1}, 1),
        (BlockCacheExclusion.ANSWERS_CUT_OFF, {**WINDOWS, "lacks": 2}, 2),
        (BlockCacheExclusion.ANSWERS_CUT_OFF, {**WINDOWS, "lacks": 1, "elsewhere": 0}, 2),
        (BlockCacheExclusion.SALTS, {"later": True}, 2),
    ],
)
def test_drafts_are_accepted_unless_a_known_engine_gives_away_what_ends_with_them(
    member: BlockCacheExclusion, change: Json, accepted: int
) -> None:
    """A request with two drafts in the oldest step in flight lacks so many tokens of its answer."""
    how = {**ENDING, **change}
    made = RequestPass(4, 3, 2, True, RUNNING, ((), ()), placeholders="placeholders" in change)
    steps = [Launched({7: made}), Launched({7: made} if how["later"] else {})]
    here = {} if "gone" in change else {7: SimpleNamespace(tokens=[1, 2, 3, 4, 5])}
    machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": {member}})()
    machine.run = SimpleNamespace(
        config={"layers": how["layers"], "both_ways": how["both_ways"]},
        flying=deque(steps),
        ends={7: 5 + how["lacks"]},
        follower=SimpleNamespace(here=here),
    )
    add = {"op": "add", "request": 7, "tokens": [1, 2, 3, 4], "elsewhere": how["elsewhere"]}
    machine.lock = SimpleNamespace(trace=SimpleNamespace(steps=[add, {"op": "schedule"}]))
    assert machine._accepted(2) == accepted


def test_a_draft_model_is_left_out_where_lists_have_a_block_for_its_drafts() -> None:
    drafter: Json = {"drafts": 2, "eagle": False, "tuning": {"draft_model": True, "match": 4}, "block_size": 4}
    plain: Json = {**drafter, "policy": "fcfs", "caching": True, "steps_in_flight": 1, "requests": 3, "blocks": 10}
    exclude = {BlockCacheExclusion.LISTS_WITH_LOOKAHEAD}
    machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": exclude})()
    for layers, left in (([ATTENTION, WINDOWED], {"match": 4}), ([ATTENTION], drafter["tuning"])):
        assert machine.avoiding({**plain, "layers": layers, "transfers": True})["tuning"] == left


STATES_FOR_OTHERS: Json = {"layers": [ATTENTION, STATES], "transfers": True, "caching": True, "block_size": 4}


@pytest.mark.parametrize(
    ("config", "length", "part", "avoided"),  # part: nothing, all or half of the prompt is elsewhere
    [
        ({}, 8, 0, (0, False)),
        ({"both_ways": True}, 12, 2, (0, False)),
        ({"tuning": {"match": 2}}, 6, 0, (0, False)),
        ({}, 6, 0, (0, True)),  # the last block is not whole
        ({}, 8, 1, (8, True)),  # another server has computed the whole prompt
        ({"caching": False}, 8, 0, (0, True)),
        ({"layers": [ATTENTION, WINDOWED]}, 8, 0, (0, True)),
    ],
)
def test_no_prompt_that_may_be_cut_is_computed_for_another_server(
    config: Json, length: int, part: int, avoided: tuple[int, bool]
) -> None:
    config = {**STATES_FOR_OTHERS, **config}
    run: Any = SimpleNamespace(config=config, waiting=list)
    run.hands_on = partial(BlockCacheRun.hands_on, run)
    drawn = ((0, length, length // 2)[part], length % 2 == 0)
    for exclude, expected in (({BlockCacheExclusion.CUT_PROMPTS}, avoided), (set(), drawn)):
        machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": exclude})()
        machine.run, machine.number = run, 0
        sent: list[Json] = []
        machine.do = lambda op, sent=sent, **arguments: sent.append({"op": op, **arguments})
        machine._come(length, 0, part)
        assert [(step["elsewhere"], step["sends"]) for step in sent] == [expected]


@pytest.mark.parametrize(
    ("change", "avoided"),
    [
        ({}, {"most_copied"}),
        ({"host": {"slots": 2, "blocks_per_slot": 2}}, set()),  # only whole slots are copied
        ({"layers": [ATTENTION, WINDOWED]}, set()),
        ({"tuning": {}}, set()),
    ],
)
def test_copies_of_states_inside_blocks_are_not_limited(change: Json, avoided: set[str]) -> None:
    config: Json = {"layers": [ATTENTION, STATES], "tuning": {"match": 2}, "caching": True, "block_size": 4}
    config |= {"host": {"slots": 2, "blocks_per_slot": 1}, **change}
    limits = {}
    for member in ([], [BlockCacheExclusion.LIMITS_OF_TAILS]):
        exclude = frozenset(member)
        machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": exclude})()
        machine.run = SimpleNamespace(config=config)
        limits[bool(exclude)] = {name for length in range(8) for name in machine._limits(length, 0, 1)}
    assert limits[False] == {"most_loaded", "most_copied"}
    assert limits[False] - limits[True] == avoided


POOL, SLOTS = {"slots": 2, "pool": "eager"}, {"slots": 2}
DEVICE, REFUSED, OF_POOLS = (
    BlockCacheExclusion.EVENTS_OF_DEVICE_RESETS,
    BlockCacheExclusion.EVENTS_OF_REFUSED_RESETS,
    BlockCacheExclusion.EVENTS_OF_POOL_RESETS,
)


@pytest.mark.parametrize(
    (
        "host",
        "preempt",
        "idle",
        "with_host",
        "avoiding",
    ),  # idle: no request has a block; with_host: its memory is reset
    [
        (SLOTS, False, True, False, DEVICE),
        (SLOTS, False, False, False, None),  # the device refuses
        (SLOTS, False, True, True, None),
        (SLOTS, True, False, True, None),
        (SLOTS, False, False, True, REFUSED),
        (POOL, False, True, False, DEVICE),
        (POOL, False, False, False, None),
        (POOL, False, True, True, OF_POOLS),
        (POOL, True, False, True, OF_POOLS),
        (POOL, False, False, True, OF_POOLS),
    ],
)
def test_a_reset_is_sent_unless_readers_of_events_are_known_to_mishear_it(
    host: Json, preempt: bool, idle: bool, with_host: bool, avoiding: BlockCacheExclusion | None
) -> None:
    """Each of the three exclusions avoids its own resets alone, and none where no events are published."""
    sure = 1 if with_host else 0  # as the rule draws whether host memory is reset, too
    config: Json = {"host": host, "steps_in_flight": 1, "transfers": True}
    copies = SimpleNamespace(is_quiet=lambda: not with_host, loading=list)
    run: Any = SimpleNamespace(exchange=copies, flying=deque(), host_is_reset=False, holds_nothing=lambda: idle)
    run.waits_with_blocks = run.stores_hold_blocks = run.has_given_up_window_blocks = lambda: False
    for member, events in ((one, events) for one in (*OF_RESETS, None) for events in (True, False)):
        machine: Any = type(BlockCacheMachine.__name__, (BlockCacheMachine,), {"exclude": {member} - {None}})()
        machine.run, run.config = run, {**config, "events": events}
        sent: list[Json] = []
        machine.do = lambda op, sent=sent, **arguments: sent.append({"op": op, **arguments})
        machine.reset(sure=sure, preempt=preempt)
        avoided = events and member is not None and member is avoiding
        assert sent == ([] if avoided else [{"op": "reset", "preempt": preempt, "host": with_host}])


@pytest.mark.parametrize("stem", ["allocator", "session_trim"])
def test_what_no_rule_reads_changes_no_run(stem: str) -> None:
    """So that a difference above is due to the exclusion."""
    other = MambaSlotsExclusion.MORE_ROWS
    assert left_out(stem, other, 10, 1) is None


@pytest.mark.parametrize("member", PAST)
def test_findings_are_looked_past_by_name(member: SessionTrimExclusion) -> None:
    finding = Finding(PAST[member], "It holds.", "", latent=True)
    assert looks_past({member})(finding)
    assert not looks_past(set(SessionTrimExclusion) - {member})(finding)
    violation = Finding(PAST[member], "It holds.", "")
    assert looks_past({member})(violation) == (member is SessionTrimExclusion.INHERITED)


def test_what_is_looked_past_does_not_end_a_run() -> None:
    def refuses(config: Json) -> Any:
        made = OURS["session_trim"](config)
        return Variant(made, decode=lambda *_: False)

    config = {"page_size": 2, "size": 8, "size_swa": 8, "window": 3, "need_sort": False, "rows": 3, "sessions": 2}
    for left_out, ends in ((frozenset[StrEnum](), True), (exclusions.exclusions(["session_trim.short"]), False)):
        lock: LockStep = LockStep(
            STEMS["session_trim"].run(refuses(config), config, True, looks_past(left_out)), config
        )
        lock.do("admit", request=0, more=3)
        if ends:
            with pytest.raises(Finding, match=ENOUGH):
                lock.do("decode", requests=[0])
        else:
            lock.do("decode", requests=[0])


# The enumerations and the lists.


def test_each_name_is_that_of_one_exclusion() -> None:
    members = [member for enumeration in enumerations() for member in enumeration]
    assert len({member.value for member in members}) == len(members) == len(known_exclusions())
    for enumeration in enumerations():
        stems = {member.value.split(".")[0] for member in enumeration}
        assert len(stems) == 1
        assert stems <= set(ROOMS)


def test_an_unknown_name_is_refused() -> None:
    assert exclusions.exclusions(["cache.waiting_copy"]) == {CacheExclusion.WAITING_COPY}
    assert exclusions.exclusions([]) == frozenset()
    with pytest.raises(ValueError, match=r"no exclusion nosuch: there are allocator\.nested_group"):
        exclusions.exclusions(["cache.waiting_copy", "nosuch"])


def test_every_list_names_exclusions_that_there_are() -> None:
    files = [path for plugin in registry.released() if plugin.folder for path in plugin.folder.glob("known/*.json")]
    assert len(files) >= 5
    for path in files:
        for entry in json.loads(path.read_text(encoding="utf-8")):
            assert entry["exclude"] == "" or entry["exclude"] in known_exclusions(), (path.name, entry)


def test_a_list_with_a_name_that_is_none_is_refused(tmp_path: Any) -> None:
    (tmp_path / "known").mkdir()
    entry = {"trace": "nosuch", "law": "no_leak", "verdict": "violation", "exclude": "tail"}
    (tmp_path / "known" / "1.0.json").write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match="no exclusion tail"):
        known.of_release(tmp_path, "1.0")
    assert known.of_release(tmp_path, "2.0") == known.of_release(None, "1.0") == []
