"""How the command line behaves: what it loads, what it lists, how it fails, where it writes, and how it looks."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from conformance.driver import cache_folder, protocol
from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, Finding
from conformance.driver.naming import UsageError, close, unknown
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.planted.faults.known_bugs import FAULTS
from conformance.planted.mutants.places import SENTENCES
from conformance.stems.found import servers, with_file
from conformance.traces import cause_files, trace_files
from proofs.mutation.operators import OPERATORS
from proofs.prover import Verdict
from proofs.registry import STEMS
from slotproof import cli, plugin
from slotproof.checks import replays
from slotproof.commands import listing
from slotproof.console import codes, failure, output, screen, version
from slotproof.console.screen import graded, table
from slotproof.pages import kept_findings
from slotproof.proving import proof_lines

HEAVY = ("torch", "z3", "cvc5", "hypothesis", "numpy", "jinja2", "immutables", "rich.table", "rich.progress", "psutil")
COMMANDS = tuple(get_command(cli.app).commands)  # type: ignore[attr-defined]


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, **environment},
    )


# What is loaded.


def test_no_help_loads_what_is_slow_to_load() -> None:
    code = f"""
import sys
from slotproof import cli
for words in {[[], *([command] for command in COMMANDS)]!r}:
    sys.argv = ["slotproof", *words, "--help"]
    assert cli.run() == 0
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, (words, found)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
    assert done.stdout.count("Usage: ") == 1 + len(COMMANDS)


def test_the_help_explains_the_exit_codes() -> None:
    shown = " ".join(python("-m", "slotproof", "--help").stdout.split())
    for code in ("0 every law holds", "1 a law is broken", "2 something", "3 bad usage", "4 there is no verdict"):
        assert code in shown


def test_the_version_says_where_it_is_from() -> None:
    root = Path(__file__).resolve().parents[1]
    assert python("-m", "slotproof", "--version").stdout.strip() == version.line()
    assert f"checkout {root}" in version.line()
    assert version.of("no-such-package") == "(not installed)"


# Names.


def test_the_list_has_every_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "names.json"
    assert listing.run([], out) == codes.HOLDS
    shown, found = capsys.readouterr().out, json.loads(out.read_text())
    names = {kind: [row["name"] for row in rows] for kind, rows in found.items()}
    options = [option.name for plugin in registry.plugins() for option in getattr(plugin, "options", ())]
    kinds = {"stems": [*STEMS, *servers()], "faults": [*FAULTS], "traces": trace_files.names()}
    kinds |= {"engines": registry.names()}
    kinds |= {"operators": [*OPERATORS, *SENTENCES], "causes": [cause.name for cause in cause_files.every()]}
    assert names == {**kinds, "options": options}
    assert len({*names["operators"]}) == len(names["operators"])
    assert all(row["sentence"].endswith(".") for kind in ("stems", "faults") for row in found[kind])
    assert all(row["law"] and row["stem"] in kinds["stems"] for row in found["traces"])
    assert {tuple(row["releases"]) for row in found["engines"]} >= {p.releases for p in registry.released()}
    assert [name for group in names.values() for name in group if name not in shown] == []


def test_an_engine_that_cannot_be_imported_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = registry.plugin

    def refuse(name: str) -> Any:
        if name == "toy":
            raise EngineError("toy is broken")
        return real(name)

    monkeypatch.setattr(registry, "plugin", refuse)
    errors = {row["name"]: row["error"] for row in listing.engines()}
    assert errors == {name: "toy is broken" if name == "toy" else None for name in registry.names()}


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("chek ours", "'check'"),
        ("check ours --exampels 3", "--examples"),
        ("check ours alocator", "allocator"),
        ("check sgalng", "sglang"),
        ("prove lock_rfe", "lock_ref"),
        ("campiagn ours", "'campaign'"),
        ("evnets stream.msgpack", "'events'"),
        ("events stream.msgpack --raeder set", "--reader"),
        ("faults half_decoed", "half_decode"),
        ("replay insert_under_raeder", "insert_under_reader"),
        ("list fault", "faults"),
    ],
)
def test_a_name_that_is_close_is_suggested(words: str, near: str) -> None:
    done = python("-m", "slotproof", *words.split())
    assert done.returncode == codes.USAGE, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.search(rf"[Dd]id you mean {re.escape(near)}", line)
    assert len(line) < 200, "one line, and not every name"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "ours", "--release", ""], "a word after '--release' is empty: is a variable of the shell not set?"),
        (["check", "", "allocator"], "a word after 'check' is empty"),
        ([""], "a word after 'slotproof' is empty"),
        (["check", "ours", "--base="], "--base= has no value: is a variable of the shell not set?"),
    ],
)
def test_a_variable_of_the_shell_that_is_not_set_is_told(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["slotproof", *words])
    assert cli.run() == codes.USAGE
    assert said in capsys.readouterr().err


