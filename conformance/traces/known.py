"""Known differences of an engine's releases: the file ``known/RELEASE.json`` in an engine's folder.

It lists the kept traces that show a difference on this release. Each entry may have an ``exclude``: an exclusion of
``conformance.stems.exclusions``, by which drawn runs avoid this difference and can find others. The verdict stays a
violation, and its trace must still show it on each listed release.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from conformance.stems.exclusions import exclusions
from conformance.traces import trace_files


@dataclass(frozen=True)
class KnownDifference:
    """A difference that a release is known to have: the kept trace ``trace`` gives ``verdict`` on ``law``.

    ``exclude``: the exclusion by which drawn runs avoid it, empty where they never or very seldom send such a trace.
    """

    trace: str
    law: str
    verdict: str
    exclude: str

    @property
    def stem(self) -> str:
        """The stem of the trace."""
        return trace_files.load(self.trace).trace.stem


def of_release(folder: Path | None, release: str | None) -> list[KnownDifference]:
    """The known differences of an engine's release; empty where the release has no list. ``folder``: the engine's
    folder.
    """
    path = None if folder is None or release is None else folder / "known" / f"{release}.json"
    if path is None or not path.is_file():
        return []
    found = [KnownDifference(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    exclusions(k.exclude for k in found if k.exclude)
    return found
