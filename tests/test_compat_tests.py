"""An engine's own tests on its own classes and on ours: what ``slotproof compat --tests`` says of them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from test_compat import run

from conformance.driver.protocol import EngineError
from conformance.engines import peer_tests, source_tests
from conformance.engines.peer_tests import Named, Peer, judged
from conformance.engines.vllm import PLUGIN
from conformance.engines.vllm.replacing import peers
from slotproof.console import codes

SMALL = (f"{peers.FOLDER}/test_single_type_kv_cache_manager.py",)
# A child process whose release is nothing: the tests ask which classes they have.
CHILD = """
    import os, sys
    from conformance.engines import peer_tests

    def load(source, label, ours):
        os.environ["CLASSES"] = "ours" if ours else "own"

    sys.exit(peer_tests.child(sys.argv[1:], load))
"""
TESTS = """
    import os
    import pytest

    def test_passes(): pass

    @pytest.mark.parametrize("number", [1, 2])
    def test_fails_on_ours(number): assert os.environ["CLASSES"] == "own"

    def test_fails_on_both(): raise ValueError("no device")

    @pytest.mark.skip
    def test_is_skipped(): pass
"""


def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """The tests of an engine of this test."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_tiny.py").write_text(textwrap.dedent(TESTS))
    (folder / "tiny_child.py").write_text(textwrap.dedent(CHILD))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return Peer("tiny_child", folder, "tiny 1", folder, ("tests/test_tiny.py",))


def test_each_test_that_fails_on_ours_alone_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = Named("deliberate", "ours refuses it")
    found = tiny(tmp_path, monkeypatch).compared({"test_tiny.py::test_fails_on_ours": why})
    assert found["files"] == [{"file": "tests/test_tiny.py", "tests": 4, "own": 3, "slotproof": 1}]
    assert [row["test"] for row in found["differences"]] == [
        "tests/test_tiny.py::test_fails_on_ours[1]",
        "tests/test_tiny.py::test_fails_on_ours[2]",
    ]
    assert {(row["verdict"], row["reason"]) for row in found["differences"]} == {("deliberate", "ours refuses it")}
    assert (found["unnamed"], found["stale"], found["both"]) == ([], [], {"ValueError: no device": 1})


def test_a_reason_that_is_missing_or_no_longer_needed_is_told() -> None:
    own, ours = {"a/t.py::x": "", "a/t.py::y": "", "a/t.py::z": "broken"}, {"a/t.py::x": "E", "a/t.py::y": ""}
    found = judged(
        ("a/t.py",), own, ours, {"t.py::y": Named("defect", "a row is lost"), "t.py::not_run": Named("defect", "")}
    )
    assert (found["unnamed"], found["stale"]) == (["a/t.py::x"], ["t.py::y"])


def test_a_file_that_cannot_be_imported_counts_as_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = tiny(tmp_path, monkeypatch)
    (tmp_path / "tests" / "test_tiny.py").write_text("import no_such_module_at_all")
    assert list(tests.ran(peer_tests.OWN)) == ["tests/test_tiny.py"]


def test_the_command_says_what_is_unnamed_and_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"test": "a/t.py::x", "error": "ValueError: no", "verdict": "", "reason": ""}
    files = [{"file": "a/t.py", "tests": 2, "own": 2, "slotproof": 1}]
    found: dict[str, Any] = {"files": files, "differences": [row], "unnamed": ["a/t.py::x"], "stale": [], "both": {}}
    monkeypatch.setattr(type(PLUGIN), "peer_tests", lambda *_: found)
    out = tmp_path / "out.json"
    words = ("vllm", "--release", "0.33.0", "--tests", "--json", str(out))
    assert run(monkeypatch, *words) == codes.BROKEN
    printed = capsys.readouterr().out
    assert "ValueError: no" in printed
    assert "1 fail on our classes alone (1 without a reason)" in " ".join(printed.split())
    assert json.loads(out.read_text())["unnamed"] == ["a/t.py::x"]
    found.update(differences=[], unnamed=[], stale=["t.py::y"])
    assert run(monkeypatch, *words) == codes.BROKEN
    assert "take the reason off the list" in capsys.readouterr().out
    found.update(stale=[])
    assert run(monkeypatch, *words) == codes.HOLDS


@pytest.mark.parametrize(
    ("engine", "words"), [("sglang", "are not on the package index"), ("toy", "no tests that can run on our classes")]
)
def test_an_engine_without_tests_says_so(
    engine: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, engine, "--release", "1.0", "--tests") == codes.USAGE
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_checkout_without_tests_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"has no tests of vLLM: expected tests/v1/core below it"):
        source_tests.of_checkout(tmp_path, "vLLM", peers.FOLDER)


def test_a_release_without_an_archive_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EngineError, match=r"^vllm 0\.33\.0: no source archive with tests can be downloaded"):
        source_tests.released("vllm", "0.33.0", peers.FOLDER)


def have(files: tuple[str, ...]) -> Peer:
    """The tests of the newest release; skips the test where they cannot be had."""
    try:
        return peers.peer(PLUGIN.releases[-1], None, files)
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.engine
def test_tests_of_managers_run_on_our_pool() -> None:
    found = have(SMALL).ran(peer_tests.STOOD_IN)
    failed = [name.rpartition("/")[2] for name, why in found.items() if why]
    assert len(found) == 49
    assert failed == ["test_single_type_kv_cache_manager.py::test_evictable_cached_blocks_not_double_allocated"]
    assert failed[0] in peers.NAMED


@pytest.mark.soak
@pytest.mark.engine
def test_each_failure_on_ours_alone_has_a_reason() -> None:
    found = have(peers.FILES).compared(peers.NAMED)
    assert (found["unnamed"], found["stale"]) == ([], [])
    assert len(found["differences"]) <= len(peers.NAMED)
    assert {row["verdict"] for row in found["differences"]} <= set(peer_tests.VERDICTS)
