"""Drawn edits of an engine are recorded, judged and shrunk: what is said of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.planted.mutants import edits, places
from slotproof.console.codes import BROKEN, HOLDS, USAGE
from slotproof.planted import recording_edits
from slotproof.planted.recording_edits import NAMED, QUIET, UNJUDGED, UNRECORDED, Planted

EDIT = ["--source", "copy"]
WRONG: Json = {"law": "one_owner", "kind": "invariant", "call": 7, "detail": "slot 3", "function": "free"}


class Commands:
    """Stands in for the commands of slotproof. ``recordings``: by what is recorded and the kind of server the exit code
    of ``record``, or the first wrong call of the recording, or ``None`` where no law is broken.
    """

    def __init__(self, report: Path, recordings: dict[tuple[str, str], Any]) -> None:
        self.report, self.recordings, self.made = report, recordings, list[tuple[str, str]]()

    def __call__(self, *words: str) -> tuple[int, str]:
        if words[0] == "record":
            subject = "edit" if "--source" in words else "release"
            self.made.append((subject, words[words.index("--server") + 1]))
            is_code = isinstance(self.recordings.get(self.made[-1]), int)
            return (self.recordings[self.made[-1]], "why") if is_code else (HOLDS, "")
        first = self.recordings.get(self.made[-1])
        if isinstance(first, str):
            return USAGE, first
        self.report.write_text(json.dumps({"first": first}))
        return HOLDS if first is None else BROKEN, ""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    monkeypatch.setattr(recording_edits, "_own", {})
    return Planted("vllm", "0.33.0", Path("copy"), tmp_path, 10)


def first_named(planted: Planted, monkeypatch: pytest.MonkeyPatch, **recordings: Any) -> tuple[Json, Sequence[Any]]:
    by_subject = {tuple(name.split("_")): first for name, first in recordings.items()}
    commands = Commands(planted.report, by_subject)  # type: ignore[arg-type]
    monkeypatch.setattr(recording_edits, "_slotproof", commands)
    return recording_edits._first_named(planted, ("plain", "window")), commands.made


def test_the_first_recording_that_breaks_a_law_names_the_edit(
    planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, made = first_named(planted, monkeypatch, edit_window=WRONG)
    assert (found["fate"], found["server"], found["named"], found["law"]) == (NAMED, "window", "free", "one_owner")
    assert made == [("edit", "plain"), ("edit", "window"), ("release", "window")]


def test_what_the_release_itself_breaks_is_not_of_the_edit(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"edit_plain": WRONG, "release_plain": {**WRONG, "call": 9}}
    assert first_named(planted, monkeypatch, **own)[0]["fate"] == QUIET
    found, made = first_named(planted, monkeypatch, **own, edit_window=WRONG)
    assert (found["fate"], found["server"]) == (NAMED, "window")
    assert ("release", "plain") not in made  # it was recorded before
    other = {**WRONG, "law": "no_leak"}
    assert first_named(planted, monkeypatch, edit_plain=other, release_plain=WRONG)[0]["law"] == "no_leak"


@pytest.mark.parametrize(
    ("recordings", "fate", "said"),
    [
        ({}, QUIET, ""),
        ({"edit_plain": USAGE, "edit_window": USAGE}, UNRECORDED, "why"),
        ({"edit_plain": USAGE}, QUIET, ""),
        ({"edit_plain": USAGE, "edit_window": "it has host memory"}, UNJUDGED, "it has host memory"),
    ],
)
def test_an_edit_that_no_recording_names(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, recordings: Json, fate: str, said: str
) -> None:
    assert first_named(planted, monkeypatch, **recordings)[0] == {"fate": fate, "said": said}


def test_a_pasted_test_is_run_as_a_user_runs_it(planted: Planted) -> None:
    assert recording_edits._tested(planted, "def test_it(): assert False") == recording_edits.FAILED
    assert recording_edits._tested(planted, "def test_it(): pass") == recording_edits.PASSED
    assert recording_edits._tested(planted, "def test_it(: pass") not in (
        recording_edits.FAILED,
        recording_edits.PASSED,
    )


ENTRY = 'engine = "vllm"\nrelease = "0.33.0"\nedit = "abc"\nright = "yes"\nreason = "The call takes no block."\n'


def test_what_was_reviewed_by_hand_is_read(tmp_path: Path) -> None:
    file = tmp_path / "recorded_edits.toml"
    assert recording_edits.BY_HAND.read(file) == {}
    file.write_text(f"[[edit]]\n{ENTRY}")
    told = recording_edits.BY_HAND.read(file)["vllm", "0.33.0", "abc"]
    assert (told["right"], told["reason"]) == ("yes", "The call takes no block.")


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ('reason = "The call takes no block."', "", "one lacks reason"),
        ('"yes"', '"maybe"', "each edit needs .*right .yes, late.* one has another right"),
    ],
)
def test_an_entry_that_is_not_as_it_must_be_is_refused(tmp_path: Path, was: str, now: str, message: str) -> None:
    file = tmp_path / "recorded_edits.toml"
    file.write_text(f"[[edit]]\n{ENTRY.replace(was, now)}")
    with pytest.raises(UsageError, match=message):
        recording_edits.BY_HAND.read(file)


def test_edits_are_found_again_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text("def free(slots):\n    return len(slots) + 1\n")
    (spot, *_) = places.spots(tmp_path / "pool.py", name="pool.py", line=lambda _: True, messages=True)
    row = {"edit": edits.identity(spot), "file": "pool.py"}
    (made,) = recording_edits._planted(tmp_path, [row]).values()
    assert made.spot == spot
    with pytest.raises(UsageError, match="no such edits: 0123"):
        recording_edits._planted(tmp_path, [row, {"edit": "0123", "file": "pool.py"}])
