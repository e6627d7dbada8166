"""Runs that broke a law in an earlier ``slotproof check``: they are kept in the cache folder and replayed first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from conformance.driver.cache_folder import cache_folder
from conformance.driver.options import Given
from conformance.driver.protocol import Json
from conformance.traces import trace_files

REPAIRED = "repaired-"  # in the names of runs that break a law with repairs alone


class Again:
    """The kept runs of one engine with these options: a run that failed with an option is replayed with it. In
    continuous integration (the variable ``CI`` is set) nothing is kept or read.
    """

    def __init__(self, engine: str, options: Given = (), *, kept: bool) -> None:
        name = ",".join([engine, *(f"{name}={value}" for name, value in options)])
        self.folder = cache_folder() / "failed" / name.replace(":", "-").replace("/", "-")
        self.on = kept and not os.environ.get("CI")

    def of(self, stem: str) -> list[tuple[str, Json]]:
        """Name and trace of each kept run of a stem. A file that is no trace is passed over."""
        found = []
        for path in self._files(stem):
            try:
                found.append((path.stem, trace_files.load(str(path)).trace.as_json()))
            except ValueError:
                continue
        return found

    def keep(self, findings: Sequence[Json], stems: Iterable[str]) -> None:
        """Keeps the runs of these findings, and forgets those of these stems that break no law any more. A run that
        needs repairs was not replayed with them where a stem has a finding without repairs; then it is kept.
        """
        if not self.on:
            return
        wanted = {self._path(one["trace"], row["repaired"]): one["trace"] for row in findings for one in _shapes(row)}
        as_they_are = {row["stem"] for row in findings if not row["repaired"]}
        for stem in stems:
            for path in self._files(stem):
                if path not in wanted and not (stem in as_they_are and REPAIRED in path.name):
                    path.unlink(missing_ok=True)
        for path, trace in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(trace), encoding="utf-8")

    def _files(self, stem: str) -> list[Path]:
        return sorted(self.folder.glob(f"{stem}-*.json")) if self.on else []

    def _path(self, trace: Json, repaired: Sequence[str]) -> Path:
        number = hashlib.sha256(json.dumps(trace, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{trace['stem']}-{REPAIRED if repaired else ''}{number}.json"


def _shapes(finding: Json) -> Iterator[Json]:
    """A finding, and the other shapes that are folded under it."""
    yield finding
    yield from finding["folded"]
