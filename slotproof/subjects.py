"""Which engine is judged, and which base it is compared with."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.connection import Subject
from conformance.engines import registry
from conformance.engines.protocol import EngineError

DEFAULT = "default"  # --base without a value
MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")


@dataclass(frozen=True)
class Base:
    """What the subject is compared with. ``why``: which base was taken, in one line for the user."""

    subject: Subject
    why: str


def base_of(subject: Subject, given: str, scratch: Path) -> Base:
    """The base that the user names with ``given``: a folder, a git revision of the subject's checkout, or a release.

    For ``DEFAULT``: in a git checkout the merge base with its main branch, else the release that the source says it is.
    A git revision is unpacked below ``scratch``. Raises ``EngineError`` if there is no such base.
    """
    if given == DEFAULT:
        return _default(subject, scratch)
    folder = Path(given)
    if folder.is_dir():
        return Base(replace(subject, release=None, source=folder), f"the folder {given}")
    commit = subject.source and _commit(subject.source, given)
    if subject.source and commit:
        return _revision(subject, commit, f"the git revision {given} ({commit[:12]})", scratch)
    if (releases := registry.plugin(subject.engine).releases) or subject.release:
        return Base(replace(subject, release=given, source=None), f"{subject.engine} {given}")
    known = f"; releases: {', '.join(releases)}" if releases else ""
    raise EngineError(f"--base {given}: no such folder, and no git revision of {subject.source}{known}")


def _default(subject: Subject, scratch: Path) -> Base:
    if subject.source is None:
        raise EngineError("--base without a value needs --source: name a folder or a release")
    for branch in MAIN:
        main = _git(subject.source, "merge-base", "HEAD", branch)
        if main:
            at_head = ", which is HEAD: changes that are not committed are judged"
            same = at_head if main == _commit(subject.source, "HEAD") else ""
            return _revision(subject, main, f"{main[:12]}, the merge base with {branch}{same}", scratch)
    says = registry.release_of(subject.engine, subject.source)
    if says is None:
        what = "is no git checkout with a main branch, and does not say which release it is"
        raise EngineError(f"--base: {subject.source} {what}: name a folder, a git revision or a release")
    why = f"{subject.engine} {says}, the release that the source says it is"
    return Base(replace(subject, release=says, source=None), why)


def _revision(subject: Subject, commit: str, why: str, scratch: Path) -> Base:
    """The folder of the subject's source as it was at a commit."""
    assert subject.source is not None
    prefix = _git(subject.source, "rev-parse", "--show-prefix") or ""
    top = Path(_git(subject.source, "rev-parse", "--show-toplevel") or ".")
    name = hashlib.sha256(f"{top}{commit}".encode()).hexdigest()[:16]
    _unpack(top, commit, scratch / name)
    return Base(replace(subject, release=None, source=scratch / name / prefix), why)


def _unpack(top: Path, commit: str, target: Path) -> None:
    """Writes the files of a commit to ``target``, without touching the checkout or its list of work trees."""
    if target.is_dir():
        return
    with tempfile.TemporaryFile() as archive:
        command = ["git", "-C", str(top), "archive", "--format=tar", commit]
        done = subprocess.run(command, stdout=archive, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise EngineError(f"git archive {commit[:12]} failed: {_last(done.stderr)}")
        archive.seek(0)
        target.mkdir(parents=True)
        with tarfile.open(fileobj=archive) as packed:
            packed.extractall(target, filter="data")


def _commit(folder: Path, revision: str) -> str | None:
    """The full name of a commit of the checkout in which the folder lies, ``None`` if there is none."""
    return _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")


def _git(folder: Path, *words: str) -> str | None:
    """What git prints, ``None`` if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