def test_many_names_are_not_listed_in_a_message() -> None:
    assert unknown("trace", "zzz", trace_files.names()).endswith(
        f"`slotproof list traces` names all {len(trace_files.names())}"
    )
    few = STEMS[:4]
    assert unknown("stem", "zzz", few) == f"no stem 'zzz': there are {', '.join(few)}"
    assert close("0.5.41", ("0.5.10", "0.5.14", "0.4.1")).startswith("0.5.14")
    assert close("banana", STEMS) == ""


def test_a_list_that_a_message_names_is_there() -> None:
    """The message for an unknown name points to a list where there are many: each kind of names has one."""
    root = Path(cli.__file__).parents[1]
    calls = re.compile(r"(?:choose|unknown)\([^\n]*?\"([a-z ]+)\"[,)]")
    texts = [path.read_text("utf-8") for room in ("slotproof", "conformance") for path in (root / room).rglob("*.py")]
    kinds = {kind for text in texts for kind in calls.findall(text)} - {"list of names"}  # of these there are few
    assert {"stem", "trace", "engine", "fault", "operator", "cause"} <= kinds
    many = [f"name_{number}" for number in range(20)]
    for kind in kinds:
        (listed,) = re.findall(r"`slotproof list (.*?)`", unknown(kind, "zzz", many))
        assert listed in listing.KINDS


@pytest.mark.soak
def test_a_release_that_cannot_be_had_is_answered_with_one_that_can(tmp_path: Path) -> None:
    plugin = registry.released()[0]
    newest = plugin.releases[-1]
    done = python("-m", "slotproof", "check", plugin.name, "--release", f"{newest}x", SLOTPROOF_CACHE=str(tmp_path))
    assert (done.returncode, f"did you mean {newest}" in done.stderr) == (codes.USAGE, True), done.stderr


# Failures of our own.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


FAILURES = [AssertionError("no such state"), ValueError("two values"), KeyError("x"), RecursionError("deep")]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("error", [*FAILURES, Finding("a_law", "Sentence.", "detail")], ids=repr)
def test_a_failure_of_ours_is_never_a_verdict(
    error: Exception, command: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise error

    module, name = {
        "prove": ("proving.proving", "run"),
        "mutate": ("planted.mutating", "run"),
        "diff": ("review.diffing", "run"),
        "check": ("checks.checking", "run"),
        "campaign": ("commands.campaign", "run"),
        "faults": ("planted.faulting", "run"),
        "replay": ("checks.replays", "run"),
        "engines": ("commands.engines", "run"),
        "causes": ("commands.causes", "run"),
        "mends": ("commands.mends", "run"),
        "reach": ("commands.reach", "run"),
        "blind": ("commands.blind", "run"),
        "compat": ("commands.compat", "run"),
        "report": ("pages.report", "run"),
        "docs": ("pages.documents", "write"),
        "list": ("commands.listing", "run"),
        "verify": ("commands.verifying", "run"),
        "events": ("commands.streaming", "run"),
        "record": ("commands.recording", "server"),
        "judge": ("commands.recording", "judge"),
        "watch": ("commands.recording", "watch"),
    }[command]
    monkeypatch.setattr(f"slotproof.{module}.{name}", fail)
    needed = {
        "check": ["ours"],
        "campaign": ["ours", "-o", str(tmp_path / "campaign")],
        "diff": ["HEAD"],
        "events": [__file__],
        "compat": ["toy"],
        "blind": ["sglang"],
        "mutate": ["spec"],
        "replay": ["some_trace"],
        "report": ["-o", str(tmp_path / "page")],
        "judge": ["a.rec"],
        "watch": ["a.rec"],
    }.get(command, [])
    monkeypatch.setattr(sys, "argv", ["slotproof", command, *needed])
    assert cli.run() == codes.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"slotproof: Slotproof itself failed, this is no verdict: {type(error).__name__}: ")
    assert f"command:  slotproof {command}" in said
    assert re.search(r"versions: slotproof \S+, Python .*torch", said)
    assert "slotproof/cli.py:" in said
    assert "Traceback" not in said
    (kept,) = (cache / "failures").iterdir()
    assert str(kept) in said
    assert "Traceback" in kept.read_text()
    assert "in fail" in kept.read_text()


