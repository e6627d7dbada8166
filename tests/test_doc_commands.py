"""Every command line in README.md and docs/ is executed: in `make test` with little to do, and as it is by `make soak`.

A command line that is new in a block of code fails these tests until ``tests/doc_commands.py`` says how it is executed;
one that stands within a sentence must have words that there are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from doc_commands import EXECUTED, InCI, Nightly, Small, in_blocks, in_sentences, of_page
from driven import NEWEST, have
from typer.main import get_command

from conformance.recording.block_records import ADD, START, packed
from conformance.recording.segments import SegmentWriter
from slotproof import cli, pytest_plugin
from slotproof.console import screen

ROOT = Path(__file__).resolve().parents[1]
ENGINE = """
from conformance.engines.toy import ToyAllocator
def make(config):
    return ToyAllocator(config["size"], config["page_size"])
"""
RUN = {
    "stem": "allocator",
    "config": {"size": 3, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False},
    "steps": [{"op": "extend", "rows": [0], "more": [2]}],
}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
APP: Any = get_command(cli.app)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)


def laid_out(folder: Path) -> Path:
    """A folder in which the commands of the pages make sense: it is the home folder, too."""
    (folder / "my_package").mkdir()
    for name in ("my_package/__init__.py", "my_package/my_module.py", "my_package/cache.py", "my_engine.py"):
        (folder / name).write_text("" if name.endswith("__init__.py") else ENGINE)
    (folder / "sglang").mkdir()
    (folder / "sglang" / "my_engine.py").write_text(ENGINE)
    (folder / "nights" / "findings").mkdir(parents=True)
    for name in ("run.json", "nights/findings/no_leak-4b539a0d27fc.json"):
        (folder / name).write_text(json.dumps(RUN))
    stored = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [1], "block_size": 1}
    (folder / "stream.msgpack").write_bytes(msgpack.packb([0.5, [stored]]))
    recording(folder / "cache.rec")
    return folder


def recording(path: Path) -> None:
    """A recording of a server to which one request has come."""
    config = {"block_size": 2, "blocks": 2, "layers": [{"kind": "full"}], "caching": True, "requests": 1}
    writer = SegmentWriter(path)
    start = [0, "engine", "1", {**config, "max_length": 8}, [], 2, [0, 0], [], [], []]
    writer.write(packed([START, *start]), start=True)
    writer.write(packed([ADD, 1, "add_request", [], [], 2, [], [], [], "", [1, 3, "one"]]))
    writer.close()


def repository(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = laid_out(tmp_path_factory.mktemp("reader"))
    repository(made / "sglang")
    return made


@pytest.fixture
def reader(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The process is where a reader of the pages is."""
    monkeypatch.chdir(world)
    monkeypatch.setenv("HOME", str(world))
    monkeypatch.setenv("SLOTPROOF_CACHE", str(world / "cache"))
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    for name in ("CI", "GITHUB_STEP_SUMMARY", "GIT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return world


def options_of_plugin() -> set[str]:
    """The options that the pytest plugin adds."""
    added = set[str]()

    class Group:
        def addoption(self, *names: str, **_: Any) -> None:
            added.update(names)

    class Parser(Group):
        def getgroup(self, *_: str) -> Group:
            return Group()

    pytest_plugin.pytest_addoption(Parser())  # type: ignore[arg-type]
    return added


def words_of(line: str) -> list[str]:
    """The words of a command line after its first, as a shell hands them on."""
    return [os.path.expanduser(os.path.expandvars(word)) for word in shlex.split(line.partition(" | ")[0])[1:]]


# Every line is known.


def test_every_command_line_of_a_block_is_executed() -> None:
    lines = {found.line for found in in_blocks() if not found.made}
    assert len(in_blocks()) > 30
    assert lines - EXECUTED.keys() == set(), "say in tests/doc_commands.py how these are executed"
    assert EXECUTED.keys() - {found.line for found in in_blocks()} == set(), "no page has these any more"
    assert all(EXECUTED.values())


def test_a_line_is_found_however_it_is_written() -> None:
    text = (
        "```\n.venv/bin/slotproof check ours   # a comment\n```\n\n    ```\n\n<!-- run, exit 1 -->\n```sh\n"
        "$ slotproof list\nout\n```\n````yaml\n- run: slotproof diff \\\n  HEAD\nslotproofs x\n````\n"
    )
    lines = [(found.line, found.made) for found in of_page("p", text)]
    assert lines == [("slotproof check ours", False), ("slotproof list", True), ("slotproof diff    HEAD", False)]


# Every line has words that there are.


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("line", sorted({found.line for found in in_blocks()}))
def test_a_command_line_of_a_block_is_one_that_can_be_read(line: str) -> None:
    name, *words = line.split()
    if name == "make":
        assert words[0] in TARGETS
        return
    if name == "pytest":
        assert [word for word in words if word.startswith("--slotproof") and word not in options_of_plugin()] == []
        return
    command, *rest = cli._with_values(words_of(line))
    try:
        found = APP.commands[command]
        found.make_context(command, rest).close()
    finally:
        screen.console.stderr = False


@pytest.mark.parametrize("line", sorted({found.line for found in in_sentences()}))
def test_a_command_line_of_a_sentence_has_words_that_there_are(line: str) -> None:
    name, *words = line.split()
    if name == "make":
        assert words[0] in TARGETS, line
        return
    if words[0].startswith("-"):
        assert words[0] in {option for one in APP.params for option in one.opts}
        return
    known = {option for one in APP.commands[words[0]].params for option in one.opts}
    options = [word.partition("=")[0].strip("[]") for word in words[1:] if re.match(r"\[?--?\w", word)]
    assert [option for option in options if option not in known] == [], line


@pytest.mark.usefixtures("reader")
def test_a_line_that_cannot_be_read_is_noticed() -> None:
    for line in ("slotproof chek ours", "slotproof check ours --exampels 3", "slotproof check", "make tset"):
        with pytest.raises((Exception, AssertionError)):
            test_a_command_line_of_a_block_is_one_that_can_be_read(line)
    for line in ("slotproof chek ours", "slotproof check ours --exampels 3", "make tset", "slotproof --verison x"):
        with pytest.raises((KeyError, AssertionError)):
            test_a_command_line_of_a_sentence_has_words_that_there_are(line)


# Every line is executed.


SMALL = {line: how for line, hows in EXECUTED.items() for how in hows if isinstance(how, Small)}


@pytest.mark.parametrize("line", SMALL)
def test_a_command_line_does_what_the_page_says(
    line: str, reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    how = SMALL[line]
    monkeypatch.setattr(sys, "argv", ["slotproof", *words_of(f"slotproof {how.words}")])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # each run of the command wraps it
    code, said = cli.run(), capsys.readouterr()
    assert (code, "Traceback" in said.err) == (how.code, False), said.err
    assert said.out
    for option in ("-o", "--json"):
        if option in how.words.split():
            made = Path(how.words.split()[how.words.split().index(option) + 1])
            assert (reader / made).exists()


def test_what_stands_for_a_line_has_its_command_and_its_options() -> None:
    for line, how in SMALL.items():
        wanted = [word for word in line.split()[1:] if word.startswith("-") or word in APP.commands]
        assert [word for word in wanted if word not in how.words.split() and word != "--release"] == [
            word for word in wanted if word == "--workers"
        ], line


@pytest.mark.parametrize("line", [line for line, hows in EXECUTED.items() if any(isinstance(h, InCI) for h in hows)])
def test_a_target_of_make_is_executed_in_ci(line: str) -> None:
    target = line.split()[1]
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.search(rf"^ *stage make {target}\b", run, re.MULTILINE) or target == "setup", line
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


NIGHTLY = {line: how for line, hows in EXECUTED.items() for how in hows if isinstance(how, Nightly)}


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder with the newest release of SGLang as a checkout, and the commands."""
    made = laid_out(tmp_path_factory.mktemp("night"))
    commands = made / "bin"
    commands.mkdir()
    for name in ("slotproof", "pytest"):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {name} "$@"\n')
        (commands / name).chmod(0o755)
    return made


@pytest.mark.soak
@pytest.mark.parametrize("line", [pytest.param(x, marks=[pytest.mark.engine] * NIGHTLY[x].release) for x in NIGHTLY])
def test_a_command_line_as_it_is(line: str, night: Path) -> None:
    how = NIGHTLY[line]
    if how.release and not (night / "sglang" / ".git").exists():
        shutil.copytree(have(NEWEST), night / "sglang" / "python", ignore=shutil.ignore_patterns("*.pyc"))
        repository(night / "sglang")
    path = f"{night / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(night), "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", how.instead or line], cwd=night, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in how.codes, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
