"""What ``pip install slotproof`` brings is enough for an engine in plain Python; what needs more names the extra.

The packages of the extras are hidden from every process that a test starts, as if they were not installed.
``.ci/wheel`` tries the wheel in an environment that does not have them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

from conformance.driver import extras
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from slotproof.cli import app
from slotproof.pages.tutorial import PARTS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("prove", "impl", "sglang", "vllm", "ray", "mutate")
HIDES = """
import os, sys

class Hides:
    # Finds what another finder finds, but for some packages.
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in os.environ["HIDDEN"].split(",")
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hides, sys.meta_path)
"""
# Runs several command lines in one process, and prints of each the exit code and what it has printed.
SEVERAL = """
import contextlib, io, json, sys
from slotproof import cli
told = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["slotproof", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run()
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
# Each command with what it says that it lacks: who lacks it, and the extras.
LACKING: dict[str, tuple[str, tuple[str, ...]]] = {
    "prove": ("prove", ("prove",)),
    "prove allocator --minimal": ("prove", ("prove",)),
    "mutate spec": ("mutate spec", ("prove", "impl")),
    "mutate spec --list-operators": ("mutate spec", ("prove", "impl")),
    "mutate impl": ("mutate impl", ("mutate", "impl")),
    "mutate impl --list-operators": ("mutate impl", ("mutate", "impl")),
    "mutate engine sglang --release 0.5.23": ("mutate engine", ("mutate",)),
    "diff HEAD": ("diff", ("prove",)),
    "check ours": ("the engine ours", ("impl",)),
    "check sglang --release 0.5.23": ("the engine sglang", ("sglang",)),
    "check vllm --release 0.33.0": ("the engine vllm", ("vllm",)),
    "campaign ours": ("the engine ours", ("impl",)),
    "campaign toy --ray local": ("--ray", ("ray",)),
    "verify": ("verify", ("prove", "impl")),
    "faults": ("faults", ("prove", "impl")),
    "replay insert_under_reader": ("the engine ours", ("impl",)),
    "replay insert_under_reader sglang": ("the engine sglang", ("sglang",)),
    "compat sglang --release 0.5.23": ("the engine sglang", ("sglang",)),
    "causes": ("the engine sglang", ("sglang",)),
    "mends": ("the engine sglang", ("sglang",)),
    "reach": ("the engine sglang", ("sglang",)),
    "blind sglang": ("the engine sglang", ("sglang",)),
    "engines": ("engines", ("prove", "impl")),
    "record --demo vllm": ("the engine vllm", ("vllm",)),
    "report -o page": ("report", ("prove", "impl")),
    "docs": ("docs", ("prove", "impl")),
    "list faults": ("list faults", ("prove", "impl")),
}
NEEDS_NOTHING = {"events", "judge", "list", "watch"}  # commands that work, or whose input alone can be wrong


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs Python in an empty folder, in an environment in which no extra is installed."""
    home = tmp_path_factory.mktemp("light")
    (home / "hides").mkdir()
    (home / "hides" / "sitecustomize.py").write_text(HIDES, encoding="utf-8")
    (home / "user").mkdir()
    hidden = {extras.module_of(package) for extra in EXTRAS for package in extras.packages_of(extra)} - {"pytest"}
    env = {**os.environ, "HIDDEN": ",".join(sorted(hidden)), "PYTHONPATH": f"{home / 'hides'}{os.pathsep}{ROOT}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=home / "user",
            env={**env, "SLOTPROOF_CACHE": str(home / "cache"), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    run.folder = home / "user"  # type: ignore[attr-defined]
    return run


def test_the_packages_are_hidden(light: Any) -> None:
    code = "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'z3', 'cvc5', 'numpy')]); import torch"
    done = light("-c", code)
    assert done.stdout == "[None, None, None, None]\n"
    assert "No module named 'torch'" in done.stderr


@pytest.mark.soak
def test_each_command_that_lacks_an_extra_names_it(light: Any) -> None:
    done = light("-c", SEVERAL, json.dumps([line.split() for line in LACKING]))
    assert done.returncode == 0, done.stderr
    told = dict(zip(LACKING, json.loads(done.stdout.splitlines()[-1]), strict=True))
    for line, (who, names) in LACKING.items():
        code, out, err = told[line]
        quoted = " and ".join(f"'{name}'" for name in names)
        says = f"slotproof: {who} needs the extra{'s' if len(names) > 1 else ''} {quoted}"
        assert (code, err.count("\n")) == (3, 1), (line, err, out)
        assert err.startswith(f"{says}: pip install 'slotproof[{','.join(names)}]'"), (line, err)


def test_the_table_has_every_command() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    assert {line.split()[0] for line in LACKING} | NEEDS_NOTHING == set(commands)


@pytest.mark.soak
def test_an_engine_in_plain_python_is_driven(light: Any) -> None:
    """The engine of the tutorial, as it is and with its leak; then the finding is replayed, and has a page."""
    (file,) = (part for part in PARTS.finditer(page("your-engine.md")) if part["what"] == "file")
    text = file["body"]
    (light.folder / "my_engine.py").write_text(text, encoding="utf-8")
    (light.folder / "leaks.py").write_text(text.replace("list(self.free_pages), []", "self.free_pages, []"), "utf-8")
    holds = light("-m", "slotproof", "check", "my_engine:make", "allocator", "--examples", "5")
    assert (holds.returncode, "every law holds" in holds.stdout) == (0, True), holds.stderr
    found = light("-m", "slotproof", "check", "leaks:make", "allocator", "--json", "found.json")
    assert (found.returncode, "law no_leak" in found.stdout) == (1, True), found.stdout + found.stderr
    again = light("-m", "slotproof", "replay", "found.json", "leaks:make", "my_engine:make")
    assert again.returncode == 1, again.stderr
    assert "conforms: my_engine:make" in again.stdout
    assert "found by a drawn run" in found.stdout
    page_of = light("-m", "slotproof", "report", "-o", "page", "--trace", "found.json", "--engine", "leaks:make")
    assert page_of.returncode == 0, page_of.stderr
    assert "no_leak" in (light.folder / "page" / "index.html").read_text("utf-8")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_names_are_listed_without_what_needs_an_extra(light: Any) -> None:
    done = light("-m", "slotproof", "list")
    assert done.returncode == 0, done.stderr
    assert "insert_under_reader" in done.stdout
    assert "left out: list faults needs the extras 'prove' and 'impl'" in " ".join(done.stdout.split())


def test_a_campaign_needs_no_solver(light: Any) -> None:
    """All that it imports, and what it reads off the law. `.ci/wheel` runs one."""
    code = (
        "import conformance.search.served, slotproof.commands.campaign as c; print(*c.known_transitions('allocator'))"
    )
    done = light("-c", code)
    assert {"alloc_extend", "free", "clear"} <= {*done.stdout.split()}, done.stderr


def test_a_stream_is_judged(light: Any) -> None:
    streams = sorted((ROOT / "tests" / "kv_streams").glob("*.msgpack"))
    done = light("-m", "slotproof", "events", str(streams[0]))
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr


# The extras themselves.


def test_an_extra_names_packages_by_the_modules_that_they_have() -> None:
    """A package whose module has another name would always be called missing."""
    found: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            found.setdefault(canonicalize_name(name), set()).add(module)
    for extra in EXTRAS:
        for package in extras.packages_of(extra):
            if canonicalize_name(package) in found:
                assert extras.module_of(package) in found[canonicalize_name(package)], package
    parts = ("prove", "impl", "sglang", "vllm")
    assert {*extras.packages_of("all")} == {package for extra in parts for package in extras.packages_of(extra)}
    assert {*extras.packages_of("dev")} > {*extras.packages_of("all"), *extras.packages_of("mutate")}


def test_no_package_is_in_an_extra_and_in_every_installation() -> None:
    always = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    some = {canonicalize_name(package) for extra in EXTRAS for package in extras.packages_of(extra)}
    assert not always & some


def test_what_an_engine_needs_is_an_extra() -> None:
    """What the loader of an engine calls real packages, the engine's extra brings, or every installation."""
    from conformance.engines.sglang.releases.importing import REAL as OF_SGLANG
    from conformance.engines.vllm.release import REAL as OF_VLLM

    always = {extras.module_of(Requirement(line).name) for line in PROJECT["dependencies"]}
    for name, real in (("sglang", OF_SGLANG), ("vllm", OF_VLLM)):
        (extra,) = registry.extras_of([registry.plugin(name)])
        assert real <= always | {extras.module_of(package) for package in extras.packages_of(extra)}
    assert registry.extras_of([registry.own()]) == ("impl",)
    assert registry.extras_of([registry.plugin("toy")]) == ()


def test_what_is_there_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("prove", "impl", "sglang", "vllm"):
        assert extras.missing_packages(extra) == []
    extras.must_have("it", "prove", "impl")
    monkeypatch.setitem(extras.MODULES, "cvc5", "no_such_module")
    with pytest.raises(UsageError, match=r"^it needs the extra 'prove': pip install '.*' \(not installed: cvc5\)$"):
        extras.must_have("it", "prove", "impl")
    monkeypatch.setitem(extras.MODULES, "torch", "no_such_module")
    with pytest.raises(EngineError, match=r"^the engine ours needs the extra 'impl'"):
        registry.load("ours")
    with pytest.raises(KeyError):
        extras.must_have("it", "nosuch")
