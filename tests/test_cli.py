"""The command line as a user meets it: exit codes, one clear line for bad usage, JSON with what the design names."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.driver import lockstep
from conformance.driver.lockstep import CONFORMS, VIOLATION
from conformance.driver.trace import Trace
from conformance.traces.trace_files import Kept
from proofs import registry
from proofs.hints import Hints
from proofs.prover import Verdict
from proofs.registry import hints_of
from slotproof.checks import replays
from slotproof.console.screen import broken, console, table
from slotproof.pages.documents import REQUIRED, filled
from slotproof.proving import proof_lines, proving


def slotproof(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "slotproof", *words], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nosuch"], "no engine 'nosuch': there are ours, sglang"),
        (["check", "ours", "nosuch"], "no stem 'nosuch': `slotproof list stems` names all"),
        (["check", "ours", "--device", "tpu"], "no device 'tpu': there are cpu and cuda"),
        (["check", "ours", "--release", "0.5.12"], "--release 0.5.12: the engine ours has no releases"),
        (["check", "sglang"], "sglang needs either --release VERSION or --source FOLDER"),
        (["check", "sglang", "--release", "banana"], "not a release number"),
        (["check", "sglang", "--source", "."], "is no SGLang checkout"),
        (["check", "ours", "--examples", "0"], "greater than or equal to 1"),
        (["prove", "nosuch"], "no stem 'nosuch'"),
        (["faults", "nosuch"], "no fault 'nosuch'"),
        (["replay", "nosuch"], "no trace 'nosuch'"),
        (["replay", "stale_tail_after_restore", "nosuch"], "no engine 'nosuch'"),
        (["nosuch"], "No such command"),
    ],
)
def test_bad_usage_is_one_clear_line(words: list[str], message: str) -> None:
    done = slotproof(*words)
    assert done.returncode == 3, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout


def test_without_a_word_the_help_is_shown() -> None:
    alone, asked = slotproof(), slotproof("--help")
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    assert "Commands:" in alone.stdout


@pytest.mark.soak
def test_prove_writes_what_the_design_names(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    done = slotproof("prove", "allocator", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(out.read_text())
    assert {o["z3"] for o in data["obligations"]} == {o["cvc5"] for o in data["obligations"]} == {"unsat"}
    assert set(data["obligations"][0]) >= {"stem", "transition", "invariant", "page_size", "z3", "cvc5", "seconds"}
    assert {o["kind"] for o in data["obligations"]} == {"proof", "frame", "trivial"}
    assert data["theorems"] == [], "each theorem speaks of other stems, too"
    assert {v["transition"] for v in data["vacuity"] if v["witness"]} == set(hints_of("allocator").stem.transitions)
    assert all(m["killed"] for m in data["mutants"])
    assert all(a["name"] and a["reason"] for a in data["assumptions"])


@pytest.mark.soak
def test_check_ours_conforms_and_counts(tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    done = slotproof("check", "ours", "allocator", "--examples", "30", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(out.read_text())["results"]
    assert (result["verdict"], result["law"], result["kind"]) == (CONFORMS, None, None)
    assert result["steps"] > 100
    assert result["transitions"]["alloc_extend done"] > 0


def test_replay_on_ours(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = slotproof("replay", "stale_tail_after_restore", "ours", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert set(row) == {"subject", "release", "verdict", "step", "law", "kind", "detail", "harm"}
    assert (row["subject"], row["release"], row["verdict"]) == ("ours", None, CONFORMS)


@pytest.mark.soak
def test_faults_writes_what_the_design_names(tmp_path: Path) -> None:
    out = tmp_path / "f.json"
    done = slotproof("faults", "half_decode", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (fault,) = json.loads(out.read_text())["faults"]
    assert set(fault) >= {"name", "stem", "proof", "invariant", "run", "steps", "seconds"}
    assert (fault["proof"], fault["run"], fault["invariant"]) == ("refuted", "found", "refused_changes_nothing")
    assert not fault["search"]


def planted(mutant: str) -> Hints:
    """The allocator's hints with a mutant in the place of its transition."""
    hints = hints_of("allocator")
    wrong = next(m for m in hints.mutants if m.name == mutant)
    stem = replace(hints.stem, transitions={**hints.stem.transitions, wrong.transition: wrong.wrong})
    return replace(hints, stem=stem)


