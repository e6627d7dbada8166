"""Asks a question in a forked process, so that nothing changes here."""

from __future__ import annotations

import os
from collections.abc import Callable

from conformance.driver.protocol import EngineError

ANSWERED = b"="  # before each answer, of which the text may be empty


def forked(ask: Callable[[], str]) -> str:
    """The answer of a forked process. ``EngineError`` where it gives none."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, ANSWERED + ask().encode())
        finally:
            os._exit(0)
    os.close(writable)
    with open(readable, "rb", buffering=0) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    if not answer.startswith(ANSWERED):
        raise EngineError("a copy of the server did not answer")
    return answer.removeprefix(ANSWERED).decode()
