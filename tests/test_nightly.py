"""The nightly workflow pins the lower bounds of the solvers, and the documented control changes a certificate."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from proofs import prover

ROOT = Path(__file__).resolve().parents[1]


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))
    return found


def installed(solvers: str) -> str:
    matrix = workflow()["jobs"]["prove"]["strategy"]["matrix"]["include"]
    (found,) = (row["install"] for row in matrix if row["solvers"] == solvers)
    return str(found)


@pytest.mark.parametrize("package", ["z3-solver", "cvc5"])
def test_the_oldest_solvers_are_the_lower_bounds(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = (
        line.partition(">=")[2] for line in project["optional-dependencies"]["prove"] if line.startswith(f"{package}>=")
    )
    (pinned,) = re.findall(rf"{package}==([\d.]+)", installed("oldest"))
    assert (pinned + ".0").startswith(bound + ".")
    assert set(pinned.removeprefix(bound)) <= set(".0"), "the first release of this line"


def test_the_newest_solvers_are_not_pinned() -> None:
    assert installed("newest") == "--upgrade z3-solver cvc5"


def test_what_is_run_each_night() -> None:
    steps = [step.get("run", "") for job in workflow()["jobs"].values() for step in job["steps"]]
    said = "\n".join(steps)
    mutated = ("slotproof mutate spec\n", "slotproof mutate impl\n")
    for command in (
        "slotproof prove --fresh\n",
        "slotproof prove --minimal",
        "slotproof faults --search\n",
        *mutated,
        "make soak",
    ):
        assert command in said + "\n"


def test_the_control_changes_a_certificate(tmp_path: Path) -> None:
    """The command of the page is run as it stands there; that Ethos refuses what it writes is for a user to see."""
    prover.prove_lemmas(tmp_path / "certificates")
    text = (ROOT / "docs/certificates.md").read_text(encoding="utf-8")
    (command,) = (line for line in text.splitlines() if line.startswith("sed "))
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True)
    right = (tmp_path / "certificates/lemmas/singleton/base.cpc").read_text(encoding="utf-8")
    wrong = (tmp_path / "wrong.cpc").read_text(encoding="utf-8")
    changed = [pair for pair in zip(right.splitlines(), wrong.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1
    assert changed[0][1].startswith("(assume ")
    assert changed[0][1].endswith(" true)")
