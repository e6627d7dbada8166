"""The files for the CI of an engine's repository: the workflow, the pre-commit hook, and the pytest plugin."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from conformance.driver.cache_folder import cache_folder
from conformance.stems.stem_registry import STEMS

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / "examples" / "ci" / "slotproof.yml"
ENGINE = "0.5.14"
RELEASE = cache_folder() / "sglang" / ENGINE
BROKEN = ("paged.py", "alloc_decode", "self.free_pages = ")  # pages that were handed out stay on the free list
pytest_plugins = ["pytester"]


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    return found


def shell(name: str) -> str:
    """The shell script of a step."""
    (step,) = (step for step in workflow()["jobs"]["check"]["steps"] if step.get("name") == name)
    return str(step["run"])


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment in which this checkout is installed, as after the workflow's first steps."""
    (folder / "bin").mkdir(exist_ok=True)
    command = folder / "bin" / "slotproof"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m slotproof "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    author = {"NAME": "a", "EMAIL": "a@b"}
    who = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in author.items()}
    return {**os.environ, **who, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "CI": "true", **more}


def run(script: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a script as GitHub does."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


# The workflow.


class Strict(yaml.SafeLoader):
    """Reads YAML, and refuses a key that stands twice in a mapping: YAML's readers take the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        keys = [self.construct_object(key, deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", [WORKFLOW, ROOT / ".pre-commit-hooks.yaml"], ids=lambda path: path.name)
def test_the_yaml_is_clean(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert yaml.load(text, Strict)
    assert "\t" not in text
    assert [line for line in text.splitlines() if line != line.rstrip() or len(line) > 120] == []
    with pytest.raises(AssertionError, match="stands twice"):
        yaml.load("a: 1\nb: 2\na: 3\n", Strict)


def test_the_workflow_has_no_rights_and_no_secrets() -> None:
    found, text = workflow(), WORKFLOW.read_text(encoding="utf-8")
    assert list(found[True]) == ["pull_request"]  # YAML 1.1 reads the key `on` as true
    assert found["permissions"] == {"contents": "read"}
    assert "permissions" not in found["jobs"]["check"]
    assert "secrets." not in text
    (checkout,) = (step for step in found["jobs"]["check"]["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_no_shell_step_holds_what_a_stranger_can_write() -> None:
    """An expression in a script is text of the script: a branch with a clever name would be executed."""
    for step in workflow()["jobs"]["check"]["steps"]:
        assert set(step) <= {"name", "if", "uses", "with", "run"}
        assert ("uses" in step) != ("run" in step)
        assert "${{" not in step.get("run", "")
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/none@v1"))


def test_the_workflow_uses_options_that_there_are() -> None:
    from typer.main import get_command

    from slotproof.cli import app

    known = {name for option in get_command(app).commands["check"].params for name in option.opts}  # type: ignore[attr-defined]
    used = set(re.findall(r"(?<=\s)--[a-z]+", shell("Check the change")))
    assert {"--source", "--base", "--budget", "--format", "--json", "--junit", "--sarif"} == used <= known


def test_the_newest_release_is_a_notice_that_fails_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)
    (tmp_path / "bin" / "slotproof").write_text("#!/bin/sh\necho asked $*\nexit 3\n", encoding="utf-8")
    done = run(shell("Say whether the newest release can be driven"), tmp_path, env)
    asked, notice = done.stdout.splitlines()
    assert (done.returncode, asked) == (0, "asked engines --newest")
    assert notice.startswith("::notice title=Slotproof::")


def repository(folder: Path, env: dict[str, str]) -> Path:
    """A repository with an allocator on ``main``, and a branch ``change``."""
    checkout = folder / "checkout"
    checkout.mkdir()
    toy = (ROOT / "conformance" / "engines" / "toy.py").read_text(encoding="utf-8")
    (checkout / "pool.py").write_text(toy, encoding="utf-8")
    done = run("git init -q -b main && git add -A && git commit -qm first && git checkout -qb change", checkout, env)
    assert done.returncode == 0, done.stderr
    return checkout


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("leaks", [False, True])
def test_the_workflow_fails_for_a_change_that_leaks_and_for_no_other(leaks: bool, tmp_path: Path) -> None:
    env = environment(tmp_path, ENGINE="pool:allocator", BASE="main")
    checkout = repository(tmp_path, env)
    text = (checkout / "pool.py").read_text(encoding="utf-8")
    (checkout / "pool.py").write_text(text.replace("leaks: bool = False", f"leaks: bool = {leaks}") + "\n# changed\n")
    assert run("git commit -qam change", checkout, env).returncode == 0
    script = shell("Check the change").replace('check "$ENGINE"', 'check "$ENGINE" --examples 20')
    done = run(script, checkout, env)
    report = json.loads((checkout / "slotproof-report" / "report.json").read_text(encoding="utf-8"))
    assert done.returncode == report["exit"] == int(leaks), done.stdout + done.stderr
    assert {row["law"] for row in report["new"]} <= {"no_leak"}
    log = json.loads((checkout / "slotproof-report" / "slotproof.sarif").read_text(encoding="utf-8"))
    assert [found["level"] for found in log["runs"][0]["results"]] == ["error"] * leaks
    assert ("::error" in done.stdout) == leaks
    assert (ET.parse(checkout / "slotproof-report" / "junit.xml").find(".//failure") is not None) == leaks


def without_a_statement(text: str, function: str, statement: str) -> str:
    """The text without the one statement of a function that begins with ``statement``; ``pass`` stands in its place."""
    lines = text.splitlines(keepends=True)
    found = [
        node
        for place in ast.walk(ast.parse(text))
        if isinstance(place, ast.FunctionDef) and place.name == function
        for node in ast.walk(place)
        if isinstance(node, ast.stmt) and ast.unparse(node).startswith(statement)
    ]
    node = found[-1]
    indent = " " * node.col_offset
    lines[node.lineno - 1 : node.end_lineno] = [f"{indent}pass\n"]
    return "".join(lines)


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.skipif(not RELEASE.is_dir(), reason=f"SGLang {ENGINE} is not downloaded")
def test_the_workflow_finds_a_bug_in_a_copied_checkout(tmp_path: Path) -> None:
    env = environment(tmp_path, ENGINE="sglang", BASE="main")
    checkout = tmp_path / "checkout"
    shutil.copytree(RELEASE, checkout / "python")
    done = run("git init -q -b main && git add -A && git commit -qm first && git checkout -qb change", checkout, env)
    assert done.returncode == 0, done.stderr
    (path,) = [p for p in (checkout / "python" / "sglang" / "srt" / "mem_cache").rglob("*.py") if p.name == BROKEN[0]]
    path.write_text(without_a_statement(path.read_text(encoding="utf-8"), *BROKEN[1:]), encoding="utf-8")
    assert run("git commit -qam change", checkout, env).returncode == 0
    script = shell("Check the change").replace('check "$ENGINE"', 'check "$ENGINE" allocator --examples 20')
    done = run(script, checkout, env)
    report = json.loads((checkout / "slotproof-report" / "report.json").read_text(encoding="utf-8"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert {row["stem"] for row in report["new"]} == {"allocator"}


def test_the_job_that_uploads_sarif_runs_nothing_and_reads_what_the_check_writes() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```\n(  code-scanning:\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    jobs = yaml.load("jobs:\n  check: {}\n" + snippet, Strict)["jobs"]
    job = jobs["code-scanning"]
    assert job["needs"] in jobs
    assert [step for step in job["steps"] if "run" in step] == []
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    used = {step["uses"].partition("@")[0]: step.get("with", {}) for step in job["steps"]}
    (kept,) = (step for step in workflow()["jobs"]["check"]["steps"] if step.get("name") == "Keep the report")
    assert used["actions/download-artifact"]["name"] == kept["with"]["name"]
    file = used["github/codeql-action/upload-sarif"]["sarif_file"]
    assert f"--sarif {kept['with']['path']}{file}" in shell("Check the change")


# pre-commit.


def test_the_hook_is_one_that_pre_commit_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", str(ROOT / ".pre-commit-hooks.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_snippet_of_the_page_is_one_that_pre_commit_takes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "config.yaml").write_text(snippet, encoding="utf-8")
    command = [sys.executable, "-m", "pre_commit", "validate-config", str(tmp_path / "config.yaml")]
    assert subprocess.run(command, check=False).returncode == 0
    (hook,) = yaml.safe_load(snippet)["repos"][0]["hooks"]
    (offered,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == offered["id"]
    assert re.search(hook["files"], "python/sglang/srt/mem_cache/allocator.py")


# The pytest plugin.


TOY = (ROOT / "conformance" / "engines" / "toy.py").read_text(encoding="utf-8")
NAMED = ("-p", "slotproof.pytest_plugin", "--slotproof", "pool:allocator", "--slotproof-examples", "5")


@pytest.fixture
def reader(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with an allocator and a test of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(pool=TOY, test_own="def test_own():\n    pass\n")
    return pytester


@pytest.mark.soak
def test_the_plugin_adds_a_test_for_each_stem(reader: pytest.Pytester) -> None:
    listed = reader.runpytest_subprocess(*NAMED, "--collect-only", "-q")
    listed.stdout.fnmatch_lines([*(f"slotproof::pool:allocator::{stem}" for stem in STEMS), "test_own.py::test_own"])
    two = [f"--deselect=slotproof::pool:allocator::{stem}" for stem in [*STEMS][2:]]  # each is a process
    done = reader.runpytest_subprocess(*NAMED, "-v", *two)
    done.assert_outcomes(passed=2, skipped=1, deselected=len(STEMS) - 2)
    done.stdout.fnmatch_lines(
        [
            "slotproof::pool:allocator::allocator PASSED*",
            f"slotproof::pool:allocator::{[*STEMS][1]} SKIPPED*",
            "test_own.py::test_own PASSED*",
        ]
    )


@pytest.mark.soak
def test_a_finding_is_the_text_of_the_failure(reader: pytest.Pytester) -> None:
    reader.makepyfile(pool=TOY.replace("leaks: bool = False", "leaks: bool = True"))
    others = [f"--deselect=slotproof::pool:allocator::{stem}" for stem in [*STEMS][1:]]
    done = reader.runpytest_subprocess(*NAMED, "--slotproof-examples", "30", "-m", "slotproof", *others)
    done.assert_outcomes(failed=1, deselected=len(STEMS))
    done.stdout.fnmatch_lines(["*a law is broken", "*no_leak*", "*def test_found_by_slotproof*"])
    done.stdout.no_fnmatch_line("*pytest_plugin.py*")


@pytest.mark.soak
def test_an_engine_that_is_not_there_fails(reader: pytest.Pytester) -> None:
    done = reader.runpytest_subprocess(
        "-p", "slotproof.pytest_plugin", "--slotproof", "pol:allocator", "-k", "swa_mapping"
    )
    done.assert_outcomes(failed=1, deselected=len(STEMS))
    done.stdout.fnmatch_lines(["*did you mean pool?*"])


def test_an_option_without_an_engine_is_refused(reader: pytest.Pytester) -> None:
    done = reader.runpytest_subprocess("-p", "slotproof.pytest_plugin", "--slotproof-base", "main")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--slotproof-base is given without --slotproof ENGINE*"])


def test_the_plugin_that_is_not_asked_loads_nothing(reader: pytest.Pytester) -> None:
    heavy = "('torch', 'hypothesis', 'z3', 'pydantic', 'typer', 'conformance', 'spec')"
    reader.makepyfile(
        test_own=f"import sys\ndef test_own():\n    assert [n for n in {heavy} if n in sys.modules] == []\n"
    )
    reader.runpytest_subprocess("-p", "slotproof.pytest_plugin").assert_outcomes(passed=1)
    reader.runpytest_subprocess(*NAMED, "--deselect", "slotproof::pool:allocator").assert_outcomes(
        passed=1, deselected=len(STEMS)
    )
