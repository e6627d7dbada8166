"""Writes ``docs/cores.md``: which core of its tree each release takes in each situation.

To write it: ``python -m conformance.engines.sglang.releases.cores_page``.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping

from conformance.driver.cache_folder import checkout
from conformance.engines.sglang import RELEASES
from conformance.engines.sglang.releases import download
from conformance.engines.sglang.releases.release import load
from conformance.engines.sglang.releases.rust_core import SITUATIONS, routes

_ME = __spec__.name  # this module, also where it is run


def _table(found: Mapping[str, Mapping[str, str]]) -> str:
    """The routes of releases as a document."""
    releases = [release for release, cores in found.items() if cores]
    rows = ["default", *SITUATIONS]
    lines = [
        "# Which core SGLang takes",
        "",
        f"Generated from the releases by `python -m {_ME}`. A cell is the core that",
        "the release's own function names when the Rust core is asked for. `default` is the core that the release",
        f"takes where nothing is asked for. Releases before {releases[0]} have no Rust core. Those before 0.5.21 have",
        "no such function: they build the core that is asked for, or fail.",
        "",
        f"| situation | {' | '.join(releases)} |",
        f"|---|{'---|' * len(releases)}",
        *(f"| {row} | {' | '.join(found[release][row] for release in releases)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Without arguments: writes ``docs/cores.md``. With a release: prints its routes."""
    if len(sys.argv) > 1:
        print(repr(routes(load(download.release(sys.argv[1]), sys.argv[1]).imported)))
        return 0
    found = {}
    for release in RELEASES:
        done = subprocess.run(
            [sys.executable, "-m", _ME, release],
            capture_output=True,
            text=True,
            check=True,
        )
        found[release] = ast.literal_eval(done.stdout.splitlines()[-1])
    root = checkout()
    assert root is not None, "only a checkout has documents"
    (root / "docs" / "cores.md").write_text(_table(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
