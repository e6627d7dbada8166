"""A release: its version is that of its tag, and nothing is published that is not what the tag names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_backend.wheel_layout import MOVED, lay_out, version_of

ROOT = Path(__file__).resolve().parents[1]
PROJECT = """
[tool.setuptools_scm]
fallback_version = "0.0.0.dev0"
"""


def git(folder: Path, *words: str) -> str:
    author = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], env={**kept, **author}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with our settings of the version, and one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    for name in (".git_archival.txt", ".gitattributes"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_these_are_our_settings() -> None:
    assert PROJECT.strip() in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_newest_tag(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert version_of(checkout).startswith("0.0.0.dev1+g")
    assert commit.startswith(version_of(checkout).partition("+g")[2])
    git(checkout, "tag", "v1.2.3")
    assert version_of(checkout) == "1.2.3"
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    assert version_of(checkout).startswith("1.2.4.dev1+g"), "between two releases"
    git(checkout, "tag", "v1.3.0")
    (checkout / "pyproject.toml").write_text(PROJECT + "# edited\n", encoding="utf-8")
    assert version_of(checkout).startswith("1.3.1.dev0+g"), "an edited release is no release"


def test_a_shallow_clone_and_an_archive_have_a_version(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(tmp_path / "shallow"))
    with pytest.warns(UserWarning, match="shallow"):
        assert version_of(tmp_path / "shallow").startswith("0.0.0.dev1+g"), "its tags are missing"
    git(checkout, "archive", "-o", str(tmp_path / "a.tar"), "HEAD")
    shutil.unpack_archive(tmp_path / "a.tar", tmp_path / "archive")
    assert version_of(tmp_path / "archive").startswith("1.2.4.dev1+g")
    (tmp_path / "archive" / ".git_archival.txt").unlink()
    assert version_of(tmp_path / "archive") == "0.0.0.dev0", "nothing tells"


def test_a_source_distribution_says_its_version(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: slotproof\nVersion: 4.5.6\n", encoding="utf-8")
    assert version_of(tmp_path) == "4.5.6"


def test_what_a_wheel_is_built_of_has_no_history(tmp_path: Path) -> None:
    """So its version must be told: else it would be that of no release."""
    lay_out(ROOT, tmp_path)
    assert not (tmp_path / ".git").exists()
    assert {path.name for path in (tmp_path / "slotproof").iterdir()} >= {*MOVED}


# What is published.


@pytest.fixture
def released(tmp_path: Path) -> Any:
    """Runs `.ci/released` beside files of these names in dist/ and a changelog of this text."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "dist").mkdir()

    def run(tag: str, files: list[str], changelog: str) -> tuple[int, str]:
        for name in files:
            (tmp_path / "dist" / name).write_text("")
        (tmp_path / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
        done = subprocess.run([tmp_path / ".ci" / "released", tag], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


BUILT = ["slotproof-1.2.3-py3-none-any.whl", "slotproof-1.2.3.tar.gz"]
NOTES = "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-12-01\n"


@pytest.mark.parametrize(
    ("tag", "files", "changelog", "code", "said"),
    [
        ("v1.2.3", BUILT, NOTES, 0, "dist/ is release 1.2.3"),
        ("v1.2.4", BUILT, NOTES, 1, "expected\nslotproof-1.2.4-py3"),
        ("v1.2.3", BUILT[:1], NOTES, 1, "slotproof-1.2.3.tar.gz"),
        ("v1.2.3", [*BUILT, "other-1.0.tar.gz"], NOTES, 1, "other-1.0.tar.gz"),
        ("v1.2.3", ["slotproof-1.2.4.dev1+gabc-py3-none-any.whl", BUILT[1]], NOTES, 1, "1.2.4.dev1"),
        ("v1.2.3", BUILT, NOTES.replace("[1.2.3]", "[1x2.3]"), 1, 'no heading "## [1.2.3]"'),
        ("1.2.3", BUILT, NOTES, 1, "a release's tag is vX.Y.Z"),
        ("v1.2.3rc1", BUILT, NOTES, 1, "a release's tag is vX.Y.Z"),
    ],
)
def test_what_is_published_is_what_the_tag_names(
    released: Any, tag: str, files: list[str], changelog: str, code: int, said: str
) -> None:
    found, text = released(tag, files, changelog)
    assert (found, said in text) == (code, True), text


def workflow(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return found


def test_only_a_tried_build_of_a_tag_is_published_and_no_secret_is_kept() -> None:
    found = workflow("release.yml")
    assert found[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    assert found["permissions"] == {"contents": "read"}
    build, publish = found["jobs"]["build"], found["jobs"]["publish"]
    assert (publish["needs"], publish["environment"]) == ("build", "pypi")
    assert publish["permissions"] == {"id-token": "write"}
    assert "permissions" not in build, "what builds and runs code cannot publish"
    assert [step.get("run") for step in publish["steps"]] == [None, None], "what publishes runs nothing of ours"
    runs = [step["run"] for step in build["steps"] if "run" in step]
    assert runs == [".ci/wheel full", '.ci/released "$GITHUB_REF_NAME"']
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_each_change_tries_the_wheel() -> None:
    job = workflow("ci.yml")["jobs"]["wheel"]
    assert job["steps"][-1]["run"] == ".ci/wheel light"
    for one in (job, workflow("release.yml")["jobs"]["build"]):
        assert one["steps"][0]["with"]["fetch-depth"] == 0, "a shallow clone has no tags"
