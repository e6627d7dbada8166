"""``slotproof mutate engine``: which edits there are, that a check finds one, that one without end ends, and that a
second call goes on. Edits of real releases are judged by the command alone, since each takes a minute.
"""

from __future__ import annotations

import importlib
import json
import os
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import greenlet
import pytest
from harmless import KINDS, edited, harmless, texts
from reverts.revert import NotRevertable

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.engines.toy import ToyAllocator, allocator
from conformance.planted.mutants import driven, edits, outcomes, places
from conformance.planted.mutants.driven import Driven
from conformance.planted.mutants.outcomes import FOUND, HANGS, MISSED, NO_VERDICT, Begun
from conformance.planted.mutants.outcomes import KINDS as REASONS
from conformance.planted.mutants.places import CodeMutant
from conformance.planted.mutants.record import EQUIVALENT
from conformance.search.hunt import Hunt, Hunted, HuntLimits
from conformance.traces.compare import Status
from conformance.traces.outcome import outcome as outcome_of
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.planted import edit_check, mutating_engine
from slotproof.planted.mutating_engine import EngineMutationOptions

ROOT = Path(__file__).resolve().parents[1]
TOY = (ROOT / "conformance" / "engines" / "toy.py").read_text(encoding="utf-8")
SOURCE = '''"""A file."""
LIMIT = 3 + 4
class Pool:
    size: int = 5 + 6
    def free(self, slots: int | None, left=7 + 8):
        if (
            slots > 1
        ):
            self.log(f"{slots + 2}")
            total = (
                slots
                + 9
            )
        elif slots < 0:
            return 10 - 1
        else:
            return 11 + 2
        return total + left
    def never(self):
        return 12 + 3
'''


# Which edits there are.


def lines_with(text: str, *parts: str) -> set[int]:
    return {n for n, line in enumerate(text.splitlines(), start=1) if any(part in line for part in parts)}


def test_a_driven_line_is_one_of_an_executed_statement_in_a_function() -> None:
    everything = range(1, len(SOURCE.splitlines()) + 1)
    imported = lines_with(SOURCE, "LIMIT", "size", "def ", "class")
    assert not edits.driven_lines(SOURCE, imported)  # these run at the import
    assert not edits.driven_lines(SOURCE, everything) & imported
    executed = lines_with(SOURCE, "+ 9", "slots > 1")  # the tracer names one line of a statement, which may be any
    whole = lines_with(SOURCE, "total = (", "+ 9", "if (", "slots > 1")
    found = edits.driven_lines(SOURCE, executed)
    assert whole <= found
    assert not found & lines_with(SOURCE, "elif", "10 - 1", "11 + 2", "12 + 3", "self.log", "return total")


