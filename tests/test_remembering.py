"""A result of the report or of a walk is used again only where nothing that it depends on has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slotproof
from proofs import walks
from proofs.memory import AnswerMemory
from proofs.walks import Seen
from slotproof.console import remembering
from slotproof.console.remembering import remembered
from slotproof.proving import proving
from slotproof.proving.proving import walked_or_remembered


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the code of an engine; the cache is a folder beside it, and nothing was read yet."""
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remembering, "PACKAGES", (slotproof,))  # one of our packages, so that little is read
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "deep" / "a.py").write_text("a = 1")
    return tmp_path / "code"


def asked(code: Path, *values: Any, question: Any = "q") -> list[Any]:
    """What one process after the other gets, where each would make another value."""
    found = []
    for value in values:
        found.append(remembered("what", question, lambda value=value: value, lambda _: [str(code)]))  # type: ignore[misc]
    return found


def test_a_result_is_used_again(code: Path) -> None:
    assert asked(code, {"a": [1]}, 2) == [{"a": [1]}] * 2


CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], Any]] = {
    "the text of a file": lambda code, _: (code / "deep" / "a.py").write_text("a = 2"),
    "a new file": lambda code, _: (code / "b.py").write_text(""),
    "a file that is gone": lambda code, _: (code / "deep" / "a.py").unlink(),
    "a file of another name": lambda code, _: (code / "deep" / "a.py").rename(code / "deep" / "b.py"),
    "a file in another folder": lambda code, _: (code / "deep" / "a.py").rename(code / "a.py"),
    "a variable of the solvers": lambda _, patch: patch.setenv("TRITON_INTERPRET_X", "1"),
    "a variable of an engine": lambda _, patch: patch.setenv("SGLANG_X", "1"),
    "a package": lambda _, patch: patch.setattr(remembering, "distributions", list),
    "the interpreter": lambda _, patch: patch.setattr("sys.version", "4.0"),
    "our own code": lambda _, patch: patch.setattr(remembering, "PACKAGES", ()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_makes_it_anew(change: str, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(code, 1) == [1]
    CHANGES[change](code, monkeypatch)
    assert asked(code, 2) == [2]


def test_a_change_that_keeps_size_and_time_is_seen(code: Path) -> None:
    path = code / "deep" / "a.py"
    stat = path.stat()
    assert asked(code, 1) == [1]
    path.write_text("a = 9")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert asked(code, 2) == [2]


def test_a_result_that_was_made_while_something_changed_is_not_kept(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> int:
        monkeypatch.setenv("SLOTPROOF_X", "1")
        return 1

    assert remembered("what", 1, make, lambda _: [str(code)]) == 1
    monkeypatch.delenv("SLOTPROOF_X")
    assert remembered("what", 1, lambda: 2, lambda _: [str(code)]) == 2


def test_another_question_has_another_answer(code: Path) -> None:
    assert asked(code, 1, question=["a", "b"]) == [1]
    assert asked(code, 2, question=["b", "a"]) == [2]


def test_a_file_that_was_damaged_or_edited_is_made_anew(code: Path, tmp_path: Path) -> None:
    (place,) = [tmp_path / "cache" / "what.json"]
    assert asked(code, 1) == [1]
    edited = {**json.loads(place.read_text()), "value": 7}
    for damage in ("", "{", "[]", "null", json.dumps(edited), place.read_text()[:-9]):
        place.write_text(damage)
        assert asked(code, 2) == [2], damage
        place.unlink()
        assert asked(code, 1) == [1]


@pytest.mark.usefixtures("code")
def test_what_must_not_be_kept_is_made_each_time() -> None:
    assert remembered("what", 1, lambda: 1, lambda _: None) == 1
    assert remembered("what", 1, lambda: 2, lambda _: None) == 2


# Walks.

FINE = Seen("allocator", 2_001, (), ())


@pytest.fixture
def walked(code: Path, monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """What the next walks see, the first first; the code that they run is that of one folder."""
    to_see: list[Seen] = []
    monkeypatch.setattr(walks, "seen", lambda _: to_see.pop(0))
    monkeypatch.setattr(slotproof, "__path__", [str(code)])
    for name in ("spec", "proofs"):
        monkeypatch.setattr(proving, name, slotproof)
    return to_see


def test_walks_are_remembered_until_the_code_changes(code: Path, tmp_path: Path, walked: list[Seen]) -> None:
    memory = AnswerMemory(tmp_path)
    walked += [FINE, replace(FINE, calls=3_000)]
    assert walked_or_remembered("allocator", memory) == FINE
    assert walked_or_remembered("allocator", memory) == replace(FINE, remembered=True)
    (code / "deep" / "a.py").write_text("a = 2")
    assert walked_or_remembered("allocator", memory).calls == 3_000


def test_the_walks_of_another_stem_are_others(tmp_path: Path, walked: list[Seen]) -> None:
    walked += [FINE, replace(FINE, stem="cache")]
    assert walked_or_remembered("allocator", AnswerMemory(tmp_path)) == FINE
    (kept,) = (tmp_path / "cache" / "walks").iterdir()
    kept.with_name("cache.json").write_text(kept.read_text())
    assert walked_or_remembered("cache", AnswerMemory(tmp_path)) == replace(FINE, stem="cache")


@pytest.mark.parametrize("memory", [AnswerMemory(None), AnswerMemory(Path(), believed=False)], ids=["in CI", "fresh"])
def test_remembered_walks_are_not_believed(memory: AnswerMemory, tmp_path: Path, walked: list[Seen]) -> None:
    walked += [FINE, replace(FINE, wrong=("free breaks places",))]
    walked_or_remembered("allocator", AnswerMemory(tmp_path))
    assert walked_or_remembered("allocator", memory).wrong


@pytest.mark.parametrize("bad", [{"wrong": ("free breaks places",)}, {"missing": (("free", "of one"),)}], ids=str)
def test_what_is_wrong_is_not_remembered(bad: dict[str, Any], tmp_path: Path, walked: list[Seen]) -> None:
    walked += [replace(FINE, **bad), FINE]
    assert walked_or_remembered("allocator", AnswerMemory(tmp_path)) == replace(FINE, **bad)
    assert walked_or_remembered("allocator", AnswerMemory(tmp_path)) == FINE


def test_nothing_is_kept_in_ci(tmp_path: Path, walked: list[Seen]) -> None:
    walked += [FINE]
    assert walked_or_remembered("allocator", AnswerMemory(None)) == FINE
    assert not (tmp_path / "cache").exists()