def test_a_failed_proof_says_reachable_bug_and_exits_1(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    hints = planted("keeps_reference")
    monkeypatch.setattr(proving, "hints_of", lambda _: hints)
    reach = proving.reached("allocator")
    proof_lines.show_failures(proof_lines.failures(reach, final=True))
    assert proving.code_of(proof_lines.ProofResults(reach=[reach]), []) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "reachable bug of allocator: the shortest path from the first state to a broken law: alloc" in shown
    assert reach.path is not None
    assert len(reach.path.split("; ")) == 2


def test_unknown_and_not_inductive_exit_2() -> None:
    unknown = Verdict("lemmas", "equal", "base", "unknown", "unknown", 20.0)
    lost = {"stem": "allocator", "transition": "free", "witness": None, "refused": None}
    alive = {"killed": False}
    found = proof_lines.ProofResults
    assert proving.code_of(found(verdicts=[unknown]), []) == 2
    assert proving.code_of(found(reach=[proof_lines.Reach("allocator", "not inductive", None)]), ["a law"]) == 2
    assert proving.code_of(found(witnesses=[lost]), []) == 2
    assert proving.code_of(found(mutants=[alive]), []) == 2
    assert proving.code_of(found(), []) == 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (lockstep.INVARIANT, "law one"),
        (lockstep.PROMISE, "promise of one"),
        (lockstep.CHOICE, "choice of one"),
        (lockstep.DIFFERENCE, "difference after one"),
        (lockstep.ANSWER, "answer: one"),
        (None, "one"),
    ],
)
def test_what_is_broken_is_named_with_its_kind(kind: str | None, words: str) -> None:
    assert broken("one", kind) == words
    assert broken("one", kind, "`") == words.replace("one", "`one`")
    assert broken(None, kind) == "-"


def test_releases_in_a_row_with_one_result_share_a_line() -> None:
    conforms = {"verdict": CONFORMS, "step": None, "law": None, "kind": None, "detail": "", "harm": None}
    wrong = {
        "verdict": VIOLATION,
        "step": 2,
        "law": "one",
        "kind": lockstep.PROMISE,
        "detail": "no [/x] markup",
        "harm": None,
    }
    rows = [{"subject": "e", "release": r, **what} for r, what in (("1", conforms), ("2", wrong), ("3", wrong))]
    first, second = replays.merged(rows)
    assert first == {"engine": "e 1", "subject": "e", **conforms}
    assert second == {"engine": "e 2, 3", "subject": "e", **wrong}


def test_a_replay_says_each_result_once_with_the_releases_that_show_it() -> None:
    conforms = {"verdict": CONFORMS, "step": None, "law": None, "kind": None, "detail": "", "harm": None}
    wrong: dict[str, Any] = {"verdict": VIOLATION, "step": 1, "law": "one", "kind": lockstep.PROMISE, "detail": "why"}
    read = [{"harm": {"sentence": f"read in step {n}"}} for n in (1, 2)]
    shows: dict[str, dict[str, Any]] = {
        "0.5.10": wrong | read[0],
        "0.5.11": wrong | read[1],
        "0.5.12": wrong | read[1],
        "0.5.13": conforms,
    }
    shows |= {"0.5.14": conforms, "0.5.16": conforms, "0.5.17": wrong | {"step": 2, "harm": None}}
    rows: list[dict[str, Any]] = [{"subject": "ours", "release": None, **conforms}]
    rows += [{"subject": "sglang", "release": release, "ran": {"core": ["rust"]}, **s} for release, s in shows.items()]
    run = Trace("allocator", {}, [{"op": "free", "row": 0}, {"op": "free", "row": 1}])
    kept = Kept("some_trace", "one", "why", "", run)
    assert replays.shown(kept, rows) == [
        "some_trace",
        "  1. free(row=0)",
        "  2. free(row=1)",
        "violation in step 1: sglang 0.5.10 to 0.5.12 (core: rust)",
        "  what is broken: promise of one",
        "  why",
        "  harm: read in step 1 (sglang 0.5.10 (core: rust))",
        "  harm: read in step 2 (sglang 0.5.11, 0.5.12 (core: rust))",
        "violation in step 2: sglang 0.5.17 (core: rust)",
        "  what is broken: promise of one",
        "  why",
        "conforms: ours; sglang 0.5.13, 0.5.14, 0.5.16 (core: rust)",
    ]


def test_brackets_in_an_engines_message_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    console.print(table("[/title]", ["detail"], [["tensor [int64] [/x]"]]))
    shown = capsys.readouterr().out
    assert "tensor [int64] [/x]" in shown
    assert "[/title]" in shown


def test_the_help_names_the_engines_and_loads_neither_torch_nor_the_provers() -> None:
    done = slotproof("check", "--help")
    assert "Engines: ours, sglang" in done.stdout
    look = "import sys, slotproof.cli; print([m for m in ('torch', 'z3', 'hypothesis') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_readme_must_have_its_example_and_may_have_other_parts() -> None:
    with pytest.raises(ValueError, match="has no part <!-- generated: found -->"):
        filled("nothing here", {"found": lambda: "example"}, REQUIRED)
    assert filled("nothing here", {"found": lambda: pytest.fail("no one asks for it")}) == "nothing here"
    text = "a\n<!-- generated: found -->\nold\n<!-- end -->\nb"
    made = filled(text, {"found": lambda: "example", "stems": lambda: pytest.fail("no one asks for it")})
    assert made == "a\n<!-- generated: found -->\nexample\n<!-- end -->\nb"


def test_an_unknown_stem_has_no_hints() -> None:
    with pytest.raises(KeyError, match="no stem"):
        registry.hints_of("nosuch")


@pytest.mark.soak
@pytest.mark.engine
def test_a_real_release_shows_its_stale_mapping(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = slotproof("replay", "stale_tail_after_restore", "sglang", "--release", "0.5.12", "--json", str(out))
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1, done.stdout + done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["verdict"], row["law"], row["step"]) == (VIOLATION, "mapping_is_live", 4)