def test_edits_are_of_driven_lines_of_bookkeeping_and_annotations_are_left_out(tmp_path: Path) -> None:
    for name in ("memory/pool.py", "memory_of_others/pool.py", "model.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SOURCE)
    lines = {name: [*range(1, 19)] for name in ("memory/pool.py", "memory_of_others/pool.py", "model.py")}
    found = edits.spots(tmp_path, ("memory",), lines)
    made = [made for spot in found if (made := places.mutant(tmp_path, spot))]
    assert {spot.file for spot in found} == {"memory/pool.py"}
    assert {spot.function for spot in found} == {"Pool.free"}
    assert any("slots - 2" in one.now for one in made), "an edit of a message is an edit"
    assert not any("int" in one.was for one in made)
    assert len({edits.identity(spot) for spot in found}) == len(found)
    assert {s.file for s in edits.spots(tmp_path, ("model.py",), lines)} == {"model.py"}


def test_an_edit_keeps_its_name_when_lines_above_it_move(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(SOURCE)
    before = edits.spots(tmp_path, ("pool.py",), {"pool.py": [*range(1, 19)]})
    (tmp_path / "pool.py").write_text(SOURCE.replace("LIMIT", "OTHER = 2\nLIMIT"))
    after = edits.spots(tmp_path, ("pool.py",), {"pool.py": [*range(2, 20)]})
    assert [*map(edits.identity, before)] == [*map(edits.identity, after)]
    assert before != after


def test_an_edit_in_words_has_little_of_the_engines_text(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(SOURCE)
    found = edits.spots(tmp_path, ("pool.py",), {"pool.py": [*range(1, 19)]})
    said = {edits.in_words(made) for spot in found if (made := places.mutant(tmp_path, spot))}
    assert {"the statement on `self.log` is left out", "`>` is `>=`", "`+` is `-`", "`9` is `10`"} <= said
    assert all(len(words.split()) <= 3 + edits.LONGEST for words in said - {"the statement on `self.log` is left out"})


def test_a_copy_has_the_edit_and_the_release_stays_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "release" / "engine"
    (root / "memory" / "__pycache__").mkdir(parents=True)
    for name in ("memory/pool.py", "memory/other.py", "memory/__pycache__/pool.cpython-311.pyc"):
        (root / name).write_text(SOURCE)
    folder = edits.copy(root, tmp_path / "copy", {"memory/pool.py": b"pass"})
    assert (folder / "engine" / "memory" / "pool.py").read_text() == "pass"
    assert (folder / "engine" / "memory" / "other.py").read_text() == SOURCE
    assert not (folder / "engine" / "memory" / "__pycache__" / "pool.cpython-311.pyc").exists()
    assert {path.read_text() for path in root.rglob("*.py*") if path.is_file()} == {SOURCE}
    assert len([*root.rglob("*.pyc")]) == 1


def test_a_copy_is_made_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("another file system")

    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "pool.py").write_text(SOURCE)
    monkeypatch.setattr(os, "link", refused)
    assert (edits.copy(tmp_path / "engine", tmp_path / "copy", {}) / "engine" / "pool.py").read_text() == SOURCE


def test_lines_are_measured_in_the_operations_and_not_at_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driven_toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.load("driven_toy:allocator")
    loaded = registry.Loaded(found.name, None, found.makers, roots=(tmp_path,))
    (lines,) = driven.executed(loaded, 3, "allocator").values()
    reached = edits.driven_lines(TOY, lines)
    assert lines_with(TOY, "pages = list(dict.fromkeys(", "slots.append(slot)") <= reached
    assert not lines_with(TOY, "fragile = False", "def free(", "self.leaks = leaks and") & reached


WAITS = """
def wait(switch):
    before = 1
    switch()
    after = 2


def work(switch):
    wait(switch)
    last = 3
"""


def test_lines_of_a_loop_that_waits_in_a_greenlet_are_those_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines_above in (("waits_below", 0), ("waits_above", 20)):
        (tmp_path / f"{name}.py").write_text("\n" * lines_above + WAITS)
    monkeypatch.syspath_prepend(tmp_path)
    loops = [greenlet.greenlet(importlib.import_module(name).work) for name in ("waits_below", "waits_above")]
    run = greenlet.getcurrent()

    def wait() -> None:
        """As in a server: the switch is in a file that is not measured."""
        run.switch()

    measured = driven.measuring(tmp_path)
    measured.start()
    try:
        for _ in range(2):
            for loop in loops:
                loop.switch(wait)
    finally:
        measured.stop()
    data = measured.get_data()
    found = {Path(file).stem: sorted(data.lines(file) or ()) for file in data.measured_files()}
    assert found == {"waits_below": [3, 4, 5, 9, 10], "waits_above": [23, 24, 25, 29, 30]}


@pytest.mark.engine
@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_an_engines_bookkeeping_is_there(name: str) -> None:
    one = next(one for one in harmless() if one.engine == name)
    assert all((one.package / place).exists() for place in registry.plugin(name).bookkeeping)  # type: ignore[attr-defined]


# What becomes of an edit.


@pytest.fixture
def bases(tmp_path: Path) -> Callable[[str, str], tuple[Path, str]]:
    """Makes a folder with an edited toy engine and one without the edit; returns both, the second as a text."""

    def made(was: str, now: str) -> tuple[Path, str]:
        assert was in TOY
        for folder, text in (("new", TOY.replace(was, now)), ("old", TOY)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "edited_toy.py").write_text(text)
        return tmp_path / "new", str(tmp_path / "old")

    return made


def test_a_check_finds_an_edit_and_shows_its_function(bases: Callable[[str, str], tuple[Path, str]]) -> None:
    source, base = bases("leaks: bool = False", "leaks: bool = True")
    said = edit_check.report_of("edited_toy:allocator", base, source, first=True)
    outcome = outcomes.of_report(said["report"], "edited_toy.py", "ToyAllocator.free")
    assert (outcome["fate"], outcome["stem"], outcome["rows"], outcome["shown"]) == (FOUND, "allocator", 1, True)
    assert outcomes.of_report(said["report"], "edited_toy.py", "ToyAllocator.other")["shown"] is False


def test_the_search_ends_with_the_first_violation_and_finds_what_it_finds_without() -> None:
    def hunted(leaks: bool, first: bool) -> Hunted:
        def make(config: Any) -> ToyAllocator:
            return ToyAllocator(config["size"], config["page_size"], leaks)

        limits = HuntLimits(examples=30, first=first)
        return Hunt("allocator", make, lambda trace: outcome_of(trace, allocator), limits).run([], ())

    whole, short = hunted(True, False), hunted(True, True)
    assert short.runs < whole.runs == 30
    assert len(short.differences) == 1 <= len(whole.differences)
    assert short.differences[0].found.severity == "violation"
    assert short.differences[0].status is Status.NEW
    assert hunted(False, True).runs == 30
    assert not hunted(False, True).differences


@pytest.mark.soak
def test_a_check_of_an_engine_without_end_ends(bases: Callable[[str, str], tuple[Path, str]]) -> None:
    source, base = bases(
        "        pages = list(dict", "        while True:\n            pass\n        pages = list(dict"
    )
    said = edit_check.report_of("edited_toy:allocator", base, source, limit=8)
    assert said == {"error": "no end within 8 s", "hangs": True}
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [words for words in commands if str(source).encode() in words]


@pytest.mark.soak
def test_an_engine_that_cannot_be_loaded_has_no_verdict(bases: Callable[[str, str], tuple[Path, str]]) -> None:
    source, base = bases("from __future__", "import nowhere_at_all\nfrom __future__")
    said = edit_check.report_of("edited_toy:allocator", base, source)
    assert said["hangs"] is False
    assert "edited_toy" in said["error"]


def finding(severity: str = "violation", function: str = "f", place: str = "engine") -> dict[str, Any]:
    frame = {"file": "a.py", "function": function}
    step: dict[str, Any] = {"engine": [], "raised": []}
    step[place] = [{"what": "", "frames": [frame]}] if place == "raised" else [frame]
    return {"severity": severity, "stem": "cache", "law": "one_owner", "story": [step]}


def report(code: int = 1, **rows: Any) -> dict[str, Any]:
    return {"new": [], "worse": [], "known": [], "exit": code, "reason": "said so", **rows}


@pytest.mark.parametrize(
    ("given", "fate", "rows", "shown"),
    [
        (report(new=[finding()]), FOUND, 1, True),
        (report(worse=[finding(function="g"), finding(place="raised")]), FOUND, 2, True),
        (report(new=[finding(function="g")]), FOUND, 1, False),
        (report(0, new=[finding("latent")]), MISSED, 0, False),
        (report(0, known=[finding()]), MISSED, 0, False),
        (report(4), NO_VERDICT, 0, False),
        (report(4, new=[finding()]), FOUND, 1, True),
    ],
)
def test_what_a_report_says_of_an_edit(given: Any, fate: str, rows: int, shown: bool) -> None:
    said = outcomes.of_report(given, "a.py", "f")
    assert (said["fate"], said["rows"], said["shown"], bool(said["said"])) == (fate, rows, shown, fate != FOUND)


def row(fate: str, edit: str = "e", **more: Any) -> dict[str, Any]:
    return {"edit": edit, **outcomes.without_report(fate, ""), "seconds": 1.0, **more}


def test_only_what_is_found_counts_and_one_in_ten_may_be_equivalent() -> None:
    rows = [*[row(FOUND, shown=True)] * 12, row(FOUND), row(HANGS), row(NO_VERDICT), *[row(MISSED)] * 5]
    called = [one | {"kind": EQUIVALENT, "reason": "r"} if one["fate"] == MISSED else one for one in rows]
    sums = outcomes.sums(called)
    assert (sums["called_equivalent"], sums["equivalent"], sums["wrong"], sums["shown"]) == (5, 2, 18, 12)
    assert sums["share"] == pytest.approx(13 / 18)
    assert outcomes.sums(rows)["share"] == pytest.approx(13 / 20)
    assert outcomes.sums([row(MISSED)])["share"] == 0


# The reasons.


@pytest.mark.parametrize("wrong", ["engine", "release", "edit", "reason", "kind", "another kind"])
def test_a_reason_that_is_not_whole_is_refused(wrong: str, tmp_path: Path) -> None:
    entry = {"engine": "a", "release": "1", "edit": "e", "kind": REASONS[1], "reason": "r"}
    file = tmp_path / "misses.toml"

    def written(entry: dict[str, str]) -> Path:
        file.write_text("[[miss]]\n" + "\n".join(f"{name} = {json.dumps(text)}" for name, text in entry.items()))
        return file

    known = outcomes.REASONS.read(written(entry))
    (explained,) = outcomes.with_reasons([row(MISSED)], "a", "1", known)
    assert (explained["kind"], explained["reason"]) == (REASONS[1], "r")
    assert outcomes.with_reasons([row(MISSED)], "a", "2", known)[0]["reason"] == ""
    spoilt = entry | {"kind": "no such kind"} if wrong == "another kind" else entry | {wrong: ""}
    with pytest.raises(UsageError, match="each miss needs"):
        outcomes.REASONS.read(written(spoilt))


def test_each_reason_is_of_a_kept_miss_and_no_text_of_an_engine_is_kept() -> None:
    file = ROOT / "docs" / mutating_engine.KEPT
    kept = json.loads(file.read_text("utf-8")) if file.exists() else {}
    draws = [(one["engine"], one["release"], one["rows"]) for one in kept.values()]
    missed = {(*names, r["edit"]) for *names, rows in draws for r in rows if r["fate"] != FOUND}
    assert {*outcomes.REASONS.read(ROOT / "docs" / mutating_engine.REVIEWED)} <= missed
    assert not [r for one in kept.values() for r in one["rows"] if {*r} & {*mutating_engine.TEXTS}]


def test_the_file_of_reasons_can_be_read() -> None:
    assert "miss" in tomllib.loads((ROOT / "docs" / mutating_engine.REVIEWED).read_text("utf-8"))


# The command.


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command judges edits of the file above, of which those of `+` are found; returns the judged ones."""
    judged: list[str] = []
    root = tmp_path / "engine"
    root.mkdir()
    (root / "pool.py").write_text(SOURCE)

    class Plugin(type(registry.plugin("toy"))):  # type: ignore[misc]
        bookkeeping = ("pool.py",)

    def check(*given: Any) -> dict[str, Any]:
        (mutant,) = (one for one in given if isinstance(one, CodeMutant))
        judged.append(edits.identity(mutant.spot))
        fate = FOUND if "+" in mutant.was else MISSED
        place = {"file": mutant.spot.file, "line": mutant.spot.place[0][0], "function": mutant.spot.function}
        texts = {"was": mutant.was, "now": mutant.now, "words": edits.in_words(mutant)}
        return {**row(fate, judged[-1]), **place, **texts, "operator": mutant.spot.operator}

    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "plugin", lambda _: Plugin("toy", {}))
    monkeypatch.setattr(driven, "driven", lambda *_: Driven(root, {"pool.py": [*range(1, 19)]}))
    monkeypatch.setattr(edit_check, "judged", check)
    return judged


def test_a_second_call_goes_on_and_a_larger_draw_begins_with_the_smaller(drawn: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    asked = EngineMutationOptions("toy", "1", seed=3, count=6, json=out)
    codes = {mutating_engine.run(asked)}
    first = list(drawn)
    assert len(first) == 6
    codes.add(mutating_engine.run(asked))
    assert drawn == first, "each edit is judged once"
    made = json.loads(out.read_text())
    assert [one["edit"] for one in made["rows"]] == first
    assert codes == {HOLDS if made["share"] >= made["aim"] else BROKEN}
    mutating_engine.run(EngineMutationOptions("toy", "1", seed=3, count=8))
    assert drawn[:6] == first
    assert len(drawn) == 8
    mutating_engine.run(EngineMutationOptions("toy", "1", seed=4, count=6))
    assert {*drawn[8:]} != {*first}


def test_a_draw_that_was_not_judged_to_its_end_does_not_hold(drawn: list[str]) -> None:
    assert mutating_engine.run(EngineMutationOptions("toy", "1", count=3, budget=0)) == BROKEN
    assert len(drawn) <= 1


def test_what_is_kept_has_no_text_of_the_engine(drawn: list[str], tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"another": {"rows": []}, "toy": {"rows": ["older"]}}))
    found = row(FOUND, was="a = b", now="a = c", words="`b` is `c`")
    mutating_engine._keep(file, {"engine": "toy", "files": []}, [found])
    kept = json.loads(file.read_text())
    assert [*kept] == ["another", "toy"]
    mutating_engine._keep(file, {"engine": "toy", "files": ["host"]}, [row(MISSED)])
    kept = json.loads(file.read_text())
    assert [*kept] == ["another", "toy", "toy host"], "a draw from some files stands beside the one from all"
    assert [*kept["toy"]["rows"][0]] == ["edit", "fate", "stem", "law", "rows", "shown", "seconds", "words"]
    assert not drawn


def test_a_torn_file_of_judged_edits_begins_anew(tmp_path: Path) -> None:
    begun = Begun(tmp_path / "begun.jsonl")
    begun.begin({"root": "/"})
    begun.add(row(FOUND, "one"))
    begun.add(row(MISSED, "two"))
    assert [one["edit"] for one in Begun(begun.file).of(["two", "three", "one"])] == ["two", "one"]
    begun.file.write_text(begun.file.read_text()[:-5])
    assert Begun(begun.file).first is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (EngineMutationOptions("toy", "1"), "does not say which of its files"),
        (EngineMutationOptions("sglang", None), "needs --release"),
    ],
)
def test_what_cannot_be_edited_is_said(asked: EngineMutationOptions, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        mutating_engine.run(asked)


def test_an_unknown_release_is_an_error_of_one_line() -> None:
    with pytest.raises(EngineError, match="not a release number"):
        driven.driven("vllm", "nonsense", 1)


# The harmless edits.


def test_there_are_ten_harmless_edits_of_each_engine() -> None:
    names = [(one.engine, one.name) for one in harmless()]
    assert len({*names}) == len(names)
    assert {engine: sum(of == engine for of, _ in names) for engine, _ in names} == {"sglang": 10, "vllm": 10}
    assert {edit["kind"] for one in harmless() for edit in one.edits} <= {*KINDS, "rename_word"}


@pytest.mark.engine
@pytest.mark.parametrize("one", harmless(), ids=lambda one: f"{one.engine}-{one.name}")
def test_a_harmless_edit_finds_its_place(one: Any) -> None:
    for file, text in texts(one).items():
        compile(text, file, "exec")
        assert text != (one.package / file).read_bytes()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"kind": "invert_if"}, "        if not (a > b):\n            y()\n        else:\n            x()\n"),
        (
            {"kind": "flip_comparison", "sign": "Gt"},
            "        if b < a:\n            x()\n        else:\n            y()\n",
        ),
        ({"kind": "rename_local", "old": "c", "new": "d"}, "        d = 1\n        self.c = d\n"),
        ({"kind": "swap_statements", "first": "x", "second": "y"}, "            y()\n        else:\n            x()\n"),
        ({"kind": "count_a_call", "field": "n"}, '        """Text."""\n        self.n += 1\n        c = 1\n'),
        ({"kind": "count_from_zero", "field": "n"}, "            z(item)\n        self.n = 0\n"),
        (
            {"kind": "loop_by_number"},
            "        every_one = list(a)\n        for number in range(len(every_one)):\n"
            "            item = every_one[number]\n            z(item)\n",
        ),
    ],
)
def test_a_harmless_edit_is_what_its_kind_says(change: dict[str, Any], expected: str) -> None:
    source = (
        'class P:\n    def f(self, a, b):\n        """Text."""\n        c = 1\n        self.c = c\n'
        "        if a > b:\n            x()\n        else:\n            y()\n"
        "        for item in a:\n            z(item)\n\n    def g(self):\n        pass\n"
    )
    assert expected in edited(source.encode(), {"file": "p.py", "function": "P.f", **change}).decode()
    with pytest.raises(NotRevertable):
        edited(source.encode(), {"file": "p.py", "function": "P.h", **change})


def test_a_budget_is_for_edits_and_begins_when_the_driven_lines_are_known(
    drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen, judged = [0.0], driven.driven, edit_check.judged

    def slow(*given: Any) -> Driven:
        now[0] += 1_000.0
        return seen(*given)

    def each(*given: Any) -> Any:
        now[0] += 50.0
        return judged(*given)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(driven, "driven", slow)
    monkeypatch.setattr(edit_check, "judged", each)
    mutating_engine.run(EngineMutationOptions("toy", "1", seed=3, count=6, budget=60.0))
    assert len(drawn) == 2