def test_the_traceback_is_shown_where_it_is_asked_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("slotproof.commands.listing.run", lambda *_: 1 // 0)
    monkeypatch.setenv(cli.DEBUG, "")
    monkeypatch.setattr(sys, "argv", ["slotproof", "--debug", "list"])
    assert cli.run() == codes.FAILED
    assert "Traceback" in capsys.readouterr().err
    assert cache.exists()


def test_a_failure_is_told_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    monkeypatch.setenv("SLOTPROOF_CACHE", str(taken))
    assert "Traceback" not in failure.told(ZeroDivisionError(), debug=False).splitlines()[0]
    assert "ZeroDivisionError" in failure.told(ZeroDivisionError("by zero"), debug=False).splitlines()[-1]


# Where a command writes.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("prove --json /nonexistent/x.json", "--json /nonexistent/x.json: the folder /nonexistent does not exist"),
        ("prove --certificates {file}", "--certificates {file}: this is a file, a folder is wanted"),
        ("check ours --json {folder}", "--json {folder}: this is a folder, a file is wanted"),
        ("faults --json {file}/x.json", "--json {file}/x.json: the folder {file} does not exist"),
        ("engines --json /proc/x.json", "--json /proc/x.json: the folder /proc cannot be written to"),
        ("campaign ours --json {folder}", "--json {folder}: this is a folder, a file is wanted"),
        ("campaign ours -o {file}", "-o {file}: this is a file, a folder is wanted"),
        ("campaign ours -o /proc/campaign", "-o /proc/campaign: the folder cannot be made"),
        ("events {file} --json {folder}", "--json {folder}: this is a folder, a file is wanted"),
        ("diff HEAD --json {folder}", "--json {folder}: this is a folder, a file is wanted"),
        ("report -o {file}", "-o {file}: this is a file, a folder is wanted"),
        ("report -o {file}/page", "-o {file}/page: the folder cannot be made"),
        ("report -o /proc/page", "-o /proc/page: the folder cannot be made"),
    ],
)
def test_an_output_is_checked_before_the_work(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    places = {"folder": tmp_path, "file": tmp_path / "file"}
    places["file"].write_text("kept")
    for work in (
        "proving.proving.run",
        "checks.checking.run",
        "planted.faulting.run",
        "commands.engines.run",
        "pages.report.run",
        "commands.streaming.run",
        "review.diffing.run",
        "commands.campaign.run",
    ):
        monkeypatch.setattr(f"slotproof.{work}", lambda *_: pytest.fail("it began to work"))
    monkeypatch.setattr(sys, "argv", ["slotproof", *words.format(**places).split()])
    assert cli.run() == codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert message.format(**places) in line
    assert places["file"].read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target, link = tmp_path / "x.json", tmp_path / "link.json"
    output.write_json(target, {"a": 1})
    link.symlink_to(target)
    with pytest.raises(TypeError):
        output.write_json(target, {"a": object()})
    assert json.loads(target.read_text()) == {"a": 1}
    output.write_json(link, {"b": 2})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"b": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", "link.json"}
    with pytest.raises(UsageError, match="cannot be written"):
        output.write_text(tmp_path / "none" / "x", "")
    assert output.file_to_write(Path(os.devnull), "--json") == Path(os.devnull)


@pytest.mark.soak
def test_a_reader_that_goes_away_changes_no_exit_code() -> None:
    shown = f"{sys.executable} -m slotproof list; echo $? >&2"
    done = subprocess.run(["bash", "-c", f"({shown}) | head -c 10"], capture_output=True, text=True, check=True)
    assert done.stderr == "0\n"
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m slotproof list stems >&-"], capture_output=True, text=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_the_cache_is_in_the_checkout_or_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLOTPROOF_CACHE", raising=False)
    assert cache_folder.cache_folder() == Path(__file__).resolve().parents[1] / ".cache"
    monkeypatch.setattr(cache_folder, "checkout", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert cache_folder.cache_folder() == tmp_path / "slotproof"
    monkeypatch.setenv("SLOTPROOF_CACHE", "/elsewhere")
    assert cache_folder.cache_folder() == Path("/elsewhere")


@pytest.mark.parametrize("command", ["docs", "engines"])
def test_what_needs_a_checkout_says_so(command: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(cache_folder, "checkout", lambda: None)
    monkeypatch.setattr(sys, "argv", ["slotproof", command])
    assert cli.run() == codes.USAGE
    assert "needs a checkout" in capsys.readouterr().err


# How it looks.


def shown_at(width: int, *parts: Any) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, color_system=None)
    for part in parts:
        console.print(part, markup=False)
    return out.getvalue()


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_law_is_cut(width: int) -> None:
    findings = kept_findings.with_rows(kept_findings.kept())
    assert len(findings) > 50
    for kept, rows in findings:
        text = shown_at(width, *replays.shown(kept, rows))
        laws = {row["law"] for row in rows if row["law"]}
        assert [law for law in laws if not re.search(rf"\b{re.escape(law)}\b", text)] == [], kept.name
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text


def test_no_obligation_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "console", Console(file=io.StringIO(), width=60, color_system=None))
    open_ = [
        Verdict("cache", "continue_prefill", f"law_with_a_rather_long_name_{n}", "unknown", "sat", 1.0)
        for n in range(9)
    ]
    proof_lines.matrix(open_)
    text = screen.console.file.getvalue()  # type: ignore[attr-defined]
    assert all(re.search(rf"\b{verdict.invariant}\b", text) for verdict in open_)


