"""Runs scripts that show a finding with nothing but an engine's own code, so that it can be filed upstream.

A script imports the engine as usual. Here the release is imported from the cache, with stubs for the packages that are
not installed. Several scripts run in one process, one after the other, since the import of a release takes seconds.
Each prints one line: ``NAME: what goes wrong``, ``NAME: nothing is wrong on RELEASE``, or ``NAME: cannot run: why``.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.driver import no_verdict
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError

KEEPS, SHOWS, CANNOT_RUN = 0, 1, 3  # what a script tells of a release; the exit status is the largest of its scripts


def run(release: str, script: Path) -> tuple[int, str]:
    """What the script tells of the release that is loaded: KEEPS, SHOWS or CANNOT_RUN, and the line that it prints.

    A script shows its finding by an assertion of its own. An assertion of the release that the script does not expect
    says that the release has other calls than the script knows, as does any other error.
    """
    try:
        with no_verdict.watched():
            runpy.run_path(str(script), run_name="__main__")
    except Exception as error:
        if isinstance(error, AssertionError) and traceback.extract_tb(error.__traceback__)[-1].filename == str(script):
            return SHOWS, f"{script.stem}: {error}"
        return CANNOT_RUN, f"{script.stem}: cannot run: {type(error).__name__}: {first_line(message_of(error))}"
    return KEEPS, f"{script.stem}: nothing is wrong on {release}"


def main(load: Callable[[str], object], release: str, scripts: Sequence[str]) -> int:
    """1 if a script shows its finding, 0 if the release keeps the law, 3 if a script cannot run."""
    try:
        load(release)
    except EngineError as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    worst = KEEPS
    for script in scripts:
        status, line = run(release, Path(script))
        print(line)
        worst = max(worst, status)
    return worst
