"""A new stem is files of its own: a tiny one is proved, driven, shown and pictured, and nothing central is edited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = Path(__file__).with_name("tiny_stem")
PACKAGES = ("spec", "proofs", "impl", "conformance", "slotproof")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages with the files of the stem beside them; each of its files is new."""
    copy = tmp_path_factory.mktemp("tiny")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=shutil.ignore_patterns("images", "findings"))
    for file in (path for path in TINY.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        place = copy / file.relative_to(TINY)
        assert not place.exists(), place
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    return copy


def said(checkout: Path, *words: str) -> str:
    """What a command prints in the copy; its exit code must be 0."""
    ran = subprocess.run(
        [sys.executable, "-m", "slotproof", *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.soak  # the tutorial that `make docs-check` plays proves it, too
def test_it_is_proved(checkout: Path) -> None:
    assert "every law holds" in said(checkout, "prove", "tickets")


def test_it_is_driven(checkout: Path) -> None:
    assert "every law holds" in said(checkout, "check", "ours", "tickets", "--examples", "5")


@pytest.mark.soak
def test_its_known_bug_is_shown_by_the_kept_run_and_found_from_nothing(checkout: Path) -> None:
    said(checkout, "faults", "oversells")
    assert "found from nothing" in said(checkout, "faults", "oversells", "--search")


@pytest.mark.soak
def test_a_trace_of_it_is_replayed_and_pictured(checkout: Path) -> None:
    assert "conforms: ours" in said(checkout, "replay", "trace.json", "ours")
    said(checkout, "report", "-o", "page", "--trace", "trace.json")
    assert "The desk" in (checkout / "page" / "index.html").read_text(encoding="utf-8")