def test_a_list_takes_the_place_of_a_table_that_is_too_narrow() -> None:
    made = table(
        "title", ("engine", "verdict", "detail"), [("one [/x]", VIOLATION, "long_" * 9), ("two", CONFORMS, "-")]
    )
    assert shown_at(40, made).splitlines()[:3] == ["title", "one [/x]", "  verdict: violation".ljust(40)]
    assert "detail: -" not in shown_at(40, made)
    assert "┃ engine" in shown_at(100, made)


def test_a_verdict_has_the_colour_of_its_severity() -> None:
    styles = [str(graded(verdict).style) for verdict in (VIOLATION, LATENT, CONFORMS, UNSUPPORTED, "other")]
    assert styles == ["bold red", "yellow", "green", "dim", ""]


@pytest.mark.soak(but=1)
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
    ids=str,
)
def test_colours_are_for_who_wants_them(environment: dict[str, str], coloured: bool) -> None:
    clean = dict.fromkeys(("FORCE_COLOR", "NO_COLOR"), "")
    done = python(
        "-m", "slotproof", "replay", "insert_under_reader", "ours", "--json", os.devnull, **{**clean, **environment}
    )
    assert done.returncode == 0, done.stderr
    assert ("\x1b[32mconforms" in done.stdout) is coloured
    assert done.stderr == ""


def test_what_an_engine_of_ones_own_needs_has_one_place() -> None:
    offered: dict[str, type] = {}
    for module in (protocol, *with_file("protocol").values()):
        classes = ((name, value) for name, value in vars(module).items() if isinstance(value, type))
        own = {name: value for name, value in classes if value.__module__ == module.__name__}
        assert not offered.keys() & own.keys(), "one name stands for one thing"
        offered |= own
    more = {"EngineOption", "Json", "Loaded", "Plugin", "SimplePlugin", "Kinds", "load"}
    assert {*plugin.__all__} == {*offered, *more}
    assert all(getattr(plugin, name) is value for name, value in offered.items())
