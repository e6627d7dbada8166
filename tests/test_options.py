"""Options that an engine declares: how they are given, refused, shown, and kept with what was found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.driver.naming import UsageError
from conformance.driver.options import EngineOption, chosen, known_to, parsed
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.connection import Subject
from conformance.search.replay import row
from conformance.telling.pasted import as_test, assert_holds
from conformance.traces.trace_files import Kept
from slotproof.checks import checking
from slotproof.checks.again import Again
from slotproof.checks.checking import CheckOptions
from slotproof.commands import listing
from slotproof.console import codes

ROOT = Path(__file__).parents[1]
PLACE = "engine_with_options:PLUGIN"
ENGINE = """
from conformance.engines.toy import ToyAllocator
from slotproof.plugin import EngineOption, Loaded

class Engine(ToyAllocator):
    ran = {"core": "none"}

class Plugin:
    name, releases, folder, own = "with_options", (), None, False
    options = (EngineOption("core", ("sound", "leaky"), "sound", "Which core runs."),)

    def load(self, release, source, device, options):
        def make(config):
            engine = Engine(config["size"], config["page_size"], leaks=options["core"] == "leaky")
            engine.ran = {"core": options["core"] + " " + ("odd" if config["size"] % 2 else "even")}
            return engine
        return Loaded(self.name, None, {"allocator": make}, notes=("The other core is not judged.",))

PLUGIN = Plugin()
"""
CORE = (EngineOption("core", ("default", "python", "rust"), "default", "Which core runs."),)
CONFIG = {"size": 2, "page_size": 1, "size_swa": 1, "rows": 3, "need_sort": False}
LEAKY = (("core", "leaky"),)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "engine_with_options.py").write_text(ENGINE)
    return tmp_path


def report(folder: Path, options: tuple[tuple[str, str], ...], examples: int = 20) -> Json:
    return checking.report_of(CheckOptions(Subject(PLACE, source=folder, options=options), examples=examples))


@pytest.mark.parametrize("word", ["core", "core=", "=rust", ""])
def test_a_word_that_is_no_option_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE, such as core=rust"):
        parsed([word])


def test_an_option_has_one_value() -> None:
    assert parsed(["b=1", "a=x=y", "b=1"]) == (("a", "x=y"), ("b", "1"))
    with pytest.raises(UsageError, match="core is rust already"):
        parsed(["core=rust", "core=python"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cor=rust", "the engine e has no option 'cor'; did you mean core?; options: core"),
        ("core=rsut", "core has no value 'rsut'; did you mean rust?; values: default, python, rust"),
        ("core=x", "core has no value 'x'; values: default, python, rust"),
    ],
)
def test_an_unknown_option_or_value_is_answered_with_those_that_are_known(given: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen("e", CORE, parsed([given]))
    assert str(caught.value) == f"--option {given}: {message}"


def test_an_engine_is_given_a_value_for_each_of_its_options() -> None:
    assert chosen("e", CORE, ()) == {"core": "default"}
    assert chosen("e", CORE, (("core", "rust"),)) == {"core": "rust"}
    assert known_to(CORE, (("core", "rust"), ("other", "1"))) == (("core", "rust"),)
    with pytest.raises(UsageError, match="the engine ours has no option 'core'; it has none"):
        registry.load("ours", options=(("core", "rust"),))


@pytest.mark.soak(but=2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "sglang", "--release", "0.5.12", "--option", "cor=rust"], "did you mean core?"),
        (["check", "sglang", "--release", "0.5.12", "--option", "core=c"], "values: default, python, rust, both"),
        (["check", "ours", "--option", "core=rust"], "the engine ours has no option 'core'"),
        (["check", PLACE, "--source", ".", "--option", "core=x"], "core has no value 'x'; values: sound, leaky"),
        (["replay", "stale_tail_after_restore", "ours", "--option", "core=rust"], "no option 'core'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(folder: Path, words: list[str], message: str) -> None:
    done = slotproof(folder, *words)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (codes.USAGE, 1), done.stderr
    assert message in done.stderr


def slotproof(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slotproof", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_option_decides_and_the_report_says_what_ran(folder: Path) -> None:
    sound = report(folder, ())
    assert (sound["exit"], sound["subject"]["options"]) == (codes.HOLDS, {})
    assert sound["subject"]["notes"] == ["The other core is not judged."]
    assert set(sound["results"][0]["ran"]["core"]) == {"sound odd", "sound even"}
    leaky = report(folder, LEAKY)
    assert (leaky["exit"], leaky["subject"]["options"]) == (codes.BROKEN, {"core": "leaky"})
    assert "core=leaky" in leaky["subject"]["label"]
    assert set(leaky["results"][0]["ran"]["core"]) <= {"leaky odd", "leaky even"}


@pytest.mark.soak
def test_the_command_shows_what_ran_and_what_is_not_judged(folder: Path) -> None:
    out = slotproof(folder, "check", PLACE, "--source", ".", "--option", "core=leaky", "--examples", "60").stdout
    assert "The other core is not judged." in out
    assert "core: leaky" in out
    assert "(core=leaky): a law is broken" in out
    assert "options={'core': 'leaky'}" in out, "the test to paste needs the option"


def test_a_run_that_failed_with_an_option_is_replayed_with_this_option_alone(folder: Path) -> None:
    found = report(folder, LEAKY)
    Again(PLACE, LEAKY, kept=True).keep(found["new"], ["allocator"])
    assert Again(PLACE, LEAKY, kept=True).of("allocator")
    assert Again(PLACE, (), kept=True).of("allocator") == []


@pytest.mark.soak
def test_a_pasted_test_and_a_row_of_a_replay_have_the_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row_of_report, *_) = report(folder, LEAKY)["new"]
    trace = Trace(**row_of_report["trace"])
    law, kind = row_of_report["law"], row_of_report["kind"]
    text = as_test(trace, law, kind, PLACE, source=folder, options={"core": "leaky"})
    named: dict[str, object] = {}
    exec(text, named)
    test = next(value for name, value in named.items() if name.startswith("test_"))
    with pytest.raises(AssertionError, match=r"core=leaky breaks"):
        test()  # type: ignore[operator]
    shape: Json = {"stem": trace.stem, "config": trace.config, "steps": trace.steps}
    assert_holds(law, kind, **shape, engine=PLACE, source=folder, options={"core": "sound"})
    assert text != as_test(trace, law, kind, PLACE, source=folder)
    monkeypatch.chdir(folder)
    loaded = registry.load(PLACE, options=LEAKY)
    shown = row(Kept("x", law, "", "", trace), loaded)
    assert shown["verdict"] == "violation"
    assert shown["ran"]["core"][0].startswith("leaky")


def test_the_list_names_every_option() -> None:
    found = {(one["engine"], one["name"]): one for one in listing.options()}
    assert found["sglang", "core"]["values"] == ["default", "python", "rust", "both"]
    assert json.dumps(found["sglang", "core"])
