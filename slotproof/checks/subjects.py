"""Which engine is judged, and which base it is compared with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.search.connection import Subject
from slotproof.checks.revisions import commit_of, git, unpack

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
    commit = subject.source and commit_of(subject.source, given)
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
        main = git(subject.source, "merge-base", "HEAD", branch)
        if main:
            at_head = ", which is HEAD: changes that are not committed are judged"
            same = at_head if main == commit_of(subject.source, "HEAD") else ""
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
    prefix = git(subject.source, "rev-parse", "--show-prefix") or ""
    top = Path(git(subject.source, "rev-parse", "--show-toplevel") or ".")
    name = hashlib.sha256(f"{top}{commit}".encode()).hexdigest()[:16]
    unpack(top, commit, scratch / name)
    return Base(replace(subject, release=None, source=scratch / name / prefix), why)
