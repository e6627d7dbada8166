"""The console script ``slotproof``, and ``python -m slotproof``.

Little is imported before the process is watched, so that Ctrl-C is clean from the first moment on.
"""

from __future__ import annotations

import sys

from slotproof.console.watch import watched

QUICK = {"--help", "--version", "list"}  # words of a command line that loads nothing that can hang


def main() -> None:
    """Runs the command line and exits; ``slotproof.console.codes`` has the exit codes."""
    sys.exit(_run() if QUICK & set(sys.argv[1:]) else watched(_run))


def _run() -> int:
    from conformance.driver.collector import collect_rarely
    from slotproof import cli

    collect_rarely()
    return cli.run()


if __name__ == "__main__":
    main()
