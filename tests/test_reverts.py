"""Each fix in ``reverts/fixes.json`` is in its release, is not in the older one, and can be taken out alone."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path
from typing import Any

import pytest
from driven import have
from reverts import revert
from reverts.revert import Fix, NotRevertable

from conformance.engines.sglang import SGLangPlugin
from conformance.stems.stem_registry import STEMS
from conformance.traces.known import of_release

FIXES = revert.fixes()
SOURCE = """
class Pool:
    def free(self, slots, size):
        if size == len(slots) + 1:
            return
        limit = size - len(slots) - size
        # A comment stays.
        self.log(slots)
        self.give(slots, size, sort=True)
        self.make(first=slots, second=size, third=0)
        slots.mapping = None
        self.limit = limit
"""


def edit(kind: str, **options: Any) -> dict[str, Any]:
    """An edit of the function above."""
    return {"file": "pool.py", "function": "Pool.free", "kind": kind, **options}


def lines(text: str) -> set[str]:
    """The lines of a text without their indentation."""
    return {line.strip() for line in text.splitlines()}


def difference(change: dict[str, Any], older: str = "") -> tuple[set[str], set[str]]:
    """The lines that an edit takes out of the source above, and those that it puts in."""
    now = revert.edited(SOURCE.encode(), older.encode, change).decode()
    return lines(SOURCE) - lines(now), lines(now) - lines(SOURCE)


@pytest.mark.parametrize(
    ("change", "gone", "new"),
    [
        (edit("delete_call", call="log"), {"self.log(slots)"}, set()),
        (edit("delete_if", names=["size", "len", "slots"]), {"if size == len(slots) + 1:", "return"}, set()),
        (edit("delete_assignments", targets=["slots.mapping"]), {"slots.mapping = None"}, set()),
        (
            edit("drop_arguments", call="give", keep=1),
            {"self.give(slots, size, sort=True)"},
            {"self.give(slots)"},
        ),
        (
            edit("drop_keywords", call="make", names=["second", "third"]),
            {"self.make(first=slots, second=size, third=0)"},
            {"self.make(first=slots)"},
        ),
        (
            edit("drop_subtrahend", target="limit", name="size"),
            {"limit = size - len(slots) - size"},
            {"limit = size - len(slots)"},
        ),
        (
            edit("set_to_parameter", target="self.limit", parameter="size"),
            {"self.limit = limit"},
            {"self.limit = size"},
        ),
    ],
)
def test_an_edit_changes_its_place_and_nothing_else(change: dict[str, Any], gone: set[str], new: set[str]) -> None:
    assert difference(change) == (gone, new)


def test_the_older_function_takes_the_place_of_the_newer_one() -> None:
    older = SOURCE.replace("self.log(slots)", "self.say(slots)")
    assert difference(edit("older_function"), older) == ({"self.log(slots)"}, {"self.say(slots)"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (edit("delete_call", call="nothing"), "there are 0 such places"),
        (edit("delete_call", call="log") | {"function": "Pool.other"}, "there are 0 definitions of other"),
        (edit("delete_if", names=["size"]), "there are 0 such places"),
        (edit("delete_if", names=["size", "len", "slots"], comparison="Lt"), "there are 0 such places"),
        (edit("delete_assignments", targets=["self.limit"]), "there are 0 such places"),
        (edit("drop_arguments", call="log", keep=1), "no more arguments"),
        (edit("drop_keywords", call="make", names=["second", "fourth"]), "'second'"),
        (edit("drop_subtrahend", target="limit", name="slots"), "there are 0 such places"),
        (edit("set_to_parameter", target="limit", parameter="length"), "no parameter length"),
        (edit("older_function"), "changes nothing"),
    ],
)
def test_an_edit_without_its_place_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(NotRevertable, match=why):
        revert.edited(SOURCE.encode(), SOURCE.encode, change)


@pytest.mark.parametrize(
    "source",
    [
        SOURCE.replace("# A comment stays.", "self.log(size)"),  # the place is there twice
        SOURCE.replace("            return\n", "            self.log(slots)\n").replace(
            "        self.log(slots)\n        self.give", "        self.give"
        ),
    ],
)
def test_a_place_that_is_there_twice_or_is_all_of_its_block_is_refused(source: str) -> None:
    with pytest.raises(NotRevertable):
        revert.edited(source.encode(), source.encode, edit("delete_call", call="log"))


def test_there_are_ten_fixes_and_their_words_are_known() -> None:
    assert len(FIXES) == 10
    assert len({fix.pull for fix in FIXES.values()}) == 10
    for fix in FIXES.values():
        assert set(fix.stems) <= set(STEMS), fix.name
        assert SGLangPlugin.releases.index(fix.lacking) < SGLangPlugin.releases.index(fix.release), fix.name


def test_at_least_three_break_a_law_that_their_release_breaks_in_the_stem_already() -> None:
    def already(fix: Fix) -> bool:
        known = of_release(SGLangPlugin().folder, fix.release)
        return any(k.stem in fix.stems and k.law in fix.laws and k.verdict == "violation" for k in known)

    assert [fix.name for fix in FIXES.values() if fix.base_breaks_a_law and not already(fix)] == []
    assert sum(fix.base_breaks_a_law for fix in FIXES.values()) >= 3


@pytest.mark.engine
@pytest.mark.parametrize("fix", FIXES.values(), ids=list(FIXES))
def test_a_fix_is_in_its_release_and_can_be_taken_out_of_few_lines(fix: Fix) -> None:
    have(fix.release), have(fix.lacking)
    found = revert.texts(fix)
    assert set(found) == {edit["file"] for edit in fix.edits}
    for was, now in found.values():
        compile(now, "reverted", "exec")
        gone, new = revert.changed_lines(was, now)
        assert 1 <= gone <= 12
        assert new <= 2


@pytest.mark.engine
@pytest.mark.parametrize("fix", FIXES.values(), ids=list(FIXES))
def test_the_older_release_lacks_what_is_taken_out(fix: Fix) -> None:
    """An edit finds no place there, or no file. Where the function itself is older, it is another one there."""
    older = have(fix.lacking) / revert.PACKAGE
    for change in fix.edits:
        file = older / change["file"]
        if file.is_file() and change["kind"] != "older_function":
            with pytest.raises(NotRevertable):
                revert.edited(file.read_bytes(), bytes, change)


@pytest.mark.engine
def test_a_copy_differs_from_its_release_in_the_edited_files_alone(tmp_path: Path) -> None:
    fix = FIXES["window_reaches_the_leaf"]
    source = have(fix.release)
    changed = revert.revert(fix, tmp_path / "copy")
    files = [file.relative_to(source) for file in source.rglob("*.py")]
    _, differ, missing = filecmp.cmpfiles(source, tmp_path / "copy", files, shallow=False)
    assert {str(Path(file).relative_to(revert.PACKAGE)) for file in differ} == set(changed)
    assert not missing
    with pytest.raises(FileExistsError):
        revert.revert(fix, tmp_path / "copy")


def test_the_command_says_what_it_can_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert revert.main([]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(FIXES)
    assert revert.main(["no_such_fix", str(tmp_path)]) == 3
    assert "paged_window_free" in capsys.readouterr().err
    assert json.loads(revert.FIXES.read_text(encoding="utf-8"))[0]["name"] == "paged_window_free"
