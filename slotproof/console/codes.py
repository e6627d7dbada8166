"""The exit codes of every command."""

from __future__ import annotations

HOLDS = 0  # every law holds
BROKEN = 1  # a law is broken; for `docs --check`: a document is out of date
UNKNOWN = 2  # not inductive, or no solver knows
USAGE = 3  # a wrong word on the command line, or an engine or a trace that cannot be loaded
# No verdict: too little was done on a stem, or an edited part of the engine is not built; or the tool itself failed,
# which is a bug of Slotproof.
FAILED = 4
INTERRUPTED = 130  # Ctrl-C
SIGNALLED = 128  # 128 and the number of the signal: 143 for SIGTERM

EXPLAINED = (
    "Exit codes: 0 every law holds; 1 a law is broken; 2 something is not inductive or not known; 3 bad usage, or an "
    "engine or a trace cannot be loaded; 4 there is no verdict, since too little was done, since an edited part of the "
    "engine is not built, or since Slotproof itself failed, which says where its report is; 130 Ctrl-C."
)


class NotBuilt(Exception):
    """What was edited of an engine is not what would run, so there is no verdict. The message says what to build."""
