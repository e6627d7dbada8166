"""The lock-step finds what is wrong and nothing else; kept traces and known differences stay true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driven import RIGHT, Variant, found, judge

from conformance.driver.lockstep import (
    ANSWERED,
    BAD_INPUT,
    CONFORMS,
    ENOUGH,
    LATENT,
    QUIESCENT,
    VIOLATION,
    Finding,
    LockStep,
)
from conformance.driver.protocol import Json, Misuse
from conformance.driver.shadow import READS_OWN
from conformance.engines import registry
from conformance.planted.faults.known_bugs import FAULTS, Fault
from conformance.planted.faults.show import show
from conformance.search import check
from conformance.search.check import Search
from conformance.stems.block_cache.economy import STATES
from conformance.stems.block_cache.host import COPIES_END
from conformance.stems.block_cache.run import ABORT, COMPUTES_OWN, ENDS, PROGRESS
from conformance.stems.block_pool.run import FINDS, OFFERED
from conformance.stems.found import law_of
from conformance.stems.host_server.run import HEARS, WAITS
from conformance.stems.host_tier.run import STAYS
from conformance.stems.kv_events.reader import AGREE
from conformance.stems.lock_ref.projection import OWNED
from conformance.stems.server.run import OWN_TEXT, SERVES
from conformance.stems.server.sendings import SENDS_OWN
from conformance.stems.server.served import ANSWERS, GOES_ON
from conformance.stems.server.served import HEARS as READS
from conformance.stems.session_trim.projection import ROW_OWNED, SLOT_OWNED
from conformance.stems.stem_registry import STEMS, start
from conformance.telling.tell import tell
from conformance.traces import known, trace_files, trace_schema
from conformance.traces.outcome import outcome
from proofs.registry import hints_of
from slotproof.planted import kept_search

OURS = registry.load("ours").makers
# How many operations a shrunk run may have: of a scheduler each step is two, and a request is preempted after a few.
LONGEST = {"block_cache": 30}
# Of each stem with faults one that few drawn runs find, and fast; `make faults` searches for all.
SOON_FOUND = ("half_decode", "restore_under_lock", "released_slot_stays", "nested_state_group", "freed_twice")
# What no law of the state says, and a run alone can see.
RUN_LAWS = {
    ABORT,
    AGREE,
    ANSWERED,
    COPIES_END,
    ENDS,
    ENOUGH,
    OWNED,
    PROGRESS,
    COMPUTES_OWN,
    SENDS_OWN,
    SERVES,
    STATES,
    ROW_OWNED,
    SLOT_OWNED,
    QUIESCENT,
    READS_OWN,
    FINDS,
    OFFERED,
    GOES_ON,
    OWN_TEXT,
    STAYS,
    HEARS,
    WAITS,
    ANSWERS,
    READS,
}
# What clients send to an engine's front door; our cache has none. Our scheduler has no drafts of an EAGLE head and no
# states, and it does not preempt where another one does. Where blocks are short it starts a load later than another
# one, and then there is no load yet that could fail.
NOT_OURS = {f"the engine has no {name} in this configuration" for name in ("overlapping_turn", "close_running")}
NOT_OURS |= {
    "our scheduler has no blocks of the layers of an EAGLE head",
    "our scheduler has no states",
    "our scheduler has no host memory",
    "our scheduler has nothing to tune",
    "the manager evicts what was not used for the longest time",
    "no step is in flight",
    "our rows keep no prompt that has left the window",
    "no transfer into blocks of request 2 is under way",
}
SMALL: Json = {"page_size": 2, "size": 3, "size_swa": 2, "rows": 3, "need_sort": False}


def swa_run(**config: Any) -> LockStep:
    """A run on a small pool."""
    return start("swa_mapping", OURS["swa_mapping"], {**SMALL, **config})


def engine_of(lock: LockStep) -> Any:
    """Our allocator, of which tests change what no caller may change."""
    run: Any = lock.run
    return run.engine.engine


# Ours gives a state to the tree only where the tree has none (test_a_state_that_the_tree_has_already_is_renewed).
# And it keeps the state of a lock that gives back its window (test_a_state_may_be_given_back_with_the_window).
# And several blocks are found under one hash.
# And a lazy buffer gives away its newest track (test_a_request_may_give_away_the_track_from_before_its_boundary).
ENGINES_ALONE = {"state_match_again", "state_renew", "release_state", "turn_lazy", "state_turn_lazy", "displace"}
# SWA pages go from one full page to another only when a tree takes them: the stems with rows drive this.
OF_ROWS = {"swa_mapping": {"hand_over_swa"}}
# Transfers of KV cache need a connector, which ours has not: neither a load, nor the eviction of what failed to load.
# ``shift`` is what engines do that write one state over the places of a table; ours gives each place a state.
OF_TRANSFERS = {"block_cache": {"load", "loaded", "evict", "shift"}}
# A scheduler that lacks blocks preempts or waits. No call shows that it asked for them, so no run judges the refusal.
UNASKED = {"block_cache": {"allocate"}}
# `slotproof check ours`, a part of `make verify`, drives our own implementation of each.
LONG_STEMS = ("cache", "session_trim", "mamba_slots", "block_cache")
ROUND, MOST_ROUNDS = 50, 12  # runs that are drawn with one seed, and seeds until every transition is reached
# A model whose layers all have a sliding window is one kind of many: every fourth round of the whole cache drives it.
ALL_SLIDING = {"cache": {1: ("swa",)}}


@pytest.mark.soak  # `make verify` checks our implementation on each stem
@pytest.mark.parametrize(
    "stem", [pytest.param(stem, marks=[pytest.mark.soak] if stem in LONG_STEMS else []) for stem in STEMS]
)
def test_a_right_engine_conforms(stem: str) -> None:
    """And every transition is done, and each that can be refused is refused too."""
    others = ENGINES_ALONE | OF_ROWS.get(stem, set()) | OF_TRANSFERS.get(stem, set())
    left = {f"{name} done" for name in hints_of(stem).stem.transitions if name not in others}
    left |= {f"{name} refused" for name in hints_of(stem).refusable - ENGINES_ALONE - UNASKED.get(stem, set())}
    steps = 0
    for seed in range(MOST_ROUNDS):
        search = Search(examples=ROUND, seed=seed, parts=ALL_SLIDING.get(stem, {}).get(seed % 4))
        result = check.check(stem, RIGHT[stem], search)
        assert result.verdict == CONFORMS, f"{result.law}: {result.detail} {result.trace}"
        steps += result.steps
        left -= {name for name, times in result.transitions.items() if times}
        if not left and steps > 2000:
            return
    assert (sorted(left), steps) == ([], steps), "no run reached these"


@pytest.mark.parametrize("stem", ["session_trim", "cache"])
def test_rows_are_run_on_large_pages_too(stem: str) -> None:
    """What goes wrong inside a page shows where pages are large."""
    assert STEMS[stem].machine.page_sizes == (1, 2, 4, 16)


@pytest.mark.parametrize("fault", [FAULTS[name] for name in SOON_FOUND], ids=lambda fault: fault.name)
def test_a_fault_is_found_from_nothing(fault: Fault) -> None:
    """By drawn runs, which know nothing of it. One fault a stem here, all of them in ``make faults``, each night."""
    shown = show(fault)
    assert (shown.proof, shown.found) == ("refuted", "found")
    assert shown.reach == "reachable bug"
    assert 0 < shown.steps <= LONGEST.get(fault.stem, 9), shown.run.trace
    (exclusions,) = (one for one in kept_search.faults() if one["name"] == fault.name)
    assert kept_search.as_kept(shown).items() <= exclusions.items(), "run make faults"


# Ours has no scheduler, so no server.
@pytest.mark.parametrize("name", [kept.name for kept in trace_files.every() if kept.trace.stem in STEMS])
def test_kept_traces_hold_on_ours(name: str) -> None:
    kept = trace_files.load(name)
    shown = outcome(kept.trace, RIGHT[kept.trace.stem])
    assert shown.verdict == CONFORMS or shown.stopped in NOT_OURS, shown


def operations_of(stem: str) -> set[str]:
    """A difference after an operation that is no step of the law is named after the operation."""
    return {*trace_schema._steps(stem)}


def of_runs(stem: str) -> set[str]:
    """What a run of this stem may break beside the laws of the stem; its KV events have a law of their own."""
    events = law_of("kv_events")
    return {*RUN_LAWS, *operations_of(stem), *events.invariants, *events.changes}


def test_kept_traces_say_what_they_are() -> None:
    for name in trace_files.names():
        kept = trace_files.load(name)
        stem = law_of(kept.trace.stem)
        assert kept.why.endswith("."), name
        assert kept.caller, name
        assert kept.law in {*stem.invariants, *stem.transitions, *of_runs(kept.trace.stem)}, name


@pytest.mark.soak
def test_known_differences_point_at_kept_traces() -> None:
    """And at laws that there are: a renamed one is renamed there too."""
    listed = [k for engine in registry.released() for r in engine.releases for k in known.of_release(engine.folder, r)]
    assert len(listed) > 100
    for entry in listed:
        stem = law_of(entry.stem)
        assert entry.trace in trace_files.names()
        assert entry.verdict in (VIOLATION, LATENT)
        assert entry.law in {*stem.invariants, *stem.transitions, *of_runs(entry.stem)}, entry


def test_a_page_handed_out_twice_is_named() -> None:
    lock = swa_run()
    lock.do("extend", rows=[0], more=[2])
    engine_of(lock).full_attn_allocator._top -= 1  # page 1 stays on the free list
    with pytest.raises(Finding, match=r"one_owner|available_counts"):
        judge(lock, "extend")


def test_a_mapping_that_moved_is_named() -> None:
    lock = swa_run()
    lock.do("extend", rows=[0], more=[2])
    engine_of(lock).full_to_swa_index_mapping[2] = 5
    with pytest.raises(Finding, match=r"mapping_is_live|mapping_keeps_offset"):
        judge(lock, "extend")


def test_a_stale_mapping_of_a_free_page_is_latent() -> None:
    lock = swa_run()
    engine_of(lock).full_to_swa_index_mapping[4] = 2
    assert found(lock, "free_maps_to_nothing", "clear").latent


def test_a_mapping_into_the_padding_page_is_named() -> None:
    lock = swa_run()
    lock.do("tail", row=0, tokens=3, tail=0)
    engine_of(lock).full_to_swa_index_mapping[3] = 1
    found(lock, "mapping_keeps_offset", "tail")


def test_a_page_that_is_listed_twice_is_named() -> None:
    """The law's state has no field for it."""
    lock = swa_run()
    lock.do("extend", rows=[0], more=[2])
    free = lock.run.seen.full.free
    lock.run.seen = replace(lock.run.seen, full=replace(lock.run.seen.full, free=[*free[:-1], free[0]]))
    with pytest.raises(Finding, match="full page 2 is on the free list 2 times"):
        lock.judge("extend")


