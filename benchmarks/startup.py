"""How long ``--help`` of each command takes, from the start of Python to its end."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

from typer.main import get_command

from slotproof import cli

LIMIT_S = 0.5  # what a user may have to wait for a help text


@dataclass(frozen=True)
class Row:
    """The median time of a help text in seconds. ``command`` is empty for the help of all commands."""

    command: str
    seconds: float

    @property
    def late(self) -> bool:
        """It takes longer than a user may have to wait."""
        return self.seconds > LIMIT_S


def commands() -> list[str]:
    """No command, and then each command."""
    return ["", *get_command(cli.app).commands]  # type: ignore[attr-defined]


def measure(command: str, repetitions: int = 5) -> Row:
    """Shows the help in so many processes, one after the other; one more before them warms the disk's cache."""
    words = [sys.executable, "-m", "slotproof", *command.split(), "--help"]
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return Row(command, round(statistics.median(times[1:]), 3))
