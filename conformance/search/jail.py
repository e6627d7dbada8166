"""Keeps an engine that is being checked away from the network and from the user's home folder, where the system allows.

This is a fence, not a wall: the engine's code can still read and write every file that the user can.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of Linux
HOMES = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def isolate(scratch: Path) -> dict[str, str]:
    """Gives this process a home folder below ``scratch`` and takes the network away from it.

    Returns for ``network`` and ``home`` what was reached, in words for the user. Must run before the process has a
    second thread.
    """
    home = scratch / "home"
    home.mkdir(exist_ok=True)
    os.environ.update({name: str(home) for name in HOMES})
    return {"network": _without_network(), "home": "a scratch folder"}


def _without_network() -> str:
    """Moves this process to a network namespace that has no interface. Says "none", or why the network is open."""
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):
        return "open: this system has no network namespaces"
    for flags in (NEW_NET, NEW_USER | NEW_NET):  # root needs no user namespace
        if unshare(flags) == 0:
            return "none"
    return f"open: this system allows no network namespace ({os.strerror(ctypes.get_errno())})"