def test_a_crash_is_a_finding() -> None:
    def crash(*_: Any) -> None:
        raise AssertionError("engine assertion")

    lock = start("swa_mapping", lambda config: Variant(OURS["swa_mapping"](config), extend=crash), SMALL)
    with pytest.raises(Finding, match="alloc_extend raised AssertionError: engine assertion") as caught:
        lock.do("extend", rows=[0], more=[2])
    assert caught.value.law == ANSWERED


def test_accepting_bad_input_is_a_finding() -> None:
    lock = start("swa_mapping", lambda config: Variant(OURS["swa_mapping"](config), bad=lambda *_: None), SMALL)
    with pytest.raises(Finding, match="free_padding was accepted") as caught:
        lock.do("bad", kind="free_padding", row=0)
    assert caught.value.law == BAD_INPUT


def test_an_unlawful_operation_is_the_runs_own_mistake() -> None:
    lock = swa_run()
    with pytest.raises(Misuse, match="cannot be cut to 5"):
        lock.do("trim", row=0, tokens=5)
    with pytest.raises(Misuse, match="no operation 'nosuch'"):
        lock.do("nosuch")


def test_a_story_says_what_changed_and_what_broke() -> None:
    told = tell(trace_files.load("tail_inside_page").trace, FAULTS["tail_inside_page"].make)
    assert "the mapping of full slot 3: nothing → SWA slot 2" in told[-1].changed
    assert "mapping_keeps_offset" in told[-1].wrong


def test_a_trace_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"stem": "allocator"}))
    with pytest.raises(ValueError, match="is no trace"):
        trace_files.load(str(wrong))
    with pytest.raises(ValueError, match="no trace 'nosuch'"):
        trace_files.load("nosuch")
