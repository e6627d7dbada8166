"""Runs a script on a release alone: ``python -m conformance.engines.sglang.alone RELEASE SCRIPT``.

A script of the folder ``scripts/`` shows a finding with nothing but SGLang, so that it can be filed upstream. It
imports ``sglang`` as usual. Here the release is imported from the cache, with stubs for the packages that are not
installed. Where SGLang itself is installed, ``python SCRIPT`` does it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from conformance.engines.protocol import EngineError
from conformance.engines.sglang import download
from conformance.engines.sglang.release import load

SCRIPTS = Path(__file__).with_name("scripts")


def run(release: str, script: Path) -> None:
    """Runs the script on the release. What it raises goes to the caller."""
    load(download.release(release), release)
    runpy.run_path(str(script), run_name="__main__")


def main() -> int:
    """1 if the script shows its finding (an ``AssertionError``), 0 if the release keeps the law, 3 if it cannot run."""
    release, script = sys.argv[1], Path(sys.argv[2])
    try:
        run(release, script)
    except AssertionError as shown:
        print(f"{script.stem}: {shown}")
        return 1
    except EngineError as error:
        print(error, file=sys.stderr)
        return 3
    print(f"{script.stem}: nothing is wrong on {release}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
