"""Each script that shows a finding on SGLang alone shows it on the newest release, and on no release without the bug.

Every known difference of the newest release on a stem has a script, so that it is ready to be filed. One of a whole
server has launch flags and messages.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from script_repairs import REPAIRS

from conformance.engines.sglang import PLUGIN, RELEASES, alone
from conformance.stems.found import servers
from conformance.traces import known, trace_files
from slotproof.pages import finding_pages, kept_findings

NEWEST = RELEASES[-1]
FILES = sorted(alone.SCRIPTS.glob("*.py"))
ROOT = Path(__file__).resolve().parents[1]
# Scripts that run on an older release without the bug, and one such release. What else the releases before the newest
# lack: a name that the other scripts import.
KEEPS = {"0.5.21": ["turned_away_lends_its_row"]}
MOST_LINES = 115  # of a text that is pasted into an issue


def started(*command: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since one process holds one release."""
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT, env=path)


@cache
def told() -> dict[str, list[tuple[int, str]]]:
    """What each script tells of the newest release, and of the newest release with the bug repaired."""
    done = started(str(ROOT / "tests" / "script_repairs.py"), NEWEST)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[tuple[int, str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


# A server needs as much of SGLang as ``slotproof replay`` starts; it is more than fits into an issue.
OF_SERVERS = {kept.name for kept in trace_files.every() if kept.trace.stem in servers()}
# A decode server needs more of SGLang than fits into an issue; and a trace that another finding ends before its own.
NO_SCRIPT = {
    *("tail_finds_no_room", "tail_finds_no_room_in_rows"),
    "freed_window_goes_to_tree_in_rows",  # the script of freed_window_goes_to_tree shows it
    *("page_inherits_mapping_in_session", "cut_session_keeps_state"),
    "early_release_after_checkpoint",  # no function of the release sends it
}


def test_each_known_difference_of_the_newest_release_has_a_script_and_a_repair() -> None:
    listed = {difference.trace for difference in known.of_release(PLUGIN.folder, NEWEST)}
    assert {file.stem for file in FILES} == listed - NO_SCRIPT - OF_SERVERS == set(REPAIRS)
    assert listed >= NO_SCRIPT


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_script_can_be_pasted(file: Path) -> None:
    """It imports nothing of ours, says in its first line what goes wrong, has one assertion, and fits into an issue."""
    text = file.read_text(encoding="utf-8")
    assert not [name for name in ("slotproof", "conformance", "spec.", "impl.") if name in text]
    assert (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].endswith(".")
    assert len(text.splitlines()) <= MOST_LINES
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))) == 1, "one says what is wrong"


@pytest.mark.engine
@pytest.mark.parametrize("name", REPAIRS)
def test_a_script_shows_its_finding_unless_the_bug_is_repaired(name: str) -> None:
    (shows, finding), (keeps, line) = told()[name]
    assert shows == alone.SHOWS, finding
    assert finding.startswith(f"{name}: ")
    assert keeps == alone.KEEPS, line


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize("release", KEEPS)
def test_a_script_passes_on_a_release_without_the_bug(release: str) -> None:
    files = [str(alone.SCRIPTS / f"{name}.py") for name in KEEPS[release]]
    done = started("-m", alone.__name__, release, *files)
    assert (done.returncode, done.stdout.count("nothing is wrong")) == (alone.KEEPS, len(files)), done.stderr


@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        ("assert False, 'a page is lost'", alone.SHOWS, "script: a page is lost"),
        ("pass", alone.KEEPS, "script: nothing is wrong on 1.0"),
        ("import json; json.loads('[')", alone.CANNOT_RUN, "script: cannot run: JSONDecodeError: "),
        ("from json import no_such_name", alone.CANNOT_RUN, "script: cannot run: ImportError: "),
        ("import torch; torch.testing.assert_close(1, 2)", alone.CANNOT_RUN, "script: cannot run: AssertionError: "),
        ("import no_such_package", alone.CANNOT_RUN, "script: cannot run: EngineError: "),
    ],
)
def test_only_an_assertion_of_the_script_shows_a_finding(tmp_path: Path, text: str, status: int, line: str) -> None:
    """Any other error says that the script cannot run, also an assertion of what the script calls."""
    script = tmp_path / "script.py"
    script.write_text(text)
    told = alone.run("1.0", script)
    assert told[0] == status
    assert told[1].startswith(line)


def test_each_standing_finding_says_its_harm() -> None:
    """Also one that the newest release shows in another way than older ones."""
    found = finding_pages.of_engine(PLUGIN.name, kept_findings.with_rows(kept_findings.kept()))
    standing = [finding.kept for finding in found if finding.stands]
    assert len(standing) >= len(FILES)
    for kept in standing:
        assert kept.harm.endswith("."), kept.name
