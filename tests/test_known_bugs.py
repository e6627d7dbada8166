"""What ``slotproof faults`` would let through: kept runs and laws that do not show their bug are noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.lockstep import ANSWERED
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.planted.faults.catch import is_refuted, why_not_shown
from conformance.planted.faults.kept import FILE, KeptRun, checked, kept_run, without_fault
from conformance.planted.faults.known_bugs import ALL, FAULTS
from conformance.stems.found import HERE
from conformance.traces.outcome import outcome
from proofs.registry import hints_of
from slotproof import cli
from slotproof.commands import verifying
from slotproof.console.codes import BROKEN, HOLDS, UNKNOWN
from slotproof.planted import faulting, kept_search

FAULT = FAULTS["half_decode"]
KEPT = kept_run(FAULT)
ENTRY: Json = json.loads((HERE / "swa_mapping" / FILE).read_text("utf-8"))["half_decode"]


def with_steps(steps: list[Json]) -> KeptRun:
    """The kept run with other operations."""
    return replace(KEPT, trace=Trace(KEPT.trace.stem, KEPT.trace.config, steps))


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_the_kept_run_of_a_known_bug_shows_it_and_nothing_on_ours(fault: Any) -> None:
    assert why_not_shown(fault, kept_run(fault)) == ""


@pytest.mark.parametrize("fault", [f for f in ALL if f.stem != "cache"][::6], ids=lambda fault: fault.name)
def test_the_kept_law_refutes_the_wrong_transition_and_not_the_laws_own(fault: Any) -> None:
    """``make verify`` does this for each known bug."""
    law, own = kept_run(fault).refuted_by, hints_of(fault.stem).stem.transitions
    assert is_refuted(fault, law)
    assert not is_refuted(replace(fault, spec={name: own[name] for name in fault.spec}), law)


def test_a_bug_that_is_gone_is_not_shown() -> None:
    assert "breaks no law in its kept run" in why_not_shown(replace(FAULT, parts={}), KEPT)


def test_a_run_that_goes_on_after_the_bug_is_not_the_shortest() -> None:
    said = why_not_shown(FAULT, with_steps([*KEPT.trace.steps, {"op": "clear"}]))
    assert said == "the planted bug breaks law no_leak in operation 2 of 3, not in the last one"


def test_a_run_without_the_operation_that_breaks_shows_nothing() -> None:
    assert "breaks no law in its kept run" in why_not_shown(FAULT, with_steps(KEPT.trace.steps[:1]))


def test_a_run_that_cannot_be_sent_says_which_operation() -> None:
    said = why_not_shown(FAULT, with_steps([{"op": "restore"}]))
    assert said.startswith("the planted bug breaks no law in its kept run: operation 1: ")


@pytest.mark.parametrize("change", [{"law": "one_owner"}, {"kind": "promise"}])
def test_another_law_or_another_way_to_break_it_is_another_bug(change: Any) -> None:
    assert "breaks law no_leak, and its run is kept for" in why_not_shown(FAULT, replace(KEPT, **change))


def test_a_run_that_breaks_ours_too_shows_no_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.planted.faults import catch

    monkeypatch.setattr(catch, "outcome", lambda trace, _: outcome(trace, FAULT.make))
    assert why_not_shown(FAULT, KEPT).endswith("without the bug breaks law no_leak too, in operation 2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"law": ANSWERED}, "only raises an exception"),
        ({"kind": "bad"}, "kind: expected"),
        ({"refuted_by": "nosuch"}, "has no law 'nosuch'"),
        ({"steps": [{"op": "nosuch"}]}, "no operation"),
        ({"more": 1}, "expected an entry with"),
    ],
)
def test_an_entry_that_says_nothing_is_refused(change: Json, said: str) -> None:
    with pytest.raises(UsageError, match=f"half_decode.*{said}"):
        checked(FAULT, {**ENTRY, **change})


def test_a_fault_without_a_kept_run_and_a_kept_run_without_a_fault_are_refused() -> None:
    with pytest.raises(UsageError, match="brand_new: expected an entry"):
        kept_run(replace(FAULT, name="brand_new"))
    assert without_fault(ALL) == []
    assert without_fault([fault for fault in ALL if fault != FAULT]) == ["swa_mapping/faults.json: half_decode"]


# The commands.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": True}, "--keep is for the result of --search"),
        ({"seed": 1}, "--seed is for --search"),
        ({"keep": True, "search": True, "names": ["half_decode"]}, "--keep is for all known bugs"),
    ],
)
def test_options_that_do_not_go_together(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        faulting.run(faulting.FaultOptions(**options))


def test_a_missed_bug_fails_the_command_and_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from conformance.planted.faults.catch import Caught

    found = [Caught(FAULT, KEPT, True, "", 0.1), Caught(FAULTS["pr_25805"], KEPT, False, "shows nothing", 0.1)]
    monkeypatch.setattr(faulting, "catch_all", lambda *_: found)
    assert faulting.run(faulting.FaultOptions()) == BROKEN
    said = capsys.readouterr().out
    assert "pr_25805: refused_changes_nothing does not refute its wrong transition" in said
    assert "pr_25805: shows nothing" in said
    assert len(said.splitlines()) < 15
    monkeypatch.setattr(faulting, "catch_all", lambda *_: found[:1])
    assert faulting.run(faulting.FaultOptions()) == HOLDS


def test_the_last_line_of_verify_says_what_was_verified_or_what_failed() -> None:
    good, bad = verifying.Part(HOLDS, "3 obligations"), verifying.Part(UNKNOWN, "the proofs (2 of 3 are proved)")
    assert verifying.last_line([good, good], 9.6) == ("3 obligations, 3 obligations, 10 s", HOLDS)
    assert verifying.last_line([good, bad], 9.6) == ("the proofs (2 of 3 are proved), 10 s", UNKNOWN)


def test_a_part_that_cannot_be_done_fails_and_the_others_are_done(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def no_law(_: bool) -> verifying.Part:
        raise UsageError("the spec cannot be proved")

    monkeypatch.setattr(verifying, "_proofs", no_law)
    monkeypatch.setattr(verifying, "_implementation", lambda: verifying.Part(HOLDS, "conforms"))
    monkeypatch.setattr(verifying, "_bugs", lambda: verifying.Part(BROKEN, "known bugs that are not shown (x)"))
    assert verifying.run(fresh=True) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not verified: the proofs (the spec cannot be proved), known bugs that are not shown (x), ")


def test_the_kept_search_has_a_day_and_each_known_bug(tmp_path: Path) -> None:
    known = kept_search.search()
    assert known.of == len(FAULTS)
    text = (kept_search.KEPT or tmp_path).read_text("utf-8")
    found = json.loads(text)
    wrong = tmp_path / "faults.json"
    for changed in ({**found, "searched": "some day"}, {"faults": found["faults"]}, {**found, "faults": {}}):
        wrong.write_text(json.dumps(changed))
        with pytest.raises(UsageError, match="run make faults"):
            kept_search.search(wrong)
    found["faults"]["half_decode"]["found"] = "missed"
    wrong.write_text(json.dumps(found))
    assert str(kept_search.search(wrong)) == f"{known.found - 1} of {known.of}, {known.day}"


def test_the_law_that_refutes_a_bug_is_the_one_that_the_search_kept() -> None:
    assert {one["name"]: one["invariant"] for one in kept_search.faults()} == {
        f.name: kept_run(f).refuted_by for f in ALL
    }


def test_verify_is_a_command() -> None:
    assert "verify" in {command.callback.__name__ for command in cli.app.registered_commands if command.callback}
