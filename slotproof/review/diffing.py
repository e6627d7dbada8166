"""``slotproof diff``: what changed in the law between two revisions of the spec, judged by both solvers."""

from __future__ import annotations

import json as jsonlib
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import spec
from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from proofs.difference.compare import differences, is_one_text
from proofs.difference.loaded import Unreadable
from proofs.difference.row import CHANGES, Row
from slotproof.checks import emit
from slotproof.checks.revisions import commit_of, git, unpack
from slotproof.console import version
from slotproof.console.codes import HOLDS, UNKNOWN
from slotproof.console.output import write_json
from slotproof.console.screen import progress
from slotproof.review import diff_page, diff_text
from slotproof.spec_lint import complaints

SCHEMA = 1
TEXT, GITHUB, JSON = "text", "github", "json"  # the values of --format
SPEC, PROOFS = spec.__name__.rpartition(".")[2], differences.__module__.split(".")[-3]
HERE = "the files as they are now"


@dataclass(frozen=True)
class NamedRevision:
    """A revision of the spec: what the user named it, which it is, and the folder of its spec."""

    given: str
    why: str
    folder: Path

    def as_json(self) -> Json:
        """What a report says of it."""
        return {"given": self.given, "why": self.why}


def run(base: str, head: str | None, json: Path | None, form: str) -> int:
    """Compares two revisions and prints what changed. The exit code is 2 where the solvers leave something open."""
    with tempfile.TemporaryDirectory(prefix="slotproof-diff-") as scratch:
        old, new = revision_of(base, Path(scratch)), revision_of(head, Path(scratch))
        report = _report(old, new, _rows(old, new))
    write_json(json, report)
    if form == JSON:
        print(jsonlib.dumps(report, indent=1))
    elif form == GITHUB:
        _for_github(report)
    else:
        diff_text.show(report)
    return int(report["exit"])


def _for_github(report: Json) -> None:
    """The page goes to the summary of the step, and the text to the log; without a summary the page is printed."""
    summary = emit.summary_file()
    if summary is None:
        sys.stdout.write(diff_page.text(report))
        return
    emit.append(summary, diff_page.text(report))
    for line in diff_page.warnings(report):
        print(line, flush=True)
    with emit.muted(GITHUB):
        diff_text.show(report)


def revision_of(given: str | None, scratch: Path) -> NamedRevision:
    """The revision that the user names: a folder, or a git revision, which is unpacked below ``scratch``; ``None`` for
    the files of the checkout as they are now. Raises ``UsageError`` with a line that says why there is none.
    """
    if given is None:
        return NamedRevision("", HERE, _root() / SPEC)
    folder = Path(given)
    if folder.is_dir():
        found = next((one for one in (folder / SPEC, folder) if _is_spec(one)), None)
        if found is None:
            raise UsageError(f"{given}: this folder holds no spec")
        return NamedRevision(given, f"the folder {given}", found.resolve())
    root = _root()
    commit = commit_of(root, given)
    if commit is None:
        raise UsageError(f"{given}: no such folder, and no git revision of {root}")
    top, prefix = (git(root, "rev-parse", asked) or "" for asked in ("--show-toplevel", "--show-prefix"))
    known = (
        git(Path(top), "ls-tree", "-d", "--name-only", commit, f"{prefix}{SPEC}", f"{prefix}{PROOFS}") or ""
    ).splitlines()
    if f"{prefix}{SPEC}" not in known:
        raise UsageError(f"{given}: the git revision {commit[:12]} has no folder {prefix}{SPEC}")
    unpack(Path(top), commit, scratch / commit, *known)
    return NamedRevision(given, f"the git revision {given} ({commit[:12]})", scratch / commit / prefix / SPEC)


def _is_spec(folder: Path) -> bool:
    return (folder / "logic.py").is_file()


def _root() -> Path:
    """The folder that the spec of the user's checkout lies in. Raises ``UsageError`` where there is none."""
    here = Path.cwd()
    found = next((folder for folder in (here, *here.parents) if _is_spec(folder / SPEC)), checkout())
    if found is None:
        raise UsageError("the command needs a checkout of Slotproof, or two folders that hold a spec")
    return found


def _rows(old: NamedRevision, new: NamedRevision) -> list[Row]:
    """What changed. Both specs are linted before any of their text is executed."""
    for revision in () if is_one_text(old.folder, new.folder) else (old, new):
        found = [c for c in complaints([str(revision.folder)], revision.folder) if not c.changes]
        if found:
            where = Path(found[0].file).name
            first = f"{where}:{found[0].line}: {found[0].message}"
            raise UsageError(f"{revision.why} is not executed: the spec may hold pure functions alone; {first}")
    with progress() as bar:
        task = bar.add_task("differences of the law", total=None)
        try:
            return differences(
                old.folder, new.folder, lambda done, total: bar.update(task, completed=done, total=total)
            )
        except Unreadable as error:
            raise UsageError(f"a revision cannot be read: {error}") from error


def _report(old: NamedRevision, new: NamedRevision, rows: list[Row]) -> Json:
    counts = Counter(row.change for row in rows)
    open_ones = [row for row in rows if not row.decided]
    code, reason = HOLDS, "the solvers judged every change" if rows else "nothing changed"
    if open_ones:
        code, reason = UNKNOWN, f"of {len(open_ones)} of {len(rows)} changes something is not known"
    return {
        "schema": SCHEMA,
        "slotproof": version.of("slotproof"),
        "base": old.as_json(),
        "head": new.as_json(),
        "changes": [row.as_json() for row in rows],
        "counts": {change: counts[change] for change in CHANGES},
        "exit": code,
        "reason": reason,
    }
