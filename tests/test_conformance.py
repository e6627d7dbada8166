"""The lock-step machine finds what is wrong and nothing else; kept traces and known differences stay true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import kept
from conformance.check import STEMS, check
from conformance.faults import FAULTS
from conformance.faults.base import Fault, show
from conformance.machine import ANSWERED, CONFORMS, ENOUGH, LATENT, VIOLATION, Finding, Misuse, Trace
from conformance.replaying import outcome
from conformance.row_seen import ROW_OWNED, TREE_READ
from conformance.session_busy import CLIENTS
from conformance.session_trim import QUIESCENT
from conformance.story import as_test, tell
from conformance.subjects import ours
from conformance.tree_slots import OWNED
from proofs.registry import hints_of

# What a run alone can see: the laws of the lock-step itself.
RUN_LAWS = {ANSWERED, ENOUGH, OWNED, ROW_OWNED, TREE_READ, QUIESCENT}
# What clients send to an engine's front door; our rows have none.
NOT_OURS = {f"the subject has no {name} in this configuration" for name in CLIENTS}

Config = dict[str, Any]
SMALL: Config = {"page_size": 2, "size": 3, "size_swa": 2, "rows": 3, "need_sort": False}


def swa_run(make: Callable[[Config], Any] = ours.MAKERS["swa_mapping"], **config: Any) -> Any:
    """A run on a small pool."""
    known = {**SMALL, **config}
    return STEMS["swa_mapping"][1](make(known), known)


@pytest.mark.parametrize("stem", STEMS)
def test_ours_conforms(stem: str) -> None:
    result = check(stem, ours.MAKERS[stem], examples=120)
    assert result.verdict == CONFORMS, f"{result.law}: {result.detail} {result.trace}"
    assert result.steps > 1500


# Ours gives a state to the tree only where the tree has none (test_a_state_that_the_tree_has_already_is_renewed).
ENGINES_ALONE = {"state_renew"}


@pytest.mark.parametrize("stem", STEMS)
def test_every_transition_is_done_and_every_allocation_is_refused_too(stem: str) -> None:
    seen = check(stem, ours.MAKERS[stem], examples=250).transitions
    names = set(STEMS[stem][1].stem.transitions) - ENGINES_ALONE
    assert [n for n in sorted(names) if not seen.get(f"{n} done")] == []
    assert [n for n in sorted(hints_of(stem).refusable - ENGINES_ALONE) if not seen.get(f"{n} refused")] == []


@pytest.mark.parametrize("stem", ["session_trim", "cache"])
def test_rows_are_run_on_large_pages_too(stem: str) -> None:
    """What goes wrong inside a page shows where pages are large."""
    assert STEMS[stem][0].page_sizes == (1, 2, 4, 16)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_every_fault_is_refuted_and_found(fault: Fault) -> None:
    shown = show(fault)
    assert (shown.proof, shown.found) == ("refuted", "found")
    assert shown.reach == "reachable bug"
    assert 0 < shown.steps <= 8, shown.run.trace


@pytest.mark.parametrize("name", kept.names())
def test_kept_traces_hold_on_ours(name: str) -> None:
    trace = kept.load(name)
    shown = outcome(trace, ours.MAKERS[trace.trace.stem])
    assert shown["verdict"] == CONFORMS or shown["detail"] in NOT_OURS, shown


def test_kept_traces_say_what_they_are() -> None:
    for name in kept.names():
        trace = kept.load(name)
        stem = STEMS[trace.trace.stem][1].stem
        assert trace.why.endswith("."), name
        assert trace.caller, name
        assert trace.law in {*stem.invariants, *stem.transitions, *RUN_LAWS}, name


def test_known_differences_point_at_kept_traces() -> None:
    for path in (kept.HERE / "known").glob("*.json"):
        for entry in kept.known(path.stem.removeprefix("sglang-")):
            assert entry.trace in kept.names()
            assert entry.verdict in (VIOLATION, LATENT)


def test_a_page_handed_out_twice_is_named() -> None:
    run = swa_run()
    run.do("extend", rows=[0], more=[2])
    pool = run.subject.engine.full_attn_allocator
    pool._top -= 1  # page 1 stays on the free list
    with pytest.raises(Finding, match=r"one_owner|available_counts"):
        run.compare("extend")


def test_a_mapping_that_moved_is_named() -> None:
    run = swa_run()
    run.do("extend", rows=[0], more=[2])
    run.subject.engine.full_to_swa_index_mapping[2] = 5
    with pytest.raises(Finding, match=r"mapping_is_live|mapping_keeps_offset"):
        run.compare("extend")


def test_a_stale_mapping_of_a_free_page_is_latent() -> None:
    run = swa_run()
    run.subject.engine.full_to_swa_index_mapping[4] = 2
    with pytest.raises(Finding) as found:
        run.compare("clear")
    assert (found.value.law, found.value.latent) == ("free_maps_to_nothing", True)


def test_a_mapping_into_the_padding_page_is_named() -> None:
    run = swa_run()
    run.do("tail", row=0, tokens=3, tail=0)
    run.subject.engine.full_to_swa_index_mapping[3] = 1
    with pytest.raises(Finding, match="mapping_keeps_offset"):
        run.compare("tail")


def test_a_crash_is_a_finding() -> None:
    run = swa_run()

    def crash(*_: Any) -> None:
        raise AssertionError("engine assertion")

    run.subject.engine.alloc_extend = crash
    with pytest.raises(Finding, match="engine assertion"):
        run.do("extend", rows=[0], more=[2])


def test_accepting_bad_input_is_a_finding() -> None:
    run = swa_run()
    run.subject.free = lambda _: None
    with pytest.raises(Finding, match="bad_input_is_refused"):
        run.do("bad", kind="free_padding", row=0)


def test_an_unlawful_operation_is_the_runs_own_mistake() -> None:
    run = swa_run()
    with pytest.raises(Misuse, match="a free group is open"):
        run.do("end")
    with pytest.raises(Misuse, match="no operation"):
        run.do("nosuch")


def test_a_story_says_what_changed_and_what_broke() -> None:
    trace = kept.load("tail_inside_page").trace
    told = tell(trace, FAULTS["tail_inside_page"].make)
    assert "mapping 3→2" in told[-1].changed
    assert "mapping_keeps_offset" in told[-1].wrong


def test_the_pasted_test_runs() -> None:
    trace = kept.load("stale_tail_after_restore").trace
    names: dict[str, Any] = {}
    exec(as_test(trace, "ours", None), names)
    names["test_found_by_slotproof"]()


def test_the_pasted_test_says_true_and_false_as_python_does() -> None:
    steps = [{"op": "decode", "requests": [0], "slide": False}]
    assert "{'op': 'decode', 'requests': [0], 'slide': False}," in as_test(Trace("cache", {}, steps), "ours", None)


def test_a_trace_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"stem": "allocator"}))
    with pytest.raises(ValueError, match="is no trace"):
        kept.load(str(wrong))
    with pytest.raises(ValueError, match="no trace 'nosuch'"):
        kept.load("nosuch")
