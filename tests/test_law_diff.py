"""``slotproof diff``: prepared pairs of revisions, made by editing a copy of the spec, and what is said of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import spec
from conformance.driver.naming import UsageError
from proofs import prover
from proofs.difference import compare, decide, verdict
from proofs.difference.row import CHANGES, KINDS, Row
from slotproof import cli
from slotproof.console import codes
from slotproof.review import diff_page, diffing

ROOT = Path(__file__).resolve().parents[1]
PRESENT = Path(spec.__file__).parent
SCHEMA = json.loads((ROOT / "docs" / "diff-report.schema.json").read_text("utf-8"))

Edit = tuple[str, str, str]  # the file, what stands there, and what is put in its place
GROUP = "(st.group >= 0) & implies(st.group == 0, none_waits(st.now))"
BACKED_UP = 'requires(st.backed_up, "a backup was taken, and no page was given back since"),'


def revision(folder: Path, *edits: Edit) -> Path:
    """A folder with a copy of the spec, edited."""
    shutil.copytree(PRESENT, folder / "spec", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in edits:
        file = folder / "spec" / name
        text = file.read_text("utf-8")
        assert old in text, f"{name} no longer says {old}"
        file.write_text(text.replace(old, new), "utf-8")
    return folder


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Row]]:
    """What the diff of the spec and of an edited copy says. The units are judged in this process."""
    monkeypatch.setattr(prover, "on_every_core", lambda work, units, _: [work(*unit) for unit in units])

    def found(*edits: Edit) -> list[Row]:
        return compare.differences(PRESENT, revision(tmp_path / "new", *edits) / "spec")

    return found


def said(found: list[Row]) -> list[tuple[str, str, str, str, str]]:
    """Stem, kind, name, change and guarantee of each row."""
    return [(row.stem, row.kind, row.name, row.change, row.guarantee) for row in found]


def state_of(row: Row) -> dict[str, Any]:
    """The state of the first example of a row."""
    values = row.examples[0].values
    found: dict[str, Any] = values["state"] if "state" in values else values["before"]
    return found


# The six pairs of the acceptance.


def test_a_dropped_law_weakens_and_a_state_shows_it(rows: Any) -> None:
    (row,) = rows(("allocator.py", "@stem.invariant()\ndef backup_still_holds", "def backup_still_holds"))
    assert said([row]) == [("allocator", "law", "backup_still_holds", "dropped", "weakened")]
    assert state_of(row)["backed_up"] is True
    assert row.new is None


def test_a_law_that_says_less_is_weakened(rows: Any) -> None:
    (row,) = rows(("allocator.py", GROUP, "implies(st.group == 0, none_waits(st.now))"))
    assert said([row]) == [("allocator", "law", "pending_in_group", "weakened", "weakened")]
    assert row.decided
    assert state_of(row)["group"] == -1, "the number nearest to 0 that shows it"
    assert row.old.formula == GROUP
    assert "none_waits" in row.new.formula
    assert "group" not in row.new.formula.split("implies")[0]


@pytest.mark.soak
def test_a_law_that_says_more_is_strengthened(rows: Any) -> None:
    (row,) = rows(("allocator.py", GROUP, f"{GROUP} & (st.group < 2)"))
    assert said([row]) == [("allocator", "law", "pending_in_group", "strengthened", "strengthened")]
    assert state_of(row)["group"] == 2


def test_a_promise_that_is_added_weakens_what_callers_are_guaranteed(rows: Any) -> None:
    more = f'{BACKED_UP} requires(st.group == 0, "no group is open"),'
    found = rows(("allocator.py", BACKED_UP, more))
    assert said(found) == [
        ("allocator", "transition", "restore_state", "weakened", "weakened"),
        ("allocator", "promise", "no group is open", "added", "weakened"),
    ]
    assert found[1].transition == "restore_state"
    assert found[1].new.formula == "st.group == 0"
    assert state_of(found[1])["group"] == 1


def test_a_law_with_another_name_is_renamed_whatever_its_text_is(rows: Any) -> None:
    (row,) = rows(
        ("allocator.py", "def pending_in_group", "def waits_in_group"),
        ("allocator.py", GROUP, "implies(st.group <= 0, none_waits(st.now)) & no(st.group < 0)"),
    )
    assert said([row]) == [("allocator", "law", "waits_in_group", "renamed", "same")]
    assert (row.old.name, row.new.name) == ("pending_in_group", "waits_in_group")
    assert "z3 and cvc5 prove" in row.notes[1]


@pytest.mark.soak
def test_another_sentence_alone_has_the_same_meaning(rows: Any) -> None:
    (row,) = rows(("allocator.py", '"""Pages are pending only', '"""Pages wait only'))
    assert said([row]) == [("allocator", "law", "pending_in_group", "same_meaning", "same")]
    assert row.old.sentence != row.new.sentence


# What the solvers decide, and not the text.


def test_nothing_is_said_of_two_copies(rows: Any) -> None:
    assert rows() == []


def test_a_comment_and_a_helper_of_one_meaning_change_nothing(rows: Any) -> None:
    assert rows(("pool.py", "FREE, RELEASED", "# places\nFREE, RELEASED")) == []


def test_another_formula_of_one_meaning_is_no_change_of_the_law(rows: Any) -> None:
    other = "implies(st.group <= 0, none_waits(st.now)) & (st.group >= 0)"
    (row,) = rows(("allocator.py", GROUP, other))
    assert said([row]) == [("allocator", "law", "pending_in_group", "same_meaning", "same")]


def test_what_the_other_laws_imply_is_still_guaranteed(rows: Any) -> None:
    """The law loses what another law of the stem says in any case."""
    (row,) = rows(
        ("cache_state.py", "implies(reads, holds_window(", "implies(reads & rows_of_pool(rows, r), holds_window("),
        ("cache_state.py", "def window_is_locked", "def rows_of_pool(rows: Rows, r: Number) -> Truth:\n"
         '    """``r`` is a row."""\n    return is_row(rows, r)\n\n\ndef window_is_locked'),
    )  # fmt: skip
    assert said([row]) == [("cache", "law", "window_is_locked", "same_meaning", "same")]


@pytest.mark.soak
def test_a_changed_helper_shows_in_the_law_that_uses_it(rows: Any) -> None:
    (row,) = rows(("cache_effects.py", "(now.handle(row) == handle)", "(now.handle(row) >= handle)"))
    assert said([row]) == [("cache", "law_of_two_states", "runs_with_its_lock", "weakened", "weakened")]


@pytest.mark.soak
def test_a_weakened_law_of_the_whole_cache_is_judged(rows: Any) -> None:
    (row,) = rows(("cache_state.py", "& (st.holder(h) == r + 1) & (rows", "& (rows"))
    assert said([row]) == [("cache", "law", "request_holds_its_prefix", "weakened", "weakened")]
    assert state_of(row)


# Transitions.


def test_an_effect_that_changes_is_shown_by_a_call(rows: Any) -> None:
    (row,) = rows(("lock_ref.py", "then=but(given, active=st.active.put(handle, 0))", "then=given"))
    assert said([row]) == [("lock_ref", "transition", "release", "incomparable", "incomparable")]
    assert row.examples[0].values["handle"] == 1
    assert "cache.free_rest" in row.also_in, "the whole calls it"


def test_an_answer_that_the_implementation_may_give_now_is_shown(rows: Any) -> None:
    found = rows(("mamba_slots.py", "requires(chosen.length == count,", "requires(chosen.length <= count,"))
    kinds = {(row.kind, row.change) for row in found}
    assert ("choice", "weakened") in kinds
    shown = next(row for row in found if row.kind == "choice" and row.examples)
    assert "only the new revision allows" in shown.examples[0].shows


@pytest.mark.soak
def test_a_call_that_no_longer_fits_is_weakened(rows: Any) -> None:
    found = rows(("allocator.py", "fits=need <= st.now.available", "fits=need < st.now.available"))
    assert {(row.kind, row.change) for row in found} == {("transition", "weakened"), ("fit", "weakened")}
    assert {row.name for row in found if row.kind == "transition"} == {
        "alloc",
        "alloc_extend",
        "alloc_decode",
        "roll_back",
    }


@pytest.mark.soak
def test_a_renamed_transition_is_one(rows: Any) -> None:
    found = rows(
        ("allocator.py", "def merge_and_sort_free", "def sort_free"),
        ("allocator.py", '"merge_and_sort_free"', '"sort_free"'),
    )
    assert ("allocator", "transition", "sort_free", "renamed", "same") in said(found)
    assert {row.change for row in found} == {"renamed", "same_meaning"}


# States, theorems, and what is taken for granted.


@pytest.mark.soak
def test_a_field_that_is_added_is_named(rows: Any) -> None:
    found = rows(
        ("allocator.py", "    group: Number = number()", "    group: Number = number()\n    opened: Number = number()"),
        ("allocator.py", "backed_up=False, group=0)", "backed_up=False, group=0, opened=0)"),
        ("allocator.py", "st.group + ite(opens, 1, 0)", "st.group + ite(opens, 1, 0), opened=st.opened + 1"),
    )
    assert {(row.kind, row.name) for row in found} == {
        ("state", "AllocatorState"),
        ("first_state", "start"),
        ("transition", "free_group_begin"),
        ("transition", "clear"),
    }
    assert {(row.change, row.fields) for row in found} == {("state_changed", ("opened",))}


@pytest.mark.soak
def test_what_a_theorem_is_about_is_no_change_of_its_meaning(rows: Any) -> None:
    about = 'stem.theorem(about=("rows", "tree"))(cache_theorems.quiescent)'
    (row,) = rows(("cache.py", about, about.replace('"tree"', '"tree", "states"')))
    assert said([row]) == [("cache", "theorem", "quiescent", "same_meaning", "same")]
    assert "rows, tree before, rows, tree, states now" in row.notes[0]


@pytest.mark.soak
def test_a_theorem_is_compared_as_it_stands(rows: Any) -> None:
    """Under the laws every theorem holds, so that a weaker one would seem to have one meaning with a stronger one."""
    (row,) = rows(("cache_theorems.py", "& (full.index(page) == i)", ""))
    assert said([row]) == [("cache", "theorem", "frees_what_it_owns", "weakened", "weakened")]


@pytest.mark.soak
def test_a_headline_that_names_fewer_laws_is_weakened(rows: Any) -> None:
    named = '*(("cache", law) for law in ("quiescent", "states_are_quiescent")),\n'
    text = (PRESENT / "theorems.py").read_text("utf-8")
    first = text[text.index('"freed_exactly_once"') : text.index('"no_use_after_free"')]
    assert named in first
    (row,) = rows(("theorems.py", first, first.replace(named, "\n")))
    assert said([row]) == [("", "headline", "freed_exactly_once", "weakened", "weakened")]


def test_what_the_theorems_leave_out_is_an_assumption(rows: Any) -> None:
    (row,) = rows(("scope.py", '    (("swa_mapping", "backup_state"), WHOLE),\n', ""))
    assert said([row]) == [("", "assumption", "swa_mapping.backup_state", "dropped", "strengthened")]


@pytest.mark.soak
def test_a_sentence_without_a_formula_is_not_decided(rows: Any) -> None:
    (row,) = rows(
        ("scope.py", "drained request by request and node by node, and never thrown away", "drained"),
    )[:1]
    assert (row.change, row.decided, row.guarantee) == ("incomparable", False, "unknown")


@pytest.mark.soak
def test_an_assumption_that_asks_more_weakens(rows: Any) -> None:
    found = rows(("cache_drain.py", "sessions.size <= slots.first_node", "sessions.size < slots.first_node"))
    assert ("cache", "assumption", "numbered", "weakened", "weakened") in said(found)


def test_a_changed_word_of_the_spec_is_never_passed_over(rows: Any) -> None:
    (row,) = rows(("logic.py", "return no(premise) | conclusion", "return conclusion"))
    assert (row.kind, row.name, row.decided) == ("word", "logic.implies", False)


# What is not known.


def test_an_unknown_answer_is_never_called_one_meaning() -> None:
    answers = (decide.TRUE, decide.FALSE, decide.UNKNOWN)
    for one in answers:
        for other in answers:
            for judged in (verdict.of_law(one, other), verdict.of_asked(one, other)):
                assert (judged.change == "same_meaning") == (one == other == decide.TRUE)
                assert judged.decided == (decide.UNKNOWN not in (one, other))
                assert (judged.guarantee == "unknown") == (not judged.decided)


@pytest.mark.soak
def test_where_the_solvers_give_up_the_report_says_so(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_example", lambda *_: None)
    monkeypatch.setattr(decide, "_proved", lambda *_: False)
    (row,) = rows(("allocator.py", GROUP, "implies(st.group == 0, none_waits(st.now))"))
    assert (row.change, row.guarantee, row.decided) == ("incomparable", "unknown", False)
    assert all("not known" in note for note in row.notes)


@pytest.mark.soak
def test_an_example_that_the_finite_reading_denies_is_no_answer(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = decide.Entailment.__init__

    def denied(self: Any, *given: Any, **named: Any) -> None:
        real(self, *given, **named)
        object.__setattr__(self, "confirmed", lambda _: False)

    monkeypatch.setattr(decide.Entailment, "__init__", denied)
    (row,) = rows(("allocator.py", GROUP, "implies(st.group == 0, none_waits(st.now))"))
    assert (row.change, row.guarantee, row.decided) == ("weakened", "unknown", False)
    assert "the finite reading does not confirm" in row.notes[1]


# The command.


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout of a spec with two revisions: the second one says less. The tests run in it."""
    folder = revision(tmp_path / "repository")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    file = folder / "spec" / "allocator.py"
    file.write_text(file.read_text("utf-8").replace(GROUP, "implies(st.group == 0, none_waits(st.now))"), "utf-8")
    git(folder, "commit", "-qam", "two")
    monkeypatch.chdir(folder)
    return folder


