"""The text of an issue about a release that has appeared on the package index: its first line is the title."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from conformance.engines import registry

BUDGET = "120s"  # of the check whose output the issue shows
LINES = 60  # lines of its output that are shown
LONGEST = 20_000  # characters of it
TO_ADD = """\
1. Add `{release}` to `RELEASES` in `conformance/engines/{engine}/__init__.py`.
2. `slotproof check {engine} --release {release}` must load every stem; where a class is not found, add where it is now.
3. What it breaks and no known release does is a finding: shrink it, and keep its trace.
4. `make engines` judges all releases and writes `docs/findings.json` and the pages that are made from it.
"""


class CheckOutput(NamedTuple):
    """A command that was executed, what it has printed, and its exit code."""

    command: str
    printed: str
    code: int


def checked(engine: str, release: str) -> CheckOutput:
    """``slotproof check`` on the release. Its code is executed there as in any check."""
    words = ["check", engine, "--release", release, "--budget", BUDGET]
    done = subprocess.run(
        [sys.executable, "-m", "slotproof", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return CheckOutput(f"slotproof {' '.join(words)}", done.stdout, done.returncode)


def of_release(plugin: registry.Plugin, release: str, rows: Sequence[Json], check: CheckOutput) -> str:
    """Title, what loads of the release, what a check of it printed, and how it is added. ``rows``: for each stem of the
    engine whether it ``loads``, and ``why`` not.
    """
    loads = "\n".join(f"- {row['stem']}: {'loads' if row['loads'] else _code(row['why'])}" for row in rows)
    lines = check.printed.rstrip().splitlines()
    left = f"… {len(lines) - LINES} lines before these\n" if len(lines) > LINES else ""
    printed = printable(left + "\n".join(lines[-LINES:]), LONGEST)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", printed)), default=0))
    return f"""\
{plugin.name} {release} is on the package index

Slotproof judges releases of {plugin.name} up to {plugin.releases[-1]}. Of {release}:

{loads}

`{check.command}` ended with exit code {check.code} and printed:

{fence}text
{printed}
{fence}

To add the release:

{TO_ADD.format(engine=plugin.name, release=release)}"""


def _code(why: str) -> str:
    """A reason, which may hold text of the engine, as code in one line."""
    return f"does not load: `{' '.join(printable(why).replace('`', chr(39)).split())}`"
