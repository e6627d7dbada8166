"""An engine's source may have parts that must be built before they run. A check that would run without such a part says
nothing about it, so there is no verdict on a checkout where it was edited.
"""

from __future__ import annotations

import filecmp
import os
from pathlib import Path

from conformance.driver.protocol import Json
from conformance.search.connection import Subject
from slotproof.checks.revisions import git
from slotproof.checks.subjects import MAIN
from slotproof.console.codes import NotBuilt


def must_be_as_before(subject: Subject, hello: Json, base: Subject | None) -> None:
    """Raises ``NotBuilt`` if a part of the source that is not built differs from the base, or in a git checkout from
    its main branch. ``hello``: what was loaded (``Served``).
    """
    for folder in map(Path, hello.get("unbuilt", [])):
        assert subject.source is not None, "a release is built"
        if base is not None and base.source is not None:
            edited = _unlike(folder, base.source / os.path.relpath(folder, subject.source.resolve()))
        else:
            edited = _edited(folder)
        if edited:
            more = f" and {len(edited) - 1} more" if edited[1:] else ""
            raise NotBuilt(f"core not built: {folder} was edited ({edited[0]}{more}), and what would run is not built "
                           "from it, so there is no verdict: build it, or ask for another core")  # fmt: skip


def _edited(folder: Path) -> list[str]:
    """The files that differ from the merge base with the main branch, from the last commit where there is none."""
    bases = (git(folder, "merge-base", "HEAD", branch) for branch in MAIN)
    before = next(filter(None, bases), "HEAD")
    changed = git(folder, "diff", "--name-only", "--relative", before, "--", ".") or ""
    new = git(folder, "ls-files", "--others", "--exclude-standard", "--", ".") or ""
    return [*changed.splitlines(), *new.splitlines()]


def _unlike(folder: Path, before: Path) -> list[str]:
    """The files that one of two folders has and the other has not, or has otherwise."""
    names = {file.relative_to(top) for top in (folder, before) for file in top.rglob("*") if file.is_file()}
    kept = sorted(str(name) for name in names if "target" not in name.parts)
    _, wrong, missing = filecmp.cmpfiles(folder, before, kept, shallow=False)
    return sorted([*wrong, *missing])
