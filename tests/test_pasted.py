"""Each test that a finding prints runs as it stands: it fails on the subject that broke the law, and passes on a good
one. All of them are executed by pytest in a folder outside this repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from driven import NEWEST, have, sampled

from conformance.driver.lockstep import ANSWERED, INVARIANT
from conformance.driver.protocol import EngineError
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.telling.pasted import as_test, assert_holds
from conformance.traces import cause_files, trace_files
from slotproof.pages import kept_findings

ROOT = Path(__file__).parents[1]
# Engines of another package, the modules and the metadata of which are in one folder.
ENGINES = """
import os, signal
from conformance.engines.registry import SimplePlugin
from conformance.engines.toy import ToyAllocator


def leaking(config):
    return ToyAllocator(config["size"], config["page_size"], leaks=True)


def whole(config):
    print("an engine may print")
    return ToyAllocator(config["size"], config["page_size"])


class Dying(ToyAllocator):
    def free(self, slots):
        os.kill(os.getpid(), signal.SIGSEGV)


def dying(config):
    return Dying(config["size"], config["page_size"])


class Raising(ToyAllocator):
    def free(self, slots):
        raise ValueError("\\x1b[31mpage")


def raising(config):
    return Raising(config["size"], config["page_size"])


LEAKING, WHOLE = SimplePlugin("leaking", {"allocator": leaking}), SimplePlugin("whole", {"allocator": whole})
DYING, RAISING = SimplePlugin("dying", {"allocator": dying}), SimplePlugin("raising", {"allocator": raising})
"""
POINTS = "".join(f"{name} = their_engines:{name.upper()}\n" for name in ("leaking", "whole", "dying", "raising"))
CONFIG = {"size": 4, "page_size": 2, "rows": 2, "need_sort": False, "size_swa": 1}
LEAK = Trace(
    "allocator", CONFIG, [{"op": "extend", "rows": [0], "more": [3]}, {"op": "free", "row": 0, "first": 0, "last": 2}]
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of another package that is installed in this process and in its children."""
    folder = tmp_path / "theirs"
    (folder / "theirs-1.0.dist-info").mkdir(parents=True)
    (folder / "their_engines.py").write_text(ENGINES)
    (folder / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "theirs-1.0.dist-info" / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{POINTS}")
    monkeypatch.syspath_prepend(folder)
    return folder


def executed(text: str, folder: Path, *paths: Path) -> dict[str, str]:
    """Runs the tests of a file that consists of this text; of each the message with which it failed, "skipped: " and
    the reason, or nothing if it passed. ``paths``: where other packages are installed.
    """
    (folder / "outside").mkdir()
    (folder / "outside" / "test_pasted.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=out.xml", "test_pasted.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT)))}
    done = subprocess.run(
        command, cwd=folder / "outside", env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(folder / "outside" / "out.xml").getroot().iter("testcase"):
        skipped, failed = case.find("skipped"), case.find("failure")
        assert case.find("error") is None
        found[case.attrib["name"]] = (
            f"skipped: {skipped.attrib['message']}"
            if skipped is not None
            else failed.attrib["message"]
            if failed is not None
            else ""
        )
    return found


def printed(output: str) -> str:
    """The test in the output of a command."""
    return output[output.index("def test_found_by_slotproof") : output.index("How hard was looked")]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("leaking", "whole"),
        ("their_engines:leaking", "their_engines:whole"),
    ],
)
def test_what_a_check_prints_fails_on_the_engine_and_passes_on_a_good_one(
    bad: str, good: str, theirs: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(theirs), str(ROOT)])}
    command = [sys.executable, "-m", "slotproof", "check", bad, "allocator", "--examples", "40"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    text = printed(done.stdout)
    again = text.replace(f"engine={bad!r}", f"engine={good!r}").replace("def test_found", "def test_good_found")
    assert again.count(repr(good)) == 1
    failed, passed = executed(text + "\n\n" + again, tmp_path, theirs).values()
    assert failed.startswith(f"AssertionError: {bad} breaks ")
    assert passed == ""


# Real releases: a trace for each kind of law, the release that breaks it, and what holds: another release, or ours. The
# first has a latent finding of another law in the release that holds.
DEATH = ("decode_on_empty_list", "0.5.14", None)
CASES = [
    ("stale_tail_after_restore", "0.5.12", "0.5.14"),
    ("saved_request_keeps_buffer", "0.5.12", None),
    DEATH,
    ("inner_end_gives_back", "0.5.14", None),
    ("insert_under_reader", "0.5.14", None),
]


def broken(name: str, release: str) -> Any:
    """The law and the kind of the kept finding."""
    rows = kept_findings.kept()["traces"][name]
    return next((row["law"], row["kind"]) for row in rows if row["release"] == release)


def test_the_cases_are_of_every_kind_of_finding() -> None:
    kinds = {broken(name, bad)[1] for name, bad, _ in CASES}
    assert kinds == {"invariant", "choice", "answer", "difference", "promise"}


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("part", sampled(range(6), 6))  # each test that is pasted imports a release
def test_the_test_of_a_kept_trace_fails_on_a_release_and_passes_on_a_good_one(part: int, tmp_path: Path) -> None:
    for release in ("0.5.12", "0.5.14"):
        have(release)
    text, cases = "", CASES[part::6]
    for name, bad, good in cases:
        trace, (law, kind) = trace_files.load(name).trace, broken(name, bad)
        text += as_test(trace, law, kind, "sglang", bad) + "\n\n"
        text += as_test(trace, law, kind, "sglang" if good else "ours", good) + "\n\n"
    found = list(executed(text, tmp_path).values())
    for (name, bad, _), failed, passed in zip(cases, found[::2], found[1::2], strict=True):
        assert failed.startswith(f"AssertionError: sglang {bad} breaks {broken(name, bad)[0]} at step"), name
        assert passed == "", name
    if DEATH in cases:
        assert "srt/mem_cache/" in found[cases.index(DEATH) * 2], "the functions in which the process died"


@pytest.mark.soak
@pytest.mark.engine
def test_the_test_of_a_folder_fails_on_it_and_passes_on_another(tmp_path: Path) -> None:
    name, bad, good = CASES[0]
    trace, (law, kind) = trace_files.load(name).trace, broken(name, bad)
    text = "\n\n".join(as_test(trace, law, kind, "sglang", source=have(release)) for release in (bad, good or ""))
    failed, passed = executed(text, tmp_path).values()
    assert f"{have(bad)} breaks {law}" in failed
    assert passed == ""


@pytest.mark.soak
@pytest.mark.engine
def test_the_test_of_a_repaired_engine_repairs_it(tmp_path: Path) -> None:
    """The run of a known cause, which breaks no law where this cause is repaired."""
    have(NEWEST)
    cause = cause_files.load("rejected_turn_keeps_session")
    trace, (law, kind) = cause.shown.trace, broken(cause.server, NEWEST)
    tests = [as_test(trace, law, kind, "sglang", NEWEST, repaired=names) for names in ([], [cause.name])]
    as_it_is, repaired = executed("\n\n".join(tests), tmp_path).values()
    assert law in as_it_is
    assert repaired == ""


# What a pasted test can tell.


def replay(engine: str, law: str, kind: str, trace: Trace = LEAK) -> None:
    """What the pasted test calls."""
    assert_holds(law, kind, stem=trace.stem, config=trace.config, steps=trace.steps, engine=engine)


@pytest.mark.usefixtures("theirs")
def test_the_law_that_broke_fails_it() -> None:
    with pytest.raises(AssertionError, match=r"leaking breaks no_leak at step 2, free\n"):
        replay("leaking", *LEAKS)
    replay("whole", *LEAKS)


LEAKS = ("no_leak", INVARIANT)


@pytest.mark.usefixtures("theirs")
def test_a_violation_of_another_law_fails_it_and_is_named() -> None:
    with pytest.raises(AssertionError, match="leaking does not break sorted here; the trace ends where it breaks"):
        replay("leaking", "sorted", INVARIANT)


@pytest.mark.usefixtures("theirs")
def test_an_exception_is_shown_with_the_frames_of_the_engine_and_without_control_characters() -> None:
    with pytest.raises(AssertionError) as caught:
        replay("raising", ANSWERED, "answer")
    said = str(caught.value)
    assert "raising breaks lawful_call_is_answered at step 2" in said
    assert "their_engines.py:27 Raising.free" in said
    assert "\\x1b[31mpage" in said
    assert "\x1b" not in said


@pytest.mark.usefixtures("theirs")
def test_an_engine_that_dies_fails_it() -> None:
    with pytest.raises(AssertionError, match=r"the replay ended with the signal SIGSEGV[\s\S]*in free"):
        replay("dying", *LEAKS)


@pytest.mark.usefixtures("theirs")
def test_an_engine_that_cannot_be_sent_the_trace_skips_it() -> None:
    grouped = Trace("allocator", CONFIG, [{"op": "begin_group"}])
    with pytest.raises(SkipTest, match=r"whole: step 1 cannot be sent: the engine has no begin_"):
        replay("whole", *LEAKS, grouped)
    with pytest.raises(SkipTest, match="whole: step 1 cannot be sent: it has no cache to drive"):
        replay("whole", *LEAKS, Trace("cache", CONFIG, []))


def test_an_engine_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(EngineError, match="no engine 'nosuch'"):
        replay("nosuch", *LEAKS)


# The text.


def test_the_text_is_short_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    first = as_test(LEAK, *LEAKS, "whole", "1.0")
    assert len(first.splitlines()) - len(LEAK.steps) <= 15
    assert max(map(len, first.splitlines())) <= 120
    names = {as_test(LEAK, *LEAKS, "whole", release).splitlines()[0] for release in ("1.0", "2.0", None)}
    names.add(as_test(LEAK, *LEAKS, "whole", source=tmp_path).splitlines()[0])
    assert len(names) == 4, "tests of several releases can stand in one file"


@pytest.mark.parametrize("name", ["it's", 'a "b"', "a\\b", "two\nlines", "\x1b[31m", "{x}", "a' + 'b"])
def test_the_text_is_python_whatever_the_names_are(name: str, tmp_path: Path) -> None:
    text = as_test(LEAK, name, "a kind", f"engine {name}", source=tmp_path / name)
    compile(text, "pasted", "exec")
    assert "\x1b" not in text


def test_true_and_false_are_said_as_python_says_them() -> None:
    steps = [{"op": "decode", "requests": [0], "slide": False}]
    assert "{'op': 'decode', 'requests': [0], 'slide': False}," in as_test(Trace("cache", {}, steps), *LEAKS, "ours")
