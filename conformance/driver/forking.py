"""Asks a question in a forked process, so that nothing changes here, and nothing that dies there ends this process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from conformance.driver import watchdog
from conformance.driver.protocol import EngineError

SECONDS = 60  # after this time the engine hangs


def uses_cuda() -> bool:
    """This process has used CUDA: a forked one could not."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def forked(look: Callable[[], Any], seconds: int = SECONDS) -> Any:
    """The answer of ``look``, which is plain data, from a process of its own; ``None`` where the process ends without
    one, or has none after so many seconds. On CUDA from this process, since a forked one could not use it.
    """
    return look() if uses_cuda() else asked(look, seconds)[0]


def asked(look: Callable[[], Any], seconds: int = SECONDS) -> tuple[Any, str]:
    """The answer of a forked process; or ``None``, and how it ended. Raises ``EngineError`` for an exception."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(writable, look, seconds)
    os.close(writable)
    with watchdog.paused():  # the child ends itself after a time
        with open(readable, encoding="utf-8") as pipe:
            told = pipe.read()
        _, status = os.waitpid(child, 0)
    if not told:
        died = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
        return None, "it does not answer" if died == "SIGALRM" else f"the process died: {died}"
    kind, found = json.loads(told)
    if kind == "error":
        raise EngineError(found)
    return found, ""


def _answer(writable: int, look: Callable[[], Any], seconds: int) -> None:
    """Writes what was found as JSON, and ends the process."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        try:
            told = ["found", look()]
        except Exception as error:
            told = ["error", f"{type(error).__name__}: {error}"]
        with open(writable, "w", encoding="utf-8") as pipe:
            json.dump(told, pipe)
    finally:
        os._exit(0)