def report(out: Path) -> Any:
    found = json.loads(out.read_text("utf-8"))
    Draft202012Validator(SCHEMA).validate(found)
    return found


@pytest.mark.soak
def test_two_git_revisions_are_compared(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "diff.json"
    assert diffing.run("HEAD~1", "HEAD", out, "text") == codes.HOLDS
    found = report(out)
    assert [(row["kind"], row["name"], row["change"]) for row in found["changes"]] == [
        ("law", "pending_in_group", "weakened")
    ]
    assert found["counts"]["weakened"] == 1
    shown = capsys.readouterr().out
    assert "Users are guaranteed less" in shown
    assert "group = -1" in shown
    assert git(repository, "status", "--porcelain") == "", "the checkout is as it was"


def test_the_files_as_they_are_now_are_the_new_revision(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diffing.run("HEAD", None, None, "json") == codes.HOLDS
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    assert (found["changes"], found["reason"]) == ([], "nothing changed")
    assert repository.is_dir()


@pytest.mark.soak
def test_the_page_for_github_has_both_sides_and_no_text_is_read_as_html(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repository / "spec" / "allocator.py"
    file.write_text(file.read_text("utf-8").replace('"""Pages are pending', '"""<b>Pages</b> are pending'), "utf-8")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert diffing.run("HEAD~1", None, None, "github") == codes.HOLDS
    page = capsys.readouterr().out
    assert "<th>old</th><th>new</th>" in page
    assert "(st.group &gt;= 0) &amp; implies(" in page
    assert "<b>Pages" not in page
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert diffing.run("HEAD~1", None, None, "github") == codes.HOLDS
    assert summary.read_text("utf-8") == page
    log = capsys.readouterr().out.splitlines()
    assert log[0].startswith("::warning title=law allocator.pending_in_group%3A weakened::")
    assert log[1].startswith("::stop-commands::")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("no-such-branch", "no-such-branch: no such folder, and no git revision of "),
        ("{empty}", "{empty}: this folder holds no spec"),
        ("bare", "bare: the git revision "),
    ],
)
def test_a_base_that_is_none_is_one_line(
    base: str, message: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "empty").mkdir()
    git(repository, "checkout", "-q", "--orphan", "bare")
    git(repository, "rm", "-rqf", "--cached", ".")
    git(repository, "commit", "-q", "--allow-empty", "-m", "bare")
    names = {"empty": str(tmp_path / "empty")}
    monkeypatch.setattr(sys, "argv", ["slotproof", "diff", base.format(**names)])
    assert cli.run() == codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(**names) in line


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    "wrong",
    [
        'open("/tmp/x", "w")\n',
        "import os\n",
        "def harm(st: AllocatorState) -> Truth:\n    return eval('1')\n",
    ],
)
def test_a_revision_that_is_more_than_pure_functions_is_never_executed(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = "\n\n# The laws.\n"
    old = revision(tmp_path / "old", ("allocator.py", last, f"\n\n{wrong}{last}"))
    monkeypatch.setattr(diffing, "differences", lambda *_: pytest.fail("it was executed"))
    with pytest.raises(UsageError, match=r"is not executed: the spec may hold pure functions alone; allocator.py:\d+"):
        diffing.run(str(old), str(revision(tmp_path / "new")), None, "text")


@pytest.mark.soak
def test_a_revision_that_this_slotproof_cannot_read_is_a_usage_error(tmp_path: Path) -> None:
    old = revision(
        tmp_path / "old",
        (
            "scope.py",
            "OUTSIDE = (",
            "from spec.lengths import Length\n\nNONE = Length(1)\n\nOUTSIDE = (",
        ),
    )
    with pytest.raises(UsageError, match=r"a revision cannot be read: .*rest"):
        diffing.run(str(old), str(revision(tmp_path / "new")), None, "text")


# The report for machines.


def test_the_schema_and_the_document_name_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    row = SCHEMA["$defs"]["change"]["properties"]
    made = Row("law", "x", "added").as_json()
    assert row.keys() == made.keys()
    assert row["change"]["enum"] == [*CHANGES]
    assert row["kind"]["enum"] == [*KINDS]
    text = (ROOT / "docs" / "json.md").read_text("utf-8")
    part = text[text.index("## `slotproof diff`") : text.index("## `slotproof campaign`")]
    told = [
        f"| `{name}` | {of['description']} |" for fields in (SCHEMA["properties"], row) for name, of in fields.items()
    ]
    assert re.findall(r"^\| `.*$", part, re.MULTILINE) == told


def test_a_long_page_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_page, "LONGEST_SUMMARY", 300)
    changes = [Row("law", f"law_{n}", "weakened", "allocator", guarantee="weakened").as_json() for n in range(9)]
    side = {"given": "x", "why": "the folder x"}
    page = diff_page.text({"base": side, "head": side, "changes": changes, "counts": {"weakened": 9}, "reason": "so"})
    assert "more parts are left out" in page
