"""``slotproof check vllm --source NEW --base RELEASE``: a checkout with a mistake is told from its release."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driven import sampled

from conformance.driver.protocol import EngineError
from conformance.engines.vllm import PLUGIN, RELEASES
from conformance.engines.vllm.download import WHEELS
from conformance.traces import known

ROOT = Path(__file__).parents[1]
NEWEST = RELEASES[-1]
# A mistake each: the file below ``v1/core``, what stands there, what a change makes of it, and laws that may tell it.
MISTAKES = {
    "a second holder is not counted": (
        "block_pool.py",
        "self.free_block_queue.remove(block)\n            block.ref_cnt += 1\n",
        "self.free_block_queue.remove(block)\n                block.ref_cnt += 1\n",
        {"count_is_holders"},
    ),
    "a window moves on too early": (
        "single_type_kv_cache_manager.py",
        "num_computed_tokens - self.sliding_window + 1 - self.extra_retained_tokens",
        "num_computed_tokens - self.sliding_window + 5 - self.extra_retained_tokens",
        {"slide"},
    ),
    "a preempted request keeps what it has counted": (
        "sched/scheduler.py",
        "        request.status = RequestStatus.PREEMPTED\n        request.num_computed_tokens = 0\n",
        "        request.status = RequestStatus.PREEMPTED\n",
        {"lawful_call_is_answered"},
    ),
}
pytestmark = pytest.mark.engine


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the newest release, as a checkout is. Skips the test where the release cannot be had."""
    try:
        release = WHEELS.release(NEWEST)
    except EngineError as error:
        pytest.skip(str(error))
    shutil.copytree(release / "vllm", tmp_path / "vllm")
    return tmp_path


def checked(source: Path) -> tuple[int, Any, str]:
    """The exit code, the report, and what was printed."""
    report = source / "report.json"
    asked = (
        "vllm",
        "block_cache",
        "--source",
        str(source),
        "--base",
        NEWEST,
        "--examples",
        "20",
        "--json",
        str(report),
    )
    done = subprocess.run(
        [sys.executable, "-m", "slotproof", "check", *asked],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert report.exists(), done.stderr
    return done.returncode, json.loads(report.read_text(encoding="utf-8")), done.stdout


@pytest.mark.soak
def test_an_unchanged_checkout_has_nothing_new(checkout: Path) -> None:
    code, report, said = checked(checkout)
    assert (code, report["new"], report["worse"]) == (0, [], []), said
    assert "nothing new" in said
    own = {difference.law for difference in known.of_release(PLUGIN.folder, NEWEST)}
    assert {row["law"] for row in report["known"]} == own, "those of the release itself are known"


@pytest.mark.soak
@pytest.mark.parametrize("name", sampled(MISTAKES, 3))
def test_a_mistake_is_new_and_comes_with_a_test(checkout: Path, name: str) -> None:
    file, right, wrong, laws = MISTAKES[name]
    path = checkout / "vllm" / "v1" / "core" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong), encoding="utf-8")
    code, report, said = checked(checkout)
    assert code == 1, said
    assert {row["law"] for row in report["new"]} & laws, [row["law"] for row in report["new"]]
    assert "def test_" in said
