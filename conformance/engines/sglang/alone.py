"""Runs scripts on a release alone: ``python -m conformance.engines.sglang.alone RELEASE SCRIPT [SCRIPT ...]``.

A script of the folder ``scripts/`` shows a finding with nothing but SGLang, so that it can be filed upstream. It
imports ``sglang`` as usual. Here the release is imported from the cache, with stubs for the packages that are not
installed. Where SGLang itself is installed, ``python SCRIPT`` does it.

See ``conformance.engines.scripts_alone`` for what they print.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.engines import scripts_alone
from conformance.engines.scripts_alone import CANNOT_RUN, KEEPS, SHOWS, run
from conformance.engines.sglang.releases import download
from conformance.engines.sglang.releases.release import load

__all__ = ["CANNOT_RUN", "KEEPS", "SCRIPTS", "SHOWS", "main", "run"]
SCRIPTS = Path(__file__).with_name("scripts")


def main(release: str, scripts: Sequence[str]) -> int:
    """See ``scripts_alone.main``."""
    return scripts_alone.main(lambda name: load(download.release(name), name), release, scripts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
