"""What is said where Slotproof itself fails: a short report to file, and the whole traceback in a file."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import time
import traceback
from pathlib import Path

from conformance.driver.cache_folder import cache_folder, checkout
from slotproof.console.version import of

FOLDERS = ("spec", "proofs", "impl", "conformance", "slotproof")
TOOLS = ("torch", "triton", "z3-solver", "cvc5", "hypothesis", "typer", "rich")
FRAMES = 3


def told(error: BaseException, debug: bool) -> str:
    """The report, a few lines: what failed, the command, the versions, and where in our code.

    The traceback is written to a file in the cache folder, whose path is the last line. With ``debug``, or where no
    file can be written, the traceback is in the report itself.
    """
    lines = [
        f"slotproof: Slotproof itself failed, this is no verdict: {_first_line(error)}",
        f"  command:  {shlex.join(['slotproof', *sys.argv[1:]])}",
        f"  versions: {versions()}",
        *(f"  {'at: ' if number == 0 else '    '}      {frame}" for number, frame in enumerate(_own_frames(error))),
    ]
    trace = "".join(traceback.format_exception(error))
    kept = _kept("\n".join([*lines, "", trace]))
    lines.append(f"  traceback: {kept}; please file it with these lines" if kept else "  please file these lines")
    return "\n".join([*lines, *([trace] if debug or kept is None else [])])


def versions() -> str:
    """The versions on which a run depends, in one line."""
    found = [f"slotproof {of('slotproof')}", f"Python {platform.python_version()}"]
    return ", ".join([*found, *(f"{name} {of(name)}" for name in TOOLS), platform.platform()])


def _first_line(error: BaseException) -> str:
    message = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {message[:300]}"


def _own_frames(error: BaseException) -> list[str]:
    """The last places in our own code through which the error came, the innermost first."""
    home = checkout() or Path(__file__).resolve().parents[2]
    found = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(home) and path.relative_to(home).parts[0] in FOLDERS:
            found.append(f"{path.relative_to(home)}:{frame.lineno} in {frame.name}")
    return found[:FRAMES]


def _kept(text: str) -> Path | None:
    """The file to which the report was written; ``None`` if there is no place for it."""
    with contextlib.suppress(OSError):
        folder = cache_folder() / "failures"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
        return path
    return None
