"""Asks a question in a forked process, so that nothing changes here."""

from __future__ import annotations

import os
from collections.abc import Callable

from conformance.driver.protocol import EngineError


def forked(ask: Callable[[], int]) -> int:
    """The answer of a forked process, a number or a truth. ``EngineError`` where it gives none."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, b"%d" % int(ask()))
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb", buffering=0) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer:
        raise EngineError("a copy of the server did not answer")
    return int(answer)
