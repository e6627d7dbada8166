"""A release that has appeared on the package index is told: by campaigns and `engines`, and as the text of an issue."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.search.connection import Subject
from slotproof.commands import appeared, campaign, issue_text, newest
from slotproof.commands.appeared import Appeared, Looking
from slotproof.commands.campaign import CampaignOptions
from slotproof.commands.issue_text import CheckOutput

ROOT = Path(__file__).resolve().parents[1]
NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"


def plugin(newest: Callable[[], str] | None, *releases: str) -> Any:
    named = {
        "name": "e",
        "releases": releases or ("1.9", "1.10"),
        "stems": ("allocator",),
        "own": False,
        "folder": None,
    }
    return SimpleNamespace(**named, **({} if newest is None else {"newest": newest}))


def fails() -> str:
    raise EngineError("the package index names no release of e\n(pip said: nothing)")


@pytest.mark.parametrize(
    ("found", "newer"),
    [("1.10", False), ("1.11", True), ("1.9.5", False), ("1.8", False), ("1.10.post1", True), ("2.0rc1", True)],
)
def test_newer_is_newer_than_all_that_are_judged(found: str, newer: bool) -> None:
    news = appeared.look(plugin(lambda: found))
    assert (news.newest, news.newer, news.judged, news.why) == (found, newer, "1.10", "")
    assert bool(news.line()) is newer
    if newer:
        assert f"new on the package index: e {found}; Slotproof judges releases up to 1.10" in news.line()
        assert f"`slotproof check e --release {found}`" in news.line()


@pytest.mark.parametrize("broken", [fails, lambda: "no version"])
def test_without_a_network_one_line_says_so_and_nothing_fails(broken: Callable[[], str]) -> None:
    (news,) = Looking([plugin(broken)]).news()
    assert (news.newest, news.newer) == (None, False)
    assert news.line().startswith("whether e has a release after 1.10 is not known: ")
    assert len(news.line().splitlines()) == 1


def test_an_index_that_does_not_answer_is_not_waited_for() -> None:
    answers = threading.Event()

    def slow() -> str:
        answers.wait(20)
        return "1.11"

    looking, begun = Looking([plugin(slow)]), time.monotonic()
    assert looking.news(0.05) == [Appeared("e", "1.10", why=appeared.NO_ANSWER)]
    assert time.monotonic() - begun < 5
    answers.set()
    assert looking.news() == [Appeared("e", "1.10", "1.11", newer=True)]


def test_an_engine_without_an_index_is_not_asked() -> None:
    assert Looking([plugin(None), plugin(lambda: "9", *())]).news()[0].newest == "9"
    assert Looking([plugin(None)]).news() == []
    assert appeared.of_engine("my_engine:make") == appeared.of_engine("ours") == []
    assert [found.name for found in appeared.of_engine("sglang")] == ["sglang"]


@pytest.mark.parametrize("found", ["1.10", "1.11"])
def test_a_campaign_tells_it(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "report_of", lambda _: {"exit": 0, "index": None})
    monkeypatch.setattr(campaign, "show", lambda _: None)
    monkeypatch.setattr(registry, "released", lambda: [plugin(lambda: found)])
    out = tmp_path / "c.json"
    assert campaign.run(CampaignOptions(Subject("e"), 5.0, tmp_path, json=out)) == 0
    index = json.loads(out.read_text())["index"]
    assert index == {"engine": "e", "judged": "1.10", "newest": found, "newer": found == "1.11", "why": ""}
    assert ("new on the package index: e 1.11" in capsys.readouterr().out) is (found == "1.11")


# The text of an issue.


def test_an_issue_says_which_release_what_a_check_printed_and_how_it_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = CheckOutput("slotproof check e --release 1.11", "\n".join(f"line {n}" for n in range(100)), 1)
    monkeypatch.setattr(issue_text, "checked", lambda *_: printed)
    monkeypatch.setattr(registry, "released", lambda: [plugin(lambda: "1.11")])
    monkeypatch.setattr(newest, "reasons", lambda *_: {"allocator": "", "cache": "no class `Tree`\nin x"})
    assert newest.run(tmp_path / "out.json", tmp_path) == 3
    assert json.loads((tmp_path / "out.json").read_text())["appeared"] == [{"engine": "e", "release": "1.11"}]
    title, empty, *body = (tmp_path / "e-1.11.md").read_text().splitlines()
    assert (title, empty) == ("e 1.11 is on the package index", "")
    for line in (
        "- allocator: loads",
        "- cache: does not load: `no class 'Tree' in x`",
        "`slotproof check e --release 1.11` ended with exit code 1 and printed:",
        "… 40 lines before these",
        "line 99",
        "1. Add `1.11` to `RELEASES` in `conformance/engines/e/__init__.py`.",
    ):
        assert line in body
    assert "line 39" not in body


def test_a_release_that_is_judged_makes_no_issue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "released", lambda: [plugin(lambda: "1.10")])
    monkeypatch.setattr(newest, "reasons", lambda *_: {"allocator": ""})
    assert newest.run(None, tmp_path) == 0
    assert not [*tmp_path.iterdir()]


def test_what_an_engine_prints_stays_in_its_block() -> None:
    hostile = CheckOutput("c", "```\n# heading\n````\x1b[31m", 0)
    text = issue_text.of_release(plugin(None), "1.11", [], hostile)
    assert "\n`````text\n```\n# heading\n````\\x1b[31m\n`````\n" in text


@pytest.mark.soak
def test_the_check_of_an_issue_is_a_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issue_text, "BUDGET", "5s")
    done = issue_text.checked("nosuch", "1.0")
    assert (done.command, done.code) == ("slotproof check nosuch --release 1.0 --budget 5s", 3)
    assert done.printed.startswith("slotproof: no engine 'nosuch'")


def test_every_engine_with_an_index_has_the_file_that_an_issue_names() -> None:
    for found in registry.released():
        if hasattr(found, "newest"):
            text = (ROOT / "conformance" / "engines" / found.name / "__init__.py").read_text("utf-8")
            assert "\nRELEASES = (" in text


def test_the_nightly_job_opens_an_issue_once_and_executes_no_engine(tmp_path: Path) -> None:
    jobs = yaml.safe_load(NIGHTLY.read_text("utf-8"))["jobs"]
    finds, opens = jobs["newest"], jobs["issue"]
    assert "permissions" not in finds, "the code of a release runs there"
    assert [step["run"] for step in finds["steps"] if "--issues issues" in step.get("run", "")]
    assert opens["permissions"] == {"issues": "write"}
    (script,) = (step["run"] for step in opens["steps"] if "run" in step)
    assert "${{" not in script
    assert "slotproof" not in script
    (tmp_path / "issues").mkdir()
    for release in ("1.11", "1.12"):
        (tmp_path / "issues" / f"e-{release}.md").write_text(f"e {release} is there\n\nbody of {release}\nmore\n")
    (tmp_path / "gh").write_text(
        '#!/bin/sh\nif [ "$2" = list ]; then echo "e 1.11 is there"; else echo "$@" >> made; cat >> made; fi\n'
    )
    (tmp_path / "gh").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=env, check=True)
    made = "issue create --title e 1.12 is there --body-file -\nbody of 1.12\nmore\n"
    assert (tmp_path / "made").read_text() == made
