"""Asks a question in a forked process, so that nothing changes here."""

from __future__ import annotations

import os
from collections.abc import Callable

from conformance.driver.protocol import EngineError

YES, NO = b"1", b"0"


def forked(ask: Callable[[], bool]) -> bool:
    """The answer of a forked process. ``EngineError`` where it gives none."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, YES if ask() else NO)
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb", buffering=0) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if answer not in (YES, NO):
        raise EngineError("a copy of the server did not say whether it admits a request")
    return answer == YES
