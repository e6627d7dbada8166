"""The findings told step by step, each on the release that shows it worst: several releases at a time, each finding as
soon as it is ready. What was told before, and would be told alike now, is taken from the cache folder.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from conformance.driver.protocol import EngineError, Json
from conformance.search.stories import told_elsewhere
from slotproof.console.remembering import remembered
from slotproof.pages.finding_pages import KeptFinding

Release = tuple[str, str]  # an engine and its release
Told = tuple[KeptFinding, Json]  # a finding, and its row with a ``story``, or with ``missing``, why there is none
LACKING: Json = {"story": [], "missing": "", "step": None, "verdict": "", "law": None, "harm": None}


def by_release(findings: Sequence[KeptFinding]) -> dict[Release, list[KeptFinding]]:
    """The findings by the release that shows each worst, in the order of the findings."""
    found: dict[Release, list[KeptFinding]] = defaultdict(list)
    for finding in findings:
        found[finding.gravest["subject"], finding.gravest["release"]].append(finding)
    return found


def stories(findings: Sequence[KeptFinding]) -> Iterator[Told]:
    """Each finding with its row, as soon as it is ready; on each processor one release at a time."""
    releases = by_release(findings)
    left, ready = SimpleQueue[Release](), SimpleQueue[Told | BaseException | None]()
    for release in sorted(releases, key=lambda release: -len(releases[release])):
        left.put(release)

    def work() -> None:
        try:
            while not left.empty():
                release = left.get()
                of_release(release, releases[release], ready.put)
        except BaseException as error:
            ready.put(error)
        finally:
            ready.put(None)

    workers = min(os.cpu_count() or 1, len(releases))
    for _ in range(workers):
        threading.Thread(target=work, daemon=True).start()
    while workers:
        told = ready.get()
        if isinstance(told, BaseException):
            raise told
        if told is None:
            workers -= 1
        else:
            yield told


def of_release(release: Release, findings: Sequence[KeptFinding], ready: Callable[[Told], None]) -> None:
    """Hands on each finding of a release when it is told. A release that cannot be loaded, or that ends its process,
    leaves findings without a story: their rows say why.
    """
    wanted = [(finding.kept.name, finding.gravest) for finding in findings]
    handed = 0

    def hand_on(row: Json) -> None:
        nonlocal handed
        ready((findings[handed], {**LACKING, "engine": release[0], "release": release[1], **row}))
        handed += 1

    def make() -> list[Json]:
        rows = []
        try:
            for row in told_elsewhere(wanted, *release):
                hand_on(row)
                rows.append(row)
        except EngineError as error:
            missing = f"{' '.join(release)} could not be loaded here: {error}"
        except RuntimeError as error:
            missing = str(error)
        return rows + [{"missing": missing} for _ in wanted[len(rows) :]]

    def roots(rows: list[Json]) -> list[str] | None:
        return None if any("missing" in row for row in rows) else rows[0]["roots"]

    for row in remembered(f"report/findings-{'-'.join(release)}", [release, wanted], make, roots)[handed:]:
        hand_on(row)
