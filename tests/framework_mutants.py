"""Edits the proof framework wrongly, one place at a time, and sees that the tests notice.

    python tests/framework_mutants.py             lists the edits
    python tests/framework_mutants.py all         makes each edit in a copy of the checkout and runs the tests there
    python tests/framework_mutants.py NAME ...    makes these edits

Exit code 0 if each edit made a test fail, 1 if one did not. ``framework_mutants.json`` was written down before its
first run. It is an error if the place of an edit is not there exactly once. The tests are those of the framework, the
quick ones first; ``make test`` runs them all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDITS = Path(__file__).with_suffix(".json")
COPIED = (
    "conformance",
    "docs",
    "examples",
    "impl",
    "proofs",
    "slotproof",
    "spec",
    "tests",
    "pyproject.toml",
    "README.md",
)
TESTS = (
    *("test_logic", "test_tricks", "test_fitting", "test_memory", "test_drain", "test_theorems", "test_scope"),
    *(
        "test_corners",
        "test_unbounded",
        "test_readings",
        "test_proofs",
        "test_refuting",
        "test_minimal",
        "test_isolation",
    ),
)
LONGEST = 1_200  # seconds for the tests of one edit


def killed_by(edit: dict[str, str], folder: Path) -> str | None:
    """The first test that fails in a copy of the checkout with this edit; ``None`` if none does."""
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    file = folder / edit["file"]
    text = file.read_text(encoding="utf-8")
    if text.count(edit["old"]) != 1:
        raise SystemExit(
            f"{edit['name']}: {edit['file']} has {edit['old']!r} {text.count(edit['old'])} times, not once"
        )
    file.write_text(text.replace(edit["old"], edit["new"]), encoding="utf-8")
    asked = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{t}.py" for t in TESTS)]
    path = {"PYTHONPATH": str(folder)}
    try:
        run = subprocess.run(
            asked, cwd=folder, env={**os.environ, **path}, capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the tests did not end in {LONGEST} s"
    if run.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.*)$", run.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {run.returncode}"


def tried(edit: dict[str, str]) -> bool:
    """Whether a test notices the edit; prints which."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        test = killed_by(edit, Path(folder))
    what = f"killed by {test}" if test else "SURVIVES"
    print(f"{edit['name']}, {time.perf_counter() - start:.0f} s: {what[:160]}", flush=True)
    return test is not None


def main(names: list[str]) -> int:
    """Tries the named edits, two at a time; lists them where none is named."""
    edits = json.loads(EDITS.read_text(encoding="utf-8"))
    if not names:
        print("\n".join(f"{edit['name']}: {edit['says']}" for edit in edits))
        return 0
    known = {edit["name"]: edit for edit in edits}
    if names == ["all"]:
        names = [*known]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no edit is called {', '.join(unknown)}")
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        found = list(workers.map(tried, (known[name] for name in names)))
    print(f"{sum(found)} of {len(found)} wrong edits of the framework are killed")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
